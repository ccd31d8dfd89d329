"""What the roles `layer_norm` and `rms_norm` have in common: rows of x, each normalised by itself along the last axis."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from headcheck.arithmetic import Arithmetic, named
from headcheck.calling import is_refused
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.declarations import Declaration
from headcheck.functions.inputs import FunctionCase, Inputs
from headcheck.functions.norm_bounds import Affine, Row, output_bound, row_gradient_bounds
from headcheck.functions.rounding import units
from headcheck.functions.subject import FunctionSubject, Gradients
from headcheck.graph import parts_in_sixteen_bits
from headcheck.recipes import option
from headcheck.signatures import parameters_of

NORMS = ("layer_norm", "rms_norm")
"""The roles that share the laws of properties/norms."""
WEIGHT = ("weight", "gamma", "scale", "w", "g")
DEFAULT_EPS = 1e-5
TINY = 1e-7
"""The size of the numbers by which an eps that is no argument is measured: their squares are far below it."""
ROUNDED = 1e-5
"""The share of those squares below which what is measured is rounding in float32."""
MEASURED_TO = 2e-6
"""How far, relative to its size, an eps that is measured in float32 may be off."""
EPS_OF_FLOAT32 = torch.finfo(torch.float32).eps
"""The eps of torch's norms where none is given, in float32; in other dtypes it may be theirs."""
WIDTHS = tuple(range(1, 10))
"""The widths that are tried: those that are refused aloud are not asked for."""


@dataclass(frozen=True)
class Norm(Declaration):
    """A norm with its conventions."""

    eps: float | None = None
    """What the function adds to the variance where eps is no argument; None: measured."""
    weight_offset: float = 0.0
    """What is added to the weight before it multiplies: 1 in Gemma."""
    weight: bool | None = None
    """Whether it takes a weight; None: read off the signature."""
    weightless: bool | None = None
    """Whether the weight may be None; None: tried."""
    dims: tuple[int, ...] | None = None
    """The widths of rows that it takes: a module's own; None: all that it does not refuse aloud, of 1 to 9."""


@dataclass(frozen=True)
class NormCase(FunctionCase):
    """Rows of numbers, what multiplies them, and eps."""

    AXES: ClassVar = {
        "x": ("batch", "rows", "dim"),
        "weight": ("dim",),
        "cotangent": ("batch", "rows", "dim"),
    }

    batch: int = option(1, 1, 2, 3, rarely=(9, 17))
    rows: int = option(1, 2, 3, 5, 9, 33, rarely=(65, 257))
    dim: int = option(
        *(1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 257, 513, 1023, 1025),
        rarely=(768, 2048, 2560, 4096, 5120, 8193),
    )
    eps: float = option(1e-5, 1e-5, 1e-6, 1e-12, 1e-3, 0.125)
    weight: str = option("ones", "normal", "normal", "normal", "none")


@dataclass(frozen=True, eq=False)
class NormInputs(Inputs):
    """x (batch, rows, dim); weight and bias (dim,), None where the function is to have none."""

    TENSORS: ClassVar = ("x", "weight", "bias")

    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float = DEFAULT_EPS

    def other(self) -> "NormInputs":
        return self.but(
            x=1 - self.x.flip(-1),
            weight=None if self.weight is None else 2 - self.weight,
            bias=None if self.bias is None else 1 - self.bias,
        )


