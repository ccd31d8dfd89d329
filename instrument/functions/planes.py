"""Rotary positions turn dims in pairs: which dims make a pair, and what rounding does to one that is turned."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from headcheck.functions.rounding import Units
from headcheck.reference.positions import Pairing


class Pairs(NamedTuple):
    """A tensor by its pairs: the first and the second number of each, and the dims that are not turned."""

    first: Tensor
    second: Tensor
    rest: Tensor

    @classmethod
    def of(cls, x: Tensor, rotary_dim: int, pairing: Pairing) -> "Pairs":
        """The pairs of the last axis: (0, 1), (2, 3), ... or (0, rotary_dim / 2), (1, rotary_dim / 2 + 1), ..."""
        turned = x[..., :rotary_dim]
        if pairing == "interleaved":
            return cls(turned[..., ::2], turned[..., 1::2], x[..., rotary_dim:])
        first, second = turned.tensor_split(2, dim=-1)
        return cls(first, second, x[..., rotary_dim:])

    def joined(self, pairing: Pairing) -> Tensor:
        """The tensor again."""
        axis = -1 if pairing == "interleaved" else -2
        turned = torch.stack((self.first, self.second), dim=axis).flatten(-2)
        return torch.cat((turned, self.rest), dim=-1)


def angle_error(angles: Tensor, frequencies: Tensor, unit: float) -> Tensor:
    """How far an angle position x frequency, in a format of that unit roundoff, may be from the exact one.

    The product is rounded once. A frequency other than 1 is exp(-L) or base^(-e), L = |ln frequency|: four
    roundings for the function and a division, and four of the exponent, each of which counts L times.
    """
    of_frequency = torch.where(frequencies == 1, 0.0, 4 + 4 * frequencies.log().abs())
    return angles.abs() * (1 + of_frequency) * unit


def measured_angles(
    cos: Tensor, sin: Tensor, cos_off: Tensor, sin_off: Tensor, angles: Tensor
) -> tuple[Tensor, Tensor]:
    """Where the vectors (cos, sin) point, next to `angles` by whole turns, and how far off that may be.

    A vector of length 1 that is off by t across and r along its direction is off by at most atan(t / (1 - r)).
    """
    away = torch.remainder(torch.atan2(sin, cos) - angles + math.pi, 2 * math.pi) - math.pi
    along_cos, along_sin = angles.cos().abs(), angles.sin().abs()
    across = cos_off * along_sin + sin_off * along_cos
    along = cos_off * along_cos + sin_off * along_sin
    limit = torch.where(along < 1, torch.atan(across / (1 - along)), torch.inf)
    return angles + away, limit + 4 * torch.finfo(torch.float64).eps * (angles.abs() + math.pi)


def turning_error(size: Pairs, angles: Tensor, error: Tensor, angle_unit: float, unit: Units) -> Pairs:
    """How far each number of a turned pair may be off before it is stored.

    size: the absolute values before the turn. error: of the angles. cos and sin have 4 roundings in the format
    of the angles (2 ulp: CUDA's; libm has less), and are stored; each product is stored, and their sum once.
    """
    cos, sin = angles.cos().abs(), angles.sin().abs()
    cos_off, sin_off = (
        factor_error(value, slope, error, 4 * angle_unit, unit) for value, slope in ((cos, sin), (sin, cos))
    )

    def one(by_cos: Tensor, by_sin: Tensor) -> Tensor:
        largest = by_cos * (cos + cos_off) + by_sin * (sin + sin_off)
        return by_cos * cos_off + by_sin * sin_off + 2 * unit.step * largest + 2 * unit.step_underflow

    return Pairs(one(size.first, size.second), one(size.second, size.first), torch.zeros_like(size.rest))


def factor_error(value: Tensor, slope: Tensor, error: Tensor, own: float, unit: Units) -> Tensor:
    """The error of a cosine or sine: its angle's, by Taylor and at most 2; its own, relative; its storing's."""
    moved = (slope * error + error**2 / 2).clamp(max=2.0)
    return moved + (own + unit.step) * (value + moved) + unit.step_underflow
