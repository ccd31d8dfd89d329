"""The bias: it is added to what is weighted."""

import torch

from headcheck.comparison import Comparison, within
from headcheck.functions.norms import NormInputs, NormSubject
from headcheck.given import having
from headcheck.laws import law

AFFINE = "y = n x weight + bias, element by element"


@law(
    source=AFFINE,
    formula="f(x, w, b) = f(x, w, 0) + b",
    guards="A bias that is left out, which no test with the biases of a new module sees, or weighted as well.",
    needs=("bias",),
    given=(having(bias="normal"),),
)
def the_bias_is_added_last(norm: NormSubject, x: NormInputs) -> Comparison:
    """The bias is added to the weighted row, feature by feature, and changes nothing else."""
    without = x.but(bias=None if x.bias is None else torch.zeros_like(x.bias))
    bias = 0.0 if x.bias is None else x.bias.double()
    return within(norm(x), norm(without).double().cpu() + bias, norm.bound(x) + norm.bound(without))


@law(
    source=AFFINE,
    formula="f(x, w, None) = f(x, w, 0)",
    guards="A weight that goes missing with the bias, or the weight added in its place.",
    needs=("bias", "biasless"),
)
def no_bias_is_a_bias_of_zero(norm: NormSubject, x: NormInputs) -> Comparison:
    """Without a bias the output is what it is with a bias of zeros."""
    return norm.agree(x.but(bias=None), x.but(bias=torch.zeros_like(x.x[0, 0])))
