"""What a rotary function does not declare is found out on small cases: dims, pairs, forms of positions, reach."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headcheck.calling import SubjectRaised, refuses_a_length
from headcheck.comparison import LawBroken, NotApplicable, failure_of
from headcheck.errors import SubjectError
from headcheck.functions.planes import NEAR, Pairs, base_of, frequencies_of, turns_of
from headcheck.functions.rotary_inputs import DIMS, RotaryCase, RotaryInputs
from headcheck.reference.positions import Pairing
from headcheck.signatures import parameters_of
from headcheck.strides import STRIDES
from headcheck.verdict import IF_MEANT, Hint

if TYPE_CHECKING:
    from headcheck.functions.rotary import RotaryRole, RotarySubject

FURTHEST = 250_000
"""The largest position that laws ask for: a table of that length still fits into memory."""
REACHES = (FURTHEST, 131_071, 32_767, 16_383, 8_191, 4_095, 2_047, 1_023, 511)
SHORT_REACHES = (255, 127, 63, 31)
"""Where more is refused in so many words; a table that ends there by a slip is held to the last of the others."""
SHOWN = 8
"""The smallest dim of which angles are measured, if it takes one: of fewer pairs no base can be told."""
LENGTHS_AT = range(1, 9)
"""The positions at which the lengths of turned pairs are measured."""
IF_CALLED_SO = (
    "it is not judged there; where it is called so, --declare autocast=True makes that a broken law "
    "(a region with enabled=False around the angles is the usual cure)"
)
CASES = 8
"""So many show whether angles are in float64."""


def find_out(subject: RotarySubject) -> list[str]:
    """Notes on what was found out; the subject has it from now on."""
    notes: list[str] = []
    tried = subject.dims or subject.declaration.in_pairs(DIMS)
    dtype = _working_dtype(subject)
    if dtype is None and subject.declaration.layout is None:
        why = _refusal(subject, getattr(torch, subject.dtypes[0]), tried[-1])
        subject.layout, notes = "bshd", [f"layout: bshd, as found (bhsd is refused: {why})"]
        dtype = _working_dtype(subject)
    if dtype is None:
        subject.layout = subject.declaration.layout or "bhsd"
        subject.dims = tried
        return []
    steps = (
        _dims,
        _base,
        _turned_dims,
        _pairing,
        _forms_of_positions,
        _reach,
        _rotation,
        _negative,
        _autocast,
        _layouts,
    )
    return notes + [note for step in steps for note in step(subject, dtype)]


def _working_dtype(subject: RotarySubject) -> torch.dtype | None:
    """The first dtype that works for any dim, with positions in either form; the dims are those that work."""
    declared = subject.declaration.shared_positions
    for name in subject.dtypes:
        for shared in (True, False) if declared is None else (declared,):
            if not shared and declared is None:
                subject.refused["shared_positions"] = subject.FEATURES["shared_positions"]
            dtype: torch.dtype = getattr(torch, name)
            if working := _dims_taken(subject, dtype):
                subject.dims = subject.dims or tuple(working)
                return dtype
        subject.refused.pop("shared_positions", None)
    return None


def _dims_taken(subject: RotarySubject, dtype: torch.dtype) -> list[int]:
    """The dims that work, of those declared, or of those that are tried first, or of those that the refusals name."""
    refusals = {
        dim: _refusal(subject, dtype, dim) for dim in subject.dims or subject.declaration.in_pairs(DIMS)
    }
    taken = [dim for dim, why in refusals.items() if not why]
    if taken or subject.dims:
        return taken
    named = {int(number) for why in refusals.values() for number in re.findall(r"\d{1,3}", why)}
    return [dim for dim in sorted(named - {0, *DIMS}) if not dim % 2 and not _refusal(subject, dtype, dim)]


def _dims(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    missing = [dim for dim in subject.declaration.in_pairs(DIMS) if dim not in subject.dims]
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
    share, notes = subject.declaration.turned, []
    if share is None:
        share = _share({dim: _touched(_matrix(subject, dtype, dim)) for dim in subject.dims})
        notes = [f"rotary_dim: {share:g}, as found"] if share != 1.0 else []
    if isinstance(share, float):
        kept = tuple(dim for dim in subject.dims if share * dim % 2 == 0) or subject.dims
        if kept != (subject.declaration.dims or subject.dims):
            notes.append(f"dims: {', '.join(map(str, kept))}, of which that share is an even number")
        subject.dims = kept
    subject.rotary_share = share
    if subject.consecutive:
        notes.append("positions: those that rise by one only, as others are refused")
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


def _matrix(subject: RotarySubject, dtype: torch.dtype, dim: int, position: int = 1) -> Tensor:
    """Row j is what becomes of unit vector j at a position."""
    unit_vectors = torch.eye(dim, dtype=dtype)
    alike = _inputs(subject, unit_vectors[None, None], torch.full((dim,), position))
    run = _inputs(
        subject,
        unit_vectors[:, None, None].expand(-1, 1, 2, -1).contiguous(),
        torch.tensor([position - 1, position]),
    )
    try:
        return subject(alike)[0, 0].cpu()
    except (LawBroken, NotApplicable) as problem:
        if failure_of(subject, run):
            raise SubjectError(
                f"the subject does not turn tokens that all stand at position {position}: {problem}"
            ) from problem
        subject.consecutive = True
    return subject(run)[:, 0, 1].cpu()


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
    if turns_of(matrix, width, subject.pairing, subject.pairing) is None:
        for pairing in pairings:
            if turns_of(matrix, width, pairing, _other(pairing)) is not None:
                subject.pairing = pairing
    return [f"pairing: {subject.pairing}, as found"]


def _other(pairing: Pairing) -> Pairing:
    return "half" if pairing == "interleaved" else "interleaved"


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
    asked = _off_the_device(subject, dtype)
    aloud = _is_refused_aloud(asked, dtype, dim, torch.tensor([REACHES[-1]]))
    for reach in (*REACHES, *(SHORT_REACHES if aloud else ())):
        why = _refusal(asked, dtype, dim, torch.tensor([reach]))
        if not why:
            subject.furthest = reach
            return [f"positions: up to {reach} ({beyond})"] if reach != FURTHEST else []
        beyond = f"further ones are refused: {why}"
    subject.furthest = REACHES[-1]
    ends = (reach for reach in SHORT_REACHES if not _refusal(asked, dtype, dim, torch.tensor([reach])))
    said = next((f"max_position={reach}" for reach in ends), None)
    return [Hint(f"a plain call works with --declare {said}, {IF_MEANT}")] if said and beyond else []


def _rotation(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    """Which other rotation a plain call is, where it is not the one that it is held to: it may be declared."""
    if _is_right(subject, dtype):
        return []
    for changes in _others(subject, dtype):
        if _is_right(_declared(subject, changes), dtype):
            subject.found = {"base": None, **changes} if "frequencies" in changes else changes
            said = " ".join(f"--declare {field}={_said(value)}" for field, value in changes.items())
            return [Hint(f"a plain call is right with {said}, {IF_MEANT}")]
    subject.found = {"base": subject.declaration.base}
    return []


def _others(subject: RotarySubject, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Declarations that a measured rotation may have: of its pairs, its length, and its base or its angles."""
    dim = min((dim for dim in subject.dims if dim >= SHOWN), default=max(subject.dims))
    width = subject.rotary_dim(dim)
    for out, backwards in product((subject.pairing, _other(subject.pairing)), (False, True)):

        def turns_at(position: int, out: Pairing = out, backwards: bool = backwards) -> Tensor | None:
            with suppress(SubjectError):
                matrix = _matrix(subject, dtype, dim, position).double()
                turns = turns_of(matrix, width, subject.pairing, out)
                return turns if turns is None or not backwards else turns.conj()
            return None

        frequencies = frequencies_of(turns_at, subject.furthest)
        if frequencies is None or (frequencies < 0).any():
            continue
        common: dict[str, Any] = {} if out == subject.pairing else {"pairing_out": out}
        common |= {"backwards": True} if backwards else {}
        common |= _magnitude([turns_at(position) for position in LENGTHS_AT])
        if base := base_of(frequencies):
            yield common if base == subject.base else {**common, "base": base}
        at_one_dim = {"dims": (dim,), **common}
        yield {**at_one_dim, "base": base} if base else at_one_dim
        yield {**at_one_dim, "frequencies": tuple(float(f"{each:.9g}") for each in frequencies.tolist())}


