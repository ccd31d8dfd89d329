"""What a rotary function does not declare is found out on small cases: dims, pairs, forms of positions, reach."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headcheck.calling import SubjectRaised, refuses_a_length
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.errors import SubjectError
from headcheck.functions.planes import Pairs
from headcheck.functions.rotary_inputs import RotaryCase, RotaryInputs
from headcheck.layouts import LAYOUTS
from headcheck.reference.positions import Pairing
from headcheck.signatures import parameters_of

if TYPE_CHECKING:
    from headcheck.functions.rotary import RotaryRole, RotarySubject

DIMS = (2, 4, 6, 8, 16, 32, 64, 80, 96, 128)
FURTHEST = 250_000
"""The largest position that laws ask for: a table of that length still fits into memory."""
REACHES = (FURTHEST, 131_071, 32_767, 16_383, 8_191, 4_095, 2_047, 1_023, 511)
SHORT_REACHES = (255, 127, 63, 31)
"""Where more is refused in so many words; a table that ends there by a slip is held to the last of the others."""
CASES = 8
"""So many show whether angles are in float64."""


def find_out(subject: RotarySubject) -> list[str]:
    """Notes on what was found out; the subject has it from now on."""
    notes: list[str] = []
    dtype = _working_dtype(subject)
    if dtype is None and subject.declaration.layout is None:
        why = _refusal(subject, getattr(torch, subject.dtypes[0]), (subject.dims or DIMS)[-1])
        subject.layout, notes = "bshd", [f"layout: bshd, as found (bhsd is refused: {why})"]
        dtype = _working_dtype(subject)
    if dtype is None:
        subject.layout = subject.declaration.layout or "bhsd"
        subject.dims = subject.dims or DIMS
        return []
    steps = (_dims, _base, _turned_dims, _pairing, _forms_of_positions, _reach, _negative, _layouts)
    return notes + [note for step in steps for note in step(subject, dtype)]


def _working_dtype(subject: RotarySubject) -> torch.dtype | None:
    """The first dtype that works for any dim, with positions in either form; the dims are those that work."""
    declared = subject.declaration.shared_positions
    for name in subject.dtypes:
        for shared in (True, False) if declared is None else (declared,):
            if not shared and declared is None:
                subject.refused["shared_positions"] = subject.FEATURES["shared_positions"]
            dtype: torch.dtype = getattr(torch, name)
            if working := [dim for dim in subject.dims or DIMS if not _refusal(subject, dtype, dim)]:
                subject.dims = subject.dims or tuple(working)
                return dtype
        subject.refused.pop("shared_positions", None)
    return None


def _dims(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    missing = [dim for dim in DIMS if dim not in subject.dims]
    if not missing or subject.declaration.dims:
        return []
    why = _refusal(subject, dtype, missing[0])
    return [f"dims: {', '.join(map(str, subject.dims))} ({missing[0]} is refused: {why})"]


def _base(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    """The base by the signature, where it is not declared."""
    parameters = parameters_of(subject.declaration.function) or {}
    parameter = parameters.get(str(subject.places["base"]))
    default = parameter.default if parameter is not None else None
    if subject.declaration.base is not None or not isinstance(default, int | float):
        return []
    subject.base = float(default)
    return [f"base: {default:g}, by the signature"] if default != 10000 else []


def _turned_dims(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    """All, a number or a share of them; only dims of which that share is an even number are then asked for."""
    share, notes = subject.declaration.rotary_dim, []
    if share is None:
        share = _share({dim: _touched(_matrix(subject, dtype, dim)) for dim in subject.dims})
        notes = [f"rotary_dim: {share:g}, as found"] if share != 1.0 else []
    if isinstance(share, float):
        kept = tuple(dim for dim in subject.dims if share * dim % 2 == 0) or subject.dims
        if kept != subject.dims:
            notes.append(f"dims: {', '.join(map(str, kept))}, of which that share is an even number")
        subject.dims = kept
    subject.rotary_share = share
    return notes


def _share(widths: dict[int, int]) -> int | float:
    """What the numbers of turned dims have in common; 1.0 where nothing fits, and the laws will say so."""
    largest = max(widths)
    width = widths[largest]
    share = width / largest
    if width == 0 or width % 2 or all(widths[dim] == dim for dim in widths):
        return 1.0
    if all(widths[dim] == min(width, dim) for dim in widths):
        return width
    fitting = [dim for dim in widths if share * dim % 2 == 0]
    told = len(fitting) > 1 or len(widths) == 1  # Of one dim among several any width is a share.
    return share if told and all(widths[dim] == share * dim for dim in fitting) else 1.0


def _matrix(subject: RotarySubject, dtype: torch.dtype, dim: int) -> Tensor:
    """Row j is what becomes of unit vector j at position 1."""
    unit_vectors = torch.eye(dim, dtype=dtype)[None, None]
    try:
        return subject(_inputs(subject, unit_vectors, torch.ones(dim, dtype=torch.int64)))[0, 0].cpu()
    except LawBroken as problem:
        raise SubjectError(
            f"the subject does not turn tokens that all stand at position 1: {problem}"
        ) from problem


def _touched(matrix: Tensor) -> int:
    """One more than the last dim that is turned."""
    moved = matrix != torch.eye(len(matrix), dtype=matrix.dtype)
    places = (moved.any(dim=0) | moved.any(dim=1)).nonzero()
    return int(places.max()) + 1 if len(places) else 0


def _pairing(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    """The one whose pairs have the larger sines; where neither has, the laws will say so."""
    dim = max(subject.dims)
    width = subject.rotary_dim(dim)
    if subject.declaration.pairing is not None or width == 2:
        return []
    matrix, sizes = _matrix(subject, dtype, dim).double(), {}
    pairings: tuple[Pairing, ...] = ("interleaved", "half")
    for pairing in pairings:
        seconds = Pairs.of(matrix, width, pairing).second.mT
        sizes[pairing] = Pairs.of(seconds, width, pairing).first.diagonal().abs().sum()
    subject.pairing = max(pairings, key=lambda pairing: sizes[pairing])
    return [f"pairing: {subject.pairing}, as found"]


def _forms_of_positions(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    forms = {
        "batched_positions": torch.tensor([[0, 1], [1, 2]]),
        "fractional": torch.tensor([0.5, 1.5]),
    }
    for feature, positions in forms.items():
        known = getattr(subject.declaration, feature) is not None
        why = "" if known else _refusal(subject, dtype, max(subject.dims), positions)
        if why:
            subject.refused[feature] = f"{subject.FEATURES[feature]} ({why})"
    if subject.lacks("shared_positions"):
        return ["positions: (batch, length) only"]
    return []


def _reach(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    if subject.declaration.max_position is not None:
        return []
    beyond, dim = "", max(subject.dims)
    aloud = _is_refused_aloud(subject, dtype, dim, torch.tensor([REACHES[-1]]))
    for reach in (*REACHES, *(SHORT_REACHES if aloud else ())):
        why = _refusal(subject, dtype, dim, torch.tensor([reach]))
        if not why:
            subject.furthest = reach
            return [f"positions: up to {reach} ({beyond})"] if reach != FURTHEST else []
        beyond = f"further ones are refused: {why}"
    subject.furthest = REACHES[-1]
    return []


def _negative(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    if subject.declaration.negative is not None:
        return []
    dim = max(subject.dims)
    x = _inputs(subject, torch.ones(1, 1, 1, dim, dtype=dtype), torch.tensor([-3]))
    try:
        if not within(subject(x), subject.expected(x), subject.bound(x)).broken:
            return []
        why = "they do not turn back"
    except (LawBroken, NotApplicable) as problem:
        why = str(problem)
    subject.refused["negative"] = f"{subject.FEATURES['negative']} ({why})"
    return []


def _layouts(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    """Those that make it raise: one law will say so where they may not, the others speak of something else."""
    x = _inputs(subject, torch.ones(2, 3, 2, max(subject.dims), dtype=dtype), torch.arange(2))
    refused: dict[str, LawBroken | NotApplicable] = {}
    for layout in LAYOUTS:
        try:
            subject(x.but(case=x.case.but(layout=layout)))
        except (LawBroken, NotApplicable) as problem:
            refused[layout] = problem
    subject.avoids = (*refused,)
    if not refused or subject.declaration.any_strides is False:
        return []
    broken = [each for each in refused.values() if isinstance(each, LawBroken)]
    cure = "any_strides=False declares it" if broken else "any_strides=True holds it to them"
    why = next(iter(broken or refused.values()))
    return [f"x in memory: not {', '.join(refused)} ({why}); {cure}"]


def formats_of_angles(subject: RotarySubject, role: RotaryRole) -> list[str]:
    """float64 where the narrower bound fits far from zero; with 16 bits nobody could tell: float32."""
    if subject.declaration.angles is not None:
        return []
    for dtype in subject.dtypes:
        if dtype in ("float32", "float64"):
            subject.formats[dtype] = "float64"
            fits = all(_fits(subject, role, dtype, number) for number in range(CASES))
            subject.formats[dtype] = "float64" if fits else "float32"
    return [f"{dtype}: angles in {form}, as found" for dtype, form in subject.formats.items()]


def _fits(subject: RotarySubject, role: RotaryRole, dtype: str, number: int) -> bool:
    case = role.draw(Random(f"angles/{number}"), subject)
    far = {"dim": max(subject.dims), "start": subject.furthest, "values": "normal", "length": 17}
    case = role.fit(case.but(dtype=dtype, **far), subject)
    x = role.build(case, subject)
    try:
        return not within(subject(x), subject.expected(x), subject.bound(x)).broken
    except (LawBroken, NotApplicable):
        return False


def _inputs(subject: RotarySubject, x: Tensor, positions: Tensor) -> RotaryInputs:
    return RotaryInputs(RotaryCase(), x, positions, subject.base, subject.pairing)


def _is_refused_aloud(subject: RotarySubject, dtype: torch.dtype, dim: int, positions: Tensor) -> bool:
    """Whether a call raises, and says that positions go too far: not by a slip, as of an index."""
    try:
        subject(_inputs(subject, torch.ones(1, 3, len(positions), dim, dtype=dtype), positions))
    except SubjectRaised as raised:
        return refuses_a_length(raised.problem)
    except (LawBroken, NotApplicable):
        pass
    return False


def _refusal(subject: RotarySubject, dtype: torch.dtype, dim: int, positions: Tensor | None = None) -> str:
    """Why a call does not work; '' if it does."""
    where = torch.arange(2) if positions is None else positions
    x = torch.ones(where.ndim, 3, where.shape[-1], dim, dtype=dtype)
    try:
        subject(_inputs(subject, x, where))
    except (LawBroken, NotApplicable) as problem:
        return str(problem)
    return ""
