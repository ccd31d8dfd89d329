"""What one rounding costs in the steps of a function: the vocabulary of the roles' bounds.

Five formats of a declared arithmetic are used here: `softmax`, in which each elementwise step is stored (the
step), `accumulate`, in which sums are kept, `probabilities`, in which a normalised number meets what multiplies it,
`rescale`, in which a sum over rows is carried from row to row, and `output`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from headcheck.arithmetic import Arithmetic, Rounding


class Units(NamedTuple):
    """Unit roundoffs and the largest loss by underflow, for inputs of one dtype."""

    step: float
    sum: float
    output: float
    exp: float
    """Relative error of one exp, its storing included."""
    step_underflow: float
    output_underflow: float
    largest: float
    """Beyond it a step or the output may overflow."""
    step_largest: float
    """Beyond it a step may overflow."""
    weighted: float
    """Of a normalised number as it meets what multiplies it."""
    weighted_underflow: float
    carried: float
    """Of a gradient's sum that is carried from row to row."""


def units(arithmetic: Arithmetic, dtype: torch.dtype) -> Units:
    """The units of a declared arithmetic."""
    rounding: Rounding = arithmetic.rounding(dtype)
    return Units(
        step=rounding.softmax.unit,
        sum=rounding.accumulate.unit,
        output=rounding.output.unit,
        exp=rounding.exp,
        step_underflow=rounding.softmax.underflow + rounding.accumulate.underflow,
        output_underflow=rounding.output.underflow,
        largest=min(rounding.softmax.largest, rounding.accumulate.largest, rounding.output.largest),
        step_largest=min(rounding.softmax.largest, rounding.accumulate.largest),
        weighted=rounding.probabilities.unit,
        weighted_underflow=rounding.probabilities.underflow,
        carried=rounding.rescale.unit,
    )


def sum_error(terms: int, unit: float) -> float:
    """g(n): n additions in any order, each rounded, come to exp(n u) - 1 at most (Higham 2002, section 4.2).

    Of few terms it is 1.5 n u: half as much again stays free for steps around a sum that no model counts. (With n u
    alone, as `attention.exponents.growth` has it, no right norm or softmax broke in 160 examples of each law either.)
    """
    return math.expm1(min(2 * terms * unit, 700.0)) / 2 + terms * unit / 2


def scaled(bound: Tensor, factor: Tensor) -> Tensor:
    """A bound of what is multiplied by |factor|: where the bound is infinite so is the product, by zero too."""
    return torch.where(bound.isinf(), bound, bound * factor.abs())


def stored(exact: Tensor, error: Tensor, unit: Units) -> Tensor:
    """The error after a result that is off by `error` has been rounded to the format of the output."""
    bound = error + unit.output * (exact.abs() + error) + unit.output_underflow
    return torch.where((exact.abs() + bound > unit.largest) | bound.isnan(), torch.inf, bound)
