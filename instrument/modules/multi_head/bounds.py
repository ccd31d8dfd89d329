"""What rounding explains: the first order of the worst case, from the weights and the inputs of a case.

Every sum of n terms errs by at most n u times the sum of their absolute values (Higham 2002, section 3.1). A score
that is off by at most d makes a weight off by a factor of at most exp(2 d). u is the unit in which the
module rounds inside, measured once (see `finding`).
"""

import math

from torch import Tensor

from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.reference.attention import group_heads
from headcheck.reference.multi_head import split_heads

SAFETY = 4.0
"""Two answers of one module may err in opposite directions, and an order of operations may round twice."""
FLIPS = 16.0
"""A worst-case error of a score, of some tens of terms, from which on one of about 1 is to be expected: a factor of e."""
OPERATIONS = 8
"""Roundings beside the sums: scale, mask, difference, exp, division, bias."""


def sizes(x: MultiHeadInputs) -> dict[str, Tensor]:
    """The absolute values that are added up in each projection, by heads."""
    given = {"q": x.query, "k": x.keys, "v": x.values}
    found = {}
    for letter, tensor in given.items():
        weight, bias = x.weights[f"w_{letter}"].abs(), x.weights.get(f"b_{letter}")
        total = tensor.double().abs() @ weight.mT + (0.0 if bias is None else bias.abs())
        heads = split_heads(total, x.heads if letter == "q" else x.kv_heads)
        found[letter] = heads if letter == "q" else group_heads(heads, x.heads)
    return found


def score_error(x: MultiHeadInputs, unit: float) -> float:
    """How far a score may be off."""
    size = sizes(x)
    scores = size["q"] @ size["k"].mT * x.head_dim**-0.5
    terms = 2 * (x.query.shape[-1] + 1) + x.head_dim + OPERATIONS
    return terms * unit * _largest(scores)


def weights_bound(x: MultiHeadInputs, unit: float) -> float:
    """How far any weight may be off."""
    terms = x.keys.shape[1] + x.heads + OPERATIONS
    return SAFETY * min(1.0, _expm1(2 * score_error(x, unit)) + terms * unit)


def output_bound(x: MultiHeadInputs, unit: float) -> float:
    """How far any element of the output may be off."""
    d_model, kv_len = x.query.shape[-1], x.keys.shape[1]
    value = _largest(sizes(x)["v"])
    relative = min(2.0, _expm1(2 * score_error(x, unit)) + (kv_len + OPERATIONS + d_model + 1) * unit)
    bias = x.weights.get("b_o")
    last = _largest(x.weights["w_o"].abs().sum(dim=1)) * value * (relative + (d_model + 1) * unit)
    return SAFETY * (last + unit * (0.0 if bias is None else _largest(bias)))


def gradient_bound(x: MultiHeadInputs, cotangent: Tensor, unit: float) -> float:
    """How far any element of a gradient may be off: largest values only, through the chain rule."""
    size = {name: _largest(each) for name, each in sizes(x).items()}
    batch, q_len, d_model = x.query.shape
    kv_len = x.keys.shape[1]
    tokens, heads = batch * max(q_len, kv_len), x.heads
    given = max(_largest(each) for each in (x.query, x.keys, x.values))
    widest = max(_largest(x.weights[name].abs().sum(dim=0)) for name in ("w_q", "w_k", "w_v", "w_o"))
    to_heads = _largest(cotangent) * _largest(x.weights["w_o"].abs().sum(dim=0))
    to_scores = 2 * x.head_dim * to_heads * size["v"] * math.sqrt(1 / x.head_dim)
    to_inside = max(
        max(q_len, kv_len) * heads * max(to_scores * max(size["q"], size["k"]), to_heads),
        _largest(cotangent),
    )
    largest = tokens * to_inside * max(given, widest, size["v"], 1.0)
    terms = tokens + 4 * d_model + kv_len + 4 * OPERATIONS
    errors: float = terms * unit + _expm1(2 * score_error(x, unit))
    return SAFETY * largest * errors


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _expm1(x: float) -> float:
    return math.expm1(min(x, 50.0))
