"""A gradient along a direction, held against the slope that small steps show."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, within
from headcheck.modules.noise import scaled
from headcheck.modules.subject import AnyInputs, ModuleInputs, ModuleSubject

STEP, WIDER_STEP = 1e-5, 3e-3
"""Relative to each weight: in float64, rounding is off by 1e-11 of the output and curvature by 1e-10. The wider is for
modules with a part in float32, as a norm or rotary angles: rounding is off by 1e-7 there, and curvature by 1e-5."""
MARGIN = 16.0
"""The distance between the slopes of two steps is a measure of the error of both, not a bound."""
NEAR = 1e-6
"""The share of the gradient that no slope tells: both slopes may happen to be off alike."""
COARSE, COARSER = 1e-3, 2e-2
"""The share of the gradient up to which a slope is measured well enough, by either step."""

REENTRANT = "use_reentrant=True"
"""What torch names where a checkpoint of that kind is asked for some gradients alone: backward() goes through it."""

Factors = Sequence[Tensor]
"""By what each of several tensors is multiplied."""


def slope_of_the_weights(
    module: ModuleSubject[AnyInputs], x: AnyInputs, call: Callable[[], Tensor], what: str
) -> Comparison:
    """The gradient of the weights, along a random direction, against the slope of what a call at `x` gives.

    NotApplicable: no weight wants a gradient.
    """
    weights = [each for each in module.weights() if each.requires_grad and each.is_floating_point()]
    output = call()
    if not weights:
        raise NotApplicable("no weight of it wants a gradient")

    def moved(factors: Factors) -> Tensor:
        with scaled(weights, factors), torch.no_grad():
            return call()

    return _slope_along(module, x, output, weights, moved, what)


def numbers_of(x: ModuleInputs) -> dict[str, Tensor]:
    """The inputs that may want a gradient: those of numbers, not of tokens, and no masks."""
    return {name: each for name, each in x.tensors.items() if each.is_floating_point()}


def slope_of_the_input(
    module: ModuleSubject[AnyInputs], x: AnyInputs, what: str, *, of: Collection[str] | None = None
) -> Comparison:
    """The gradient of the input's numbers, along a random direction, against the slope of the output at `x`.

    of: the inputs that want a gradient; None: all of numbers.
    """
    given = {name: each for name, each in numbers_of(x).items() if of is None or name in of}
    leaves = {name: each.clone().requires_grad_() for name, each in given.items()}
    output = module.output(x.but(**leaves))

    def moved(factors: Factors) -> Tensor:
        there = zip(given.items(), factors, strict=True)
        return module(x.but(**{name: each * factor for (name, each), factor in there}))

    return _slope_along(module, x, output, [*leaves.values()], moved, what)


def _slope_along(
    module: ModuleSubject[AnyInputs],
    x: AnyInputs,
    output: Tensor,
    leaves: Sequence[Tensor],
    moved: Callable[[Factors], Tensor],
    what: str,
) -> Comparison:
    """The gradient of tensors, along a random direction, against the slope of the output at `x`.

    moved: the output where the tensors are multiplied by factors.
    """
    module.require_a_graph(output)
    generator = x.generator("direction")
    cotangent = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    steps = [direction(each, generator) for each in leaves]
    parts = along(module, output, cotangent, leaves, steps)

    def weighed(size: float) -> Tensor:
        return (moved([1 + size * step for step in steps]).cpu().double() * cotangent).sum()

    return held(parts, weighed, (module.bound(x), cotangent), what)


def along(
    module: ModuleSubject[AnyInputs],
    output: Tensor,
    cotangent: Tensor,
    leaves: Sequence[Tensor],
    steps: Sequence[Tensor],
) -> Tensor:
    """The gradient of sum(output x cotangent) along a direction, relative to each tensor: of each its part."""
    try:
        found = module.clock.call(
            torch.autograd.grad, output, [*leaves], cotangent.to(output), materialize_grads=True
        )
    except SubjectRaised as raised:
        if REENTRANT not in str(raised):
            raise
        raise NotApplicable(
            f"is checkpointed with {REENTRANT}, which torch.autograd.grad cannot go through"
        ) from raised
    parts = [(g * w.detach() * d).double().sum().cpu() for g, w, d in zip(found, leaves, steps, strict=True)]
    return torch.stack(parts)


def held(
    parts: Tensor, moved: Callable[[float], Tensor], rounded: tuple[float, Tensor], what: str
) -> Comparison:
    """The sum of the parts against the slope of `moved` at 0.

    rounded: how far each number of the output is off by rounding, and by what it is multiplied in `moved`. By the small
    step all may be off in one direction; by the wider one they are taken to be off in any.
    """
    noise, cotangent = rounded
    for step, share, order in ((STEP, COARSE, 1), (WIDER_STEP, COARSER, 2)):
        here, ahead, behind, far_ahead, far_behind = (moved(n * step) for n in (0, 1, -1, 2, -2))
        slope, wider = (ahead - behind) / (2 * step), (far_ahead - far_behind) / (4 * step)
        # Where a ReLU bends between the steps, the slopes of the two sides differ by more than the mean is off; of two
        # that bend on either side, and make up for each other, the slopes from step to step differ.
        bends = (ahead - 2 * here + behind, far_ahead - 2 * ahead + here, here - 2 * behind + far_behind)
        rounding = noise * float(torch.linalg.vector_norm(cotangent, order)) / step
        bend = sum(float(each.abs()) for each in bends) / step
        limit = MARGIN * float((slope - wider).abs()) + bend + rounding
        size = float(parts.abs().sum() + slope.abs())
        if limit <= share * size:
            return within(parts.sum(), slope, max(limit, NEAR * size), what)
    raise NotApplicable("the module computes too coarsely for a slope to be measured")


def direction(weight: Tensor, generator: torch.Generator) -> Tensor:
    """A random direction of a tensor, relative to it."""
    drawn = torch.rand(weight.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return drawn.to(weight.device, weight.dtype)
