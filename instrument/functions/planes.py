"""Rotary positions turn dims in pairs: which dims make a pair, and what rounding does to one that is turned."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from headcheck.functions.rounding import Units
from headcheck.reference.positions import Pairing

NEAR = 1e-5
"""How far a number that a turn has may be from what it should be, by rounding in float32."""
WHOLE_TURNS_KNOWN = 4096.0
"""Up to this angle float32 tells how many whole turns there are."""
SAME_BASE = 2e-6
"""How far, relative to its size, a power of a base may be off by rounding in float32."""


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
    of_frequency = torch.where((frequencies == 1) | (frequencies == 0), 0.0, 4 + 4 * frequencies.log().abs())
    return angles.abs() * (1 + of_frequency) * unit


def turns_of(matrix: Tensor, width: int, pairing: Pairing, out: Pairing) -> Tensor | None:
    """The turn of each pair as a complex number, where the images of unit vectors, row by row, are such turns.

    None: something stands outside of the planes of pairs, or the two dims of one are not turned alike.
    """
    of_first, of_second, _ = (each.mT for each in Pairs.of(matrix.mT, width, pairing))
    along, across = Pairs.of(of_first, width, out), Pairs.of(of_second, width, out)
    found = torch.complex(along.first.diagonal(), along.second.diagonal())
    alike = torch.complex(across.second.diagonal(), -across.first.diagonal())
    strays = matrix.square().sum() - 2 * found.abs().square().sum() - (len(matrix) - width)
    near = (found - alike).abs().max() < NEAR and strays.abs() < NEAR * len(matrix)
    return found if near else None


def frequencies_of(turns_at: Callable[[int], Tensor | None], furthest: int) -> Tensor | None:
    """The angle of each pair at position 1, by its turns at positions that grow; None where no such angles are there.

    What an angle is known to tells how many whole turns there are at a position four times as far.
    """
    first = turns_at(1)
    if first is None:
        return None
    frequencies, position = first.angle(), 4
    while position <= furthest and (here := turns_at(position)) is not None:
        angles = position * frequencies
        away = torch.remainder(here.angle() - angles + math.pi, 2 * math.pi) - math.pi
        near = angles.abs() <= WHOLE_TURNS_KNOWN
        if (away.abs() > 4 * NEAR * (1 + angles.abs()))[near].any():
            return None
        frequencies = torch.where(near, frequencies + away / position, frequencies)
        position *= 4
    return frequencies


def base_of(frequencies: Tensor) -> float | None:
    """The base of which these are the powers -i / pairs, in as few digits as tell them; None where they are of none."""
    pairs = len(frequencies)
    if pairs < 2 or not (frequencies > 0).all() or frequencies[-1] == 1:
        return None
    exponents = torch.arange(pairs, dtype=torch.float64) / pairs
    base = float(frequencies[-1]) ** (-pairs / (pairs - 1))
    rounded = (float(f"{base:.{digits}g}") for digits in range(2, 11))
    fitting = (each for each in rounded if ((each**exponents * frequencies - 1).abs() < SAME_BASE).all())
    return next(fitting, None)


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


def turning_error(size: Pairs, angles: Tensor, error: Tensor, own: float, unit: Units) -> Pairs:
    """How far each number of a turned pair may be off before it is stored.

    size: the absolute values before the turn. error: of the angles. own: of cos and sin, relative to them, before they
    are stored; each product is stored, and their sum once.
    """
    cos, sin = angles.cos().abs(), angles.sin().abs()
    cos_off, sin_off = (
        factor_error(value, slope, error, own, unit) for value, slope in ((cos, sin), (sin, cos))
    )

    def one(by_cos: Tensor, by_sin: Tensor) -> Tensor:
        largest = by_cos * (cos + cos_off) + by_sin * (sin + sin_off)
        return by_cos * cos_off + by_sin * sin_off + 2 * unit.step * largest + 2 * unit.step_underflow

    return Pairs(one(size.first, size.second), one(size.second, size.first), torch.zeros_like(size.rest))


def factor_error(value: Tensor, slope: Tensor, error: Tensor, own: float, unit: Units) -> Tensor:
    """The error of a cosine or sine: its angle's, by Taylor and at most 2; its own, relative; its storing's."""
    moved = (slope * error + error**2 / 2).clamp(max=2.0)
    return moved + (own + unit.step) * (value + moved) + unit.step_underflow
