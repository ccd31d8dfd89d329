"""How much a module's answer moves by rounding alone: measured on the module itself, since its inside is unknown.

Every weight is moved by a random relative step of 2^-26, there and back. What is left of
f(w + d) - 2 f(w) + f(w - d), where the slope cancels, is the curvature, of the order of the step squared, and
the noise of the arithmetic with its amplification on the way through the module, whatever formats it uses
inside (the second difference of Moré & Wild 2011, "Estimating computational noise").
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

STEP = 2.0**-26
TRIES = 3
FACTOR = 16.0
"""Two right ways of computing one thing differ by at most so many times the noise. Measured on the reference's
and torch's models, the largest such difference is 3 times the noise of three tries."""
FLOOR = 8.0
"""Nor is the noise ever taken to be below so many units in the last place of the largest number."""


@contextmanager
def moved(weights: list[Tensor], by: list[Tensor], sign: float) -> Iterator[None]:
    """The weights moved by a relative step, and put back bit for bit."""
    before = [each.detach().clone() for each in weights]
    with torch.no_grad():
        for each, step in zip(weights, by, strict=True):
            each.mul_(1 + sign * STEP * step)
    try:
        yield
    finally:
        with torch.no_grad():
            for each, old in zip(weights, before, strict=True):
                each.copy_(old)


def measured_bound(call: Callable[[], Tensor], weights: Iterable[Tensor]) -> float:
    """The largest difference, in any element of the output, that rounding explains.

    call: gives the output for the weights as they stand. weights: the tensors that it depends on.
    """
    movable = [each for each in weights if each.is_floating_point() and each.numel()]
    generator = torch.Generator().manual_seed(0)
    still = call().double()
    noise = FLOOR * torch.finfo(torch.float64).eps * _largest(still)
    for _ in range(TRIES if movable else 0):
        by = [_signs(each, generator) for each in movable]
        with moved(movable, by, 1.0):
            there = call().double()
        with moved(movable, by, -1.0):
            back = call().double()
        noise = max(noise, _largest(there - 2 * still + back))
    if not movable:
        noise = FLOOR * torch.finfo(torch.float32).eps * _largest(still)
    return FACTOR * noise


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(like.shape, generator=generator) * 2 - 1
    return drawn.to(like.device, like.dtype)


def _largest(x: Tensor) -> float:
    finite = x[x.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
