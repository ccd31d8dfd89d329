"""Rotary functions that are given tables of cosines and sines, and may turn a query and a key in one call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.errors import SubjectError
from headcheck.functions.rotary_inputs import (
    AXES_OF_TABLES,
    LAYOUTS,
    WIDTHS_OF_TABLES,
    Layout,
    Rotary,
    RotaryCase,
    RotaryInputs,
)
from headcheck.signatures import needed_by, parameters_of
from headcheck.verdict import Hint

if TYPE_CHECKING:
    from headcheck.functions.rotary import RotarySubject

COS, SIN = ("cos", "freqs_cos", "cos_cached"), ("sin", "freqs_sin", "sin_cached")
IN_ONE = ("freqs_cis", "freqs_complex", "rope_cache")
"""A table of complex numbers, or of both side by side, as in gpt-fast."""
ONE_TABLE = ("complex", "stacked")
"""How often a number stands in such a table."""
OF_ANGLES = ("freqs", "freq", "angles", "emb", "pos_emb", "rotary_emb", "rotary_pos_emb", "rope")
"""What a second parameter is called that takes angles, position times frequency, as in Megatron."""
PAIRINGS = ("interleaved", "half")
CLEARLY = 0.1
"""By so much more a later form has to be right, where none is altogether."""
NO_FORM = (
    "no plain call with {} as tables of a known form is right in more than a few numbers; put a function (x, positions) "
    "around it that makes what it takes (docs/adapting.md has examples), or say the form and the dim that it takes: "
    "--declare tables=sd-half --declare dims=24"
)
DIMS = (8, 64)
"""The dims in which the form of tables is looked for."""
NEAR = 0.05
"""How far an element may be off that counts as right there: a table in bfloat16 is coarse, a wrong one is further off."""


@dataclass(frozen=True)
class Tables:
    """What such a function is given in place of positions."""

    names: tuple[str, ...]
    """The parameters: of cosines and sines, or of both in one."""
    tensors: int
    """How many tensors come before them: x alone, or a query and a key."""
    axes: str = "sd"
    """b: batch, s: length, 1: an axis of one, d: of the numbers. Without b all sequences have the same positions."""
    width: str = "doubled"
    """half: a number for each pair; doubled, repeated: twice, half of the dims apart or side by side; of both in one
    complex, or stacked: cosine and sine in a last axis of two."""

    @property
    def of_each_sequence(self) -> bool:
        return _of_each_sequence(self.axes)

    @property
    def rounded(self) -> bool:
        """Whether they are given in the dtype of x."""
        return self.width != "complex"

    @property
    def form(self) -> str:
        """As it is declared."""
        return f"{self.axes}-{self.width}"

    def arguments(self, x: Tensor, angles: Tensor, heads: int) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call, by place and by keyword.

        x: in the layout of the subject. angles: (batch, length, pairs), in float64. heads: the axis of heads. Of several
        heads the last is the key's, of one the key is another tensor.
        """
        given = [x]
        if self.tensors > 1 and x.shape[heads] > 1:
            apart = torch.split(x, [x.shape[heads] - 1, 1], dim=heads)
            given = [each.contiguous() for each in apart] if x.is_contiguous() else [*apart]
        elif self.tensors > 1:
            given = [x, 2 * x]
        angles = angles if self.of_each_sequence else angles[0]
        for place, axis in enumerate(self.axes):
            angles = angles.unsqueeze(place) if axis == "1" else angles
        if self.width == "complex":
            wide = torch.complex128 if x.dtype == torch.float64 else torch.complex64
            return given, {self.names[0]: torch.polar(torch.ones_like(angles), angles).to(wide)}
        if self.width == "stacked":
            return given, {self.names[0]: torch.stack((angles.cos(), angles.sin()), dim=-1).to(x.dtype)}
        angles = {
            "half": lambda: angles,
            "doubled": lambda: torch.cat((angles, angles), dim=-1),
            "repeated": lambda: angles.repeat_interleave(2, dim=-1),
        }[self.width]()
        return given, dict(zip(self.names, (angles.cos().to(x.dtype), angles.sin().to(x.dtype)), strict=True))

    def joined(self, returned: Any, heads: int, count: int) -> Any:
        """What x became, of a query and a key, which had so many heads; whatever is no pair of tensors stays as it is."""
        pair = isinstance(returned, tuple | list) and len(returned) > 1
        if self.tensors == 1 or not pair or not all(isinstance(each, Tensor) for each in returned[:2]):
            return returned
        query, key = returned[:2]
        with suppress(RuntimeError, IndexError):
            return query if count == 1 else torch.cat((query, key), dim=heads)
        return returned


def _of_each_sequence(axes: str) -> bool:
    return axes.startswith("b")


