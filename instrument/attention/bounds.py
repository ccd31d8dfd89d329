"""How far the answer of a correct implementation may stand from the exact one, element by element.

The bounds follow from the inputs, their dtype and the declared arithmetic alone; nothing is chosen by hand.

Derivation. Let p be the exact weights and o = p V. An implementation computes

    o^_j = sum_i w_i (1 + n_ij) v_ij / sum_i w_i (1 + d_i),    w_i = p_i exp(e_i),  |e_i| <= E_i,

with E of `headcheck.attention.exponents`, n what meets the numerator only (sums, weights stored) and d what
meets the denominator only. As sum_i p_i (v_ij - o_j) = 0, the error of the mixture sum w v / sum w is
sum_i p_i (exp(e_i) - 1) (v_ij - o_j) / sum_i w_i: *centred*, so that a constant V, a common shift of the
scores and a one-hot softmax cost nothing. Masked keys enter nowhere.
"""

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from headcheck.arithmetic import Arithmetic, Rounding
from headcheck.attention.exponents import LAMBDA, Rows, exponent_errors, raised
from headcheck.attention.mixture import Share, from_heaviest, mixture_error, share_of
from headcheck.attention.problem import Problem


class SubjectBounds:
    """The bounds with an oracle that does not round, and the rows they are computed from; each when it is asked for."""

    def __init__(
        self, problem: Problem, arithmetic: Arithmetic, dtype: torch.dtype, lam: float | None
    ) -> None:
        self.problem = problem
        self.arithmetic = arithmetic
        self.rounding = arithmetic.rounding(dtype)
        self.lam = lam
        self.rows = exponent_errors(problem, arithmetic, self.rounding, lam)

    @cached_property
    def output(self) -> Float[Tensor, "batch heads q_len value_dim"]:
        """Of the output."""
        found = _output_bound(self.problem, self.rows, self._shares, self.rounding, self.lam)
        if self._common is not None:
            found = found + self._common * (self.problem.attended.output.abs() + found)
        return where_defined(self.rows, found)

    @cached_property
    def weights(self) -> Float[Tensor, "batch heads q_len kv_len"]:
        """Of the weights."""
        found = _weights_bound(self.rows, self._shares, self.rounding)
        if self._common is not None:
            found = found + self._common * (self.rows.weights + found)
        found = where_defined(self.rows, found)
        return found if self.problem.sinks is None else found[..., :-1]

    @cached_property
    def log_sum_exp(self) -> Float[Tensor, "batch heads q_len"]:
        """Of the log-sum-exp."""
        stored = _stored(self.rows.log_sum_exp.abs(), self.rounding)
        return where_defined(self.rows, log_sum_exp_error(self.rows, self.rounding) + stored)[..., 0]

    @cached_property
    def _shares(self) -> tuple[Share, Share]:
        return share_of(self.rows, self.rows.error), share_of(self.rows, from_heaviest(self.rows))

    @cached_property
    def _common(self) -> Float[Tensor, "batch heads q_len 1"] | None:
        """The factor, less 1, by which all weights of a row are off where they are exp(s - lse); None elsewhere."""
        if not self.arithmetic.log_sum_exps:
            return None
        stored = self.rounding.scores.unit * self.rows.log_sum_exp.abs()
        each = _log_sum_exp_rounding(self.rows, self.rounding) + stored
        return torch.expm1(self.arithmetic.log_sum_exps * each)


subject_bounds = lru_cache(maxsize=4)(SubjectBounds)
"""The same; the last few are kept, with the tensors of their problems, for who asks of gradients after an output."""


