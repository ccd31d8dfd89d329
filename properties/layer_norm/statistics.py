"""The mean is taken out, whole and first."""

import math

import torch

from headcheck.comparison import Comparison, within
from headcheck.functions.norms import NormInputs, NormSubject
from headcheck.given import at_least, at_most
from headcheck.laws import law

CENTRED = "Ba et al. 2016, section 3: x - mean x"


@law(
    source=CENTRED,
    formula="mean y = 0",
    guards="A mean over the wrong axis, one that is not taken out (an RMS norm), one taken out after the division.",
)
def a_normalised_row_has_mean_zero(norm: NormSubject, x: NormInputs) -> Comparison:
    """A normalised row, not yet weighted, has a mean of zero."""
    rows = norm.bare(x)
    means, limit = norm(rows).double().mean(dim=-1).cpu(), norm.bound(rows).mean(dim=-1)
    return within(means, torch.zeros_like(means), limit, "mean")


@law(
    source=CENTRED,
    formula="f(x + a) = f(x) for every a",
    guards="A mean over the wrong axis, or of the absolute values.",
)
def a_common_shift_changes_nothing(norm: NormSubject, x: NormInputs) -> Comparison:
    """Adding one whole number to a row of small whole numbers, which is exact, changes nothing."""
    whole = x.but(x=x.x.round().clamp(-8, 8))
    by = (16, -16, 64, -64, 96, -96, 200, -200)[x.case.seed % 8]
    return norm.agree(whole.but(x=whole.x + by), whole, what=f"output of whole numbers plus {by}")


@law(
    source="Chan, Golub and LeVeque 1983: mean x^2 - mean^2 loses kappa^2 u, two passes and Welford lose n kappa u",
    formula="f(x + a) = f(x), a^2 of the order of 1 / u",
    guards="The variance as mean x^2 - mean^2: rows far from zero come out as noise, or NaN.",
    given=(at_least(dim=2), at_most(dim=33)),
)
def a_large_mean_takes_no_digits(norm: NormSubject, x: NormInputs) -> Comparison:
    """Rows so far from zero that the square of the mean holds no digit of the variance are normalised all the same."""
    whole = norm.bare(x).but(x=x.x.round().clamp(-3, 3))
    far = 2.0 ** round(1 - math.log2(torch.finfo(x.dtype).eps) / 2)
    return norm.agree(whole.but(x=whole.x + far), whole, what=f"output of whole numbers plus {far:g}")


@law(
    source=CENTRED,
    formula="x = (a, ..., a): y = bias, or 0",
    guards="0 / 0, or a mean that differs from the number of which it is the mean.",
)
def a_constant_row_gives_the_bias(norm: NormSubject, x: NormInputs) -> Comparison:
    """A row of one and the same number gives the bias, or zeros where there is none."""
    size = (1.0, -3.0, 0.5, 100.0, -200.0)[x.case.seed % 5]
    constant = x.but(x=torch.full_like(x.x, size))
    exact = torch.zeros_like(x.x) if x.bias is None else x.bias.expand(x.x.shape)
    return within(norm(constant), exact, norm.bound(constant), f"output of rows of {size:g}")