class NormSubject(FunctionSubject[NormInputs]):
    """A norm; a role says what the exact one is."""

    CENTRING: ClassVar[bool]
    FEATURES: ClassVar = {
        "weight": "takes no weight",
        "bias": "takes no bias",
        "weightless": "does not go without a weight",
        "biasless": "does not go without a bias",
        "eps": "takes no eps",
    }

    def __init__(self, declaration: Declaration, **more: Any) -> None:
        super().__init__(declaration, **more)
        if "normalized_shape" in (parameters_of(declaration.function) or ()):
            self.places["normalized_shape"] = "normalized_shape"
        self.dims: tuple[int, ...] = self.declaration.dims or ()
        self.avoids: tuple[int, ...] = ()
        """Widths that it refuses aloud."""
        self.widest: int | None = None
        """The widest rows that it is tried with, where wider ones take long."""
        self.returns_more = False
        """Whether a tuple came back, of which the first is judged."""
        self._tried: dict[str, bool] = {}
        self._eps_in: dict[torch.dtype, float] = {}

    def around(self, function: Callable[..., Any]) -> Self:
        """What was measured of the function is measured again."""
        other = super().around(function)
        vars(other).update(_tried={}, _eps_in={})
        vars(other).pop("own_eps", None)
        return other

    # Conventions

    @property
    def affine(self) -> tuple[str, ...]:
        """The optional tensors that the role has."""
        return tuple(name for name in ("weight", "bias") if name in self.declaration.ARGUMENTS)

    def width(self, wanted: int) -> int:
        """A width that it takes: the wanted one, or one near it."""
        if self.dims:
            return max((dim for dim in self.dims if dim <= wanted), default=min(self.dims))
        return next(dim for dim in range(wanted, wanted + len(WIDTHS) + 1) if dim not in self.avoids)

    def lacks(self, feature: str) -> str | None:
        if feature == "eps":
            return None if self.places["eps"] is not None else self.FEATURES["eps"]
        tensor = feature.removesuffix("less")
        if tensor not in self.affine:
            return self.FEATURES[tensor]
        if feature == tensor or getattr(self.declaration, feature) is not None:
            return super().lacks(feature)
        return None if self.lacks(tensor) or self._goes_without(tensor) else self.FEATURES[feature]

    def _goes_without(self, tensor: str) -> bool:
        if tensor not in self._tried:
            rows = torch.ones(1, 1, self.width(2), dtype=getattr(torch, self.dtypes[0]))
            x = alternating(NormInputs(NormCase(), rows), 1.0)
            inputs = NormInputs(NormCase(), x).but(**{name: torch.ones_like(x[0, 0]) for name in self.affine})
            try:
                self(inputs.but(**{tensor: None}))
            except (LawBroken, NotApplicable) as why:
                self._tried[tensor] = self._is_its_default(tensor) and not is_refused(why)
            else:
                self._tried[tensor] = True
        return self._tried[tensor]

    def _is_its_default(self, tensor: str) -> bool:
        """Whether None is what the signature itself has for a tensor that is not given."""
        parameter = (parameters_of(self.declaration.function) or {}).get(str(self.places[tensor]))
        return parameter is not None and parameter.default is None

    @cached_property
    def own_eps(self) -> float | None:
        """The eps of a function that takes none: declared, or measured in float32; None where it takes one."""
        if self.places["eps"] is not None:
            return None
        declared: float | None = self.declaration.eps
        return self._measured_eps() if declared is None else declared

    def _measured_eps(self) -> float:
        """Of a row (t, -t, ...) the mean is 0 and the variance v = t^2, or less of an odd one: y = t / sqrt(v + eps).

        What is nothing but the rounding of y is an eps of 0. It is a format's, or in as few digits as tell it.
        """
        size, first = self.first_of(TINY)
        eps = TINY**2 / first**2 - size**2 if first else -1.0
        if abs(eps) < TINY**2 * ROUNDED:
            return 0.0
        known = (EPS_OF_FLOAT32, *(float(f"{eps:.{digits}g}") for digits in range(1, 9)))
        near = (each for each in known if abs(each - eps) <= MEASURED_TO * (eps + TINY**2))
        return next(near, eps) if eps > 0 else DEFAULT_EPS

    def eps_in(self, dtype: torch.dtype) -> float | None:
        """The same in another dtype: where float32 has its format's, the one of the two formats' that it has there."""
        own = self.own_eps
        if own != EPS_OF_FLOAT32 or self.declaration.eps is not None:
            return own
        if dtype not in self._eps_in:
            of_dtype = torch.finfo(dtype).eps
            size, first = self.first_of(of_dtype**0.5 / 2, dtype=dtype)
            off = {eps: abs(first - size / (size**2 + eps) ** 0.5) for eps in (own, of_dtype)}
            self._eps_in[dtype] = min(off, key=lambda eps: off[eps])
        return self._eps_in[dtype]

    def eps_of(self, x: NormInputs) -> float:
        """What is added to the variance of these rows."""
        own = self.eps_in(x.dtype)
        return x.eps if own is None else own

    def first_of(
        self, t: float, eps: float = DEFAULT_EPS, dtype: torch.dtype = torch.float32
    ) -> tuple[float, float]:
        """The root mean square of a row (t, -t, ...), and the first of its output; 0 where there is none."""
        x = alternating(NormInputs(NormCase(), torch.ones(1, 1, self.width(2), dtype=dtype)), t)
        one = torch.ones_like(x[0, 0])
        given = {"weight": one - self.declaration.weight_offset, "bias": one - one}
        inputs = NormInputs(NormCase(), x, eps=eps).but(**{n: given[n] for n in self.affine if self.has(n)})
        size = float(x.double().square().mean().sqrt())
        try:
            return size, float(self(inputs)[0, 0, 0])
        except (LawBroken, NotApplicable):
            return size, 0.0

    # Calls

    def plain(self, x: NormInputs) -> dict[str, Any]:
        return {
            "eps": None if self.places["eps"] is None else x.eps,
            "normalized_shape": (x.x.shape[-1],) if "normalized_shape" in self.places else None,
        }

    def run(self, x: NormInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        width = x.x.shape[-1]
        if width in self.avoids or (self.dims and width not in self.dims):
            raise NotApplicable(f"takes no rows of {width}")
        absent: dict[str, Any] = {name: None for name in self.affine if self.places[name] is not None}
        return super().run(x, {**absent, **tensors})

    def received(self, x: NormInputs, returned: Any) -> Tensor:
        """The output, which may be the first of a tuple, before what is kept for a backward pass."""
        if isinstance(returned, tuple) and returned and isinstance(returned[0], Tensor):
            self.returns_more, returned = True, returned[0]
        return super().received(x, returned)

    def bare(self, x: NormInputs) -> NormInputs:
        """The same rows with a weight and a bias that change nothing."""
        one = torch.ones_like(x.x[0, 0])
        return x.but(
            weight=None if x.weight is None else one - self.declaration.weight_offset,
            bias=None if x.bias is None else one - one,
        )

    # What it should give

    def factor(self, weight: Tensor | None) -> Tensor | None:
        """What multiplies the normalised row."""
        return None if weight is None else weight + self.declaration.weight_offset

    def multiplied(self, x: NormInputs, row: Tensor) -> Tensor:
        """A row, or a cotangent, in float64, times what multiplies the normalised row."""
        factor = self.factor(None if x.weight is None else x.weight.double())
        return row.double() if factor is None else row.double() * factor

    def row(self, x: NormInputs, arithmetic: Arithmetic | None = None) -> Row:
        """The statistics of each row, and how far they may be off. NotApplicable: one of them is 0 / 0."""
        unit = units(arithmetic or self.arithmetic_for(x.dtype), x.dtype)
        row = Row(x.x.double(), self.eps_of(x), unit, centring=self.CENTRING)
        if row.eps == 0 and not row.variance.all():
            raise NotApplicable("a row of nothing to divide by: 0 / 0, where eps is 0")
        return row

    def _affine(self, x: NormInputs) -> Affine:
        one = torch.ones_like(x.x[0, 0], dtype=torch.float64)
        stores = int(self.declaration.weight_offset != 0) + int(x.bias is not None)
        return Affine(self.multiplied(x, one), one - one if x.bias is None else x.bias.double(), stores)

    def bound(self, x: NormInputs) -> Tensor:
        exact, affine = self.expected(x), self._affine(x)
        return sum(output_bound(row, affine, exact) for row in self._rows(x)) + torch.zeros(())

    def _rows(self, x: NormInputs) -> list[Row]:
        """In float64 the oracle is off by as much as what it judges."""
        own = [self.row(x, named("native"))] if x.dtype == torch.float64 else []
        return [self.row(x), *own]

    def gradient_bounds(self, x: NormInputs, cotangent: Tensor) -> dict[str, Tensor]:
        exact, affine, parts = (
            self.exact_gradients(x, cotangent),
            self._affine(x),
            self._parts_of_gradients(x),
        )
        each = [row_gradient_bounds(row, affine, cotangent, exact, parts) for row in self._rows(x)]
        return {name: sum(bounds[name] for bounds in each) + torch.zeros(()) for name in x.tensors}

    def _parts_of_gradients(self, x: NormInputs) -> int:
        """Into how many parts, added up in 16 bits by autograd itself, the gradient of a weight falls."""
        if x.dtype.itemsize > 2:
            return 1
        tensors = {name: each.requires_grad_() for name, each in self.tensors_for(x).items()}
        try:
            return parts_in_sixteen_bits(self._with_a_graph(x, tensors))
        except (LawBroken, NotApplicable):  # Whoever asks for the gradients themselves will see it.
            return 1


def alternating(x: NormInputs, size: float) -> Tensor:
    """Rows t, -t, t, -t, ...; of an odd row the last entry is 0. The mean is 0 exactly."""
    row = torch.full_like(x.x, size)
    row[..., 1::2] = -size
    if x.x.shape[-1] % 2:
        row[..., -1] = 0.0
    return row


def gradient_of(found: Gradients, name: str) -> Tensor:
    """The gradient in float64. NotApplicable: the output carries none for this tensor."""
    gradient = found[name]
    if gradient is None:
        raise NotApplicable(f"the output carries no gradient for {name}")
    return gradient.double().cpu()
