"""How far a norm may be from the exact one, row by row.

The model admits what right code does: two passes; Welford's running mean, in one piece or in blocks that are
merged (Chan, Golub and LeVeque 1983: a relative error of the variance of n u kappa, kappa = sqrt(mean x^2 / variance));
x r - mean r in place of (x - mean) r; sqrt and division, or a reciprocal root. It does not admit the mean of the
squares less the square of the mean, whose error is kappa^2 u.

Written u for the unit of a sum, s for that of a stored step, g = g(n + 8) for n additions (`rounding.sum_error`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headcheck.functions.rounding import Units, stored, sum_error

MARGIN = 1.1
"""A result may overflow where it comes this close to the largest number of a format: it is off by roundings."""


class Affine(NamedTuple):
    """What multiplies the normalised row, and what is added to it."""

    weight: Tensor
    bias: Tensor
    stores: int
    """How often a factor or a product is stored before the output is: with an offset of the weight, with a bias."""


class Row:
    """The exact statistics of rows of x, and bounds of what a computed one may be off by.

    centred c = x - mean (x itself where the mean is not taken out), scale r = 1 / sqrt(mean c^2 + eps),
    normalised n = c r.
    """

    def __init__(self, x: Tensor, eps: float, unit: Units, *, centring: bool) -> None:
        self.x, self.eps, self.unit, self.centring = x, eps, unit, centring
        self.adding = sum_error(x.shape[-1] + 8, unit.sum)
        self.mean = x.mean(dim=-1, keepdim=True) if centring else torch.zeros_like(x[..., :1])
        self.centred = x - self.mean
        self.variance = _mean(self.centred.square())
        self.scale = (self.variance + eps).rsqrt()
        self.normalised = self.centred * self.scale
        self.raw = (x.abs() + self.mean.abs()) * self.scale if centring else self.normalised.abs()
        """The size of the terms of x r - mean r."""
        self.small = unit.step_underflow + unit.weighted_underflow
        self.mean_error = self._mean_error()
        self.centred_error = self._centred_error()
        self.relative = self._relative()
        self.error = self._error()

    def _mean_error(self) -> Tensor:
        """g mean|x| + 2 s |mean|: a sum, stored, divided, stored."""
        if not self.centring:
            return torch.zeros_like(self.mean)
        added = self.adding * _mean(self.x.abs()) + 2 * self.unit.step * self.mean.abs()
        return added + 2 * self.unit.step_underflow

    def _centred_error(self) -> Tensor:
        """The error of the mean, and 2 s (|x| + |mean|) for the difference in either form."""
        if not self.centring:
            return torch.zeros_like(self.x)
        sizes = self.x.abs() + self.mean.abs() + self.mean_error
        return self.mean_error + 2 * self.unit.step * sizes + self.unit.step_underflow

    def _variance_error(self) -> Tensor:
        """w (2 sigma + w) + dmean^2 + 2 s mean|c| dmean, then (g + 6 s) of the whole.

        w = 2.5 g sqrt(mean x^2) is what Welford's running means are off by, in quadratic mean: the k-th by
        k u mean|x_1..x_k|, and by Hardy's inequality the prefix means of |x| have at most twice its norm. Two
        passes lose dmean^2 only, since sum c = 0 takes out its first order.
        """
        spread = self.variance
        if self.centring:
            w = 2.5 * self.adding * _mean(self.x.square()).sqrt()
            rounded = 2 * self.unit.step * _mean(self.centred.abs()) * self.mean_error
            spread = spread + w * (2 * self.variance.sqrt() + w) + self.mean_error.square() + rounded
        whole = (self.adding + 6 * self.unit.step) * spread
        return spread - self.variance + whole + 2 * self.unit.step_underflow

    def _relative(self) -> Tensor:
        """sqrt((variance + eps) / (variance - dvariance + eps)) - 1, and 4 u + 3 s for the root; inf where it fails.

        A computed variance is never negative. A square, or the sum of all, may overflow in the format of the steps
        (`MARGIN`: roundings on the way there may enlarge it).
        """
        low = (self.variance - self._variance_error()).clamp(min=0.0) + self.eps
        low = low * (1 - 2 * self.unit.step) - self.unit.step_underflow
        relative = torch.sqrt((self.variance + self.eps) / low) - 1 + 4 * self.unit.sum + 3 * self.unit.step
        sums = torch.maximum(self.x.square() if not self.centring else self.centred.square(), self.x.abs())
        fails = (low <= 0) | (sums.sum(dim=-1, keepdim=True) * MARGIN > self.unit.step_largest)
        return torch.where(fails, torch.inf, relative)

    def _error(self) -> Tensor:
        """Of n = c r: r (dc (1 + rel) + |c| rel) + 2 s |n|; once more where n is stored before it meets the weight.

        What vanishes may do so in c, in n, or in the direction n / sqrt(dim), which is multiplied afterwards.
        """
        off = self.scale * (self.centred_error * (1 + self.relative) + self.centred.abs() * self.relative)
        off = off + 2 * self.unit.step * (self.normalised.abs() + off)
        off = off + self.unit.step_underflow * (1 + self.scale + self.x.shape[-1] ** 0.5)
        off = off + self.unit.weighted * (self.normalised.abs() + off) + self.unit.weighted_underflow
        return torch.where(off.isnan() | self.relative.isinf(), torch.inf, off)


def output_bound(row: Row, affine: Affine, exact: Tensor) -> Tensor:
    """Of y = n w + b: |w| dn, and |n w| stored `stores` times; where steps are stored, twice more, and b and y."""
    step, weight, size = row.unit.step, affine.weight.abs(), row.normalised.abs() + row.error
    product = weight * (row.error + (2 * step + affine.stores * row.unit.weighted) * size)
    error = product + step * (exact.abs() + 2 * affine.bias.abs() + product)
    return stored(exact, error + row.small * (2 + weight), row.unit)


def row_gradient_bounds(
    row: Row, affine: Affine, cotangent: Tensor, exact: dict[str, Tensor], parts: int = 1
) -> dict[str, Tensor]:
    """Of dweight = sum over rows of g n, dbias = sum over rows of g, and dx (see `_dx_error`).

    parts: so many partial sums are added up by autograd in the format of the output, where rows are cut into chunks.
    """
    unit, size = row.unit, row.normalised.abs() + row.error
    g, rows = cotangent.abs(), cotangent[..., 0].numel()
    adding = sum_error(rows + 8, max(unit.sum, unit.carried))
    adding += sum_error(parts, unit.output) if parts > 1 else 0.0
    product = g * (row.error + (unit.weighted + 3 * unit.step + adding) * size)
    errors = {
        "x": _dx_error(row, affine.weight, cotangent),
        "weight": _over_rows(product) + rows * row.small,
        "bias": _over_rows(g) * adding + rows * unit.step_underflow,
    }
    return {name: stored(gradient, errors[name], unit) for name, gradient in exact.items()}


def _dx_error(row: Row, weight: Tensor, cotangent: Tensor) -> Tensor:
    """Of dx = r (h - m1 - n m2), h = g w, m1 = mean h (0 where no mean is taken out), m2 = mean(h n).

    m1 and m2 are sums of n terms; m2 is also computed as r (sum h x - mean sum h), whose terms are as large as
    `raw`, and n m2 as its difference of that size. A dozen stored steps; r enters m2's term three times. Where x
    is made wide twice, its two gradients are rounded before they are added.
    """
    unit, n, dn = row.unit, row.normalised, row.error
    h = cotangent * weight
    of_h = 4 * unit.step + unit.weighted
    m1 = _mean(h) if row.centring else torch.zeros_like(h[..., :1])
    m2 = _mean(h * n)
    summing = row.adding + of_h
    e1 = summing * _mean(h.abs()) + (row.adding + 4 * unit.step) * _mean(n.abs()) * m2.abs()
    e1 = e1 + row.small if row.centring else torch.zeros_like(m1)
    e2 = _mean(h.abs() * (dn + summing * (n.abs() + dn) + row.adding * row.raw)) + row.small
    inner = (of_h + unit.weighted + 8 * unit.step) * (h.abs() + m1.abs() + (n * m2).abs()) + e1 + row.small
    inner = inner + (n.abs() + dn) * e2 + (dn + 4 * unit.sum * row.raw) * m2.abs()
    cubed = torch.expm1(3 * torch.log1p(row.relative))
    error = row.scale * ((1 + cubed) * inner + cubed * ((h - m1).abs() + (n * m2).abs()))
    small = unit.step_underflow * (row.centred.abs() * (2 + 2 * _mean((h * row.centred).abs())) + row.scale)
    parts = row.scale * (h.abs() + m1.abs() + (n * m2).abs())
    fails = _overflows(row, h) | (parts > unit.largest) | error.isnan()
    return torch.where(fails, torch.inf, error + small + 4 * row.small)


def _overflows(row: Row, h: Tensor) -> Tensor:
    """Where r^3 sum|h c|, of a derivative taken step by step, leaves the format of the steps."""
    product = (h * row.centred).abs().sum(dim=-1, keepdim=True).clamp(min=1.0)
    return row.scale**3 * product * MARGIN > row.unit.step_largest


def _mean(x: Tensor) -> Tensor:
    return x.mean(dim=-1, keepdim=True)


def _over_rows(x: Tensor) -> Tensor:
    return x.sum(dim=tuple(range(x.ndim - 1)))
