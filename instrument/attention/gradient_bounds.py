"""How far the gradients of a correct implementation may stand from the exact ones, element by element.

The weights are kept by autograd or computed again as exp(s - lse): the errors E of the exponents and that of
the log-sum-exp then count in full, since exp(s - lse) is not divided by its own sum. The steps are
those of `headcheck.reference.attention.attention_gradients` (Dao et al. 2022, appendix B.2).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcheck.arithmetic import Arithmetic, Rounding
from headcheck.attention.bounds import (
    log_sum_exp_error,
    nan_to_inf,
    subject_bounds,
    tier,
    where_defined,
)
from headcheck.attention.exponents import Rows, growth, raised
from headcheck.attention.problem import Problem


class GradientBounds(NamedTuple):
    """The largest error by rounding of each number of the gradient of sum(output x cotangent)."""

    query: Float[Tensor, "batch heads q_len head_dim"]
    key: Float[Tensor, "batch kv_heads kv_len head_dim"]
    value: Float[Tensor, "batch kv_heads kv_len value_dim"]
    bias: Float[Tensor, "batch heads q_len kv_len"]
    sinks: Float[Tensor, " heads"] | None

    def of(self, *names: str, times: float = 1.0) -> dict[str, Tensor]:
        """Of these inputs, or of query, key and value, times a factor."""
        of_inputs = self._asdict()
        return {name: times * of_inputs[name] for name in names or ("query", "key", "value")}


def of_the_mask(mask: Tensor, exact: Tensor, bound: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The gradient of a mask and its bound, from those of its elements: summed along the axes that were broadcast.

    Each term is off by its own bound; a sum of n of them rounds up to n times more.
    """
    terms = exact.numel() / max(1, mask.numel())
    rounding = terms * torch.finfo(dtype).eps * exact.abs().sum_to_size(mask.shape) * (terms > 1)
    return exact.sum_to_size(mask.shape), bound.sum_to_size(mask.shape) + rounding


def gradient_bounds(
    problem: Problem,
    cotangent: Float[Tensor, "batch heads q_len value_dim"],
    arithmetic: Arithmetic,
    dtype: torch.dtype,
    *,
    generic: bool = False,
    parts: int = 1,
) -> GradientBounds:
    """Bounds on the gradients, for weights kept by autograd or computed again from the log-sum-exp.

    parts: so many partial sums of a gradient are added up in the format of the output, each rounded before
    and after, as autograd does where a function cuts its inputs.
    `bias` is elementwise: a bias that was broadcast sums its share, and the errors of that sum come on top.
    """
    if 0 in problem.attended.output.shape or 0 in problem.attended.weights.shape:
        exact = problem.gradients(cotangent)
        return GradientBounds._make(None if each is None else torch.zeros_like(each) for each in exact)
    lam = tier(arithmetic, generic)
    bounds = _subject_gradient_bounds(problem, cotangent, arithmetic, dtype, lam, parts)
    if dtype != torch.float64:
        return bounds
    own, oracle = bounds, Arithmetic()
    if arithmetic != oracle:
        own = _subject_gradient_bounds(problem, cotangent, oracle, dtype, tier(oracle, generic))
    both = zip(bounds, own, strict=True)
    return GradientBounds._make(None if a is None or b is None else a + b for a, b in both)


class _Pair(NamedTuple):
    """An exact intermediate result of the backward pass, and how far a computed one may be off."""

    exact: Tensor
    error: Tensor


def _subject_gradient_bounds(
    problem: Problem,
    cotangent: Tensor,
    arithmetic: Arithmetic,
    dtype: torch.dtype,
    lam: float | None,
    parts: int = 1,
) -> GradientBounds:
    """dQ = scale dS K; dK = scale dS^T Q; dV = P^T dO: each is off by its left factor and by its sum."""
    rounding = arithmetic.rounding(dtype)
    forward = subject_bounds(problem, arithmetic, dtype, lam)
    rows = forward.rows
    weights = _Pair(rows.weights, _weights_error(rows, rounding))
    d_weights = _d_weights(problem, cotangent, rows, rounding, lam)
    mean_error = torch.maximum(
        _mean_error_from_output(problem, cotangent, forward.output, rounding, lam),
        _mean_error_from_weights(rows, weights, d_weights, rounding, lam),
    )
    d_scores = _d_scores(rows, weights, d_weights, mean_error, rounding, has_sink=problem.sinks is not None)
    d_bias = _stored(d_scores, rounding)[..., : problem.key.shape[2]]
    if parts > 1:
        d_bias = d_bias + _added_up(problem, weights, d_weights, growth(parts, rounding.output.unit, lam))
    d_sinks = None
    if problem.sinks is not None:
        d_sinks = _sinks_bound(weights, d_weights, d_scores, rounding, lam)
        weights, d_scores = (_Pair(exact[..., :-1], error[..., :-1]) for exact, error in (weights, d_scores))
    d_query, d_key = _of_query_and_key(problem, rows, d_scores, rounding, lam, parts)
    over_queries = _over_queries(problem, rounding, lam, parts)
    d_value = _product(_Pair(weights.exact.mT, weights.error.mT), cotangent, over_queries, rounding)
    vanished = (parts - 1) * rounding.output.underflow
    return GradientBounds(
        query=d_query + vanished,
        key=d_key + vanished,
        value=_group_bound(d_value, problem.key.shape[1], rounding, lam) + vanished,
        bias=d_bias,
        sinks=d_sinks,
    )


