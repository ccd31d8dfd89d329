"""The backward pass of a rotation is the rotation back."""

import torch

from headcheck.comparison import Comparison, NotApplicable, within
from headcheck.functions.rotary import RotarySubject
from headcheck.functions.rotary_inputs import RotaryInputs
from headcheck.laws import law

TRANSPOSE = "the inverse of a rotation is its transpose: dx = R(p)^T dy"


def _gradient(rotary: RotarySubject, x: RotaryInputs, cotangent: torch.Tensor) -> torch.Tensor:
    found = rotary.gradients(x, cotangent)["x"]
    if found is None:
        raise NotApplicable("the output carries no gradient for x")
    return found


@law(
    source=TRANSPOSE,
    formula="dy = R(p) x implies dx = x",
    guards="A backward that turns the same way as the forward, or not at all.",
)
def the_gradient_turns_back(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """With the output as its own cotangent, the gradient is the input."""
    output = rotary(x).cpu()
    limit = rotary.gradient_bounds(x, output.double())["x"] + rotary.turned_further(x, rotary.bound(x))
    expected = rotary.lengthened(x, x.x, times=2)
    limit = limit + torch.finfo(torch.float64).eps * expected.abs()
    return within(_gradient(rotary, x, output), expected, limit)


@law(
    source=TRANSPOSE,
    formula="dx does not depend on x",
    guards="A backward that reads a buffer which the forward of another call has written to.",
    share=0.5,
)
def the_gradient_does_not_depend_on_the_input(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """The same cotangent has the same gradient, whatever was turned."""
    g = x.cotangent
    limit = 2 * rotary.gradient_bounds(x, g.double())["x"]
    return within(_gradient(rotary, x.other(), g), _gradient(rotary, x, g), limit, "gradient of x")
