"""The statistics of a normalised row, in whatever way it was computed."""

import torch

from headcheck.arithmetic import named
from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, within
from headcheck.formats import formats_of
from headcheck.functions.norms import NORMS, NormInputs, NormSubject, alternating
from headcheck.functions.rounding import scaled
from headcheck.given import at_least, having, one_of
from headcheck.laws import law


@law(
    source="y = c / sqrt(v + eps), v = mean c^2",
    formula="mean y^2 = v / (v + eps)",
    guards="The deviation squared where its root belongs (TPlinker 37), a sum in place of a mean, a wrong axis.",
    roles=NORMS,
)
def the_mean_square_is_what_eps_leaves(norm: NormSubject, x: NormInputs) -> Comparison:
    """A normalised row, not yet weighted, has a mean square of one but for the share of eps."""
    rows = norm.bare(x)
    y, bound, v = norm(rows).double().cpu(), norm.bound(rows), norm.row(rows).variance
    limit = (scaled(bound, 2 * y) + bound.square()).mean(dim=-1, keepdim=True)
    return within(y.square().mean(dim=-1, keepdim=True), v / (v + x.eps), limit, "mean square")


@law(
    source="the mean of c^2 is over dim, and not over dim - 1 (Bessel's correction is for samples)",
    formula="x = (1, -1, 1, -1, ...): y = x / sqrt(mean x^2 + eps), for every dim",
    guards="An unbiased variance, which shows less the longer the row (annotated-transformer 119, BERT-pytorch 30).",
    given=(one_of("dim", 2, 3, 8, 16, 65, 128, 257, 512, 1025, 4096),),
    roles=NORMS,
)
def the_mean_is_over_all_features(norm: NormSubject, x: NormInputs) -> Comparison:
    """Rows of ones of alternating sign come back with their own size, however long they are."""
    rows = norm.bare(x).but(x=alternating(x, 1.0))
    exact = rows.x.double() / torch.sqrt(rows.x.double().square().mean(dim=-1, keepdim=True) + x.eps)
    return within(norm(rows), exact, norm.bound(rows), "output of rows 1, -1, ...")


@law(
    source="a mean is the same over a row and over the row said twice",
    formula="f([x, x]) = [f(x), f(x)]",
    guards="A row cut into blocks of which one is left out, or filled up with zeros that count.",
    roles=NORMS,
)
def a_row_said_twice_is_normalised_as_once(norm: NormSubject, x: NormInputs) -> Comparison:
    """A row of twice the length, each entry there two times, has the same output two times."""
    twice = x.but(**{name: torch.cat([each, each], dim=-1) for name, each in x.tensors.items()})
    once, bound = norm(x), norm.bound(x)
    limit = norm.bound(twice) + torch.cat([bound, bound], dim=-1)
    return within(norm(twice), torch.cat([once, once], dim=-1), limit)


@law(
    source="y(a x) = a c / sqrt(a^2 v + eps)",
    formula="f(a x) = f(x) a sqrt((v + eps) / (a^2 v + eps))",
    guards="A scale that is left in the result: (v + eps)^2 for its root (TPlinker 37).",
    given=(at_least(dim=2),),
    roles=NORMS,
)
def a_common_scale_is_taken_out(norm: NormSubject, x: NormInputs) -> Comparison:
    """Rows in another unit are normalised to the same numbers, but for the share of eps."""
    a = (2.0, 4.0, 16.0, 64.0)[x.case.seed % 4]
    rows = norm.bare(x).but(x=x.x.clamp(-200, 200))
    larger, v = rows.but(x=a * rows.x), norm.row(rows).variance
    ratio = a * torch.sqrt((v + x.eps) / (a * a * v + x.eps))
    expected = norm(rows).double().cpu() * ratio
    return within(norm(larger), expected, norm.bound(larger) + ratio * norm.bound(rows), f"output of {a:g} x")


@law(
    source="what is computed in float32 is computed there from the square on: 300^2 > 65504, the largest of float16",
    formula="x = (t, -t, ...) in float16, t = 300 and more: |y - x / sqrt(mean x^2 + eps)| <= bound of bfloat16",
    guards="x.pow(2) before .float(): rows of large entries come back as zeros (LeetCUDA 335).",
    given=(having(dtype="float16"), at_least(dim=2)),
    share=0.1,
    roles=NORMS,
)
def squares_do_not_overflow_before_they_are_widened(norm: NormSubject, x: NormInputs) -> Comparison:
    """Rows of float16 whose squares that format cannot hold are normalised, where any step is made in a wider one.

    The numbers are those of bfloat16, too, whose range is that of float32: the bound is what its steps would lose.
    """
    if x.dtype != torch.float16:
        raise NotApplicable("float16 is not taken, or not asked for")
    if norm.declaration.arithmetic is not None:
        raise NotApplicable("the other laws hold it to the arithmetic that is declared")
    try:
        formats = formats_of(lambda: norm(x))
    except SubjectRaised as refusal:  # Or the watching did: what compiles a part of itself may not bear it.
        raise NotApplicable(f"what it computes in cannot be watched: {refusal}") from refusal
    if not formats - {torch.float16}:
        raise NotApplicable("computes in float16 alone, in which squares overflow")
    rows = norm.bare(x).but(x=alternating(x, (300.0, 1000.0, 8192.0)[x.case.seed % 3]))
    coarse = norm.held_to({"bfloat16": named("opwise")})
    return within(norm(rows), norm.expected(rows), coarse.bound(rows.cast(torch.bfloat16)))
