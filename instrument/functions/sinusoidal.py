"""The role `sinusoidal`: f(length, d_model), a table with a row of sines and cosines for each position."""

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, ClassVar

import torch
from torch import Tensor

from headcheck.arithmetic import FORMATS, named
from headcheck.calling import plain_tensor
from headcheck.comparison import LawBroken, NotApplicable, failure_of
from headcheck.declarations import DTYPES, Declaration
from headcheck.functions.planes import angle_error, factor_error
from headcheck.functions.role import FunctionRole
from headcheck.functions.rounding import Units, stored, units
from headcheck.functions.sinusoidal_inputs import (
    LAYOUTS,
    Layout,
    Sinusoidal,
    SinusoidalCase,
    SinusoidalInputs,
)
from headcheck.functions.subject import FunctionSubject
from headcheck.reference.positions import rotary_angles, sinusoidal_at
from headcheck.signatures import keyword_for, parameters_of
from headcheck.verdict import IF_MEANT, Hint

LENGTHS = (20_000, 5_000, 2_048, 1_024, 512)
"""The longest table that laws ask for is the first of these that the subject makes."""
BASES = ("base", "theta", "max_period")
"""The names by which a base is an argument."""
NEAR = 0.1
"""How far from a layout the numbers of one row may be for it to be found; another base moves them less."""


