"""The waves of a table, measured: the sine and cosine of a wave in one row are a vector, and it points somewhere."""

import math
from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, within
from headcheck.functions.planes import measured_angles
from headcheck.functions.sinusoidal import SinusoidalSubject
from headcheck.functions.sinusoidal_inputs import SinusoidalCase, SinusoidalInputs
from headcheck.given import at_least, having
from headcheck.laws import law

FORMULA = "Vaswani et al. 2017, section 3.5: sin and cos of pos / 10000^(2i/d_model)"


def _even_width(case: SinusoidalCase) -> SinusoidalCase:
    """A repair: as many cosines as sines."""
    return case.but(d_model=case.d_model + case.d_model % 2)


def _angles(table: SinusoidalSubject, x: SinusoidalInputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The angle of each wave in each row as measured, as it should be, and how far apart they may be."""
    (sin, cos), (sin_off, cos_off) = table.waves(x, table(x)), table.waves(x, table.bound(x))
    exact = table.angles(x)[:, : sin.shape[-1]]
    measured, limit = measured_angles(cos, sin, cos_off, sin_off, exact)
    return measured, exact, limit


@law(
    source=FORMULA,
    formula="the angle of wave i grows by base^(-2i/d_model) from row to row",
    guards="The sign of the exponent (document 001, line 167), a base of 1000 (maxjcohen/transformer 62).",
    given=(at_least(d_model=2, length=2),),
)
def each_wave_turns_by_its_frequency(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """From one position to the next each wave turns by its frequency, as measured."""
    measured, exact, limit = _angles(table, x)
    return within(measured.diff(dim=0), exact.diff(dim=0), limit[1:] + limit[:-1], "turn of a wave")


@law(
    source=FORMULA + ": wavelengths form a geometric progression from 2 pi to 10000 x 2 pi",
    formula="f_0 = 1, f_i f_(i+2) = f_(i+1)^2, and one step beyond the last, 1 / f = base",
    guards="The exponent 2i/d for every column (attention-is-all-you-need 32), a precedence slip (LoFTR 41).",
    given=(at_least(d_model=6, length=2), _even_width),
)
def wavelengths_form_a_geometric_row(table: SinusoidalSubject, x: SinusoidalInputs) -> Iterator[Comparison]:
    """The wavelengths, measured at position 1, run from 2 pi towards base x 2 pi, each longer by the same factor."""
    two_rows = x.but(length=2)
    measured, exact, limit = (each[1] for each in _angles(table, two_rows))
    logarithms, off = measured.clamp(min=1e-300).log(), -torch.log1p(-(limit / exact).clamp(max=1.0))
    steps, steps_off = logarithms.diff(), off[1:] + off[:-1]
    yield within(logarithms[:1], torch.zeros(1), off[:1], "logarithm of the first frequency")
    yield within(
        steps[1:], steps[:-1], steps_off[1:] + steps_off[:-1], "step between logarithms of frequencies"
    )
    beyond = logarithms[-1:] + (0 if table.declaration.last_wave == "base" else steps[-1:])
    last = torch.tensor([-math.log(table.base)], dtype=torch.float64)
    yield within(beyond, last, off[-1:] + steps_off[-1:], "logarithm of the frequency where the row ends")


@law(
    source=FORMULA + ": the sinusoid may extrapolate to longer sequences",
    formula="the angle of wave i in row p is p base^(-2i/d_model), for the last rows of a long table",
    guards="A buffer that ends at 512 or 5000, positions in 16 bits: rows that repeat or stand still.",
    given=(at_least(d_model=2), having(length=1)),
    share=0.25,
)
def far_rows_are_as_exact_as_their_format(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """In a table far longer than training ever was, the last rows point where their frequencies say."""
    long = x.but(length=table.longest - x.case.seed % 7)
    measured, exact, limit = _angles(table, long)
    return within(measured[-64:], exact[-64:], limit[-64:], "angle, in the last rows")


@law(
    source="sin^2 + cos^2 = 1",
    formula="|PE(p)|^2 = d_model / 2, and 1 of each wave",
    guards="A cosine of another frequency than its sine (SamLynnEvans/Transformer 25), a scale of the rows.",
    given=(at_least(d_model=2), _even_width),
)
def every_row_has_the_same_norm(table: SinusoidalSubject, x: SinusoidalInputs) -> Iterator[Comparison]:
    """Each wave has length 1 in each row, and each row the length of sqrt(d_model / 2)."""
    (sin, cos), off = table.waves(x, table(x)), torch.hypot(*table.waves(x, table.bound(x)))
    eps = torch.finfo(torch.float64).eps
    yield within(torch.hypot(sin, cos), torch.ones_like(sin), off + 4 * eps, "length of a wave")
    norms, size = table(x).double().cpu().norm(dim=-1), (x.d_model / 2) ** 0.5
    limit = off.norm(dim=-1) + (x.d_model + 4) * eps * size
    yield within(norms, torch.full_like(norms, size), limit, "norm of a row")
