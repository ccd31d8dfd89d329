"""The Jacobian of softmax: diag(p) - p p^T."""

import torch

from headcheck.comparison import Comparison, LawBroken, NotApplicable, within
from headcheck.functions.softmax import SoftmaxInputs, SoftmaxSubject
from headcheck.functions.subject import Gradients
from headcheck.given import having
from headcheck.laws import law

JACOBIAN = "dp_i / dx_j = p_i (delta_ij - p_j)"


def _of(found: Gradients) -> torch.Tensor:
    if found["x"] is None:
        raise NotApplicable("the output carries no gradient for x")
    return found["x"].double().cpu()


@law(
    source=JACOBIAN,
    formula="sum_i dx_i = 0 in each row, for every cotangent",
    guards="The term sum_j p_j g_j missing from the backward, or summed over the wrong axis.",
)
def the_gradient_of_a_row_sums_to_zero(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """A common shift changes nothing, so the gradient of each row sums to zero."""
    g = x.cotangent
    sums = _of(softmax.gradients(x, g)).sum(dim=-1)
    limit = softmax.gradient_bounds(x, g.double())["x"].sum(dim=-1)
    return within(sums, torch.zeros_like(sums), limit, "sum of the gradient")


@law(
    source=JACOBIAN,
    formula="g^T J h = h^T J g",
    guards="A backward that reads the weights of another row or in another order.",
)
def the_jacobian_is_symmetric(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """Two cotangents give each other's product with the gradient."""
    g, h = x.cotangent, x.normal(x.output_shape, "another cotangent")
    there, back = _of(softmax.gradients(x, g)), _of(softmax.gradients(x, h))
    limit = softmax.gradient_bounds(x, g.double())["x"] * h.double().abs()
    limit = limit + softmax.gradient_bounds(x, h.double())["x"] * g.double().abs()
    products = (there * h.double()).sum(dim=-1), (back * g.double()).sum(dim=-1)
    return within(*products, limit.sum(dim=-1), "product with another cotangent")


@law(
    source=JACOBIAN,
    formula="p = 1: dx = 0, and a graph leads to it as to longer rows",
    guards="Ones made anew for a single entry: a backward through the first token alone raises.",
    given=(having(length=1),),
    share=0.25,
)
def a_single_entry_has_a_gradient_of_zero(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """The weight of a single entry is always one: its gradient is there where those of two are, and is zero."""
    g, two = x.cotangent, x.but(x=torch.cat((x.x, x.x), dim=-1))
    softmax.gradients(two, torch.cat((g, g), dim=-1))
    try:
        found = _of(softmax.gradients(x, g))
    except NotApplicable as why:
        if softmax.declaration.may_refuse:
            raise
        raise LawBroken(f"of a single entry, {why}; of two it does") from why
    limit = softmax.gradient_bounds(x, g.double())["x"]
    return within(found, torch.zeros_like(found), limit, "gradient of a single entry")
