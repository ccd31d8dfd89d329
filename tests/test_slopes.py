"""A gradient against the slope of small steps: how sure the slope is where the function bends."""

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from headcheck.modules.slopes import STEP, held

ROUNDED = (1e-16, torch.ones(1, dtype=torch.float64))
"""How far each number is off, and by what it is multiplied."""


def bending(ahead: Mapping[float, float], behind: Mapping[float, float]) -> Callable[[float], Tensor]:
    """A slope of 1 that grows on either side of zero: from each place on, in steps, by so much."""

    def moved(size: float) -> Tensor:
        bends = ahead if size > 0 else behind
        more = sum(by * max(0.0, abs(size) - place * STEP) for place, by in bends.items())
        return torch.tensor(size + math.copysign(more, size), dtype=torch.float64)

    return moved


@pytest.mark.parametrize("gradient", [1.0, 1.001])
def test_a_wrong_gradient_is_told_from_a_right_one(gradient: float) -> None:
    """Of a straight line a thousandth is seen."""
    compared = held(torch.tensor([gradient], dtype=torch.float64), bending({}, {}), ROUNDED, "gradient")
    assert compared.broken == (gradient != 1.0)


def test_bends_that_make_up_for_each_other_are_seen() -> None:
    """Both sides have one slope, and both steps: it is not that at zero. So seed 11 failed torch's encoder."""
    bends = bending({0.4: 5e-4}, {0.4: 5e-4, 1.2: -5e-4})
    assert not held(torch.tensor([1.0], dtype=torch.float64), bends, ROUNDED, "gradient").broken
