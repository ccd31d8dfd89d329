"""The gradient of the output, for random cotangents: sum().backward() sees half of the faults."""

from collections.abc import Iterator

import torch
from torch import Tensor

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, LawBroken, NotApplicable, within
from headcheck.functions.inputs import Inputs
from headcheck.functions.subject import FunctionSubject
from headcheck.given import having
from headcheck.laws import law
from headcheck.layouts import LAYOUTS
from headcheck.roles import OF_TENSORS

CHAIN = "the chain rule: dx = J^T dy"
STRIDED = tuple(name for name in LAYOUTS if name != "contiguous")
STEP = 1e-5
"""Relative to each number: in float64, curvature is off by 1e-10 and rounding by what it is, times 1e5."""
MARGIN = 16.0
"""Of two slopes, the one over twice the step is off by four times as much: their distance is three errors of one."""
COARSE = 1e-3
"""Beyond this share of the slopes, the distance of two of them says nothing of their error."""


def _found(observed: Tensor | None, exact: Tensor, name: str) -> Tensor:
    """A gradient that autograd leaves out stands for zero, and is a break where it is not zero."""
    if observed is not None:
        return observed
    if exact.abs().max() > 0:
        raise LawBroken(f"the output carries a gradient, but none for {name}")
    return torch.zeros_like(exact)


@law(
    source=CHAIN,
    formula="|dx - J^T dy| <= bound, for a random dy and each tensor x",
    guards="A backward that lacks a term which sum() cancels (flash-attention bdcae547), or detaches one input.",
    share=1.5,
    roles=OF_TENSORS,
)
def gradients_are_within_the_bound(function: FunctionSubject[Inputs], x: Inputs) -> Iterator[Comparison]:
    """The gradient of every tensor is the reference's, within the rounding of the declared arithmetic."""
    g = x.cotangent
    found, exact = function.gradients(x, g), function.exact_gradients(x, g)
    for name, bound in function.gradient_bounds(x, g.double()).items():
        yield within(_found(found[name], exact[name], name), exact[name], bound, f"gradient of {name}")


@law(
    source=CHAIN,
    formula="the gradient of one tensor is the same whether or not the others want one",
    guards="A backward that is skipped, or returns zeros, for the one input that it was not asked for.",
    share=0.5,
    roles=OF_TENSORS,
)
def each_gradient_can_be_asked_for_alone(
    function: FunctionSubject[Inputs], x: Inputs
) -> Iterator[Comparison]:
    """With the other tensors frozen, the gradient of one is what it is with all of them."""
    g = x.cotangent
    exact = function.exact_gradients(x, g)
    for name, bound in function.gradient_bounds(x, g.double()).items():
        observed = function.gradients(x, g, wanted=(name,))[name]
        yield within(_found(observed, exact[name], name), exact[name], bound, f"gradient of {name} alone")


@law(
    source=CHAIN,
    formula="the same cotangent, expanded from one row, gives the same gradients",
    guards="A backward that reads the cotangent as if it were contiguous (pytorch 133671).",
    share=0.5,
    roles=OF_TENSORS,
)
def an_expanded_cotangent_changes_nothing(
    function: FunctionSubject[Inputs], x: Inputs
) -> Iterator[Comparison]:
    """A cotangent with strides of zero, as a sum over rows sends it, gives the gradients of its contiguous copy."""
    one = x.cotangent.reshape(-1, x.output_shape[-1])[0].expand(x.output_shape)
    strided, plain = function.gradients(x, one), function.gradients(x, one.contiguous())
    for name, bound in function.gradient_bounds(x, one.double()).items():
        gradient = plain[name]
        if gradient is not None:
            yield within(_found(strided[name], gradient, name), gradient, 2 * bound, f"gradient of {name}")