class ForwardBounds:
    """The largest |computed - exact| that the declared arithmetic explains. inf: anything may come out.

    parties: the subject, and the oracle where it rounds as well; nobody where nothing is computed.
    """

    def __init__(self, problem: Problem, parties: Sequence[SubjectBounds]) -> None:
        self.problem = problem
        self.parties = parties

    @cached_property
    def output(self) -> Float[Tensor, "batch heads q_len value_dim"]:
        """Of the output."""
        return sum((each.output for each in self.parties), torch.zeros_like(self.problem.attended.output))

    @cached_property
    def weights(self) -> Float[Tensor, "batch heads q_len kv_len"]:
        """Of the weights."""
        return sum((each.weights for each in self.parties), torch.zeros_like(self.problem.attended.weights))

    @cached_property
    def log_sum_exp(self) -> Float[Tensor, "batch heads q_len"]:
        """Of the log-sum-exp; without keys it is -inf or the sink, and nothing rounds."""
        none = torch.zeros_like(self.problem.attended.log_sum_exp)
        return sum((each.log_sum_exp for each in self.parties), none)


def tier(arithmetic: Arithmetic, generic: bool) -> float | None:
    """LAMBDA for the generic tier, None for the worst case; errors of one sign have a worst case only."""
    return LAMBDA if generic and arithmetic.has_generic_tier else None


def forward_bounds(
    problem: Problem, arithmetic: Arithmetic, dtype: torch.dtype, *, generic: bool = False
) -> ForwardBounds:
    """Bounds on output, weights and log-sum-exp of a subject whose inputs and output are of `dtype`.

    generic: the probabilistic tier, only for inputs drawn from continuous distributions; on ties and on
    other structure rounding errors do not average out, and correct code may exceed it.
    A subject in float64 is compared with an oracle that rounds as well: both bounds, added.
    """
    if 0 in problem.attended.output.shape or 0 in problem.attended.weights.shape:
        return ForwardBounds(problem, ())
    parties = [subject_bounds(problem, arithmetic, dtype, tier(arithmetic, generic))]
    if dtype == torch.float64:
        own = Arithmetic()
        same = arithmetic == own
        parties.append(parties[0] if same else subject_bounds(problem, own, dtype, tier(own, generic)))
    return ForwardBounds(problem, parties)


def log_sum_exp_error(rows: Rows, rounding: Rounding) -> Float[Tensor, "batch heads q_len 1"]:
    """log(sum p e^E) + g(K) + u_soft + 4 u_soft |lse - m| + 3 u (|m| + |lse|): m + log(sum), in either base.

    Not centred: an error common to all scores does move the log-sum-exp.
    """
    excess = torch.log1p(raised(rows, rows.error).sum(dim=-1, keepdim=True))
    return (
        torch.fmin(excess, rows.error.amax(dim=-1, keepdim=True))
        + rows.sums
        + _log_sum_exp_rounding(rows, rounding)
        + rows.chain * (rounding.accumulate.underflow + rounding.softmax.underflow)
    )


def _log_sum_exp_rounding(rows: Rows, rounding: Rounding) -> Float[Tensor, "batch heads q_len 1"]:
    """u_soft + 4 u_soft |lse - m| + 3 u (|m| + |lse|): what m + log(sum) rounds by, with the sum given."""
    shifted = (rows.log_sum_exp - rows.top).abs()
    size = rows.top.abs() + rows.log_sum_exp.abs()
    return rounding.softmax.unit * (1 + 4 * shifted) + 3 * rounding.accumulate.unit * size


def _output_bound(
    problem: Problem, rows: Rows, shares: tuple[Share, Share], rounding: Rounding, lam: float | None
) -> Float[Tensor, "batch heads q_len value_dim"]:
    """(mix + (1 + u_prob) [g(K) (A + |o|) + 2 u_soft |o| + u_prob (A + |o|) + e sum |v|]) e^d, then stored.

    A = sum w |v| / sum w; K is the longest chain of roundings of a sum over the keys.
    """
    output, value = problem.attended.output, problem.grouped_value
    if problem.sinks is not None:
        value = torch.nn.functional.pad(value, (0, 0, 0, 1))
    mixture = mixture_error(rows, shares, value, output, lam)
    size, seen = output.abs(), _sum_of_seen(rows, value.abs())
    reach = storing = mixture.reach
    if mixture.spread is not None and lam is not None:
        reach = torch.minimum(reach, size + lam * mixture.spread)
        storing = torch.minimum(reach, lam * mixture.spread)
    vanished = rounding.softmax.underflow + 2 * rounding.probabilities.underflow + rounding.lost_by_merges
    before = (
        rows.sums * (reach + size)
        + 2 * rounding.softmax.unit * size
        + (rounding.probabilities.unit + rounding.inputs.unit) * (storing + size)
        + vanished * seen
    )
    if rounding.shares_of_merges:
        before = before + rounding.shares_of_merges * _farthest(rows.scores) * (reach + size)
    before = (mixture.error + (1 + rounding.probabilities.unit) * before) * _denominator(rows, rounding)
    before = before + (rows.chain + 2) * rounding.accumulate.underflow + rounding.inputs.underflow
    bound = before + _stored(size + before, rounding)
    overflows = seen >= min(rounding.accumulate.largest, rounding.inputs.largest) / 2
    return torch.where(overflows | (size + bound > rounding.output.largest), torch.inf, bound)


