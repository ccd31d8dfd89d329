"""The role `rotary`: f(x, positions), each pair of dims turned by position x frequency."""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, ClassVar

import torch
from torch import Tensor

from headcheck.arithmetic import FORMATS, named
from headcheck.comparison import Comparison, Failure, within
from headcheck.functions.inputs import tensor_of
from headcheck.functions.planes import Pairs, angle_error, turning_error
from headcheck.functions.role import FunctionRole
from headcheck.functions.rotary_conventions import FURTHEST, find_out, formats_of_angles
from headcheck.functions.rotary_inputs import DIMS, Layout, Rotary, RotaryCase, RotaryInputs
from headcheck.functions.rotary_tables import Tables, angles_note, find_tables
from headcheck.functions.rounding import Units, stored, units
from headcheck.functions.subject import FunctionSubject
from headcheck.numbers import below
from headcheck.reference.positions import Pairing, rotary, rotary_angles
from headcheck.signatures import parameters_of


class RotarySubject(FunctionSubject[RotaryInputs]):
    """Laws see (batch, heads, length, dim) and positions in either form, whatever the subject takes."""

    FEATURES: ClassVar = {
        "base": "has no argument for the base",
        "interleaved": "has no argument for the pairing",
        "shared_positions": "takes no positions (length,)",
        "batched_positions": "takes no positions (batch, length)",
        "fractional": "takes whole positions only",
        "negative": "takes no positions below zero",
        "autocast": "is not held to have exact angles under torch.autocast",
    }

    def __init__(self, declaration: Rotary, **prepared: Any) -> None:
        super().__init__(declaration, **prepared)
        parameters = parameters_of(declaration.function) or {}
        for argument in ("base", "interleaved"):  # By name only: what stands at their place may be anything.
            if self.places[argument] not in (*parameters, declaration.arguments.get(argument)):
                self.places[argument] = None
        self.pairing: Pairing = declaration.pairing or "interleaved"
        self.layout: Layout = declaration.layout or "bhsd"
        self.base = declaration.base or 10000.0
        self.magnitude = declaration.magnitude or 1.0
        self.rotary_share: int | float = declaration.turned or 1.0
        self.dims: tuple[int, ...] = declaration.in_pairs(declaration.dims or ())
        self.furthest = declaration.max_position or FURTHEST
        self.tables: Tables | None = None
        """What it is given in place of positions, if anything."""
        self.avoids: tuple[str, ...] = ()
        """Layouts that it refuses: one law asks for them, drawn cases do not."""
        self.consecutive = False
        """Whether it takes positions that rise by one only."""
        self.formats: dict[str, str] = {}
        """dtype -> format of the angles; float32 where it is not said."""
        self.found: Mapping[str, Any] = {}
        """Fields of a declaration under which it turns as it does, where what it is held to is another rotation."""

    def lacks(self, feature: str) -> str | None:
        if feature == "base" and self.declaration.frequencies is not None:
            return "has a table of frequencies"
        if feature == "base":  # A base that is declared is the one it has, argument or none.
            return None if self.places["base"] is not None else self.FEATURES["base"]
        return super().lacks(feature)

    def rotary_dim(self, dim: int) -> int:
        """So many of the dims are turned."""
        share = self.rotary_share
        return round(share * dim) if isinstance(share, float) else min(share, dim)

    def nearest(self, dim: int) -> int:
        """The largest dim that it takes up to this one, or the smallest; any even one where it takes all of `DIMS`."""
        even = dim + dim % 2
        if not self.dims or (set(DIMS) <= set(self.dims) and even <= max(self.dims)):
            return even
        return max((each for each in self.dims if each <= dim), default=min(self.dims))

    def room(self, x: RotaryInputs, wanted: float) -> int:
        """A whole number by which the positions may be raised: the wanted one, or what there is room for."""
        return int(max(0, min(wanted, self.furthest - x.furthest)))

    # What it gives

    def plain(self, x: RotaryInputs) -> dict[str, Any]:
        positions = x.positions.clone()
        if positions.ndim == 1 and self.lacks("shared_positions"):
            positions = positions.expand(x.x.shape[0], -1).contiguous()
        asked = x.pairing == "interleaved" if x.case.pairing != "declared" else None
        return {"positions": positions.to(self.device), "base": x.case.base or None, "interleaved": asked}

    def arguments_of(
        self, x: RotaryInputs, tensors: Mapping[str, Tensor]
    ) -> tuple[list[Any], dict[str, Any]]:
        if self.tables is None:
            return super().arguments_of(x, tensors)
        angles = self.angles(x)[:, 0].expand(x.x.shape[0], -1, -1).to(self.device)
        given, keywords = self.tables.arguments(tensors["x"], angles, self._heads)
        flag, asked = self.places["interleaved"], self.plain(x)["interleaved"]
        return given, keywords if asked is None or not isinstance(flag, str) else {**keywords, flag: asked}

    def received(self, x: RotaryInputs, returned: Any) -> Tensor:
        if self.tables is not None:
            returned = self.tables.joined(returned, self._heads, x.x.shape[self._heads])
        return super().received(x, returned)

    @property
    def _heads(self) -> int:
        return self.layout.index("h")

    def tensors_for(self, x: RotaryInputs) -> dict[str, Tensor]:
        return super().tensors_for(x.but(x=self._given(x, x.x)))

    def run(self, x: RotaryInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        output = super().run(x.but(x=self._given(x, x.x)), tensors)
        return self._as_in_x(x, self._given(x, output, self.declaration.pairing_out))

    def refuses_strides(self, problem: BaseException) -> bool:
        """As declared, or as what is raised says."""
        declared = self.declaration.any_strides
        return super().refuses_strides(problem) if declared is None else not declared

    def as_seen(self, x: RotaryInputs, gradient: Tensor) -> Tensor:
        return self._given(x, gradient)

    def sent_back(self, x: RotaryInputs, cotangent: Tensor) -> Tensor:
        if not cotangent.is_contiguous():
            return cotangent
        return self._given(x, self._given(x, cotangent).contiguous())

    def _given(self, x: RotaryInputs, tensor: Tensor, pairing: Pairing | None = None) -> Tensor:
        """A tensor like x as the subject has it; and that as laws have it, since both steps undo themselves."""
        mirrored = self._mirrored(tensor, pairing or x.pairing) if self.declaration.backwards else tensor
        return mirrored.transpose(1, 2) if self.layout == "bshd" else mirrored

    def _mirrored(self, tensor: Tensor, pairing: Pairing) -> Tensor:
        """The two numbers of each pair exchanged: so a pair turns the other way."""
        first, second, rest = Pairs.of(tensor, self.rotary_dim(tensor.shape[-1]), pairing)
        return Pairs(second, first, rest).joined(pairing)

    def _as_in_x(self, x: RotaryInputs, output: Tensor) -> Tensor:
        """The output with its pairs where they stand in x."""
        out = self.declaration.pairing_out or x.pairing
        if out == x.pairing:
            return output
        return Pairs.of(output, self.rotary_dim(output.shape[-1]), out).joined(x.pairing)

    # What it should give

    def frequencies(self, x: RotaryInputs) -> Tensor:
        """The angle of each pair at position 1, in float64."""
        if self.declaration.frequencies is not None:
            return torch.tensor(self.declaration.frequencies, dtype=torch.float64)
        return rotary_angles(torch.ones(1), self.rotary_dim(x.x.shape[-1]), base=x.base)[0]

    def angles(self, x: RotaryInputs) -> Tensor:
        """The angle of each pair at each position, (batch or 1, 1, length, pairs), in float64."""
        angles = x.positions.double()[..., None] * self.frequencies(x)
        return angles.reshape(-1, 1, *angles.shape[-2:])

    def pairs(self, x: RotaryInputs, tensor: Tensor) -> Pairs:
        """A tensor like x by its pairs, in float64."""
        return Pairs.of(tensor.double().cpu(), self.rotary_dim(x.x.shape[-1]), x.pairing)

    def exact(self, x: RotaryInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        given = tensors["x"]
        if self.declaration.frequencies is None:
            width = self.rotary_dim(given.shape[-1])
            turned = rotary(given, x.positions, base=x.base, pairing=x.pairing, rotary_dim=width)
            return self.lengthened(x, turned)
        # Each pair by itself is a vector of two dims, which turns by 1 at position 1: pairs as sequences.
        pairs = self.pairs(x, given)
        vectors = torch.stack((pairs.first, pairs.second), dim=-1).movedim(3, 0)
        angles = self.angles(x)[:, 0].expand(given.shape[0], -1, -1).movedim(-1, 0)
        turned = rotary(vectors.flatten(0, 1), angles.flatten(0, 1)).reshape(vectors.shape).movedim(0, 3)
        return self.lengthened(x, Pairs(turned[..., 0], turned[..., 1], pairs.rest).joined(x.pairing))

    def lengthened(self, x: RotaryInputs, tensor: Tensor, times: int = 1) -> Tensor:
        """A tensor like x, in float64, with its turned dims multiplied by the magnitude so many times."""
        first, second, rest = self.pairs(x, tensor)
        factor = self.magnitude**times
        return Pairs(factor * first, factor * second, rest).joined(x.pairing)

    def bound(self, x: RotaryInputs) -> Tensor:
        return self._bound(x, x.x, self.expected(x))

    def under_autocast_against_the_oracle(self, x: RotaryInputs) -> Comparison:
        """Under autocast to bfloat16 vectors, cosines and their products may be rounded to it, but no angle."""
        rounded = 4 * torch.finfo(torch.bfloat16).eps * self.magnitude * x.x.abs().amax(dim=-1, keepdim=True)
        limit = self.bound(x) + rounded.double()
        return within(self.under_autocast(x), self.expected(x), limit, "output under autocast")

    def gradient_bounds(self, x: RotaryInputs, cotangent: Tensor) -> dict[str, Tensor]:
        """The gradient is the cotangent turned back: the same angles, the same sums."""
        exact = self.exact(x.at(-x.positions), {"x": cotangent.double()})
        return {"x": self._bound(x, cotangent, exact)}

    def _bound(self, x: RotaryInputs, given: Tensor, exact: Tensor) -> Tensor:
        """As `turning_error` says, then stored; nothing where nothing is turned.

        cos and sin have 4 roundings in the format of the angles (2 ulp: CUDA's; libm has less), and are stored; one more
        and a storing where they are multiplied. Tables that are given are rounded to the dtype of x before.
        """
        dtype = str(x.dtype).removeprefix("torch.")
        form = self.declaration.angles or self.formats.get(dtype, "float32")
        bound = self._stored(x, given, exact, form, units(self.arithmetic_for(x.dtype), x.dtype))
        if x.dtype != torch.float64:
            return bound
        # The oracle rounds, too.
        return bound + self._stored(x, given, exact, "float64", units(named("native"), x.dtype))

    def _stored(self, x: RotaryInputs, given: Tensor, exact: Tensor, form: str, unit: Units) -> Tensor:
        angle_unit = FORMATS[form].unit_roundoff
        angles = self.angles(x)
        error = angle_error(angles, self.frequencies(x), angle_unit)
        own = 4 * angle_unit if self.magnitude == 1 else 5 * angle_unit + unit.step
        if self.tables is not None and self.tables.rounded:
            own += unit.output
        off = turning_error(self.pairs(x, self.lengthened(x, given.abs())), angles, error, own, unit)
        turned = torch.arange(given.shape[-1]) < self.rotary_dim(given.shape[-1])
        return torch.where(turned, stored(exact.detach(), off.joined(x.pairing), unit), 0.0)

    def turned_further(self, x: RotaryInputs, off: Tensor) -> Tensor:
        """The most that an error in x can grow to when x is turned: what both numbers of its pair are off."""
        first, second, rest = self.pairs(x, self.lengthened(x, off))
        return Pairs(first + second, first + second, rest).joined(x.pairing)


class RotaryRole(FunctionRole[RotaryCase, RotaryInputs]):
    """Case, declaration and subject of rotary positions."""

    name = "rotary"
    plain_call = "f(x, positions)"
    case = RotaryCase
    declaration = Rotary
    subject = RotarySubject
    aliases = ("rotary", "rope")

    def find_out(self, subject: RotarySubject) -> list[str]:
        return [*find_tables(subject), *find_out(subject)]

    def cure_of(self, subject: RotarySubject) -> str:
        """Tables, where positions have another name, and a dim, where none is declared: not all are tried."""
        tables = "one that makes tables of positions where it takes those, " if _by_place(subject) else ""
        dims = f", or the dim of x that it takes, if none of {', '.join(map(str, DIMS))}: --declare dims=24"
        return f"{tables}or say its role with --role{'' if subject.declaration.dims else dims}"

    def _few_calls(
        self, subject: FunctionSubject[RotaryInputs], dtypes: tuple[str, ...]
    ) -> Iterator[Failure | None]:
        """What takes something else than positions, by its name, answers a call of drawn sizes by chance alone."""
        if not _by_place(subject):
            return super()._few_calls(subject, dtypes)
        return (self._failure(subject, self._plain(subject, dtype)) for dtype in dtypes)

    def conventions(self, subject: RotarySubject) -> dict[str, Any]:
        settled: dict[str, Any] = {
            "base": subject.base if subject.declaration.frequencies is None else None,
            "pairing": subject.pairing,
            "dims": subject.dims,
            "tables": None if subject.tables is None else subject.tables.form,
        }
        if subject.layout == "bshd":
            settled["layout"] = subject.layout
        if subject.rotary_share != 1.0:
            settled["rotary_dim"] = subject.rotary_share
        return {**settled, **subject.found}

    def found(self, subject: FunctionSubject[RotaryInputs]) -> dict[str, Any]:
        """Rounding is inferred beside the rotation that it is held to: of another one it says nothing."""
        assert isinstance(subject, RotarySubject)
        return super().found(subject) | ({"arithmetic": None} if subject.found else {})

    def notes(self, subject: RotarySubject) -> list[str]:
        return [*formats_of_angles(subject, self), *angles_note(subject)]

    def build(self, case: RotaryCase, subject: RotarySubject) -> RotaryInputs:
        pairing = subject.pairing if case.pairing == "declared" else case.pairing
        base = case.base or subject.base
        return RotaryInputs(case, tensor_of(case, "x"), case.positions(), base, pairing)  # type: ignore[arg-type]

    def settle(self, case: RotaryCase, subject: RotarySubject) -> RotaryCase:
        case = case.but(dim=subject.nearest(case.dim))
        if case.per_sequence and subject.lacks("batched_positions"):
            case = case.but(per_sequence=False)
        if not case.spacing.is_integer() and subject.lacks("fractional"):
            case = case.but(spacing=1.0)
        if subject.consecutive:
            case = case.but(order="rising", spacing=1.0, per_sequence=False)
        if case.base and subject.lacks("base"):
            case = case.but(base=0.0)
        if case.pairing != "declared" and subject.lacks("interleaved"):
            case = case.but(pairing="declared")
        return _within_reach(case, subject.furthest)

    def draw(self, random: Random, subject: RotarySubject) -> RotaryCase:
        case = super().draw(random, subject)
        return case.but(strides="contiguous") if case.strides in subject.avoids else case

    def _steps(self, case: RotaryCase, subject: RotarySubject) -> Iterator[RotaryCase]:
        yield from super()._steps(case, subject)
        yield from (case.but(start=start) for start in below(case.start))

    def show(self, inputs: RotaryInputs) -> dict[str, Any]:
        shown = super().show(inputs)
        if inputs.positions.numel() <= 16:
            shown["positions"] = inputs.positions.tolist()
        return shown


def _by_place(subject: FunctionSubject[RotaryInputs]) -> bool:
    """Whether positions are given by place, to what is called otherwise."""
    return isinstance(subject.places["positions"], int)


def _within_reach(case: RotaryCase, furthest: int) -> RotaryCase:
    """With no position beyond the largest that there may be."""
    if case.start + case.span <= furthest:
        return case
    apart = int(case.span - case.spacing * (case.length - 1))
    case = case.but(spacing=1.0, length=min(case.length, max(1, furthest + 1 - apart)))
    if case.span > furthest:
        case = case.but(per_sequence=False)
    return case.but(start=int(min(case.start, furthest - case.span)))


role = RotaryRole()