@law(
    source=CHAIN,
    formula="the same cotangent, laid out otherwise, gives the same gradients",
    guards="A backward that goes through the cotangent with a stride of one (unsloth 10617).",
    share=0.5,
    roles=(
        "softmax",
        "layer_norm",
        "rms_norm",
    ),  # Complex numbers turn pairs, and torch cannot view such a cotangent so.
)
def a_strided_cotangent_changes_nothing(function: FunctionSubject[Inputs], x: Inputs) -> Iterator[Comparison]:
    """A transposed, packed or sliced cotangent gives the gradients of its contiguous copy."""
    strided = LAYOUTS[STRIDED[x.case.seed % len(STRIDED)]](x.cotangent)
    found, plain = function.gradients(x, strided), function.gradients(x, x.cotangent)
    for name, bound in function.gradient_bounds(x, x.cotangent.double()).items():
        gradient = plain[name]
        if gradient is not None:
            yield within(_found(found[name], gradient, name), gradient, 2 * bound, f"gradient of {name}")


@law(
    source="torch.autograd.grad, argument retain_graph",
    formula="the gradients of one call, asked for twice: the same",
    guards="A backward that works in the memory of what it kept (triton 4004, apex 1587).",
    share=0.5,
    roles=OF_TENSORS,
)
def a_second_backward_gives_the_same(function: FunctionSubject[Inputs], x: Inputs) -> Iterator[Comparison]:
    """Going back twice through one call gives the same gradients, or is refused."""
    g = x.cotangent
    try:
        first, second = function.gradients_asked_for(2, x, g)
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses a second backward: {refusal}") from refusal
    for name, bound in function.gradient_bounds(x, g.double()).items():
        gradient = first[name]
        if gradient is not None:
            again = _found(second[name], gradient, name)
            yield within(again, gradient, 2 * bound, f"gradient of {name}, the second time")


@law(
    source="torch, Double Backward with Custom Functions: what is not right is marked once_differentiable",
    formula="d<dx, v>/dx = slope of dx along v, and d<dx, v>/dy' = slope of y along v, dx = J^T y'",
    guards="Weights or statistics kept where no graph leads to them: a penalty on the gradient trains something else.",
    given=(having(dtype="float64"),),
    share=0.5,
    roles=("softmax", "layer_norm", "rms_norm"),  # Rotary positions are linear: a law of their own says more.
)
def second_derivatives_are_slopes(function: FunctionSubject[Inputs], x: Inputs) -> Iterator[Comparison]:
    """Going back through the gradients gives their slopes as small steps show them, or is refused."""
    if x.dtype != torch.float64:
        raise NotApplicable("does not take float64, in which slopes can be measured")
    if (x.x == x.x[..., :1]).all(dim=-1).any():
        raise NotApplicable("a root has no second derivative at zero: a row without spread")
    g, along = x.cotangent, {name: _direction(x, name) for name in x.tensors}
    second = function.second_derivatives(x, g, along)

    def moved(steps: int) -> dict[str, Tensor]:
        there = x.but(**{name: each + steps * STEP * along[name] for name, each in x.tensors.items()})
        gradients = function.gradients(there, g)
        known = {name: each.cpu() for name, each in gradients.items() if each is not None}
        return {**known, "cotangent": function(there).cpu()}

    ahead, behind, far_ahead, far_behind = map(moved, (1, -1, 2, -2))
    rounding, told = {**function.gradient_bounds(x, g), "cotangent": function.bound(x)}, False
    for name in ahead:
        slope = (ahead[name] - behind[name]) / (2 * STEP)
        bend = slope - (far_ahead[name] - far_behind[name]) / (4 * STEP)
        limit = MARGIN * bend.abs().amax(dim=-1, keepdim=True) + rounding[name] / STEP
        if limit.sum() <= COARSE * slope.abs().sum():
            told, found = True, second[name]
            observed = torch.zeros_like(slope) if found is None else found
            yield within(observed, slope, limit, f"second derivative by {name}")
    if not told:
        raise NotApplicable("it computes too coarsely for a slope to be measured, or is flat")


def _direction(x: Inputs, name: str) -> Tensor:
    """A random share of each number, which leaves zeros and infinities where they are."""
    numbers = x.tensors[name]
    shares = torch.rand(numbers.shape, generator=x.generator(f"direction of {name}"), dtype=torch.float64)
    return torch.where(numbers.isfinite(), numbers, 0.0) * (2 * shares - 1)
