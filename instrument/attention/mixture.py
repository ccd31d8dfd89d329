"""The error of a weighted mean whose weights are off by exp(e_i), |e_i| <= E_i: sum w v / sum w - o.

As sum_i p_i (v_i - o) = 0, the error is sum_i p_i (exp(e_i) - 1) (v_i - o) / sum_i p_i exp(e_i): centred.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcheck.attention.exponents import Rows, raised

CENTRED_SUM_LIMIT = 4_000_000
"""Beyond so many terms v_ij - o_j the centred sum is bounded by Cauchy and Schwarz, in matrix products."""


VANISHED_SQUARE = 2.0**-500
"""A number so small that its square loses digits, or all, in float64."""


class Mixture(NamedTuple):
    """The error of sum w v / sum w, and the largest sum w |v| / sum w."""

    error: Float[Tensor, "batch heads q_len value_dim"]
    reach: Float[Tensor, "batch heads q_len value_dim"]
    spread: Float[Tensor, "batch heads q_len value_dim"] | None
    """Generic tier: sqrt(sum p^2 (v - o)^2)."""


class Share(NamedTuple):
    """A bound E on the exponents' errors, and what follows from it."""

    error: Float[Tensor, "batch heads q_len keys"]
    ratio: Float[Tensor, "batch heads q_len keys"]
    """p (e^E - 1) / sum p e^-E; inf in a row where that adds up to more than 1."""
    total: Float[Tensor, "batch heads q_len 1"]
    """sum p e^-E."""


def share_of(rows: Rows, error: Float[Tensor, "batch heads q_len keys"]) -> Share:
    """Where errors exceed the weights, v - o and 1 - p lose in float64 what they would be multiplied by."""
    total = (-error).exp_().mul_(rows.weights).sum(dim=-1, keepdim=True)
    ratio = raised(rows, error) / total
    ratio.masked_fill_(ratio.sum(dim=-1, keepdim=True) > 1, torch.inf)
    return Share(error, ratio, total)


def from_heaviest(rows: Rows) -> Float[Tensor, "batch heads q_len keys"]:
    """Softmax ignores a common shift, so errors may count from the heaviest key: E_i + E_top, 0 there."""
    heaviest = rows.weights.argmax(dim=-1, keepdim=True)
    gauged = (rows.error + rows.error.gather(-1, heaviest)).scatter(-1, heaviest, 0.0)
    return gauged if rows.may_attend is None else gauged.masked_fill(~rows.may_attend, 0.0)


def mixture_error(
    rows: Rows,
    shares: tuple[Share, Share],
    value: Float[Tensor, "batch heads keys value_dim"],
    output: Float[Tensor, "batch heads q_len value_dim"],
    lam: float | None,
) -> Mixture:
    """The least of: sum p H |v - o| / sum p e^-E; the same counted from the heaviest key; the hull of the
    values, as the weights stay a convex combination; with lam also sqrt(sum (p H)^2 (v - o)^2) / sum p e^-E.
    """
    if rows.weights.numel() * value.shape[-1] > CENTRED_SUM_LIMIT:
        return _mixture_of_norms(rows, shares, value, output, lam)
    plain, gauged = shares
    distance = (value[:, :, None] - output[..., None, :]).abs_()  # In place: it is the largest tensor of all.
    if rows.may_attend is not None:
        distance.mul_(rows.may_attend[..., None])
    hull = distance.amax(dim=-2)
    sums = torch.stack([plain.ratio, gauged.ratio], dim=-2) @ distance
    error = torch.fmin(torch.fmin(sums[..., 0, :], sums[..., 1, :]), hull)
    spread = None
    if lam is not None:
        parts = torch.stack([plain.ratio, rows.weights], dim=-2)
        lost = VANISHED_SQUARE * value.shape[-2] * (hull + parts.amax(dim=(-2, -1))[..., None])
        norms = (parts.square() @ distance.square_()).sqrt() + lost[..., None, :]
        error, spread = torch.fmin(error, norms[..., 0, :]), norms[..., 1, :]
    return Mixture(error, _reach(rows, shares, value, output, hull), spread)


def _mixture_of_norms(
    rows: Rows,
    shares: tuple[Share, Share],
    value: Float[Tensor, "batch heads keys value_dim"],
    output: Float[Tensor, "batch heads q_len value_dim"],
    lam: float | None,
) -> Mixture:
    """The same by sum p H |v - o| <= sqrt(sum p H^2) sqrt(sum p (v - o)^2), without a tensor of v - o."""
    deviation = _deviation(rows.weights, value, output)
    hull = error = _hull(rows, value, output)
    for share in shares:
        norm = raised(rows, share.error, power=2).sum(dim=-1, keepdim=True).sqrt()
        error = torch.fmin(error, norm / share.total * deviation)
    spread = None
    if lam is not None:
        error = torch.fmin(error, _deviation(shares[0].ratio.square(), value, output))
        spread = _deviation(rows.weights.square(), value, output)
    return Mixture(error, _reach(rows, shares, value, output, hull), spread)


def _deviation(
    parts: Float[Tensor, "batch heads q_len keys"],
    value: Float[Tensor, "batch heads keys value_dim"],
    output: Float[Tensor, "batch heads q_len value_dim"],
) -> Float[Tensor, "batch heads q_len value_dim"]:
    """sqrt(sum a (v - o)^2) as sum a v^2 - 2 o sum a v + o^2 sum a, plus what float64 may cancel."""
    square = parts @ value.square()
    rest = output.square() * parts.sum(dim=-1, keepdim=True)
    cancelled = (value.shape[-2] + 4) * 2.0**-52 * (square + rest)
    lost = VANISHED_SQUARE * value.shape[-2] * (1 + value.abs().amax(dim=-2, keepdim=True))
    return (square - 2 * output * (parts @ value) + rest).clamp(min=0.0).add(cancelled).sqrt() + lost


def _hull(
    rows: Rows,
    value: Float[Tensor, "batch heads keys value_dim"],
    output: Float[Tensor, "batch heads q_len value_dim"],
) -> Float[Tensor, "batch heads q_len value_dim"]:
    """max |v - o| over the keys that any query of the head may attend to."""
    low = high = value
    if rows.may_attend is not None:
        unseen = ~rows.may_attend.any(dim=-2)[..., None]
        low, high = value.masked_fill(unseen, torch.inf), value.masked_fill(unseen, -torch.inf)
    return torch.maximum(high.amax(dim=-2, keepdim=True) - output, output - low.amin(dim=-2, keepdim=True))


def _reach(
    rows: Rows,
    shares: tuple[Share, Share],
    value: Float[Tensor, "batch heads keys value_dim"],
    output: Float[Tensor, "batch heads q_len value_dim"],
    hull: Float[Tensor, "batch heads q_len value_dim"],
) -> Float[Tensor, "batch heads q_len value_dim"]:
    """sum w |v| / sum w <= sum p e^E |v| / sum p e^-E, and no more than the largest |v|."""
    reach, size = hull + output.abs(), value.abs()
    for share in shares:
        reach = torch.fmin(reach, (rows.weights / share.total + share.ratio) @ size)
    return reach
