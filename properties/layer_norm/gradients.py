"""What taking out the mean, and adding a bias, say of the gradients."""

import torch

from headcheck.comparison import Comparison, within
from headcheck.functions.norms import NormInputs, NormSubject, gradient_of
from headcheck.given import having, one_of
from headcheck.laws import law


@law(
    source="a common shift changes nothing: J (1, ..., 1) = 0",
    formula="sum_i dx_i = 0 in each row, for every cotangent",
    guards="The term mean h missing from the backward; a cotangent of ones cannot see it where the weight is one.",
)
def the_gradient_of_a_row_sums_to_zero(norm: NormSubject, x: NormInputs) -> Comparison:
    """A common shift changes nothing, so the gradient of each row sums to zero."""
    g = x.cotangent
    sums = gradient_of(norm.gradients(x, g, wanted=("x",)), "x").sum(dim=-1)
    limit = norm.gradient_bounds(x, g.double())["x"].sum(dim=-1)
    return within(sums, torch.zeros_like(sums), limit, "sum of the gradient")


@law(
    source="y = n x weight + bias: dbias = sum over all rows of g",
    formula="dbias = sum over rows of g",
    guards="Partial sums left unwritten or out, with few rows or with many (flash-attention bdcae547).",
    needs=("bias",),
    given=(having(bias="normal"), one_of("rows", 1, 2, 17, 65, 129, 257)),
)
def the_gradient_of_the_bias_is_the_sum_of_the_cotangents(norm: NormSubject, x: NormInputs) -> Comparison:
    """The gradient of the bias is the sum of the cotangent over every row of every sequence."""
    g = x.cotangent
    found = gradient_of(norm.gradients(x, g), "bias")
    return within(
        found, g.double().sum(dim=(0, 1)), norm.gradient_bounds(x, g.double())["bias"], "gradient of bias"
    )
