"""How many gradients autograd adds up is read off the graph of a call."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headcheck.graph import parts_in_sixteen_bits


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return torch.cat([x[:1], x[1:]]) * 2

    @staticmethod
    def backward(_ctx: Any, given: Tensor) -> Tensor:
        return given * 2


def leaf(dtype: torch.dtype) -> Tensor:
    return torch.ones(6, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_each_cut_is_a_part(dtype: torch.dtype) -> None:
    """A tensor that is cut in three gets three gradients, added up in its own type."""
    x = leaf(dtype)
    assert parts_in_sixteen_bits(torch.cat([x[i : i + 2] for i in (0, 2, 4)])) == 3
    inside = x * 2
    assert parts_in_sixteen_bits(torch.cat([inside[:3], inside[3:]])) == 2


def test_what_is_widened_first_is_added_up_wide() -> None:
    """Cuts of a copy in float32 are added up in float32; the leaf gets one gradient."""
    wide = leaf(torch.float16).float()
    assert parts_in_sixteen_bits((wide[:3] + wide[3:]).half()) == 1
    assert parts_in_sixteen_bits(leaf(torch.float32)[:3] + leaf(torch.float32)[3:]) == 1


def test_a_backward_of_ones_own_is_one_part() -> None:
    """How a custom backward adds up is not read off the graph."""
    doubled: Any = Doubled.apply
    assert parts_in_sixteen_bits(doubled(leaf(torch.float16))) == 1


def test_what_is_unfolded_or_indexed_is_added_up_in_its_own_type() -> None:
    """Each window that holds a number, each index that names it, is a part of its gradient."""
    x = leaf(torch.bfloat16)
    assert parts_in_sixteen_bits(x.unfold(0, 4, 1)) == 2  # Three windows of four, over six numbers.
    assert parts_in_sixteen_bits(x[torch.zeros(60, dtype=torch.int64)]) == 10
    assert parts_in_sixteen_bits(x.index_select(0, torch.arange(6))) == 1
    assert parts_in_sixteen_bits(leaf(torch.float32).unfold(0, 4, 1)) == 1
