"""What the roles `layer_norm` and `rms_norm` have in common: rows of x, each normalised by itself along the last axis."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from headcheck.arithmetic import Arithmetic, named
from headcheck.calling import REFUSALS, SubjectRaised
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.declarations import Declaration
from headcheck.errors import SubjectError
from headcheck.functions.inputs import FunctionCase, Inputs, tensor_of
from headcheck.functions.norm_bounds import Affine, Row, output_bound, row_gradient_bounds
from headcheck.functions.norm_modules import as_function
from headcheck.functions.role import FunctionRole
from headcheck.functions.rounding import units
from headcheck.functions.subject import FunctionSubject, Gradients
from headcheck.graph import parts_in_sixteen_bits
from headcheck.recipes import option
from headcheck.signatures import parameters_of
from headcheck.verdict import Hint

NORMS = ("layer_norm", "rms_norm")
"""The roles that share the laws of properties/norms."""
WEIGHT = ("weight", "gamma", "scale", "w", "g")
DEFAULT_EPS = 1e-5
TINY = 1e-7
"""The size of the numbers by which an eps that is no argument is measured: their squares are far below it."""
EPS_BESIDE = (
    "eps: beside the root, x / (root + eps), as found; the laws ask for the root of the sum, and break"
)
SQUARES_OVERFLOW = (
    "float16: entries of 300 are not normalised, as their squares overflow; an arithmetic that stores each step "
    "allows for it"
)
AS_THE_OTHER = "a plain call is right for {}, and wrong for {}: say --role {}, if that is what is meant"
ROUNDED = 1e-5
"""The share of those squares below which what is measured is rounding in float32."""
WIDTHS = tuple(range(1, 10))
"""The widths that are tried: those that are refused aloud are not asked for."""
MOST_NUMBERS = 20_000
"""A case has fewer rows rather than more numbers than this."""


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


AnyCase = TypeVar("AnyCase", bound=NormCase)


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
        self._tried: dict[str, bool] = {}

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
            except (LawBroken, NotApplicable):
                self._tried[tensor] = False
            else:
                self._tried[tensor] = True
        return self._tried[tensor]

    @cached_property
    def own_eps(self) -> float | None:
        """The eps of a function that takes none: declared, or measured to three digits; None where it takes one."""
        if self.places["eps"] is not None:
            return None
        declared: float | None = self.declaration.eps
        return self._measured_eps() if declared is None else declared

    def adds_eps_to_the_root(self) -> bool:
        """Whether a row (t, -t, ...) with t = eps comes back as t / (root + eps), a half or so."""
        t = eps = 0.25
        size, first = self._first_of(t, eps=eps)
        return abs(first - t / (size + eps)) < 1e-3

    def squares_overflow(self) -> bool:
        """Whether a row (300, -300, ...) of float16, whose squares it has no number for, does not come back as ones."""
        if "float16" not in self.dtypes or self.declaration.arithmetic is not None:
            return False
        _, first = self._first_of(300.0, dtype=torch.float16)
        return not 0.5 < first < 2

    def _measured_eps(self) -> float:
        """Of a row (t, -t, ...) the mean is 0 and the variance v = t^2, or less of an odd one: y = t / sqrt(v + eps).

        What is nothing but the rounding of y is an eps of 0.
        """
        size, first = self._first_of(TINY)
        eps = TINY**2 / first**2 - size**2 if first else -1.0
        if abs(eps) < TINY**2 * ROUNDED:
            return 0.0
        return float(f"{eps:.3g}") if eps > 0 else DEFAULT_EPS

    def _first_of(
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
        row = Row(x.x.double(), x.eps, unit, centring=self.CENTRING)
        if x.eps == 0 and not row.variance.all():
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


class NormRole(FunctionRole[AnyCase, NormInputs], Generic[AnyCase]):
    """Case, declaration and subject of a norm."""

    other: tuple[str, str, str]  # The other kind of norm in words, this one, and the role of the other.
    classes = True  # A class is made with a width, and with eps where it takes one.
    inferred = (named("wide"), named("flash"), named("opwise"), replace(named("opwise"), rescale="input"))
    cure = "say its role with --role, or the width of a module that has one: dims=(24,) in its declaration"

    def prepare(
        self, declaration: Declaration, *, dtypes: tuple[str, ...], device: str, seed: int
    ) -> tuple[FunctionSubject[NormInputs], list[str]]:
        """A module, made or to be made, is called with the weights that the laws give."""
        return super().prepare(as_function(declaration), dtypes=dtypes, device=device, seed=seed)

    def find_out(self, subject: NormSubject) -> list[str]:
        """Which of a few widths are refused aloud. SubjectError: all but one raise, as of a module of one width."""
        if subject.dims:
            return []
        tries = ([self._try(subject, dtype, width) for width in WIDTHS] for dtype in subject.dtypes)
        found = next((each for each in tries if any(not isinstance(why, SubjectRaised) for why in each)), [])
        if found and all(isinstance(why, SubjectRaised) for why in found[1:]):
            raise SubjectError(
                f"the subject takes no width of rows as {self.plain_call}: of 1, {found[0] or 'works'}; "
                f"of 2, {found[1]}; put a function around it that does, {self.cure}"
            )
        refused = {
            width: why
            for width, why in zip(WIDTHS, found, strict=False)
            if isinstance(why, SubjectRaised) and isinstance(why.problem, REFUSALS)
        }
        subject.avoids = (*refused,)
        return [f"rows of {width}: not asked for ({why})" for width, why in refused.items()]

    def _try(self, subject: NormSubject, dtype: str, width: int) -> LawBroken | NotApplicable | None:
        """Why a call with rows of one width does not work, or None if it does."""
        rows = torch.ones(1, 2, width, dtype=getattr(torch, dtype))
        x = alternating(NormInputs(self.case(), rows), 1.0)
        given = {name: torch.ones_like(x[0, 0]) for name in subject.affine if subject.has(name)}
        try:
            subject(NormInputs(self.case(), x).but(**given))
        except (LawBroken, NotApplicable) as problem:
            return problem
        return None

    def build(self, case: AnyCase, subject: NormSubject) -> NormInputs:
        x = tensor_of(case, "x")
        given = {name: _vector(case, name) for name in subject.affine}
        return NormInputs(case, x, eps=case.eps, **given)

    def settle(self, case: AnyCase, subject: NormSubject) -> AnyCase:
        for name in subject.affine:
            if subject.lacks(name):
                case = case.but(**{name: "none"})
            elif getattr(case, name) == "none" and subject.lacks(f"{name}less"):
                case = case.but(**{name: type(case).__dataclass_fields__[name].default})
        absent = [name for name in subject.affine if getattr(case, name) == "none"]
        kept = tuple(pair for pair in case.numbers if pair[0] not in absent)
        case = case.but(dim=subject.width(case.dim))
        rows = max(1, min(case.rows, MOST_NUMBERS // (case.batch * case.dim)))
        return case.but(numbers=kept, rows=rows, eps=case.eps if subject.own_eps is None else subject.own_eps)

    def telling(self, case: AnyCase) -> AnyCase:
        """Half of them with rows by the hundred, half far from zero: there a sum or a mean kept in 16 bits shows."""
        many = case.but(rows=200, batch=1, dim=min(case.dim, 65)) if case.seed % 2 else case
        return many.but(values="offset", dim=max(2, many.dim)) if case.seed // 2 % 2 else many

    def conventions(self, subject: NormSubject) -> dict[str, Any]:
        return {"eps": subject.own_eps}

    def notes(self, subject: NormSubject) -> list[str]:
        notes = [SQUARES_OVERFLOW] if subject.squares_overflow() else []
        notes += [Hint(AS_THE_OTHER.format(*self.other))] if self._is_right_as_the_other(subject) else []
        if subject.own_eps is None:
            notes += [EPS_BESIDE] if subject.adds_eps_to_the_root() else []
        elif subject.declaration.eps is None:
            notes += [f"eps: {subject.own_eps:g}, measured (it is no argument, and not declared)"]
        return notes

    def _is_right_as_the_other(self, subject: NormSubject) -> bool:
        """Whether a plain call is wrong, and is right as the norm that takes the mean out, or that does not."""
        x = self.build(self.fit(self.case(dtype=subject.dtypes[0], rows=3, dim=8, seed=1), subject), subject)
        x = x.but(x=x.x + 2)  # Far from a mean of zero.
        try:
            output, expected, bound = subject(x), subject.expected(x), subject.bound(x)
        except (LawBroken, NotApplicable):
            return False
        other = Row(x.x.double(), x.eps, units(named("native"), x.dtype), centring=not subject.CENTRING)
        as_it = subject.multiplied(x, other.normalised) + (0.0 if x.bias is None else x.bias.double())
        return within(output, expected, bound).broken and not within(output, as_it, bound).broken


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


def _vector(case: NormCase, name: str) -> Tensor | None:
    """A weight or bias: written out, or of the kind that the case names."""
    kind = getattr(case, name)
    if kind == "none":
        return None
    if name in dict(case.numbers) or kind not in ("ones", "zeros"):
        return tensor_of(case, name, "normal")
    return torch.full((case.dim,), float(kind == "ones"), dtype=getattr(torch, case.dtype))
