"""A gradient against the slope of small steps: how sure the slope is where the function bends."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headcheck.modules.slopes import STEP, held

ROUNDED = (1e-16, torch.ones(1, dtype=torch.float64))
"""How far each number is off, and by what it is multiplied."""


def bending(*places: float, by: float) -> Callable[[float], Tensor]:
    """A slope of 1 that grows by so much on either side of zero, from each place on."""

    def moved(size: float) -> Tensor:
        more = sum(by * max(0.0, size - each) if each > 0 else -by * max(0.0, each - size) for each in places)
        return torch.tensor(size + more, dtype=torch.float64)

    return moved


@pytest.mark.parametrize("gradient", [1.0, 1.001])
def test_a_wrong_gradient_is_told_from_a_right_one(gradient: float) -> None:
    """Of a straight line a thousandth is seen."""
    compared = held(torch.tensor([gradient], dtype=torch.float64), bending(by=0.0), ROUNDED, "gradient")
    assert compared.broken == (gradient != 1.0)


def test_two_bends_that_make_up_for_each_other_are_seen() -> None:
    """The slope of the two sides is the same, and not that at zero: seed 11 failed torch's encoder for it."""
    bends = bending(0.4 * STEP, -0.4 * STEP, by=5e-4)
    assert not held(torch.tensor([1.0], dtype=torch.float64), bends, ROUNDED, "gradient").broken
