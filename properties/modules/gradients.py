"""The gradient of a module's weights, held against what small steps show."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headcheck.comparison import Comparison, NotApplicable, within
from headcheck.laws import law
from headcheck.modules.noise import scaled
from headcheck.modules.subject import ModuleInputs, ModuleSubject

STEP = 1e-5
"""Relative to each weight: in float64, rounding is off by 1e-11 of the output and curvature by 1e-10."""
MARGIN = 16.0
"""The distance between the slopes of two steps is a measure of the error of both, not a bound."""
COARSE = 1e-3


@law(
    source="the gradient is the slope: Nocedal & Wright 2006, section 8.1, central differences",
    formula="<df/dw, w d> = (f(w (1 + h d)) - f(w (1 - h d))) / 2h, d random",
    guards="A backward that computes the layer again without its mask, or a branch that is detached: values stay right.",
    roles=("encoder", "decoder", "seq2seq", "causal_lm"),
)
def gradients_of_the_weights_are_slopes(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """The gradient of the weights, along a random direction, is the slope that small steps show."""
    if module.declaration.gradients is False:
        raise NotApplicable("has no gradients, as declared")
    weights = [each for each in module.weights() if each.requires_grad and each.is_floating_point()]
    output = module.output(x)
    if not weights or not output.requires_grad:
        raise NotApplicable("the output carries no gradient of a weight")
    generator = x.generator("direction")
    cotangent = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    steps = [_direction(each, generator) for each in weights]
    found = module.clock.call(
        torch.autograd.grad, output, weights, cotangent.to(output), materialize_grads=True
    )
    parts = [(g * w.detach() * d).double().sum().cpu() for g, w, d in zip(found, weights, steps, strict=True)]
    here = (output.detach().cpu().double() * cotangent).sum()
    (ahead, behind), (far_ahead, far_behind) = (
        [_moved(module, x, cotangent, weights, steps, sign * size) for sign in (1, -1)]
        for size in (STEP, 2 * STEP)
    )
    slope, wider = (ahead - behind) / (2 * STEP), (far_ahead - far_behind) / (4 * STEP)
    # Where a ReLU bends between the steps, the slopes of the two sides differ by more than the mean is off.
    bend = (ahead - 2 * here + behind) / STEP
    total = torch.stack(parts).sum()
    rounding = module.bound(x) * float(cotangent.abs().sum()) / STEP
    limit = MARGIN * float((slope - wider).abs()) + float(bend.abs()) + rounding
    if limit > COARSE * float(torch.stack(parts).abs().sum() + slope.abs()):
        raise NotApplicable("the module computes too coarsely for a slope to be measured")
    return within(total, slope, limit, "gradient along a direction of the weights")


def _direction(weight: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(weight.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return drawn.to(weight.device, weight.dtype)


def _moved(
    module: ModuleSubject[ModuleInputs],
    x: ModuleInputs,
    cotangent: Tensor,
    weights: Sequence[Tensor],
    steps: Sequence[Tensor],
    size: float,
) -> Tensor:
    """Sum of output x cotangent, each weight moved by so much of itself along its step."""
    with scaled(weights, [1 + size * step for step in steps]):
        return (module(x).cpu().double() * cotangent).sum()
