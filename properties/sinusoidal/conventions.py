"""What a table looks like: its layout, its first row, its width."""

import math
from contextlib import suppress

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, LawBroken, NotApplicable, holds, none, within
from headcheck.functions.sinusoidal import SinusoidalSubject
from headcheck.functions.sinusoidal_inputs import SinusoidalInputs
from headcheck.given import at_most, having
from headcheck.laws import law
from headcheck.library import changed_by

FORMULA = "Vaswani et al. 2017, section 3.5"


@law(
    source=FORMULA + ", with Python's sin and cos",
    formula="columns sin, cos, sin, cos, ..., or all sines and then all cosines, or all cosines first",
    guards="Halves where neighbours are meant: every law of shifts and norms is blind to it.",
    given=(at_most(length=16, d_model=16),),
)
def columns_stand_in_the_declared_layout(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """Each column has the function and the wave that the declared layout says."""
    frequencies = table.frequencies(x).tolist()
    columns = [table.column(number, x.d_model) for number in range(table.filled(x.d_model))]
    zeros = [0.0] * (x.d_model - len(columns))
    rows = [
        [(math.cos if second else math.sin)(p * frequencies[wave]) for second, wave in columns] + zeros
        for p in range(x.length)
    ]
    return within(table(x), torch.tensor(rows, dtype=torch.float64), table.bound(x))


@law(
    source=FORMULA + ": sin 0 = 0, cos 0 = 1",
    formula="PE(0) = (0, 1, 0, 1, ...)",
    guards="Positions counted from one, cosines where sines should stand.",
)
def position_zero_is_zeros_and_ones(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """In the first row every sine is 0 and every cosine is 1."""
    return within(table(x)[0], table.expected(x)[0], table.bound(x)[0], "first row")


@law(
    source=FORMULA + ": an odd width has one sine more than cosines",
    formula="f(length, 2n + 1) raises, is the formula's, or is f(length, 2n) and a column of zeros",
    guards="A last column that is left at zero, or cosines cut off by a shape that happens to fit.",
    share=0.5,
)
def odd_widths_are_refused_or_right(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """An odd width raises an exception, or gives the sines and cosines of the formula, or an even table and zeros."""
    odd = x.but(d_model=x.d_model | 1)
    declared = table.declaration.odd
    try:
        found = table(odd)
    except SubjectRaised as refusal:
        if declared in ("handled", "zero-column"):
            raise LawBroken(
                f"odd={declared!r} is declared, but d_model={odd.d_model} is refused: {refusal}"
            ) from refusal
        if declared == "refused":
            return none("odd widths that are taken")
        raise NotApplicable(f"refuses odd widths: {refusal}") from refusal
    if declared == "refused":
        raise LawBroken(f"odd='refused' is declared, but d_model={odd.d_model} is taken")
    return within(found, table.expected(odd), table.bound(odd), f"output of width {odd.d_model}")


@law(
    source="a call is a function of its arguments, also one that is refused",
    formula="f(length, 2n + 1) raises, or does not: torch's settings are what they were",
    guards="A default dtype of doubles for the time of the call, which an exception leaves as it is.",
    share=0.3,
)
def a_refused_width_touches_nothing_global(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """A call with an odd width, be it refused or not, leaves torch's settings as they were."""

    def odd() -> None:
        with suppress(SubjectRaised):
            table(x.but(d_model=x.d_model | 1))

    changed = changed_by(odd)
    if changed:
        raise LawBroken(f"a call with an odd d_model changed {', '.join(changed)}")
    return none("changes of torch")


@law(
    source="|sin|, |cos| <= 1",
    formula="-1 <= PE <= 1, no NaN",
    guards="The sign of the exponent: in long tables frequencies of 10,000 lose the angle, or overflow to NaN.",
)
def entries_are_finite_and_at_most_one(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """No entry is NaN, and none is beyond 1 by more than rounding."""
    found = table(x).double().cpu()
    return holds(found.abs() <= 1 + table.bound(x), found, "entry", table.expected(x))


@law(
    source=FORMULA + ": the first wave has frequency 1",
    formula="f(length, 2) = (sin p, cos p), or it raises",
    guards="Waves spaced by their number less one, which is 0 of a single wave: NaN (mlx 3614).",
    given=(having(d_model=2),),
    share=0.25,
)
def a_single_wave_is_refused_or_right(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """A table of two columns holds sin p and cos p, in their order and whatever the base, or is refused."""
    two = x.but(d_model=2)
    try:
        found = table(two)
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses a width of 2: {refusal}") from refusal
    angles = torch.arange(x.length, dtype=torch.float64)
    wave = angles.sin(), angles.cos()
    exact = torch.stack([wave[table.column(number, 2)[0]] for number in range(2)], dim=1)
    return within(found, exact, table.bound(two))
