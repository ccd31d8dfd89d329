"""The role `softmax`: f(x, dim), exp(x_i) / sum_j exp(x_j) along one axis."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from headcheck.arithmetic import named
from headcheck.declarations import Declaration
from headcheck.functions.inputs import FunctionCase, Inputs, tensor_of
from headcheck.functions.role import FunctionRole
from headcheck.functions.rounding import Units, stored, sum_error, units
from headcheck.functions.subject import FunctionSubject
from headcheck.recipes import option
from headcheck.reference.attention import softmax


@dataclass(frozen=True)
class Softmax(Declaration):
    """A softmax with its conventions.

    function: f(x, dim) -> a tensor like x; without a parameter for dim, along the last axis.
    """

    role = "softmax"
    ARGUMENTS: ClassVar = {"dim": ("dim", "axis")}


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
    hidden: int = option(0, 0, 0, 1, 2, 5)
    """So many entries of each row, the last ones, are -inf; one at least is not."""


@dataclass(frozen=True, eq=False)
class SoftmaxInputs(Inputs):
    """x: rows along the last axis. The subject is given them along `dim`."""

    dim: int = -1

    def other(self) -> "SoftmaxInputs":
        return self.but(x=torch.where(self.x.isneginf(), self.x, 1 - self.x))


class SoftmaxSubject(FunctionSubject[SoftmaxInputs]):
    """Laws see rows along the last axis, whatever axis the subject is asked for."""

    FEATURES: ClassVar = {"dim": "works along the last axis only"}

    def plain(self, x: SoftmaxInputs) -> dict[str, Any]:
        return {"dim": x.dim if self.places["dim"] is not None else None}

    def tensors_for(self, x: SoftmaxInputs) -> dict[str, Tensor]:
        turned = x.but(x=x.x.movedim(-1, x.dim).contiguous())
        return super().tensors_for(turned)

    def run(self, x: SoftmaxInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        turned = x.but(x=x.x.movedim(-1, x.dim))
        return super().run(turned, tensors).movedim(x.dim, -1)

    def as_seen(self, x: SoftmaxInputs, gradient: Tensor) -> Tensor:
        return gradient.movedim(x.dim, -1)

    def exact(self, x: SoftmaxInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        return softmax(tensors["x"])

    def bound(self, x: SoftmaxInputs) -> Tensor:
        return self._bound(x, units(self.arithmetic_for(x.dtype), x.dtype)) + self._own(x)

    def _own(self, x: SoftmaxInputs) -> Tensor | float:
        """What the oracle, in float64, is off by itself."""
        return self._bound(x, units(named("native"), x.dtype)) if x.dtype == torch.float64 else 0.0

    def _bound(self, x: SoftmaxInputs, unit: Units) -> Tensor:
        """p_i (exp(E_i + g(n) + 3 u) / sum_j p_j exp(-E_j) - 1), then stored.

        E_i = (u_step + 4 u_sum) |x_i - max x| + 2 exp: the difference is stored, and may be scaled by log2(e)
        or made in two parts by a running maximum.
        """
        exact = self.expected(x)
        error = _exponent_error(x.x.double(), unit)
        smallest = (exact * torch.exp(-error)).sum(dim=-1, keepdim=True)
        sums = sum_error(x.x.shape[-1], unit.sum) + 3 * unit.step + 3 * unit.sum
        raised = exact * torch.expm1(error + sums - smallest.log())
        return stored(exact, raised + 2 * unit.step_underflow, unit)

    def gradient_bounds(self, x: SoftmaxInputs, cotangent: Tensor) -> dict[str, Tensor]:
        """Of dx_i = p_i (g_i - s), s = sum_j p_j g_j, where p is off by `bound` and s by what follows from it.

        A dozen roundings for each term: autograd goes through max, exp, sum and division one by one, and what
        should cancel on its way through the maximum adds up in the largest entries.
        """
        unit = units(self.arithmetic_for(x.dtype), x.dtype)
        p, off, g = self.expected(x), self.bound(x), cotangent.double()
        s = (p * g).sum(dim=-1, keepdim=True)
        summing = sum_error(x.x.shape[-1], unit.sum) + 2 * unit.step
        size = ((p + off) * g.abs()).sum(dim=-1, keepdim=True)
        s_off = (off * g.abs()).sum(dim=-1, keepdim=True) + summing * size + unit.step_underflow
        product = off * (g - s).abs() + (p + off) * (s_off + 12 * unit.step * (g.abs() + size))
        rows = x.x.double()
        top = rows == rows.amax(dim=-1, keepdim=True)
        product = product + torch.where(top, product.sum(dim=-1, keepdim=True), 0.0)
        return {"x": stored(p * (g - s), product + 2 * unit.step_underflow, unit)}


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

    def build(self, case: SoftmaxCase, subject: SoftmaxSubject) -> SoftmaxInputs:
        x = tensor_of(case, "x")
        seen = torch.arange(case.length) < case.length - case.hidden
        return SoftmaxInputs(case, x.masked_fill(~seen, -torch.inf), dim=case.dim)

    def settle(self, case: SoftmaxCase, subject: SoftmaxSubject) -> SoftmaxCase:
        if subject.lacks("dim"):
            case = case.but(dim=-1)
        return case.but(hidden=min(case.hidden, case.length - 1))


role = SoftmaxRole()