def _added_up(problem: Problem, weights: _Pair, d_weights: _Pair, relative: float) -> Tensor:
    """What is rounded where P dP and P D, each by itself, are added to the gradient of a bias that is read in parts."""
    size = d_weights.exact.abs()
    mean = (weights.exact * size).sum(dim=-1, keepdim=True)
    added: Tensor = relative * (weights.exact + weights.error) * (size + mean)
    return added[..., : problem.key.shape[2]]


def log_sum_exp_gradient_bounds(
    problem: Problem,
    cotangent: Float[Tensor, "batch heads q_len"],
    arithmetic: Arithmetic,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Of the gradient of sum(log-sum-exp x cotangent), by query, key and sinks: dS = P dL."""
    given = {"query": problem.query, "key": problem.key, "sinks": problem.sinks}
    bounds = {name: torch.zeros_like(each) for name, each in given.items() if each is not None}
    if 0 in problem.attended.weights.shape:
        return bounds
    for model in (arithmetic, Arithmetic()) if dtype == torch.float64 else (arithmetic,):
        rounding = model.rounding(dtype)
        rows = subject_bounds(problem, model, dtype, None).rows
        exact = rows.weights * cotangent[..., None]
        error = _weights_error(rows, rounding) * cotangent.abs()[..., None]
        error = error + (3 * rounding.softmax.unit + 2 * rounding.probabilities.unit) * exact.abs()
        error = error + _error_through_the_maximum(rows, error)
        keys = slice(problem.key.shape[2])
        d_scores = _Pair(exact[..., keys], error[..., keys])
        found = list(_of_query_and_key(problem, rows, d_scores, rounding, None))
        if problem.sinks is not None:
            found.append(_over_rows(_Pair(exact[..., -1], error[..., -1]), rounding, None))
        bounds = {name: each + more for (name, each), more in zip(bounds.items(), found, strict=True)}
    return bounds


def _of_query_and_key(
    problem: Problem, rows: Rows, d_scores: _Pair, rounding: Rounding, lam: float | None, parts: int = 1
) -> tuple[Tensor, Tensor]:
    """dQ = scale dS K; dK = scale dS^T Q, summed over the query heads that share a key head."""
    left = _before_product(problem, rows, d_scores, rounding)
    over_keys = growth(rows.chain + 3, rounding.accumulate.unit, lam) + _operands(rounding, lam, parts)
    d_query = _product(left, problem.grouped_key, over_keys, rounding)
    across = _Pair(left.exact.mT, left.error.mT)
    d_key = _product(across, problem.query, _over_queries(problem, rounding, lam, parts), rounding)
    return _stored(d_query, rounding), _group_bound(d_key, problem.key.shape[1], rounding, lam)


def _operands(rounding: Rounding, lam: float | None, parts: int) -> float:
    """What each operand of the last products is rounded by, relative to itself."""
    operand = 2 * rounding.inputs.unit + max(0.0, rounding.scaled.unit - rounding.accumulate.unit)
    return operand + (growth(parts, rounding.output.unit, lam) if parts > 1 else 0.0)


def _over_queries(problem: Problem, rounding: Rounding, lam: float | None, parts: int) -> float:
    """g(group x q_len + 4): the sums over the queries that read a key."""
    queries = problem.heads // problem.key.shape[1] * problem.query.shape[2]
    return growth(queries + 4, rounding.accumulate.unit, lam) + _operands(rounding, lam, parts)


def _weights_error(rows: Rows, rounding: Rounding) -> Float[Tensor, "batch heads q_len keys"]:
    """p (exp(E + E_lse) - 1) + 2 u_soft p, then stored; exp may be stored before it is divided, as by torch's softmax
    over another axis than the last.
    """
    soft, stored = rounding.softmax, rounding.probabilities
    log_sum_exp = where_defined(rows, log_sum_exp_error(rows, rounding))
    error = raised(rows, rows.error + log_sum_exp) + 2 * soft.unit * rows.weights
    vanished = soft.underflow + 2 * stored.underflow + rounding.lost_by_merges
    error = _seen(rows, error + stored.unit * (rows.weights + error) + vanished)
    return error if rows.overflows is None else torch.where(rows.overflows, torch.inf, error)


def _d_weights(
    problem: Problem, cotangent: Tensor, rows: Rows, rounding: Rounding, lam: float | None
) -> _Pair:
    """dP = dO V^T: g(dim + 1) |dO| |V|^T, stored like the weights; three operations of the softmax follow."""
    value = problem.grouped_value
    if problem.sinks is not None:
        value = torch.nn.functional.pad(value, (0, 0, 0, 1))
    exact, size = cotangent @ value.mT, cotangent.abs() @ value.abs().mT
    stored = rounding.probabilities
    error = _over_dim(problem, rounding, lam) * size + (stored.unit + 3 * rounding.softmax.unit) * exact.abs()
    error = error + value.shape[-1] * rounding.accumulate.underflow + stored.underflow
    error = torch.where(size >= min(rounding.accumulate.largest, stored.largest) / 2, torch.inf, error)
    return _Pair(exact, _seen(rows, error))


def _mean_error_from_output(
    problem: Problem, cotangent: Tensor, output_bound: Tensor, rounding: Rounding, lam: float | None
) -> Float[Tensor, "batch heads q_len 1"]:
    """Of D = sum dO x O, with the output as it was rounded."""
    output = problem.attended.output.abs()
    error = output_bound + _over_dim(problem, rounding, lam) * output
    return (cotangent.abs() * error + rounding.accumulate.underflow).sum(dim=-1, keepdim=True)


def _mean_error_from_weights(
    rows: Rows, weights: _Pair, d_weights: _Pair, rounding: Rounding, lam: float | None
) -> Float[Tensor, "batch heads q_len 1"]:
    """Of D = sum P x dP."""
    size = d_weights.exact.abs()
    sums = growth(rows.chain + 1, rounding.accumulate.unit, lam) + 3 * rounding.softmax.unit
    error = weights.error * (size + d_weights.error) + weights.exact * (d_weights.error + sums * size)
    return error.sum(dim=-1, keepdim=True)


def _d_scores(
    rows: Rows,
    weights: _Pair,
    d_weights: _Pair,
    mean_error: Float[Tensor, "batch heads q_len 1"],
    rounding: Rounding,
    *,
    has_sink: bool,
) -> _Pair:
    """dS = P (dP - D): each factor's error times the other, three operations of the softmax, two stores.

    Where parts of the keys are merged, autograd takes the mean of a part off before it comes to D: no larger than the
    largest dP. That mean is put back through the log-sum-exp of the part, by weights exp(s - lse) that are off by what
    either is rounded by, where sums are kept. Whether a subject merges parts is not known: each is allowed it. The
    error of a weight may be huge: what float64 loses in dP - D must not vanish under it.
    """
    soft, stored = rounding.softmax, rounding.probabilities
    mean = (weights.exact * d_weights.exact).sum(dim=-1, keepdim=True)
    exact = weights.exact * (d_weights.exact - mean)
    cancelled = 2.0**-48 * (d_weights.exact.abs() + mean.abs())
    of_a_part = _seen(rows, d_weights.exact.abs()).amax(dim=-1, keepdim=True)
    factor = d_weights.error + mean_error + 3 * soft.unit * torch.maximum(mean.abs(), of_a_part)
    # A score so low that its weight is nothing, as of a fill, does not come back at all.
    low = torch.where(rows.weights > 0, rows.scores.abs(), 0.0)
    at_most = torch.maximum(rows.top.abs(), low) + rows.log_sum_exp.abs()
    factor = factor + 3 * rounding.accumulate.unit * at_most * of_a_part
    if has_sink:
        # It may join at the end: then a mean over the keys alone cancels against what the sink takes of it.
        of_keys = rows.weights[..., :-1].sum(dim=-1, keepdim=True)
        alone = torch.where(of_keys > 0, mean.abs() / of_keys, 0.0)
        factor = factor + (3 * soft.unit + rounding.exp) * alone
    error = (
        weights.error * ((d_weights.exact - mean).abs() + cancelled)
        + (weights.exact + weights.error) * factor
    )
    error = error + (3 * soft.unit + 2 * stored.unit) * (exact.abs() + error) + stored.underflow
    # exp of a log_softmax may vanish as it meets dP, and not as it meets D.
    error = error + (soft.underflow + stored.underflow + rounding.lost_by_merges) * mean.abs()
    error = _seen(rows, error)
    return _Pair(exact, error + _error_through_the_maximum(rows, error))


def _error_through_the_maximum(
    rows: Rows, error: Float[Tensor, "batch heads q_len keys"]
) -> Float[Tensor, "batch heads q_len keys"]:
    """exp(s - max s), left to autograd, hands -sum dS back to the largest score: 0, but for all their errors.

    Which score was the largest is known up to the errors of the exponents.
    """
    lowest_top = (rows.scores - rows.error).amax(dim=-1, keepdim=True)
    return torch.where(rows.scores + rows.error >= lowest_top, error.sum(dim=-1, keepdim=True), 0.0)


def _seen(rows: Rows, error: Tensor) -> Tensor:
    """A key that the query may not attend to has weight 0, exactly."""
    return error if rows.may_attend is None else error.masked_fill(~rows.may_attend, 0.0)


def _over_dim(problem: Problem, rounding: Rounding, lam: float | None) -> float:
    """g(dim + 1): the sum over the dimension of the values."""
    return growth(problem.value.shape[-1] + 1, rounding.accumulate.unit, lam) + 2 * rounding.inputs.unit


def _before_product(problem: Problem, rows: Rows, d_scores: _Pair, rounding: Rounding) -> _Pair:
    """scale dS, through the softcap if there is one; it may underflow before or after the scale."""
    exact, error = d_scores
    if problem.softcap is not None:
        exact, error = _through_softcap(problem, problem.softcap, rows, d_scores, rounding)
    tiny = rounding.probabilities.underflow * (1 + abs(problem.scale))
    return _Pair(problem.scale * exact, abs(problem.scale) * error + tiny * (d_scores.error > 0))


def _through_softcap(
    problem: Problem, softcap: float, rows: Rows, d_scores: _Pair, rounding: Rounding
) -> _Pair:
    """dS (1 - t^2) with t = tanh(s / c), of which the error was bounded on the way forward."""
    assert rows.cap_error is not None
    capped = torch.tanh(problem.product * problem.scale / softcap)
    capped_error = rows.cap_error / abs(softcap)
    slope = 1 - capped.square()
    slope_error = 2 * capped.abs() * capped_error + capped_error.square() + 3 * rounding.accumulate.unit
    exact = d_scores.exact * slope
    error = slope * d_scores.error + slope_error * (d_scores.exact.abs() + d_scores.error)
    return _Pair(exact, error + 3 * rounding.scores.unit * (exact.abs() + error))


def _product(left: _Pair, right: Tensor, sums: Tensor | float, rounding: Rounding) -> _Pair:
    """L R: e |R| + g(count) (|L| + e) |R|."""
    error = left.error + sums * (left.exact.abs() + left.error)
    return _Pair(left.exact @ right, error @ right.abs() + right.shape[-2] * rounding.accumulate.underflow)


def _stored(result: _Pair, rounding: Rounding) -> Tensor:
    """Two stores in the format of the output, before and after the scale; inf beyond its largest number."""
    size = result.exact.abs()
    bound = result.error + 2 * rounding.output.unit * (size + result.error) + 2 * rounding.output.underflow
    return nan_to_inf(torch.where(size + bound > rounding.output.largest, torch.inf, bound))


def _group_bound(result: _Pair, kv_heads: int, rounding: Rounding, lam: float | None) -> Tensor:
    """The sum over the query heads that share a key head: each may be stored first, and so may each partial sum, as in
    torch's CPU kernel, which adds head after head to the gradient that it returns.
    """
    bound = _stored(result, rounding)
    group = bound.shape[1] // kv_heads
    if group == 1:
        return bound
    exact, error, size = (
        x.reshape(x.shape[0], kv_heads, group, *x.shape[2:]).sum(dim=2)
        for x in (result.exact, bound, result.exact.abs() + bound)
    )
    if rounding.output.unit > rounding.accumulate.unit:
        error = error + growth(group - 1, rounding.output.unit, lam) * size
    return _stored(_Pair(exact, error), rounding)


def _sinks_bound(
    weights: _Pair, d_weights: _Pair, d_scores: _Pair, rounding: Rounding, lam: float | None
) -> Float[Tensor, " heads"]:
    """dsink = -sum p_sink D over batch and queries. p_sink may be 1 - sigmoid(lse - sink), which rounds like 1."""
    exact, error = (x[..., -1] for x in d_scores)
    error = error + 2 * rounding.softmax.unit * (weights.exact * d_weights.exact.abs()).sum(dim=-1)
    return _over_rows(_Pair(exact, error), rounding, lam)


def _over_rows(of_sinks: _Pair, rounding: Rounding, lam: float | None) -> Float[Tensor, " heads"]:
    """The sum over batch and queries, stored."""
    exact, error = of_sinks
    count = exact.shape[0] * exact.shape[2]
    error = error + growth(count + 4, rounding.accumulate.unit, lam) * (exact.abs() + error)
    error = error + rounding.accumulate.underflow
    return _stored(_Pair(exact.sum(dim=(0, 2)), error.sum(dim=(0, 2))), rounding)
