"""The role `softmax`: f(x, dim), exp(x_i) / sum_j exp(x_j) along one axis."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from headcheck.arithmetic import named
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.declarations import Declaration
from headcheck.functions.axis_hints import axis_note, right_axis
from headcheck.functions.inputs import FunctionCase, Inputs, tensor_of
from headcheck.functions.role import FunctionRole
from headcheck.functions.rounding import Units, stored, sum_error, units
from headcheck.functions.subject import FunctionSubject
from headcheck.numbers import numbers_that_fit, tensors_of, written
from headcheck.recipes import option
from headcheck.reference.attention import softmax
from headcheck.signatures import parameters_of
from headcheck.verdict import Hint

Exponents = Literal["differences", "scaled", "log-sum-exp"]
EXPONENTS: tuple[Exponents, ...] = ("differences", "scaled", "log-sum-exp")
LOSES = {
    "scaled": "x log2(e) is rounded before the maximum is taken out",
    "log-sum-exp": "weights are exp(x - log-sum-exp), not divided by their sum",
}
LOGARITHMS = (
    "it gives the logarithms of weights: where that is meant, put a function around it that takes exp of them"
)
SIZES = (1.0, 30.0, 300.0, 3000.0, 8000.0)
"""So far from zero are the rows that tell one form of the exponents from another."""


@dataclass(frozen=True)
class Softmax(Declaration):
    """A softmax with its conventions.

    function: f(x, dim) -> a tensor like x; without a parameter for dim, along the last axis. One called scale is what x
    is multiplied by before.
    """

    role = "softmax"
    ARGUMENTS: ClassVar = {"dim": ("dim", "axis"), "scale": ("scale", "softmax_scale", "scaling")}

    exponents: Exponents | None = None
    """What exp is taken of: x - max x ("differences"); x log2(e), which is rounded to the size of x, less its
    maximum ("scaled": kernels in Triton); x - logsumexp x, not divided by a sum ("log-sum-exp"). The last two
    lose digits where x is large, and the bounds allow for it; None: the first that fits."""
    negative_scale: bool = True
    """Whether a scale may be below zero: not so where the maximum of x is taken out before the scale."""


@dataclass(frozen=True)
class SoftmaxCase(FunctionCase):
    """Rows of numbers."""

    AXES: ClassVar = {"x": ("batch", "rows", "length"), "cotangent": ("batch", "rows", "length")}

    batch: int = option(1, 1, 2, 3, rarely=(9, 17))
    rows: int = option(1, 2, 3, 5, rarely=(33, 65))
    length: int = option(
        1,
        2,
        3,
        4,
        5,
        7,
        8,
        9,
        15,
        16,
        17,
        31,
        33,
        64,
        65,
        127,
        129,
        257,
        1025,
        rarely=(513, 2048, 4097, 8193),
    )
    dim: int = option(-1, -1, -1, 2, 1, 0, -2)
    """The axis of x that holds a row; the others keep their order."""
    hidden: int = option(0, 0, 0, 1, 2, 5, 40, 140)
    """So many entries of each row are -inf, at one end; one at least is not."""
    hidden_first: bool = option(False, True)
    """Whether these are the first ones, as of padding on the left, or the last ones."""

    @property
    def seen(self) -> Tensor:
        """Which entries of each row, (length,), are not hidden."""
        seen = torch.arange(self.length) < self.length - self.hidden
        return seen.flip(0) if self.hidden_first else seen


@dataclass(frozen=True, eq=False)
class SoftmaxInputs(Inputs):
    """x: rows along the last axis. The subject is given them along `dim`."""

    dim: int = -1
    scale: float | None = None
    """What x is multiplied by; None: it is not asked for."""

    @property
    def scaled(self) -> Tensor:
        """The rows of which the softmax is taken, in float64."""
        return self.x.double() * (1.0 if self.scale is None else self.scale)

    def other(self) -> "SoftmaxInputs":
        return self.but(x=torch.where(self.x.isneginf(), self.x, 1 - self.x))


class SoftmaxSubject(FunctionSubject[SoftmaxInputs]):
    """Laws see rows along the last axis, whatever axis the subject is asked for."""

    FEATURES: ClassVar = {
        "dim": "works along the last axis only",
        "scale": "has no argument for a scale",
        "negative_scale": "takes scales above zero only",
    }

    def __init__(self, declaration: Softmax, **prepared: Any) -> None:
        super().__init__(declaration, **prepared)
        parameters = parameters_of(declaration.function) or {}
        known = (*parameters, declaration.arguments.get("scale"))
        if self.places["scale"] not in known:  # By name only: what stands at its place may be anything.
            self.places["scale"] = None
        scale = parameters.get(str(self.places["scale"]))
        if scale is not None and isinstance(scale.default, bool | str):  # A flag or a word is no factor.
            self.places["scale"] = scale = None
        self._scale_always = scale is not None and scale.default not in (None, 1)
        self.exponents: Exponents = declaration.exponents or "differences"

    def plain(self, x: SoftmaxInputs) -> dict[str, Any]:
        scale = 1.0 if x.scale is None and self._scale_always else x.scale
        return {"dim": x.dim if self.places["dim"] is not None else None, "scale": scale}

    def tensors_for(self, x: SoftmaxInputs) -> dict[str, Tensor]:
        turned = x.but(x=x.x.movedim(-1, x.dim).contiguous())
        return super().tensors_for(turned)

    def run(self, x: SoftmaxInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        turned = x.but(x=x.x.movedim(-1, x.dim))
        return super().run(turned, tensors).movedim(x.dim, -1)

    def as_seen(self, x: SoftmaxInputs, gradient: Tensor) -> Tensor:
        return gradient.movedim(x.dim, -1)

    def sent_back(self, x: SoftmaxInputs, cotangent: Tensor) -> Tensor:
        if not cotangent.is_contiguous():
            return cotangent
        return cotangent.movedim(-1, x.dim).contiguous().movedim(x.dim, -1)

    def exact(self, x: SoftmaxInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        return softmax(tensors["x"] if x.scale is None else x.scale * tensors["x"])

    def bound(self, x: SoftmaxInputs) -> Tensor:
        unit = units(self.arithmetic_for(x.dtype), x.dtype)
        return self._bound(x, unit, self.exponents) + self._own(x)

    def _own(self, x: SoftmaxInputs) -> Tensor | float:
        """What the oracle, in float64, is off by itself."""
        unit = units(named("native"), x.dtype)
        return self._bound(x, unit, "differences") if x.dtype == torch.float64 else 0.0

    def _bound(self, x: SoftmaxInputs, unit: Units, exponents: Exponents) -> Tensor:
        """p_i (exp(E_i + g(n) + 3 u) / sum_j p_j exp(-E_j) - 1), then stored.

        E_i = (u_step + 4 u_sum) |x_i - max x| + 2 exp: the difference is stored, and may be scaled by log2(e)
        or made in two parts by a running maximum. Where x itself is scaled, by log2(e) or by a scale that is given:
        + u_step |x_i|, in the sum too, for each. Where the log-sum-exp L is taken out:
        + (u_step + u_sum) |L| + (u_step + 4 u_sum) (L - max x), in p_i alone.
        """
        exact, rows = self.expected(x), x.scaled
        error, own = _exponent_error(rows, unit), torch.zeros(())
        if x.scale is not None:
            error = error + unit.step * torch.where(rows.isfinite(), rows.abs(), 0.0)
        if exponents == "scaled":
            error = error + unit.step * torch.where(rows.isfinite(), rows.abs(), 0.0)
        elif exponents == "log-sum-exp":
            taken = rows.logsumexp(dim=-1, keepdim=True)
            own = (unit.step + unit.sum) * taken.abs()
            own = own + (unit.step + 4 * unit.sum) * (taken - rows.amax(dim=-1, keepdim=True))
        smallest = (exact * torch.exp(-error)).sum(dim=-1, keepdim=True)
        sums = sum_error(x.x.shape[-1], unit.sum) + 3 * unit.step + 3 * unit.sum
        raised = exact * torch.expm1(error + own + sums - smallest.log())
        return stored(exact, raised + 2 * unit.step_underflow, unit)

    def gradient_bounds(self, x: SoftmaxInputs, cotangent: Tensor) -> dict[str, Tensor]:
        """Of dx_i = p_i (g_i - s), s = sum_j p_j g_j, where p is off by `bound` and s by what follows from it.

        A dozen roundings for each term: autograd goes through max, exp, sum and division one by one, and what
        should cancel on its way through the maximum adds up in the largest entries. Each term of s is on its way
        as p_j / S and p_j / S g_j, which vanish beside S = sum_j exp(x_j - max x) first, and S multiplies their sum.
        p_j g_j may be stored as the output is: torch's backward pass on a GPU does so. All of it is multiplied by the
        scale, with one rounding more, and may vanish before.
        """
        unit = units(self.arithmetic_for(x.dtype), x.dtype)
        p, off, g = self.expected(x), self.bound(x), cotangent.double()
        s = (p * g).sum(dim=-1, keepdim=True)
        summing = sum_error(x.x.shape[-1], unit.sum) + 2 * unit.step
        size = ((p + off) * g.abs()).sum(dim=-1, keepdim=True)
        kept = unit.output * (p + off) * g.abs() + unit.output_underflow
        s_off = (off * g.abs() + kept).sum(dim=-1, keepdim=True) + summing * size + unit.step_underflow
        rows, scale = x.scaled, 1.0 if x.scale is None else x.scale
        largest = rows.amax(dim=-1, keepdim=True)
        vanished = unit.step_underflow * (2 * g.abs() + 1).sum(dim=-1, keepdim=True)
        s_off = s_off + (rows - largest).exp().sum(dim=-1, keepdim=True) * vanished
        product = off * (g - s).abs() + kept + (p + off) * (s_off + 12 * unit.step * (g.abs() + size))
        product = product + torch.where(rows == largest, product.sum(dim=-1, keepdim=True), 0.0)
        if x.scale is not None:
            product = product + unit.step * (p + off) * (g.abs() + size) + unit.step_underflow
        return {"x": stored(scale * p * (g - s), abs(scale) * product + 2 * unit.step_underflow, unit)}


def _exponent_error(x: Tensor, unit: Units) -> Tensor:
    below = (x - x.amax(dim=-1, keepdim=True)).abs()
    finite = torch.where(below.isfinite(), below, 0.0)
    return (unit.step + 4 * unit.sum) * finite + 2 * unit.exp


class SoftmaxRole(FunctionRole[SoftmaxCase, SoftmaxInputs]):
    """Case, declaration and subject of a softmax."""

    name = "softmax"
    plain_call = "f(x, dim)"
    case = SoftmaxCase
    declaration = Softmax
    subject = SoftmaxSubject
    aliases = ("softmax",)
    asks_for_doubles = True

    def find_out(self, subject: SoftmaxSubject) -> list[str]:
        """The form of the exponents that explains rows far from zero, the narrowest; else the laws will speak."""
        if subject.declaration.exponents is not None:
            return []
        dtype = next((dtype for dtype in subject.dtypes if dtype in ("float32", "float64")), None)
        fits = (each for each in EXPONENTS if dtype is not None and _explains(subject, dtype, each))
        subject.exponents = next(fits, "differences")
        if subject.exponents == "differences":
            return []
        loses = f"{LOSES[subject.exponents]}, by what is lost where x is large; the bounds allow for it"
        return [f"exponents: {subject.exponents}, as found: {loses}"]

    def notes(self, subject: SoftmaxSubject) -> list[str]:
        """Whether a plain call is right along another axis, or gives logarithms of weights, or both."""
        case = self.case(dtype=subject.dtypes[0], batch=2, rows=3, length=5, seed=1)
        x = self.build(self.fit(case, subject), subject)
        if found := axis_note(subject, x):
            return found
        weights = _of_logarithms(subject)
        logarithms = not subject.is_right(x) and (weights.is_right(x) or right_axis(weights, x) is not None)
        return [Hint(LOGARITHMS), *axis_note(weights, x)] if logarithms else []

    def conventions(self, subject: SoftmaxSubject) -> dict[str, Any]:
        return {"exponents": subject.exponents}

    def build(self, case: SoftmaxCase, subject: SoftmaxSubject) -> SoftmaxInputs:
        x = tensor_of(case, "x").masked_fill(~case.seen, -torch.inf)
        return SoftmaxInputs(case, x, dim=case.dim)

    def telling(self, case: SoftmaxCase) -> SoftmaxCase:
        """Half of them of many short rows, by turns along an outer axis, where alone torch stores each step on a CPU."""
        short = case.but(rows=65, length=min(max(9, case.length), 17), dim=1 if case.seed // 2 % 2 else -1)
        return short.but(values="normal") if case.seed % 2 else case

    def settle(self, case: SoftmaxCase, subject: SoftmaxSubject) -> SoftmaxCase:
        if subject.lacks("dim"):
            case = case.but(dim=-1)
        hidden = min(case.hidden, case.length - 1)
        case = case.but(hidden=hidden, hidden_first=case.hidden_first and hidden > 0)
        return _with_a_number_in_each_row(numbers_that_fit(case))


def _of_logarithms(subject: SoftmaxSubject) -> SoftmaxSubject:
    """The subject with exp taken of what it gives."""
    function = subject.declaration.function

    def weights(*given: Any, **named: Any) -> Tensor:
        output: Tensor = function(*given, **named)
        return output.exp()

    other = subject.around(weights)
    other.exponents = "log-sum-exp"
    return other


def _with_a_number_in_each_row(case: SoftmaxCase) -> SoftmaxCase:
    """Of a row written out, what is seen is 0 where all of it is -inf: exp(-inf) / 0 has no right answer."""
    if "x" not in (rows := tensors_of(case)):
        return case
    x = rows["x"]
    empty = x.masked_fill(~case.seen, -torch.inf).isneginf().all(dim=-1, keepdim=True)
    if not empty.any():
        return case
    rows["x"] = x.masked_fill(empty & case.seen, 0.0)
    return case.but(numbers=tuple((name, written(each)) for name, each in rows.items()))


def _explains(subject: SoftmaxSubject, dtype: str, exponents: Exponents) -> bool:
    """Whether rows near zero and far from it are all within the bound of one form of the exponents.

    Where weights are divided by their sum, they sum to one as well as if nothing had been lost before.
    """
    trial = copy(subject)
    trial.exponents = exponents
    case = SoftmaxCase(dtype=dtype, batch=1, rows=16, length=5, seed=1)
    x = SoftmaxInputs(case, tensor_of(case, "x", "normal"))
    try:
        sizes = [x.but(x=x.x + sign * size) for size in SIZES for sign in (1, -1)]
        for y in sizes:
            weights, sums = trial(y), subject.bound(y).sum(dim=-1)
            divided = not within(weights.double().sum(dim=-1), torch.ones_like(sums), sums).broken
            if within(weights, trial.expected(y), trial.bound(y)).broken:
                return False
            if exponents == "scaled" and not divided:
                return False
    except (LawBroken, NotApplicable):
        return False
    return True


role = SoftmaxRole()