def _magnitude(turns: Sequence[Tensor | None]) -> dict[str, float]:
    """What all turns multiply by, where it is not 1."""
    lengths = torch.cat([each.abs() for each in turns if each is not None])
    mean = float(lengths.mean())
    alike = (lengths / mean - 1).abs().max() < NEAR
    return {"magnitude": float(f"{mean:.8g}")} if alike and abs(mean - 1) > NEAR else {}


def _declared(subject: RotarySubject, changes: Mapping[str, Any]) -> RotarySubject:
    """The same subject, held to another declaration."""
    other = copy(subject)
    other.declaration = subject.declaration.but(**changes)
    other.base, other.dims = changes.get("base", subject.base), changes.get("dims", subject.dims)
    other.magnitude = changes.get("magnitude", subject.magnitude)
    other.rotary_share = other.declaration.turned or subject.rotary_share
    return other


def _said(value: float | str | tuple[float, ...]) -> str:
    """As the command line reads it."""
    if isinstance(value, tuple):
        return ",".join(f"{each:.9g}" for each in value)
    return str(value) if isinstance(value, str | bool) else f"{value:.10g}"


def _is_right(subject: RotarySubject, dtype: torch.dtype) -> bool:
    """Whether plain calls are right, near the start and far from it, in the smallest dim and the largest."""
    generator, length = torch.Generator().manual_seed(0), min(5, subject.furthest + 1)
    for dim in {min(subject.dims), max(subject.dims)}:
        for start in (0, subject.furthest + 1 - length):
            x = torch.randn(1, 2, length, dim, generator=generator, dtype=torch.float64).to(dtype)
            inputs = _inputs(subject, x, torch.arange(start, start + length))
            if not subject.is_right(inputs):
                return False
    return True


