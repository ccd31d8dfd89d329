"""A second oracle: attention from its definition, number by number, in mpmath with 60 digits.

It shares no code and no formula shape with `headcheck.reference`: no tensor operations, no maximum taken out
(mpmath does not overflow), masks as predicates of the positions (i, j), the gradient from the derivative of a
weighted mean, d(o_j)/d(s_k) = p_k (v_kj - o_j), and not from dS = P (dP - rowsum(P dP)). For tiny sizes only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import torch
from mpmath import mp, mpf
from torch import Tensor

DIGITS = 60
OWN_ERROR = mpf(10) ** (10 - DIGITS)
"""What a distance must exceed, relative to the exact number: the oracle itself rounds to 60 digits."""

Predicate = Callable[[int, int], bool]
"""Whether the query at row i may attend to the key at column j."""
Exact = Any
"""mpf numbers in nested lists, shaped as the tensor they stand for."""


@dataclass(frozen=True)
class Question:
    """One attention call. keep and bias are None, or full tensors (batch, heads, q_len, kv_len)."""

    query: Tensor
    key: Tensor
    value: Tensor
    cotangent: Tensor
    scale: float | None = None
    predicates: tuple[Predicate, ...] = ()
    keep: Tensor | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True)
class Answer:
    """Output, weights and log-sum-exp, and the gradient of sum(output x cotangent)."""

    output: Exact
    weights: Exact
    log_sum_exp: Exact
    d_query: Exact
    d_key: Exact
    d_value: Exact
    d_bias: Exact
    d_sinks: Exact


def answer(question: Question) -> Answer:
    """The exact answer, row by row: every (batch, head, query) is a problem of its own."""
    with mp.workdps(DIGITS):
        batch, heads, q_len, head_dim = question.query.shape
        kv_heads, kv_len, value_dim = question.key.shape[1], question.key.shape[2], question.value.shape[3]
        out = Answer(
            output=_zeros(batch, heads, q_len, value_dim),
            weights=_zeros(batch, heads, q_len, kv_len),
            log_sum_exp=_zeros(batch, heads, q_len),
            d_query=_zeros(batch, heads, q_len, head_dim),
            d_key=_zeros(batch, kv_heads, kv_len, head_dim),
            d_value=_zeros(batch, kv_heads, kv_len, value_dim),
            d_bias=_zeros(batch, heads, q_len, kv_len),
            d_sinks=_zeros(heads),
        )
        for b in range(batch):
            for h in range(heads):
                for i in range(q_len):
                    _one_row(question, out, b, h, i)
        return out


def _one_row(question: Question, out: Answer, b: int, h: int, i: int) -> None:
    group = question.query.shape[1] // question.key.shape[1]
    head = next(g for g in range(question.key.shape[1]) if g * group <= h < (g + 1) * group)
    query, keys, values = (
        _exactly(question.query[b, h, i]),
        _exactly(question.key[b, head]),
        _exactly(question.value[b, head]),
    )
    cotangent, dims = _exactly(question.cotangent[b, h, i]), range(question.value.shape[3])
    scale = _scale(question)
    seen = [j for j in range(len(keys)) if _may_attend(question, b, h, i, j)]
    dots = {j: mpmath.fdot(query, keys[j]) * scale for j in seen}
    powers = {j: mpmath.exp(_capped(question, dots[j]) + _bias(question, b, h, i, j)) for j in seen}
    sink = mpf(0) if question.sinks is None else mpmath.exp(mpf(float(question.sinks[h])))
    total = mpmath.fsum(powers.values()) + sink
    out.log_sum_exp[b][h][i] = mpmath.log(total) if total else -mpmath.inf
    if not total:
        return
    share = {j: powers[j] / total for j in seen}
    row = [mpmath.fsum(share[j] * values[j][c] for j in seen) for c in dims]
    out.output[b][h][i] = row
    # A weighted mean moves by p_k (v_k - o) when the score of k rises, and by -p_sink o when the sink does.
    out.d_sinks[h] -= sink / total * mpmath.fsum(cotangent[c] * row[c] for c in dims)
    for j in seen:
        out.weights[b][h][i][j] = share[j]
        rise = mpmath.fsum(cotangent[c] * share[j] * (values[j][c] - row[c]) for c in dims)
        out.d_bias[b][h][i][j] = rise
        if question.softcap is not None:
            rise /= mpmath.cosh(dots[j] / mpf(question.softcap)) ** 2
        for t in range(len(query)):
            out.d_query[b][h][i][t] += rise * scale * keys[j][t]
            out.d_key[b][head][j][t] += rise * scale * query[t]
        for c in dims:
            out.d_value[b][head][j][c] += share[j] * cotangent[c]


def _scale(question: Question) -> mpf:
    """The exact value of the float64 that the canonical call stands for."""
    head_dim = question.query.shape[-1]
    return mpf(head_dim**-0.5) if question.scale is None else mpf(question.scale)


def _may_attend(question: Question, b: int, h: int, i: int, j: int) -> bool:
    kept = question.keep is None or bool(question.keep[b, h, i, j])
    return kept and all(predicate(i, j) for predicate in question.predicates)


def _bias(question: Question, b: int, h: int, i: int, j: int) -> mpf:
    return mpf(0) if question.bias is None else mpf(float(question.bias[b, h, i, j]))


def _capped(question: Question, score: mpf) -> mpf:
    if question.softcap is None:
        return score
    cap = mpf(question.softcap)
    up, down = mpmath.exp(score / cap), mpmath.exp(-score / cap)
    return cap * (up - down) / (up + down)


# The masks, each as the sentence that defines it.


def causal(offset: int = 0) -> Predicate:
    """Nothing after the query's own position, which is row i plus the offset."""
    return lambda i, j: not j > i + offset


