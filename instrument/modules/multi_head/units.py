"""In which unit a module rounds inside: measured, since it may compute in a coarser format than it is given.

Every weight is moved by a random relative step, the root of the unit, there and back. Where the module rounds in
that unit, every output moves, and in f(w + d) - 2 f(w) + f(w - d), where the slope cancels, no more is left
than rounding explains (the second difference of Moré & Wild 2011, "Estimating computational noise"). Where it
rounds in a coarser one, some outputs do not move at all, or they jump.
"""

import torch
from torch import Tensor, nn

from headcheck.comparison import LawBroken
from headcheck.modules.multi_head.bounds import output_bound
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.subject import MultiHeadSubject

UNITS = (2.0**-53, 2.0**-24, 2.0**-11, 2.0**-8)
"""Of float64, float32, float16 and bfloat16."""
TRIES = 3
BY_CHANCE = 1 / 64
"""The share of the outputs that may be the same there and back in the right unit: at most a hundredth was measured, of
float16, and in the next coarser one three hundredths or more.
"""


def unit_that_explains(subject: MultiHeadSubject, inputs: list[MultiHeadInputs]) -> float:
    """The smallest unit that explains how these calls round; the largest where none does, or none comes back."""
    own = torch.finfo(getattr(torch, subject.dtypes[0])).eps / 2
    explains = (unit for unit in UNITS if unit >= own and all(_explains(subject, x, unit) for x in inputs))
    try:
        return next(explains, UNITS[-1])
    except LawBroken:  # A law will say what is wrong, or the axes lie otherwise.
        return UNITS[-1]


def _explains(subject: MultiHeadSubject, x: MultiHeadInputs, unit: float) -> bool:
    still, bound = subject(x).double(), output_bound(x, unit)
    assert subject.module is not None
    kept = [(each, each.detach().clone()) for each in subject.module.parameters()]
    generator, unmoved = x.generator("steps"), 0
    for _ in range(TRIES):
        steps = [
            (2 * unit) ** 0.5 * (2 * torch.rand(each.shape, generator=generator, dtype=torch.float64) - 1)
            for each, _ in kept
        ]
        there, back = (_moved(subject, x, kept, [sign * step for step in steps]) for sign in (1, -1))
        unmoved += int(((there == back) & (still != 0)).sum())
        if not bool(((there - 2 * still + back).abs() <= bound).all()):
            return False
    return unmoved <= BY_CHANCE * TRIES * still.numel()


def _moved(
    subject: MultiHeadSubject,
    x: MultiHeadInputs,
    kept: list[tuple[nn.Parameter, Tensor]],
    steps: list[Tensor],
) -> Tensor:
    """The output with moved weights, which are put back bit for bit."""
    with torch.no_grad():
        for (each, _), step in zip(kept, steps, strict=True):
            each.mul_((1 + step).to(each.device, each.dtype))
    try:
        return subject(x).double()
    finally:
        with torch.no_grad():
            for each, before in kept:
                each.copy_(before)
