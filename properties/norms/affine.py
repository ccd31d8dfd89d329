"""The weight: it multiplies what is normalised, feature by feature."""

import torch

from headcheck.comparison import Comparison, within
from headcheck.functions.norms import NORMS, NormInputs, NormSubject
from headcheck.functions.rounding import scaled
from headcheck.given import having
from headcheck.laws import law

AFFINE = "y = n x weight + bias, element by element"
WEIGHTED = having(weight="normal")


@law(
    source=AFFINE,
    formula="f(x, w, 0) = w f(x, 1, 0)",
    guards="A weight that is left out, which no test with the weights of a new module sees, or read in another order.",
    needs=("weight",),
    given=(WEIGHTED,),
    roles=NORMS,
)
def the_weight_multiplies_the_normalised_row(norm: NormSubject, x: NormInputs) -> Comparison:
    """Each feature of the output is the normalised feature times its weight."""
    plain = norm.bare(x)
    weighted = plain.but(weight=x.weight)
    expected = norm.multiplied(x, norm(plain).cpu())
    limit = norm.multiplied(x, torch.ones_like(x.x))
    return within(norm(weighted), expected, norm.bound(weighted) + scaled(norm.bound(plain), limit))


@law(
    source=AFFINE,
    formula="f(x, a w, b) - b = a (f(x, w, b) - b)",
    guards="A weight that is itself normalised, clipped, or applied before the statistics are taken.",
    needs=("weight",),
    given=(WEIGHTED,),
    roles=NORMS,
)
def the_output_scales_with_the_weight(norm: NormSubject, x: NormInputs) -> Comparison:
    """A weight twice or eight times as large gives twice or eight times the output, the bias apart."""
    a = (2.0, 8.0, -1.0, 0.25)[x.case.seed % 4]
    offset = norm.declaration.weight_offset
    one = torch.ones_like(x.x[0, 0])
    first = x.but(weight=one if x.weight is None else x.weight.clamp(-64, 64))
    larger = first.but(weight=(a * norm.multiplied(first, one) - offset).to(x.dtype))
    ratio = norm.multiplied(larger, one) / norm.multiplied(first, one)
    ratio = torch.where(ratio.isfinite(), ratio, 0.0)
    b = 0.0 if x.bias is None else x.bias.double()
    expected = (norm(first).double().cpu() - b) * ratio + b
    return within(norm(larger), expected, norm.bound(larger) + scaled(norm.bound(first), ratio))


@law(
    source=AFFINE,
    formula="f(x, 0, b) = b",
    guards="A bias that is weighted too, or an input that gets around the norm.",
    needs=("weight",),
    given=(WEIGHTED,),
    roles=NORMS,
)
def a_weight_of_zero_gives_the_bias(norm: NormSubject, x: NormInputs) -> Comparison:
    """Where the weight is zero, the output is the bias, or zero where there is none."""
    offset = norm.declaration.weight_offset
    closed = x.but(weight=torch.full_like(x.x[0, 0], -offset))
    expected = torch.zeros_like(x.x) if x.bias is None else x.bias.expand(x.x.shape)
    return within(norm(closed), expected, norm.bound(closed), "output with a weight of zero")


@law(
    source=AFFINE,
    formula="f(x, None) = f(x, 1)",
    guards="A weight of another size where none is given, or a norm left out with it.",
    needs=("weight", "weightless"),
    roles=NORMS,
)
def no_weight_is_a_weight_of_one(norm: NormSubject, x: NormInputs) -> Comparison:
    """Without a weight the output is what it is with a weight of ones."""
    one = torch.ones_like(x.x[0, 0]) - norm.declaration.weight_offset
    return norm.agree(x.but(weight=None), x.but(weight=one))