def window(left: int | None, right: int | None, offset: int = 0) -> Predicate:
    """At most `left` keys back and `right` keys ahead."""

    def near(i: int, j: int) -> bool:
        back = (i + offset) - j
        return (left is None or back <= left) and (right is None or -back <= right)

    return near


def prefix(length: int, offset: int = 0) -> Predicate:
    """The first `length` keys for all, and no other key of the future."""
    return lambda i, j: j in range(length) or j in range(i + offset + 1)


def alibi_slopes(heads: int) -> list[mpf]:
    """The slopes as the authors' code gives them: by recursion on the power of two below."""
    with mp.workdps(DIGITS):
        if heads & (heads - 1) == 0:
            ratio = mpf(2) ** (-mpf(8) / heads)
            return [ratio ** (k + 1) for k in range(heads)]
        below = 1
        while below * 2 < heads:
            below *= 2
        return alibi_slopes(below) + alibi_slopes(2 * below)[0::2][: heads - below]


# From tensors and back.


def _exactly(x: Tensor) -> Any:
    """The same numbers as mpf: every float64 is one."""
    plain = x.double().tolist()
    return [mpf(each) if isinstance(each, float) else [mpf(n) for n in each] for each in plain]


def _zeros(*shape: int) -> Any:
    return [_zeros(*shape[1:]) for _ in range(shape[0])] if len(shape) > 1 else [mpf(0)] * shape[0]


def distance(observed: Tensor, exact: Exact) -> Tensor:
    """|observed - exact|, subtracted with 60 digits; inf where only one of them is finite."""
    with mp.workdps(DIGITS):
        numbers = list(flat(exact))
        floats = observed.double().reshape(-1).tolist()
        assert len(floats) == len(numbers), f"{tuple(observed.shape)} has not {len(numbers)} numbers"
        apart = [_apart(mpf(one), other) for one, other in zip(floats, numbers, strict=True)]
        return torch.tensor(apart, dtype=torch.float64).reshape(observed.shape)


def _apart(one: mpf, other: mpf) -> float:
    if not (mpmath.isfinite(one) and mpmath.isfinite(other)):
        return 0.0 if one == other else float("inf")
    apart = abs(one - other)
    return float(apart) if apart > OWN_ERROR * abs(other) else 0.0


def flat(exact: Exact) -> Sequence[mpf]:
    return [number for part in exact for number in flat(part)] if isinstance(exact, list) else [exact]