def _other_parameter(
    function: Callable[..., Any], places: Mapping[str, str | int | None]
) -> dict[str, str | int | None]:
    """Of two parameters, of which one has a known name, the other one takes the other argument."""
    parameters = [*(parameters_of(function) or {}).values()][: len(places)]
    left = [each for each in parameters if each.name not in places.values()]
    required = [each for each in left if each.default is inspect.Parameter.empty]
    if len(left) != 1 or left != required or left[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return {}
    return {name: left[0].name for name, place in places.items() if not isinstance(place, str)}


class SinusoidalSubject(FunctionSubject[SinusoidalInputs]):
    """Laws see (length, d_model), and the waves of it in whatever layout."""

    FEATURES: ClassVar = {"odd": "makes no table of odd width", "base": "takes no base"}

    def __init__(self, declaration: Sinusoidal, **prepared: Any) -> None:
        super().__init__(declaration, **prepared)
        self.places = {
            argument: declaration.arguments.get(argument)
            or keyword_for(declaration.function, aliases, number)
            for number, (argument, aliases) in enumerate(declaration.ARGUMENTS.items())
        }
        self.places |= _other_parameter(declaration.function, self.places)
        parameters = parameters_of(declaration.function) or {}
        self.places["base"] = next((name for name in BASES if name in parameters), None)
        self.base = declaration.base or 10000.0
        self.layout: Layout = declaration.layout or "interleaved"
        self.pads = declaration.odd == "zero-column"
        """Whether an odd table is the next narrower one and a column of zeros."""
        self.longest = declaration.max_length or LENGTHS[0]
        self.narrowest = 4 if declaration.last_wave == "base" else 1
        """The smallest width that drawn cases ask for: from a first wave to another last one there are two waves."""
        self.found: Mapping[str, Any] = {}
        """Fields of a declaration under which a plain table is right, where it is wrong."""
        self.formats: dict[str, str] = {}
        """dtype -> format of the angles; float32 where it is not said."""
        if declaration.odd == "refused":
            self.refused["odd"] = f"{self.FEATURES['odd']}, as declared"

    # What it gives

    def plain(self, x: SinusoidalInputs) -> dict[str, Any]:
        return {"length": x.length, "d_model": x.d_model, "base": x.base}

    def lacks(self, feature: str) -> str | None:
        if feature == "base":  # A base that is declared is the one it has, argument or none.
            return None if self.places["base"] is not None else self.FEATURES["base"]
        return super().lacks(feature)

    def received(self, x: SinusoidalInputs, returned: Any) -> Tensor:
        if isinstance(returned, Tensor):
            sizes = [size for size in returned.shape if size != 1]
            if sizes == [size for size in x.output_shape if size != 1]:
                returned = returned.reshape(x.output_shape)
        # Nobody told it of a device: a table may be made on the CPU.
        here = isinstance(returned, Tensor) and returned.device.type == "cpu"
        device = "cpu" if here else self.device
        return plain_tensor(returned, x.output_shape, x.dtype, device)

    def gradients(self, x: SinusoidalInputs, *arguments: Any, **keywords: Any) -> dict[str, Tensor | None]:
        raise NotApplicable("a table has no gradient")

    # What it should give

    def filled(self, d_model: int) -> int:
        """So many columns of a table hold waves, the first ones."""
        return d_model - d_model % 2 if self.pads else d_model

    def column(self, number: int, d_model: int) -> tuple[int, int]:
        """What a column that holds a wave has of it, 0 for the sine and 1 for the cosine, and which wave it is."""
        if self.layout == "interleaved":
            return number % 2, number // 2
        half, wave = divmod(number, (self.filled(d_model) + 1) // 2)
        return half ^ (self.layout == "cosines-first"), wave

    def _even(self, x: SinusoidalInputs) -> tuple[int, float]:
        """The width of whole pairs of an even or odd table, and the base that gives them the same waves."""
        d_model, base = self.filled(x.d_model), self.base if x.base is None else x.base
        width = d_model + d_model % 2
        if self.declaration.last_wave == "base" and width > 2:
            return width, base ** (width / (width - 2))
        return width, base ** (width / d_model)

    def _table(self, sines: Tensor, cosines: Tensor, d_model: int) -> Tensor:
        """The columns in their layout, and the zeros at their end where there are some."""
        order = (cosines, sines) if self.layout == "cosines-first" else (sines, cosines)
        axis = -1 if self.layout == "interleaved" else -2
        table = torch.stack(order, dim=axis).flatten(-2)[:, : self.filled(d_model)]
        return torch.nn.functional.pad(table, (0, d_model - table.shape[-1]))

    def frequencies(self, x: SinusoidalInputs) -> Tensor:
        """The angle of each wave at position 1, in float64."""
        width, base = self._even(x)
        return rotary_angles(torch.ones(1), width, base=base)[0]

    def angles(self, x: SinusoidalInputs) -> Tensor:
        """The angle of each wave in each row, (length, waves), in float64."""
        return torch.arange(x.length, dtype=torch.float64)[:, None] * self.frequencies(x)

    def waves(self, x: SinusoidalInputs, table: Tensor) -> tuple[Tensor, Tensor]:
        """The sines and the cosines of a table like the output, in float64; of an odd one whole pairs only."""
        filled = self.filled(x.d_model)
        table, pairs = table.double().cpu()[:, :filled], filled // 2
        if self.layout == "interleaved":
            return table[:, : 2 * pairs : 2], table[:, 1::2]
        first, second = table[:, :pairs], table[:, filled - pairs :]
        return (second, first) if self.layout == "cosines-first" else (first, second)

    def exact(self, x: SinusoidalInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        width, base = self._even(x)
        table = sinusoidal_at(torch.arange(x.length), width, base=base, layout="concatenated")
        sines, cosines = table.tensor_split(2, dim=-1)
        return self._table(sines, cosines, x.d_model)

    def bound(self, x: SinusoidalInputs) -> Tensor:
        """The error of an angle by Taylor, that of sine and cosine (4 roundings), then stored."""
        dtype = str(x.dtype).removeprefix("torch.")
        form = self.declaration.angles or self.formats.get(dtype, "float32")
        bound = self._stored(x, form, units(self.arithmetic_for(x.dtype), x.dtype))
        if x.dtype != torch.float64:
            return bound
        return bound + self._stored(x, "float64", units(named("native"), x.dtype))  # the oracle's own

    def _stored(self, x: SinusoidalInputs, form: str, unit: Units) -> Tensor:
        angle_unit = FORMATS[form].unit_roundoff
        angles = self.angles(x)
        error = angle_error(angles, self.frequencies(x), angle_unit)
        cos, sin = angles.cos().abs(), angles.sin().abs()
        sin_off, cos_off = (
            factor_error(value, slope, error, 4 * angle_unit, unit)
            for value, slope in ((sin, cos), (cos, sin))
        )
        return stored(self.expected(x), self._table(sin_off, cos_off, x.d_model), unit)

    def gradient_bounds(self, x: SinusoidalInputs, cotangent: Tensor) -> dict[str, Tensor]:
        return {}

    def exact_gradients(self, x: SinusoidalInputs, cotangent: Tensor) -> dict[str, Tensor]:
        return {}


class SinusoidalRole(FunctionRole[SinusoidalCase, SinusoidalInputs]):
    """Case, declaration and subject of sinusoidal positions."""

    name = "sinusoidal"
    plain_call = "f(length, d_model)"
    case = SinusoidalCase
    declaration = Sinusoidal
    subject = SinusoidalSubject
    aliases = ("sinusoid", "positional_encoding", "position_encoding", "pos_enc")

    def prepare(
        self, declaration: Declaration, *, dtypes: tuple[str, ...], device: str, seed: int
    ) -> tuple[FunctionSubject[SinusoidalInputs], list[str]]:
        """The dtype is that of the table."""
        assert isinstance(declaration, Sinusoidal)
        wanted = dtypes or declaration.dtypes or _dtype_of(declaration)
        return super().prepare(declaration, dtypes=wanted, device=device, seed=seed)

    def find_out(self, subject: SinusoidalSubject) -> list[str]:
        steps = (_narrowest, _base, _layout, _odd, _longest, _last_wave)
        return [note for step in steps for note in step(subject)]

    def conventions(self, subject: SinusoidalSubject) -> dict[str, Any]:
        settled = {"base": subject.base, "layout": subject.layout, **subject.found}
        return {**settled, "odd": "zero-column"} if subject.pads else settled

    def notes(self, subject: SinusoidalSubject) -> list[str]:
        """float64 where the narrower bound fits in the last rows."""
        for dtype in subject.dtypes if subject.declaration.angles is None else ():
            if dtype in ("float32", "float64"):
                subject.formats[dtype] = "float64"
                x = _inputs(getattr(torch, dtype), subject.longest, 64)
                if not subject.is_right(x):
                    subject.formats[dtype] = "float32"
        return [f"{dtype}: angles in {form}, as found" for dtype, form in subject.formats.items()]

    def build(self, case: SinusoidalCase, subject: SinusoidalSubject) -> SinusoidalInputs:
        return SinusoidalInputs(
            case, torch.empty(0, dtype=getattr(torch, case.dtype)), case.length, case.d_model
        )

    def settle(self, case: SinusoidalCase, subject: SinusoidalSubject) -> SinusoidalCase:
        width = case.d_model + case.d_model % 2 if subject.lacks("odd") else case.d_model
        width = max(width, 2) if subject.pads else width  # Of one column nothing but zeros would be left.
        width, length = max(width, subject.narrowest), min(case.length, subject.longest)
        return case.but(values="normal", strides="contiguous", d_model=width, length=length)

    def show(self, inputs: SinusoidalInputs) -> dict[str, Any]:
        return {"length": inputs.length, "d_model": inputs.d_model}


def _narrowest(subject: SinusoidalSubject) -> list[str]:
    """Whether a width of 2 raises, as where waves are spaced by their number less one, and a width of 4 does not."""
    dtype = getattr(torch, subject.dtypes[0])
    why = _refusal(subject, _inputs(dtype, 2, 2))
    if not why.startswith("raised") or _refusal(subject, _inputs(dtype, 2, 4)):
        return []
    subject.narrowest = 4
    return [f"tables of width 2: not asked for ({why})"]


def _last_wave(subject: SinusoidalSubject) -> list[str]:
    """Whether a plain table is wrong, and right if the last wave is the base."""
    x = _inputs(getattr(torch, subject.dtypes[0]), 5, 16)
    if _refusal(subject, x) or subject.is_right(x):
        return []
    to_the_base = copy(subject)
    to_the_base.declaration = subject.declaration.but(last_wave="base")
    if subject.declaration.last_wave is not None or not to_the_base.is_right(x):
        subject.found = {"base": subject.declaration.base}
        return []
    subject.found = {"last_wave": "base"}
    return [Hint(f"a plain call is right with --declare last_wave=base, {IF_MEANT}")]


def _base(subject: SinusoidalSubject) -> list[str]:
    """The base by the signature, where it is not declared."""
    parameters = parameters_of(subject.declaration.function) or {}
    defaults = (parameters[name].default for name in BASES if name in parameters)
    default = next(defaults, None)
    if subject.declaration.base is not None or not isinstance(default, int | float):
        return []
    subject.base = float(default)
    return [f"base: {default:g}, by the signature"] if default != 10000 else []


def _layout(subject: SinusoidalSubject) -> list[str]:
    """The one that the row of position 1 is nearest to; where it is near none, the laws will say so."""
    x = _inputs(getattr(torch, subject.dtypes[0]), 2, 8)
    if subject.declaration.layout is not None or _refusal(subject, x):
        return []
    table = subject(x).double().cpu()
    distances = {}
    for layout in LAYOUTS:
        subject.layout = layout
        distances[layout] = float((table - subject.expected(x)).abs().nan_to_num(2.0).max())
    subject.layout = min(LAYOUTS, key=lambda layout: distances[layout])
    if distances[subject.layout] > NEAR:
        return [
            f"layout: {subject.layout} for want of a better one: the row of position 1 is near none of them"
        ]
    return [f"layout: {subject.layout}, as found"]


def _odd(subject: SinusoidalSubject) -> list[str]:
    """Whether odd widths are refused, or filled up with a column of zeros.

    A single wave, as of width 3, fills any columns by broadcasting: what it gives is for a law to say.
    Zeros are found where sines and cosines stand apart; in the place of a single sine they are a slip.
    """
    if subject.declaration.odd is not None:
        return []
    dtype = getattr(torch, subject.dtypes[0])
    reasons = [_refusal(subject, _inputs(dtype, 2, width)) for width in (5, 7)]
    if all(reason.startswith("raised") for reason in reasons):
        subject.refused["odd"] = f"{subject.FEATURES['odd']} ({reasons[0]})"
    elif subject.layout != "interleaved" and all(_is_padded(subject, dtype, width) for width in (5, 9)):
        subject.pads = True
        return ["odd: zero-column, as found"]
    return []


def _is_padded(subject: SinusoidalSubject, dtype: torch.dtype, width: int) -> bool:
    """Whether a table of odd width is the one of a column less, and zeros."""
    odd, even = _inputs(dtype, 4, width), _inputs(dtype, 4, width - 1)
    if _refusal(subject, odd) or _refusal(subject, even):
        return False
    return torch.equal(subject(odd), torch.nn.functional.pad(subject(even), (0, 1)))


def _longest(subject: SinusoidalSubject) -> list[str]:
    if subject.declaration.max_length is not None:
        return []
    dtype, beyond = getattr(torch, subject.dtypes[0]), ""
    for length in LENGTHS:
        subject.longest = length
        x = _inputs(dtype, length, 8)
        why = _refusal(subject, x)
        if not why.startswith("raised") and not _is_cropped(subject, x):
            break
        beyond = f" ({length} is refused: {why})"
    return [f"length: up to {subject.longest}{beyond}"] if beyond else []


def _is_cropped(subject: SinusoidalSubject, x: SinusoidalInputs) -> bool:
    """Whether a table comes back that ends before the length that was asked for."""
    try:
        returned = subject.called(x, {})
    except (LawBroken, NotApplicable):
        return False
    return isinstance(returned, Tensor) and 0 < returned.numel() < x.length * x.d_model


def _inputs(dtype: torch.dtype, length: int, d_model: int) -> SinusoidalInputs:
    return SinusoidalInputs(SinusoidalCase(), torch.empty(0, dtype=dtype), length, d_model)


def _refusal(subject: SinusoidalSubject, x: SinusoidalInputs) -> str:
    """Why a call does not work; '' if it does."""
    return str(failure_of(subject, x) or "")


def _dtype_of(declaration: Sinusoidal) -> tuple[str, ...]:
    """The dtype of a small table; float32 where there is none."""
    subject = SinusoidalSubject(declaration, dtypes=DTYPES, arithmetic={})
    try:
        returned = subject.called(_inputs(torch.float32, 2, 4), {})
    except LawBroken:
        return ("float32",)
    dtype = str(getattr(returned, "dtype", "")).removeprefix("torch.")
    return (dtype,) if dtype in DTYPES else ("float32",)


role = SinusoidalRole()