def taken_by(function: Any) -> Tables | None:
    """The tables that a function cannot do without; None where it takes none, or positions beside them."""
    parameters, needed = [*(parameters_of(function) or ())], needed_by(function) or []
    pair = tuple(next((name for name in needed if name in names), "") for names in (COS, SIN))
    names = pair if all(pair) else tuple(name for name in needed if name in IN_ONE)[:1]
    others = [name for name in needed if name not in names]
    if not names or len(others) not in (1, 2) or parameters[: len(others)] != others:
        return None
    return Tables(names, len(others))


def find_tables(subject: RotarySubject) -> list[str]:
    """The form of the tables: the first in which a plain call is right, else the one that comes nearest."""
    taken = taken_by(subject.declaration.function)
    if taken is None:
        return []
    declared = subject.declaration.tables
    best, nearest = None, 0.0
    for tables, layout in _forms(taken, declared, subject.declaration.layout):
        subject.tables, subject.layout = tables, layout
        share = _right_share(subject, per_sequence=tables.of_each_sequence)
        if share == 1 or share > nearest + CLEARLY:
            best, nearest = (tables, layout), share
        if nearest == 1:
            break
    best = best or _as_declared(taken, subject.declaration)
    if best is None:
        raise SubjectError(NO_FORM.format(" and ".join(taken.names)))
    subject.tables, subject.layout = best
    notes = (
        []
        if declared
        else [f"tables: {best[0].form}, as found (axes, and how often each number stands there)"]
    )
    notes += [f"layout: {best[1]}, as found"] if best[1] != (subject.declaration.layout or "bhsd") else []
    # The form goes with the pairing: with the other one it is another.
    if best[0].width in ("doubled", "repeated"):
        subject.refused["interleaved"] = "is given tables of one pairing"
    if best[0].tensors > 1:
        notes.append("a query and a key are turned in one call: the last head is given as the key")
    if not best[0].of_each_sequence:
        subject.refused["batched_positions"] = (
            f"{subject.FEATURES['batched_positions']}, but one table for all"
        )
        notes += _if_of_each_sequence(subject, taken)
    return notes


def _as_declared(taken: Tables, declared: Rotary) -> tuple[Tables, Layout] | None:
    """The form that is declared, in which laws judge what is wrong in every number."""
    return next(_forms(taken, declared.tables, declared.layout), None) if declared.tables else None


def angles_note(subject: RotarySubject) -> list[str]:
    """Where positions are given to what may be a table of angles."""
    names = [*(parameters_of(subject.declaration.function) or ())][1:2]
    if subject.tables or subject.places["positions"] != 1 or not {*names} & {*OF_ANGLES}:
        return []
    said = (
        f"{names[0]} is given positions; where it is a table of angles, a function around it that makes one"
    )
    return [Hint(f"{said} of positions has it judged (docs/adapting.md)")]


def _forms(taken: Tables, declared: str | None, layout: Layout | None) -> Iterator[tuple[Tables, Layout]]:
    """Tables and layouts, those of each sequence first."""
    for axes in AXES_OF_TABLES:
        for width in WIDTHS_OF_TABLES:
            tables = replace(taken, axes=axes, width=width)
            fits = (width in ONE_TABLE) == (len(taken.names) == 1)
            if fits and declared in (None, tables.form):
                yield from ((tables, each) for each in LAYOUTS if layout in (None, each))


def _if_of_each_sequence(subject: RotarySubject, taken: Tables) -> list[str]:
    """What is said where tables of each sequence are answered, by those of the first one."""
    if subject.declaration.tables:
        return []
    kept = subject.tables
    assert kept is not None
    try:
        for axes in filter(_of_each_sequence, AXES_OF_TABLES):
            subject.tables = replace(taken, axes=axes, width=kept.width)
            if _right_share(subject, per_sequence=False) == 1:
                said = "tables of each sequence are answered as if all had those of the first: where such are meant, "
                return [Hint(f"{said}--declare tables={subject.tables.form} makes that a broken law")]
    finally:
        subject.tables = kept
    return []


def _right_share(subject: RotarySubject, *, per_sequence: bool) -> float:
    """Which share of a plain call's numbers is right, by the pairing that fits better; 0 where there is no answer."""
    dtype = getattr(torch, "float32" if "float32" in subject.dtypes else subject.dtypes[0])
    positions = torch.arange(1, 6)
    positions = torch.stack((positions, 3 * positions)) if per_sequence else positions
    for dim in subject.declaration.in_pairs(subject.declaration.dims or DIMS):
        x = torch.randn(2, 3, 5, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
            dtype
        )
        shares = [0.0]
        for pairing in PAIRINGS:
            inputs = RotaryInputs(RotaryCase(), x, positions, subject.base, pairing)  # type: ignore[arg-type]
            with suppress(LawBroken, NotApplicable):
                off = (subject(inputs).double() - subject.expected(inputs)).abs()
                shares.append(float((off <= NEAR * (1 + x.double().abs())).double().mean()))
        if max(shares):
            return max(shares)
    return 0.0
