"""How much a module's answer moves by rounding alone: measured on the module itself, since its inside is unknown.

Every weight is moved by a random relative step, there and back. What is left of f(w + d) - 2 f(w) + f(w - d),
where the slope cancels, is the curvature, of the order of the step squared, and the noise of the arithmetic
with its amplification on the way through the module (the second difference of Moré & Wild 2011, "Estimating
computational noise"). The step is the root of eps of the coarsest format that the module computes in, which
is watched: then both are of the order of eps, and the step is coarse enough to change how numbers round.

In formats of 16 bits that root is so large that the curvature drowns the noise, and a margin of a hundred eps
would be as large as the output: there the step is four eps, and the margins are narrow.

Tables and frequencies that were made in float32 and sent to float64 with their module are off by the rounding of
float32, so two right ways that read them at other places differ by as much: they are moved by that, too.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from headcheck.calling import SubjectRaised
from headcheck.comparison import LawBroken
from headcheck.formats import formats_of

TRIES = 3


@dataclass(frozen=True)
class Margins:
    """What is made of the noise that is measured in formats of one width."""

    factor: float
    """Two right ways of computing one thing differ by at most so many times the noise of three tries."""
    floor: float
    """Nor is the noise ever taken to be below so many eps of the largest number."""
    step: float
    """The largest step, in eps."""


WIDE = Margins(factor=16, floor=8, step=math.inf)
"""Of float32 and float64, where margins cost nothing. Of the right models in tests/roles, over 13,000 cases, the
largest difference was 0.8 times the noise."""
NARROW = Margins(factor=8, floor=0.5, step=4)
"""Of 16 bits and fewer. The largest difference of the same models in bfloat16 and float16 was 1.1 times the noise;
of 42 of transformers' in bfloat16 0.4 times, but for three that are known to deviate."""
SIXTEEN_BITS = torch.finfo(torch.float16).eps
"""The least eps of the narrow formats."""


@dataclass(frozen=True)
class Noise:
    """Of one output: the largest difference of three tries, and by how much two right ways may differ."""

    size: float
    bound: float


_OF_FLOAT32 = torch.finfo(torch.float32).eps
"""What cannot be measured is taken to be computed in."""
_OF_FLOAT64 = torch.finfo(torch.float64).eps


@contextmanager
def scaled(weights: Iterable[Tensor], by: Sequence[Tensor] | float) -> Iterator[None]:
    """The weights, all times a number or each times its factors, and put back bit for bit; not those of whole numbers.

    LawBroken: calls in between left a weight with another shape.
    """
    kept = [(each, each.detach().clone()) for each in weights if each.is_floating_point()]
    factors: Sequence[Tensor | float] = [by] * len(kept) if isinstance(by, float) else by
    with torch.no_grad():
        for (each, _), its_own in zip(kept, factors, strict=True):
            each.mul_(its_own)
    try:
        yield
    finally:
        reshaped = [(each, before) for each, before in kept if each.shape != before.shape]
        with torch.no_grad():
            for each, before in kept:
                if each.shape == before.shape:
                    each.copy_(before)
        for each, before in reshaped:
            raise LawBroken(f"a call changed a weight of shape {tuple(before.shape)} to {tuple(each.shape)}")


def measured(call: Callable[[], Tensor], weights: Iterable[Tensor], module: nn.Module | None = None) -> Noise:
    """How far rounding alone moves any element of the output.

    call: gives the output for the weights as they stand. weights: the tensors that it depends on; without
    any, nothing can be measured, and the output is taken to be computed in float32. module: holds tables, maybe.
    """
    movable = [each for each in weights if each.is_floating_point() and each.numel()]
    still = call()
    eps = max(torch.finfo(still.dtype).eps, _coarsest(call) if movable else _OF_FLOAT32)
    margins = NARROW if eps >= SIXTEEN_BITS else WIDE
    still = still.double()
    noise, step = margins.floor * eps * _largest(still), min(eps**0.5, margins.step * eps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(TRIES if movable else 0):
        steps = [step * _between_signs(each, generator) for each in movable]
        with scaled(movable, [1 + each for each in steps]):
            there = call().double()
        with scaled(movable, [1 - each for each in steps]):
            back = call().double()
        noise = max(noise, _largest(there - 2 * still + back))
    tables = _made_in_float32(module) if module is not None else []
    for _ in range(TRIES if tables else 0):
        with scaled(tables, [1 + _OF_FLOAT32 / 2 * _between_signs(each, generator) for each in tables]):
            noise = max(noise, _largest(call().double() - still))
    return Noise(noise, margins.factor * noise)


def _made_in_float32(module: nn.Module) -> list[Tensor]:
    """What a module holds in float64 and does not train, with no digits but those of float32.

    Whole numbers, and such as are exact in bfloat16, as powers of two, are meant as they are.
    """
    held = {id(each): each for each in chain(module.buffers(), module.parameters())}
    fixed = [each for each in held.values() if each.dtype == torch.float64 and not each.requires_grad]
    return [
        each
        for each in fixed
        if each.is_contiguous()
        and not each.is_inference()
        and torch.equal(each, each.float().double())
        and not torch.equal(each, each.round())
        and not torch.equal(each, each.bfloat16().double())
    ]


def _coarsest(call: Callable[[], Tensor]) -> float:
    """The eps of the coarsest format inside."""
    try:
        formats = formats_of(call)
    except SubjectRaised:  # Or the watching did: what compiles a part of itself may not bear it.
        return _OF_FLOAT32
    return max((torch.finfo(each).eps for each in formats), default=_OF_FLOAT64)


def _between_signs(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(like.shape, generator=generator) * 2 - 1
    return drawn.to(like.device, like.dtype)


def _largest(x: Tensor) -> float:
    finite = x[x.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
