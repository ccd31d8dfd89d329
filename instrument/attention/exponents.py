"""The error of each exponent: how far an implementation's score may stand from the exact one.

Softmax turns the score s_i into a weight p_i = exp(s_i) / sum_k exp(s_k). All that multiplies weight i in
numerator and denominator alike is gathered into one bound E_i: the computed weights are p_i exp(e_i), up to
a common factor, with |e_i| <= E_i. Nothing here assumes that E_i is small.

Notation: u is the unit roundoff of a step, S_i = |scale| |q|.|k_i|, m = max_i s_i, R the rescales of an
online softmax. Higham 2002, "Accuracy and Stability of Numerical Algorithms", chapters 2 and 3.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headcheck.arithmetic import FORMATS, Arithmetic, Rounding
from headcheck.attention.problem import Problem

LAMBDA = 4.0
"""Generic tier: c errors of size u add up to at most LAMBDA sqrt(c) u. By Hoeffding's inequality an element
fails with a probability below 2 exp(-LAMBDA^2 / 2) even if each error were +u or -u; errors are spread over
[-u, u], which makes 4 as rare as 6.9 standard deviations (docs/calibration.md has the measured margin)."""

Term = tuple[float | Tensor, float, float | Tensor]
"""A source of error: how many roundings, of which unit, relative to which magnitude."""


class Rows(NamedTuple):
    """Every row of the softmax, exactly, and the error E of its exponents. A sink is one more key."""

    scores: Float[Tensor, "batch heads q_len keys"]
    weights: Float[Tensor, "batch heads q_len keys"]
    top: Float[Tensor, "batch heads q_len 1"]
    log_sum_exp: Float[Tensor, "batch heads q_len 1"]
    may_attend: Bool[Tensor, "batch heads q_len keys"] | None
    """None: every query attends to every key."""
    chain: Float[Tensor, "#batch #heads #q_len 1"]
    """K: roundings that one term of a sum over the keys can meet."""
    sums: Float[Tensor, "#batch #heads #q_len 1"]
    """g(K): the relative error that they come to."""
    error: Float[Tensor, "batch heads q_len keys"]
    cap_error: Float[Tensor, "batch heads q_len kv_len"] | None
    """With a softcap c: the error of c tanh(s / c) alone."""
    overflows: Bool[Tensor, "batch heads q_len 1"] | None
    """Rows with a score that the declared formats cannot hold: anything may come out. None: no such row."""


@overload
def growth(count: float, unit: float, lam: float | None) -> float: ...
@overload
def growth(count: Tensor, unit: float, lam: float | None) -> Tensor: ...


def growth(count: float | Tensor, unit: float, lam: float | None) -> float | Tensor:
    """|prod (1 + d_k)^(+-1) - 1| <= c u exp(2 c u) for c roundings |d_k| <= u.

    With lam, and errors that average out: lam sqrt(c) + c u in place of c (Higham & Mary 2019, theorem 2.4).
    """
    if isinstance(count, Tensor):
        if lam is not None:
            count = torch.minimum(count, lam * count.sqrt() + count * unit)
        total = count * unit
        return total * torch.exp(2 * total)
    if lam is not None:
        count = min(count, lam * math.sqrt(count) + count * unit)
    return count * unit * math.exp(min(2 * count * unit, 700.0))


def raised(
    rows: Rows, error: Float[Tensor, "batch heads q_len keys"], power: int = 1
) -> Float[Tensor, "batch heads q_len keys"]:
    """p (exp(E) - 1)^power, never less, for E of any size: beyond 1 as exp(log p + power E)."""
    small = error.clamp(max=1.0).expm1_().pow_(power).mul_(rows.weights)
    if not error.numel() or float(error.amax()) <= 1.0:
        return small
    return torch.where(error > 1.0, torch.exp(rows.scores - rows.log_sum_exp + power * error), small)


def exponent_errors(problem: Problem, arithmetic: Arithmetic, rounding: Rounding, lam: float | None) -> Rows:
    """E, in the order in which a score is made: product and scale, softcap, bias, shift, exp, rescales."""
    error = _product_error(problem, rounding, lam)
    cap_error = None
    if problem.softcap is not None:
        error = cap_error = _softcap_error(problem, problem.softcap, rounding, error, lam)
    scores, weights, log_sum_exp, may_attend = _with_sinks(problem)
    if problem.sinks is not None:
        error = torch.cat([error, torch.zeros_like(scores[..., :1])], dim=-1)
    top = scores.amax(dim=-1, keepdim=True)
    if may_attend is None:
        keys = torch.full((1,), scores.shape[-1], dtype=torch.float64)
    else:
        keys = may_attend.sum(dim=-1, keepdim=True, dtype=torch.float64)
    rescales = _rescales(keys, scores.shape[-1], arithmetic)
    terms: list[Term] = [
        *_bias_terms(problem, rounding, scores),
        (2, rounding.accumulate.unit, scores.abs()),
        (2, rounding.accumulate.unit, top.abs()),
        *([(1, rounding.scores.unit, scores.abs())] if _stores_scores(rounding) else []),
        (3, rounding.softmax.unit, _shift(problem, scores, top) + arithmetic.lag),
        (1, rounding.exp, 1.0),
        (rescales, rounding.rescale_factor, 1.0),
    ]
    error = _total(terms, lam, carried=error)
    chain = _chain(keys, arithmetic) + rescales + 1
    if may_attend is not None:
        error = error.masked_fill(~may_attend, 0.0)
    return Rows(
        scores=scores,
        weights=weights,
        top=top,
        log_sum_exp=log_sum_exp,
        may_attend=may_attend,
        chain=chain,
        sums=growth(chain, rounding.accumulate.unit, lam),
        error=error,
        cap_error=cap_error,
        overflows=_overflows(problem, rounding, top),
    )


def _total(terms: Sequence[Term], lam: float | None, carried: Tensor) -> Tensor:
    """sum c u x; with lam the smaller of that and lam sqrt(sum c (u x)^2). `carried` counts as it is."""
    worst = carried.clone()
    for count, unit, size in terms:
        worst += growth(count, unit, None) * size
    if lam is None:
        return worst
    square = carried**2
    for count, unit, size in terms:
        square += (growth(count, unit, lam) * size) ** 2
    return torch.minimum(worst, square.sqrt_())


def _product_error(
    problem: Problem, rounding: Rounding, lam: float | None
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Of scale q.k: g(d + 6) S for the dot product in any order, fused or not, scaled before, after or by its
    root on both sides; 2 u S where q and k are rounded first; |s| for each store (product, scale, cap).
    """
    magnitude = problem.magnitude * abs(problem.scale)
    terms: list[Term] = [(problem.query.shape[-1] + 6, rounding.accumulate.unit, magnitude)]
    if rounding.inputs.unit:
        terms.append((2, rounding.inputs.unit, magnitude))
    if rounding.scaled.unit > rounding.accumulate.unit:
        terms.append((2, rounding.scaled.unit, magnitude))
    if _stores_scores(rounding):
        stores = 2 if problem.softcap is None else 3
        terms.append((stores, rounding.scores.unit, (problem.product * problem.scale).abs()))
    return _total(terms, lam, carried=_product_underflow(problem, rounding))


