"""Tensors written out in a case: nested numbers, made to fit a shape, made rounder, made fewer."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from headcheck.reading import Numbers
from headcheck.recipes import Recipe

AnyCase = TypeVar("AnyCase", bound=Recipe)

DOZEN = 12
"""So many are drawn for a tensor, then repeated or cut to its shape: Hypothesis spends its effort where it is seen."""
NUMBERS = (
    *(0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0) * 12,
    *(0.5, -0.5, 0.001, 10.0, -10.0, 1000.0, -1000.0) * 12,
    *(-0.0, 2.0**-14, -(2.0**-24)),
    *(round(number / 11, 3) for number in range(-43, 44) if number % 11),
    *(0.7, -0.07, 0.007, 3.3, -1.1),
)
"""What each number of a drawn case is one of: roundish ones, large ones, and others up to 4."""
A_DOZEN: SearchStrategy[list[float]] = st.binary(min_size=DOZEN, max_size=DOZEN).map(
    lambda drawn: [NUMBERS[byte % len(NUMBERS)] for byte in drawn]
)
"""A byte for each number, since Hypothesis takes as long to draw one number as it does for all the bytes."""
READABLE = 48
"""A case is written out number by number when its tensors hold at most this many."""
MANY = 1000
"""So many numbers are written out only where a law asks for a length: none is looked at by itself."""
SMALL = 64
"""A tensor of at most this many numbers is shown in full."""


def nest(flat: Sequence[Any], shape: Sequence[int]) -> Numbers:
    """Numbers nested as the shape says, leading axes of size 1 left out."""
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    for size in reversed(shape[1:]):
        flat = [tuple(flat[i : i + size]) for i in range(0, len(flat), size)] if size else [()] * len(flat)
    return tuple(flat)


def shown(tensor: Tensor, dtype: str) -> Any:
    """A tensor as a verdict shows it: its numbers where they are few, else (or where it has none) its dtype and shape."""
    return tensor.tolist() if 0 < tensor.numel() <= SMALL else f"{dtype} {tuple(tensor.shape)}"


def written(tensor: Tensor) -> Numbers:
    """A tensor as nested numbers."""
    return nest(tensor.reshape(-1).tolist(), tuple(tensor.shape))


def numbers_that_fit(case: AnyCase) -> AnyCase:
    """Written numbers as many as the shapes ask for: repeated from the start, or cut."""
    if not case.numbers:
        return case
    shapes, numbers = case.shapes(), []
    for name, given in case.numbers:
        each, count = flat(given), torch.Size(shapes[name]).numel()
        if len(each) != count:
            each = [each[i % len(each)] for i in range(count)] if each else [0.0] * count
        numbers.append((name, nest(each, shapes[name])))
    return case.but(numbers=tuple(numbers))


def flat(numbers: Any) -> list[Any]:
    """Nested numbers, one after the other."""
    if isinstance(numbers, tuple):
        return [each for part in numbers for each in flat(part)]
    return [numbers]


def tensors_of(case: Recipe) -> dict[str, Tensor]:
    """The tensors that stand in the case, in float64."""
    shapes = case.shapes()
    return {
        name: torch.tensor(numbers, dtype=torch.float64).reshape(shapes[name])
        for name, numbers in case.numbers
    }


def dropped(x: Tensor, axis: int, index: int) -> Tensor:
    """The tensor without one slice."""
    rest = [i for i in range(x.shape[axis]) if i != index]
    return x.index_select(axis, torch.tensor(rest, dtype=torch.long))


def rounder_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """The whole tensor in rounder numbers: zeros, ones, whole numbers, one decimal, two."""
    for rounding in _ROUNDINGS:
        rounder = rounding(tensor)
        if _total(rounder) < _total(tensor):
            yield rounder


def rounder_numbers(number: float) -> Iterator[float]:
    """Numbers simpler than this one."""
    if number == float("-inf"):
        yield 0.0
        return
    away = math.copysign(math.floor(abs(number)) + 1.0, number)
    for candidate in (0.0, 1.0, float(round(number)), away, round(number, 1), round(number, 2)):
        if _complexity(candidate) < _complexity(number):
            yield candidate


_ROUNDINGS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.zeros_like,
    torch.ones_like,
    torch.round,
    lambda x: torch.round(x, decimals=1),
    lambda x: torch.round(x, decimals=2),
)


def _total(x: Tensor) -> tuple[float, float]:
    each = [_complexity(number) for number in x.reshape(-1).tolist()]
    return sum(digits for digits, _ in each), sum(size for _, size in each)


def _complexity(number: float) -> tuple[int, float]:
    if not number:
        is_negative = math.copysign(1.0, number) < 0  # Whoever reads -0 takes the sign for a clue.
        return 0, 0.5 if is_negative else 0.0
    return len(repr(abs(number)).rstrip("0")), abs(number)


def below(size: int) -> list[int]:
    """Smaller sizes, the smallest first."""
    return [smaller for smaller in sorted({1, 2, size // 2, size - 1}) if 0 < smaller < size]
