"""Where eps stands, how large it is, and what it does to rows that are small beside it."""

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, within
from headcheck.functions.norms import NORMS, NormInputs, NormSubject, alternating
from headcheck.given import at_least, one_of
from headcheck.laws import law

ROOT = "Ba et al. 2016, section 3; Zhang and Sennrich 2019, equation (4); eps as in torch's documentation"

SMALL = 1e-3
"""Beside whose square any usual eps shows."""
SINGLE = torch.float32.itemsize
LEAST = 1e-12
"""What may be put in place of an eps of zero, so that nothing is divided by zero."""


@law(
    source=ROOT,
    formula="x = (t, -t, ...), t^2 = eps/4, eps, 4 eps: y = x / sqrt(mean x^2 + eps)",
    guards="eps outside the root (TransformerEngine 364, annotated-transformer 119), or another one than was asked for.",
    given=(at_least(dim=2),),
    roles=NORMS,
)
def eps_stands_inside_the_root(norm: NormSubject, x: NormInputs) -> Comparison:
    """Of a row whose variance is comparable to eps, the scale is one over the root of their sum."""
    t = (x.eps * (0.25, 1.0, 4.0)[x.case.seed % 3]) ** 0.5
    rows = norm.bare(x).but(x=alternating(x, t))
    exact = rows.x.double() / torch.sqrt(rows.x.double().square().mean(dim=-1, keepdim=True) + x.eps)
    return within(norm(rows), exact, norm.bound(rows), f"output of rows t, -t, ... with t = {t:.3g}")


@law(
    source=ROOT,
    formula="mean x^2 << eps: y = (x - mean) / sqrt(eps), without the mean where none is taken out",
    guards="A division by the deviation alone, or by the deviation plus eps: noise as large as a signal.",
    given=(at_least(dim=2),),
    roles=NORMS,
)
def far_below_eps_a_row_is_only_divided(norm: NormSubject, x: NormInputs) -> Comparison:
    """A row whose variance vanishes beside eps is divided by the root of eps and not blown up to variance one."""
    small = x.x.clamp(-4, 4) * (0.001 * x.eps**0.5)
    rows = norm.bare(x).but(x=small)
    row = norm.row(rows)
    exact = row.centred / torch.sqrt(row.variance + x.eps)
    return within(norm(rows), exact, norm.bound(rows), f"output of x times {0.001 * x.eps**0.5:.3g}")


@law(
    source="(2 x)^2 + 4 eps = 4 (x^2 + eps)",
    formula="f(a x, a^2 eps) = f(x, eps), a a power of two",
    guards="An eps of its own in place of the one that is given, or one that is added in another unit.",
    needs=("eps",),
    given=(at_least(dim=2),),
    roles=NORMS,
)
def eps_scales_with_the_square_of_the_row(norm: NormSubject, x: NormInputs) -> Comparison:
    """Rows of another unit, with eps in the square of that unit, give the same output."""
    a = (2.0, 4.0, 8.0, 16.0)[x.case.seed % 4]
    rows = x.but(x=x.x.clamp(-100, 100))
    what = f"output of {a:g} x with {a * a:g} eps"
    return norm.agree(rows.but(x=a * rows.x, eps=a * a * rows.eps), rows, what=what)


@law(
    source=ROOT,
    formula="x = 0: y = bias, or 0",
    guards="0 / 0 where eps is left out or rounded away.",
    roles=NORMS,
)
def a_row_of_zeros_gives_the_bias(norm: NormSubject, x: NormInputs) -> Comparison:
    """Rows of zeros give the bias, or zeros where there is none."""
    zeros = x.but(x=torch.zeros_like(x.x))
    exact = torch.zeros_like(x.x) if x.bias is None else x.bias.expand(x.x.shape)
    clamped = x.eps == 0 and norm.declaration.eps is None and x.dtype != torch.float16  # Where 1e-12 is 0.
    return within(norm(zeros), exact, 0.0 if clamped else norm.bound(zeros), "output of zeros")


@law(
    source=ROOT,
    formula="x = (t, -t, ...), t = 0.001, eps = 0: y = x / t",
    guards="An eps of zero that is taken for none, and its default put in its place.",
    needs=("eps",),
    given=(at_least(dim=2), one_of("dtype", "float32", "float64")),
    share=0.3,
    roles=NORMS,
)
def an_eps_of_zero_is_added_too(norm: NormSubject, x: NormInputs) -> Comparison:
    """With an eps of zero small rows are normalised in full, or the call is refused."""
    if x.dtype.itemsize < SINGLE:
        raise NotApplicable("in 16 bits the squares of small rows are lost")
    rows = norm.bare(x).but(x=alternating(x, SMALL), eps=0.0)
    exact = rows.x.double() / rows.x.double().square().mean(dim=-1, keepdim=True).sqrt()
    try:
        output = norm(rows)
    except SubjectRaised as refusal:
        if isinstance(refusal.problem, ArithmeticError):
            raise  # Nobody refuses by dividing by zero.
        raise NotApplicable(f"an eps of zero is refused: {refusal}") from refusal
    least = exact.abs() * LEAST / SMALL**2
    return within(output, exact, norm.bound(rows) + least, "output for an eps of zero")