def _negative(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    if subject.declaration.negative is not None:
        return []
    dim = max(subject.dims)
    x = _inputs(subject, torch.ones(1, 1, 1, dim, dtype=dtype), torch.tensor([-3]))
    asked = _off_the_device(subject, dtype)
    if asked.is_right(x):
        return []
    why = failure_of(asked, x) or "they do not turn back"
    subject.refused["negative"] = f"{subject.FEATURES['negative']} ({why})"
    return []


def _autocast(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    """Where the angles of a plain call far out are rounded with the position, or it is refused, it is told only."""
    if subject.declaration.autocast is not None or dtype != torch.float32:
        return []
    far = torch.tensor([min(1_023, subject.furthest)])
    forms = [far] * subject.has("shared_positions") + [far[None]] * subject.has("batched_positions")
    calls = [_inputs(subject, torch.ones(1, 1, 1, max(subject.dims), dtype=dtype), form) for form in forms]
    try:
        if not any(subject.under_autocast_against_the_oracle(x).broken for x in calls):
            return []
        why = "angles are rounded with the position"
    except (LawBroken, NotApplicable) as problem:
        why = str(problem)
    subject.refused["autocast"] = f"does not work under torch.autocast ({why})"
    return [f"under torch.autocast {why}: {IF_CALLED_SO}"]


def _layouts(subject: RotarySubject, dtype: torch.dtype) -> list[str]:
    """Those that make it raise: one law will say so where they may not, the others speak of something else."""
    x = _inputs(subject, torch.ones(2, 3, 2, max(subject.dims), dtype=dtype), torch.arange(2))
    of_each = {each: failure_of(subject, x.but(case=x.case.but(strides=each))) for each in STRIDES}
    refused = {layout: problem for layout, problem in of_each.items() if problem is not None}
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
    return subject.is_right(role.build(case, subject))


def _inputs(subject: RotarySubject, x: Tensor, positions: Tensor) -> RotaryInputs:
    return RotaryInputs(RotaryCase(), x, positions, subject.base, subject.pairing)


def _off_the_device(subject: RotarySubject, dtype: torch.dtype) -> RotarySubject:
    """Who is asked of positions that may not be there: on a GPU an index beyond a table leaves the device unusable."""
    here = subject if subject.device == "cpu" else subject.on_the_cpu()
    return subject if _refusal(here, dtype, max(subject.dims)) else here


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
    return str(failure_of(subject, _inputs(subject, x, where)) or "")
