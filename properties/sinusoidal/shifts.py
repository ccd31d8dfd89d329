"""A shift is a rotation: what the code of a position says of positions nearby. No law here knows a frequency."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, holds, within
from headcheck.functions.sinusoidal import SinusoidalSubject
from headcheck.functions.sinusoidal_inputs import SinusoidalInputs
from headcheck.given import at_least
from headcheck.laws import law

SHIFT = "Vaswani et al. 2017, section 3.5: PE(pos + k) is a linear function of PE(pos)"


def _vectors(table: SinusoidalSubject, x: SinusoidalInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Each wave in each row as a complex number cos + i sin, and how far it may be off in all."""
    sin, cos = table.waves(x, table(x))
    sin_off, cos_off = table.waves(x, table.bound(x))
    return torch.complex(cos, sin), torch.hypot(sin_off, cos_off) + 8 * torch.finfo(torch.float64).eps


def _offset(x: SinusoidalInputs) -> int:
    seed: int = x.case.seed
    return 1 + seed % (x.length - 1)


@law(
    source=SHIFT,
    formula="PE(p + k) = M(k) PE(p) for every p, M(k) read off row k",
    guards="A cosine whose frequency is not its sine's, rows that stand still from some position on.",
    given=(at_least(d_model=2, length=3),),
)
def one_rotation_for_each_offset(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """For each offset one rotation matrix takes the code of every position to that of the position so far behind."""
    rows, off = _vectors(table, x)
    k = _offset(x)
    shifted = rows[:-k] * rows[k]
    limit = off[k:] + off[:-k] + off[k] + off[:-k] * off[k]
    return within(
        (rows[k:] - shifted).abs(), torch.zeros_like(off[k:]), limit, "distance from the shifted code"
    )


@law(
    source="cos(a - b) = cos a cos b + sin a sin b",
    formula="<PE(p), PE(p + k)> = <PE(0), PE(k)> for every p",
    guards="A cosine whose frequency is not its sine's (SamLynnEvans/Transformer 25).",
    given=(at_least(d_model=2, length=3),),
)
def inner_products_depend_on_the_offset_only(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """Two positions so far apart have the same inner product wherever they are, wave by wave."""
    rows, off = _vectors(table, x)
    k = _offset(x)
    products = (rows[:-k].conj() * rows[k:]).real
    limit = off[:-k] + off[k:] + off[:-k] * off[k:]
    return within(products, products[:1].expand_as(products), limit + limit[:1], "inner product of a wave")


@law(
    source="a code is to tell positions apart",
    formula="p != q implies PE(p) != PE(q)",
    guards="Positions in 16 bits: from 257 on neighbours share a row.",
    given=(at_least(d_model=2, length=2),),
)
def distinct_positions_have_distinct_codes(
    table: SinusoidalSubject, x: SinusoidalInputs
) -> Iterator[Comparison]:
    """No two rows are equal, where rounding leaves room for it."""
    rows, exact, off = table(x).double().cpu(), table.expected(x), table.bound(x).norm(dim=-1)
    for k in (1, _offset(x)):
        apart, should = ((each[k:] - each[:-k]).norm(dim=-1) for each in (rows, exact))
        told = (apart > 0) | (should <= off[k:] + off[:-k])
        yield holds(told, apart, f"distance of rows {k} apart", expected=1.0)
