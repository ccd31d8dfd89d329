"""Regimes of values for rows of numbers: the last axis is the row that a function works on.

Each is one function from a shape and a generator to a tensor in float64; it is rounded to the case's dtype
afterwards. Adding a regime is adding one function.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

Regime = Callable[[tuple[int, ...], Generator], Tensor]
REGIMES: dict[str, Regime] = {}


def regime(function: Regime) -> Regime:
    """Register a regime under its function's name, dashes for underscores."""
    name = function.__name__.replace("_", "-")
    if name in REGIMES:
        raise ValueError(f"two regimes are called {name}")
    REGIMES[name] = function
    return function


def _pick(generator: Generator, *options: float) -> float:
    return options[int(torch.randint(len(options), (), generator=generator))]


@regime
def normal(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@regime
def large(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Normal numbers of spread 10 to 1000."""
    return normal(shape, generator) * _pick(generator, 10.0, 100.0, 1000.0)


@regime
def small(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Normal numbers of spread 0.01 to 0.0001."""
    return normal(shape, generator) * _pick(generator, 1e-2, 1e-3, 1e-4)


@regime
def offset(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Rows far from zero whose numbers differ little: what is subtracted must be subtracted first."""
    away = _pick(generator, 10.0, 100.0, -100.0, 1000.0, -1000.0)
    return normal(shape, generator) + away


@regime
def integers(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Whole numbers from -3 to 3."""
    return torch.randint(-3, 4, shape, generator=generator).to(torch.float64)


@regime
def constant(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """The same number all along each row."""
    return normal((*shape[:-1], 1), generator).expand(shape).clone()


@regime
def zeros(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Nothing but zeros."""
    return torch.zeros(shape, dtype=torch.float64)


@regime
def one_hot(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Zeros but for one number in each row."""
    place = torch.randint(shape[-1], (*shape[:-1], 1), generator=generator)
    return torch.zeros(shape, dtype=torch.float64).scatter_(-1, place, _pick(generator, 1.0, -4.0, 50.0))


@regime
def outliers(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """A few numbers a hundred times larger than the others, as trained models have."""
    drawn = normal(shape, generator)
    return drawn * torch.where(torch.rand(shape, generator=generator) < 0.1, 100.0, 1.0)


@regime
def ladder(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Even steps from 0 down to -80, in any order: a slip is amplified by the depth."""
    steps = -80.0 * torch.linspace(0, 1, max(shape[-1], 2), dtype=torch.float64)[: shape[-1]]
    return steps[torch.randperm(shape[-1], generator=generator)].expand(shape).clone()


@regime
def negative(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """All numbers below zero."""
    return -normal(shape, generator).abs() - _pick(generator, 0.1, 30.0, 200.0)
