"""A scale in the call, as attention kernels that are fused with their softmax have it."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, NotApplicable, within
from headcheck.functions.softmax import SoftmaxInputs, SoftmaxSubject
from headcheck.laws import law

SCALED = "softmax(s x): Vaswani et al. 2017, equation 1, where s = 1 / sqrt(d_k)"
SCALES = (0.125, 0.3, 0.088, 1.7, 2.0, 1.0)
"""Powers of two, and what is none; above one and below."""
NEGATIVE = -0.7
LARGE = 300.0
"""exp(0.7 LARGE) is beyond float32: so far is the largest entry, by a negative scale, below the others."""


def _asked(x: SoftmaxInputs) -> SoftmaxInputs:
    """With a scale, and no entries that it makes overflow."""
    largest = torch.finfo(x.dtype).max / 4
    entries = torch.where(x.x.isneginf(), x.x, x.x.clamp(-largest, largest))
    return x.but(x=entries, scale=SCALES[x.case.seed % len(SCALES)])


@law(
    source=SCALED,
    formula="f(x, s) = softmax(s x)",
    guards="A scale that is left out in one path, or taken twice; the maximum taken out before it, and not scaled.",
    needs=("scale",),
)
def a_scale_multiplies_the_entries(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """With a scale the weights are those of the entries times the scale."""
    return softmax.against_the_oracle(_asked(x))


@law(
    source=SCALED,
    formula="dx = s (diag(p) - p p^T) g",
    guards="A backward of one's own that forgets the scale: the commonest slip in fused kernels.",
    needs=("scale",),
)
def a_scale_multiplies_the_gradient(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Iterator[Comparison]:
    """The gradient of the entries has the scale as a factor."""
    scaled, g = _asked(x), x.cotangent
    found = softmax.gradients(scaled, g)["x"]
    if found is None:
        raise NotApplicable("the output carries no gradient for x")
    exact, bound = softmax.exact_gradients(scaled, g)["x"], softmax.gradient_bounds(scaled, g.double())["x"]
    yield within(found, exact, bound, "gradient of x, with a scale")


@law(
    source=SCALED,
    formula="f(x, s) = softmax(s x), s < 0",
    guards="The maximum of x is taken out before the scale: a negative one makes it the smallest, and exp overflows.",
    needs=("scale", "negative_scale"),
    share=0.25,
    unless=("negative_scale=False",),
)
def a_negative_scale_turns_the_order_round(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """With a scale below zero, the weights are those of the entries times the scale, an outlier's too."""
    entries = torch.where(x.x.isneginf(), 0.0, x.x.clamp(-LARGE, LARGE))
    entries[..., 0] = LARGE
    return softmax.against_the_oracle(x.but(x=entries, scale=NEGATIVE))
