"""The vocabulary of derivations: the same things in exact numbers (sympy), and again, number by number.

The first way is algebra on matrices of rationals, roots and exponentials. The second is arithmetic on mpmath
numbers of 60 digits in plain loops and shares no formula with it: a softmax there is 1 / sum exp(s_k - s_j).
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import sympy

from headcheck.golden.stated import DIGITS

Row = list[Any]
Rows = list[Row]


# Reading what a document prints


def q(text: str) -> sympy.Rational:
    """A printed decimal as the rational that it stands for."""
    return sympy.Rational(text)


def words(text: str) -> list[list[str]]:
    """The printed entries: blanks part the entries of a row, semicolons the rows."""
    return [row.split() for row in text.split(";")]


def matrix(text: str) -> sympy.Matrix:
    """Printed decimals as a matrix of rationals."""
    return sympy.Matrix([[q(word) for word in row] for row in words(text)])


def fractions(text: str) -> list[list[Fraction]]:
    """The same as nested lists of fractions, for the second way."""
    return [[Fraction(word) for word in row] for row in words(text)]


# The first way: algebra


def softmax(row: Sequence[Any]) -> Row:
    """e^s / sum e^s, symbolically."""
    raised = [sympy.exp(score) for score in row]
    return [each / sum(raised) for each in raised]


def softmax_rows(scores: sympy.Matrix) -> sympy.Matrix:
    """The softmax of each row; -inf is sympy's -oo, whose exponential is 0."""
    return sympy.Matrix([softmax(list(scores.row(i))) for i in range(scores.rows)])


def normalised(row: sympy.Matrix) -> sympy.Matrix:
    """A row less its mean, over the root of its variance."""
    centred = row - sum(row) / row.cols * sympy.ones(1, row.cols)
    return centred / sympy.sqrt(sum(each**2 for each in centred) / row.cols)


# The second way: numbers of 60 digits


def widely(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function, computed with 60 digits of mpmath."""

    def computed() -> Any:
        with mpmath.workdps(DIGITS):
            return function()

    return computed


def softmax_again(row: Sequence[Any]) -> Row:
    """1 / sum_k e^(s_k - s_j)."""
    return [
        mpmath.mpf(0) if own == -mpmath.inf else 1 / mpmath.fsum(mpmath.exp(each - own) for each in row)
        for own in row
    ]


def product_again(left: Sequence[Sequence[Any]], right: Sequence[Sequence[Any]]) -> Rows:
    """A matrix product, entry by entry."""
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*right, strict=True)]
        for row in left
    ]


def transposed(rows: Sequence[Sequence[Any]]) -> Rows:
    """Rows and columns exchanged."""
    return [list(column) for column in zip(*rows, strict=True)]


# Sinusoidal positions


def sinusoid(position: int, dim: int, d_model: int) -> sympy.Expr:
    """sin(pos / 10000^(2i/d)) in dim 2i, the cosine in dim 2i + 1."""
    angle = position / sympy.Integer(10000) ** sympy.Rational(dim // 2 * 2, d_model)
    return sympy.cos(angle) if dim % 2 else sympy.sin(angle)


def sinusoid_again(position: int, dim: int, d_model: int) -> mpmath.mpf:
    """The real or imaginary part of e^(i angle), the angle by exponential and logarithm; within `widely`."""
    turned = mpmath.expj(position * mpmath.exp(-mpmath.log(10000) * (dim - dim % 2) / d_model))
    return turned.real if dim % 2 else turned.imag


# As the author calculates


def cut(number: Any, places: int) -> sympy.Rational:
    """A number as it is printed: rounded half up to so many decimals."""
    scaled = sympy.N(sympy.sympify(number), DIGITS) * 10**places
    return sympy.Rational(int(sympy.floor(scaled + sympy.Rational(1, 2))), 10**places)


# Shapes


def contracted(labels: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a product of tensors by the labels of their axes: contracted("ij,jk->ik", (2, 3), (3, 4))."""
    given, _, result = labels.partition("->")
    sizes: dict[str, int] = {}
    for names, axes in zip(given.split(","), shapes, strict=True):
        for name, size in zip(names, axes, strict=True):
            if sizes.setdefault(name, size) != size:
                raise ValueError(f"axis {name} of {labels} is {sizes[name]} and {size}")
    return tuple(sizes[name] for name in result)