def _stores_scores(rounding: Rounding) -> bool:
    """Whether storing a score loses more than computing it; if not, the 6 of d + 6 covers the stores."""
    return rounding.scores.unit > rounding.accumulate.unit


def _product_underflow(problem: Problem, rounding: Rounding) -> Float[Tensor, "batch heads q_len kv_len"]:
    """An operand, a product or a score that vanishes: e (|q| + |k|) summed over the dimension, and e each."""
    tiny = max(rounding.accumulate.underflow, rounding.scaled.underflow, rounding.inputs.underflow)
    each = (problem.query.shape[-1] + 6) * tiny + 3 * rounding.scores.underflow
    norms = problem.query.abs().sum(-1)[..., None] + problem.grouped_key.abs().sum(-1)[..., None, :]
    return max(1.0, abs(problem.scale)) * (tiny * norms + each)


def _softcap_error(
    problem: Problem,
    softcap: float,
    rounding: Rounding,
    error: Float[Tensor, "batch heads q_len kv_len"],
    lam: float | None,
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Of c tanh(s / c), which is monotone: the error of s moves it at most as far as both ends show."""
    score = problem.product * problem.scale
    argument = error + (2 * rounding.accumulate.unit + rounding.inputs.unit) * score.abs()
    capped = softcap * torch.tanh(score / softcap)
    above = softcap * torch.tanh((score + argument) / softcap) - capped
    below = capped - softcap * torch.tanh((score - argument) / softcap)
    return _total(
        [
            (1, rounding.tanh, capped.abs()),
            (3, rounding.accumulate.unit, capped.abs()),
            (2, rounding.scores.unit, capped.abs()),
            (1, rounding.inputs.unit, capped.abs()),
        ],
        lam,
        carried=torch.maximum(above.abs(), below.abs()),
    )


def _bias_terms(
    problem: Problem, rounding: Rounding, scores: Float[Tensor, "batch heads q_len keys"]
) -> list[Term]:
    """2 u |b|: a bias that is itself computed (ALiBi) or taken to base 2; once more where it is stored.

    4 u times the lift for ALiBi of the key alone: its product, to base 2, its sum with the score, and their maximum.
    What of it 16 bits would round away is not excused.
    """
    terms: list[Term] = []
    if problem.lifted is not None:
        terms.append((4, min(rounding.accumulate.unit, FORMATS["float32"].unit_roundoff), problem.lifted))
    if problem.bias is not None:
        size = problem.bias.abs()
        if problem.sinks is not None:
            size = torch.nn.functional.pad(size.expand(*size.shape[:-1], scores.shape[-1] - 1), (0, 1))
        terms += [
            (2, rounding.accumulate.unit, size),
            (1, rounding.scores.unit, size),
            (1, rounding.inputs.unit, size),
        ]
    if problem.sinks is not None and rounding.inputs.unit:
        terms.append((1, rounding.inputs.unit, problem.sinks.abs()[:, None, None]))
    return terms


def _with_sinks(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Scores, weights, log-sum-exp and mask of each row; a sink is a last key that every query attends to."""
    attended = problem.attended
    scores, weights, may_attend = attended.scores, attended.weights, problem.may_attend
    log_sum_exp = attended.log_sum_exp[..., None]
    if may_attend is not None:
        may_attend = may_attend.expand(scores.shape)
    if problem.sinks is None:
        return scores, weights, log_sum_exp, may_attend
    sink = problem.sinks[:, None, None].expand(*scores.shape[:-1], 1)
    if may_attend is not None:
        may_attend = torch.nn.functional.pad(may_attend, (0, 1), value=True)
    scores = torch.cat([scores, sink], dim=-1)
    return scores, torch.cat([weights, torch.exp(sink - log_sum_exp)], dim=-1), log_sum_exp, may_attend


def _shift(
    problem: Problem,
    scores: Float[Tensor, "batch heads q_len keys"],
    top: Float[Tensor, "batch heads q_len 1"],
) -> Float[Tensor, "batch heads q_len keys"]:
    """m - s_i, the size of what is handed to exp. In an online softmax the parts add up to no more.

    A sink that joins at the end meets the maximum of the scores without it, so it may stand above.
    """
    shift = top - scores
    if problem.sinks is None or scores.shape[-1] == 1:
        return shift
    sink = scores[..., -1:]
    rest = scores[..., :-1].amax(dim=-1, keepdim=True)
    above = torch.where(rest.isneginf(), 0.0, (sink - rest).abs())
    return torch.cat([shift[..., :-1], above], dim=-1)


def _rescales(keys: Tensor, kv_len: int, arithmetic: Arithmetic) -> Tensor:
    """R: one for each block that holds an unmasked key; masked keys may spread n keys over n blocks."""
    return keys.clamp(max=math.ceil(kv_len / arithmetic.block))


def _chain(keys: Tensor, arithmetic: Arithmetic) -> Tensor:
    """The longest chain of additions in a sum of n terms."""
    if arithmetic.fan == 1:
        return keys
    return torch.minimum(keys, torch.ceil(keys / arithmetic.fan) + arithmetic.fan)


def _overflows(
    problem: Problem, rounding: Rounding, top: Float[Tensor, "batch heads q_len 1"]
) -> Bool[Tensor, "batch heads q_len 1"] | None:
    """Rows in which some q.k, scaled or not, or its sum with a positive bias leaves the scores' formats.

    A large negative bias may turn a score into -inf, which is harmless unless it does so to the whole row.
    """
    largest = min(step.largest for step in (rounding.scaled, rounding.accumulate, rounding.scores))
    magnitude = problem.magnitude
    if not magnitude.numel():
        return None
    operands = (problem.query, problem.seen_key)
    if rounding.inputs.unit and any(float(x.abs().amax()) > rounding.inputs.largest for x in operands):
        return torch.ones_like(top, dtype=torch.bool)
    slack = 1 + growth(problem.query.shape[-1] + 6, rounding.accumulate.unit + rounding.scores.unit, None)
    reach = max(1.0, abs(problem.scale)) * slack
    low = high = 0.0
    if problem.bias is not None and problem.bias.numel():
        low, high = (float(end) for end in torch.aminmax(problem.bias))
    if float(magnitude.amax()) * reach + max(high, -low) < largest:
        return None
    size = magnitude * reach
    if problem.bias is not None:
        size = size + problem.bias.clamp(min=0.0)
    vanished = top <= -largest * (1 + rounding.scores.unit / 2)
    return (size >= largest).any(dim=-1, keepdim=True) | (vanished & ~top.isneginf())
