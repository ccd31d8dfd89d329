"""The gradient keeps its mean, as the row does."""

from headcheck.comparison import Comparison, within
from headcheck.functions.norms import NormInputs, NormSubject, gradient_of
from headcheck.laws import law


@law(
    source="dx = r (h - n mean(h n)), h = g w",
    formula="sum_i dx_i = r (sum_i h_i - mean(h n) sum_i n_i)",
    guards="The backward of a layer norm behind the forward of an RMS norm: a flag that is passed to one of the two.",
)
def the_gradient_of_a_row_keeps_its_mean(norm: NormSubject, x: NormInputs) -> Comparison:
    """No mean is taken out of the gradient of a row."""
    g, row = x.cotangent, norm.row(x)
    dx = gradient_of(norm.gradients(x, g, wanted=("x",)), "x")
    h, n = norm.multiplied(x, g), row.normalised
    along = (h * n).mean(dim=-1, keepdim=True)
    exact = (row.scale * (h - along * n)).sum(dim=-1)
    limit = norm.gradient_bounds(x, g.double())["x"].sum(dim=-1)
    return within(dx.sum(dim=-1), exact, limit, "sum of the gradient")
