"""What a norm's own form says of its gradients."""

from collections.abc import Iterator

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, same, within
from headcheck.functions.norms import NORMS, NormInputs, NormSubject, gradient_of
from headcheck.functions.rounding import scaled
from headcheck.given import at_least, at_most, having, one_in, one_of
from headcheck.laws import law

JACOBIAN = "dx = r (h - mean h - n mean(h n)), h = g w, without mean h where no mean is taken out"


@law(
    source=JACOBIAN,
    formula="sum_i dx_i x_i = r sum_i h_i c_i eps / (v + eps), c the row, its mean taken out where one is",
    guards="The term n mean(h n) missing from the backward: a gradient along the row, which only rescales it.",
    given=(at_least(dim=2),),
    roles=NORMS,
)
def along_the_row_the_gradient_is_what_eps_leaves(norm: NormSubject, x: NormInputs) -> Comparison:
    """The gradient of a row is orthogonal to the row, but for the share of eps."""
    g, row = x.cotangent, norm.row(x)
    dx = gradient_of(norm.gradients(x, g, wanted=("x",)), "x")
    h = norm.multiplied(x, g)
    h = h - h.mean(dim=-1, keepdim=True) if norm.CENTRING else h
    exact = (h * row.centred).sum(dim=-1) * (row.scale * x.eps / (row.variance + x.eps))[..., 0]
    limit = scaled(norm.gradient_bounds(x, g.double())["x"], row.x).sum(dim=-1)
    return within((dx * row.x).sum(dim=-1), exact, limit, "product of gradient and row")


@law(
    source=JACOBIAN,
    formula="g^T J h = h^T J g, where the weight is one",
    guards="A backward that reads the normalised row of another one, or in another order.",
    roles=NORMS,
)
def the_jacobian_is_symmetric(norm: NormSubject, x: NormInputs) -> Comparison:
    """Two cotangents give each other's product with the gradient."""
    plain, g, h = norm.bare(x), x.cotangent, x.normal(x.output_shape, "another cotangent")
    there = gradient_of(norm.gradients(plain, g, wanted=("x",)), "x")
    back = gradient_of(norm.gradients(plain, h, wanted=("x",)), "x")
    limit = scaled(norm.gradient_bounds(plain, g.double())["x"], h.double())
    limit = limit + scaled(norm.gradient_bounds(plain, h.double())["x"], g.double())
    products = (there * h.double()).sum(dim=-1), (back * g.double()).sum(dim=-1)
    return within(*products, limit.sum(dim=-1), "product with another cotangent")


@law(
    source="y = n x weight + bias: dweight = sum over all rows of g n",
    formula="dweight = sum over rows of g f(x, 1, 0)",
    guards="Partial sums left unwritten or out, with few rows or with many (flash-attention bdcae547), or in 16 bits.",
    needs=("weight",),
    given=(
        having(weight="normal"),
        one_of("rows", 1, 2, 17, 65, 129, 257),
        one_in(3, one_of("dtype", "bfloat16", "float16"), at_most(dim=65), at_least(rows=257)),
    ),
    roles=NORMS,
)
def the_gradient_of_the_weight_is_summed_over_all_rows(
    norm: NormSubject, x: NormInputs
) -> Iterator[Comparison]:
    """The gradient of the weight is the sum, over every row of every sequence, of cotangent times normalised row.

    In 16 bits all rows are alike and nothing cancels: a sum that is kept in 16 bits soon stands still.
    """
    g = x.cotangent
    if x.dtype.itemsize == 2:
        g, x = g.abs(), x.but(x=x.x[:1, :1].expand(x.x.shape).contiguous())
    plain = norm.bare(x)
    found = gradient_of(norm.gradients(x, g), "weight")
    exact = (g.double() * norm(plain).double().cpu()).sum(dim=(0, 1))
    limit = norm.gradient_bounds(x, g.double())["weight"]
    yield within(found, norm.exact_gradients(x, g)["weight"], limit, "gradient of weight")
    limit = limit + scaled(norm.bound(plain), g.double()).sum(dim=(0, 1))
    yield within(found, exact, limit, "gradient of weight, by the outputs")


@law(
    source="a sum of nothing is zero",
    formula="x of no rows: dweight = dbias = 0",
    guards="A mean over the rows times their number, or sums that no row has initialised: NaN, or whatever was there.",
    needs=("weight",),
    given=(having(weight="normal", strides="contiguous"),),
    share=0.25,
    roles=NORMS,
)
def without_rows_the_gradients_are_zero(norm: NormSubject, x: NormInputs) -> Iterator[Comparison]:
    """A call without rows gives weight and bias gradients of zero, or is refused."""
    empty = x.but(x=x.x[:, :0])
    try:
        found = norm.gradients(empty, x.cotangent[:, :0])
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses a call without rows: {refusal}") from refusal
    for name, each in empty.tensors.items():
        gradient = found[name]
        if gradient is not None:
            yield same(gradient, torch.zeros_like(each), f"gradient of {name}, of no rows")