def _farthest(scores: Tensor) -> Tensor:
    """How far from zero a log-sum-exp of some of a row's keys may stand, by which parts are merged."""
    return torch.where(scores.isfinite(), scores.abs(), 0.0).amax(dim=-1, keepdim=True) + math.log(
        scores.shape[-1]
    )


def _weights_bound(
    rows: Rows, shares: tuple[Share, Share], rounding: Rounding
) -> Float[Tensor, "batch heads q_len keys"]:
    """The same for V = I, where o_j = p_j: sum_i p_i H_i |v_ij - p_j| = p_j (sum p H + H_j (1 - 2 p_j)).

    The hull is the distance of p_j to the farther end of [0, 1].
    """
    weights = rows.weights
    mix, reach = torch.maximum(weights, 1 - weights), torch.ones_like(weights)
    for share in shares:
        others = (share.ratio.sum(dim=-1, keepdim=True) - share.ratio).clamp(min=0.0)
        mix = torch.fmin(mix, share.ratio * (1 - weights) + weights * others)
        reach = torch.fmin(reach, weights / share.total + share.ratio)
    before = (rows.sums + rounding.probabilities.unit) * (reach + weights)
    before = before + 2 * rounding.softmax.unit * weights
    before = (mix + (1 + rounding.probabilities.unit) * before) * _denominator(rows, rounding)
    before = before + rounding.softmax.underflow + rounding.probabilities.underflow
    bound = before + _stored(weights + before, rounding)
    return bound if rows.may_attend is None else bound.masked_fill(~rows.may_attend, 0.0)


def _sum_of_seen(
    rows: Rows, size: Float[Tensor, "batch heads keys value_dim"]
) -> Float[Tensor, "batch heads #q_len value_dim"]:
    """sum |v| over the keys that each query may attend to."""
    if rows.may_attend is None:
        return size.sum(dim=-2, keepdim=True)
    return rows.may_attend.to(size.dtype) @ size


def _denominator(rows: Rows, rounding: Rounding) -> Float[Tensor, "batch heads q_len 1"]:
    """The sum of the weights, g(K) off and rounded twice, divides everything before it."""
    return torch.exp(rows.sums + 2 * rounding.softmax.unit)


def _stored(size: Tensor, rounding: Rounding) -> Tensor:
    """The division and the rounding of a result of that size to the format of the output."""
    soft, out = rounding.softmax.unit, rounding.output.unit
    return (2 * soft + out + 4 * soft * out) * size + rounding.output.underflow


def where_defined(rows: Rows, bound: Float[Tensor, "batch heads q_len dim"]) -> Tensor:
    """0 for a row that may attend to nothing: what it gives is a convention, not a matter of rounding.

    But where its scores overflow, a mask of -inf that is added to them gives NaN.
    """
    if rows.may_attend is not None:
        bound = torch.where(rows.may_attend.any(dim=-1, keepdim=True), bound, 0.0)
    if rows.overflows is not None:
        bound = torch.where(rows.overflows, torch.inf, bound)
    return nan_to_inf(bound)


def nan_to_inf(bound: Tensor) -> Tensor:
    """An unbounded factor on a zero: the bound says nothing there."""
    return bound.nan_to_num(nan=torch.inf, posinf=torch.inf)
