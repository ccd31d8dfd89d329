"""In which unit a module rounds inside: measured, since it may compute in a coarser format than it is given.

Every weight is moved by a random relative step, there and back. In f(w + d) - 2 f(w) + f(w - d) the slope
cancels, and the noise of the arithmetic is left (the second difference of Moré & Wild 2011, "Estimating
computational noise"). The unit is the smallest whose bound explains it.
"""

import torch
from torch import Tensor, nn

from headcheck.modules.multi_head.bounds import output_bound
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.subject import MultiHeadSubject

UNITS = (2.0**-53, 2.0**-24, 2.0**-11, 2.0**-8)
"""Of float64, float32, float16 and bfloat16."""
TRIES = 3


def unit_that_explains(subject: MultiHeadSubject, inputs: list[MultiHeadInputs]) -> float:
    """The smallest unit whose bound explains the noise of these calls."""
    units = [unit for unit in UNITS if unit >= torch.finfo(getattr(torch, subject.dtypes[0])).eps / 2]
    for x in inputs:
        noise = _noise(subject, x)
        units = [unit for unit in units if noise <= output_bound(x, unit)] or [UNITS[-1]]
    return units[0]


def _noise(subject: MultiHeadSubject, x: MultiHeadInputs) -> float:
    """The largest second difference of any element of the output."""
    still, noise = subject(x).double(), 0.0
    assert subject.module is not None
    kept = [(each, each.detach().clone()) for each in subject.module.parameters()]
    generator = x.generator("steps")
    for _ in range(TRIES):
        steps = [2 * torch.rand(each.shape, generator=generator, dtype=torch.float64) - 1 for each, _ in kept]
        there, back = (_moved(subject, x, kept, [sign * step for step in steps]) for sign in (1, -1))
        noise = max(noise, float((there - 2 * still + back).abs().max()))
    return noise


def _moved(
    subject: MultiHeadSubject,
    x: MultiHeadInputs,
    kept: list[tuple[nn.Parameter, Tensor]],
    steps: list[Tensor],
) -> Tensor:
    """The output with moved weights, which are put back bit for bit."""
    with torch.no_grad():
        for (each, _), step in zip(kept, steps, strict=True):
            each.mul_(1 + torch.finfo(each.dtype).eps ** 0.5 * step.to(each.device, each.dtype))
    try:
        return subject(x).double()
    finally:
        with torch.no_grad():
            for each, before in kept:
                each.copy_(before)
