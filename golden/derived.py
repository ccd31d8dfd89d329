"""How a value is derived: exactly, a second time independently, and by headcheck's reference in float64."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import mpmath
import sympy
import torch

from headcheck.golden.exact import (
    fractions,
    matrix,
    product_again,
    softmax_again,
    softmax_rows,
    transposed,
    widely,
)
from headcheck.golden.stated import EPSILON, SAME, all_near, nested, numbers, wide
from headcheck.reference import attention

Way = Callable[[], Any]
STEPS = 64
"""Roundings on the longest way to a number of the worked examples; each is half a unit in the last place."""


@dataclass(frozen=True)
class Derived:
    """A value reached in up to three ways; each way is a function without arguments.

    exact: sympy numbers, mpmath numbers of 60 digits, counts, shapes, truth values: never floats.
    again: the same, without sharing a formula with `exact`.
    reference: headcheck.reference in float64, within steps x 2^-53 x max(1, |exact|) of it.
    """

    exact: Way
    again: Way | None = None
    reference: Way | None = None
    steps: float = STEPS
    inputs: Mapping[str, str] = field(default_factory=dict)
    """What it is computed from, for other projects: `operation`, its inputs, and `entry` of its result."""
    one_way: str = ""
    """Where there is neither `again` nor `reference`: why there is no second way."""

    @property
    def ways(self) -> int:
        """In how many ways the value is reached."""
        return 1 + (self.again is not None) + (self.reference is not None)

    def at(self, *index: int) -> "Derived":
        """One entry or row, in each of the ways."""
        entry = {"entry": " ".join(map(str, index))}
        return replace(self.map(lambda value: _picked(value, index)), inputs={**self.inputs, **entry})

    def axes(self) -> "Derived":
        """The shape, in each of the ways."""
        return self.map(lambda value: numbers(value)[0])

    def map(self, function: Callable[[Any], Any]) -> "Derived":
        """A function of the value, in each of the ways; it must do for sympy, mpmath and floats alike."""

        def after(way: Way | None) -> Way | None:
            return None if way is None else lambda: function(way())

        return replace(
            self,
            exact=lambda: function(self.exact()),
            again=None if self.again is None else widely(lambda: function(self.again())),  # type: ignore[misc]
            reference=after(self.reference),
            inputs={},
        )


def _picked(value: Any, index: tuple[int, ...]) -> Any:
    value = nested(value)
    for number in index:
        value = value[number]
    return value


def holds(
    exact: Way, again: Way | None = None, reference: Way | None = None, *, one_way: str = ""
) -> Derived:
    """A statement in words: each way says whether it is true."""
    return Derived(
        exact=lambda: bool(exact()),
        again=None if again is None else widely(lambda: bool(again())),
        reference=None if reference is None else lambda: bool(reference()),
        one_way=one_way,
    )


def same(left: Way, right: Way, reference: Way | None = None) -> Derived:
    """An equation: both sides are the same exact numbers, and the reference's are near them."""
    return holds(
        exact=widely(lambda: all_near(left(), right())),
        reference=None if reference is None else lambda: all_near(left(), reference(), STEPS * EPSILON),
    )


def rows_sum_to_one(weights: Derived) -> Derived:
    """A statement: the entries of each row are positive and sum to one, in each of the ways."""

    def hold(way: Way, bound: Any) -> Way:
        return lambda: all(min(row) > 0 and all_near(1, sum(row), bound) for row in nested(way()))

    again, reference = weights.again, weights.reference
    return holds(
        hold(weights.exact, SAME),
        hold(again, SAME) if again else None,
        hold(reference, STEPS * EPSILON) if reference else None,
    )


def simplified(derived: Derived) -> Derived:
    """The exact way simplified, where what is left of a symbolic matrix is rational."""
    return replace(derived, exact=lambda: sympy.simplify(derived.exact()))


def counted(formula: Way, build: Way | None = None, reference: Way | None = None) -> Derived:
    """A count or a shape: by formula, by building the thing and counting, and of the reference's."""
    return Derived(exact=formula, again=build, reference=reference)


def product(left: str, right: str) -> Derived:
    """A matrix product of printed decimals."""
    return Derived(
        exact=lambda: matrix(left) * matrix(right),
        again=lambda: product_again(fractions(left), fractions(right)),
        inputs={"operation": "matrix product", "left": left, "right": right},
    )


@dataclass(frozen=True)
class Worked:
    """An attention example with printed decimals: its scores, weights and output, each in three ways.

    >>> Worked("1 0", "1 0; 0 1", "1 2; 3 4", scaled=False).weights.at(0, 1)
    """

    query: str
    key: str
    value: str
    scaled: bool = True
    """Whether the scores are divided by sqrt(head_dim)."""
    may_attend: str | None = None
    """1 where a query may attend, 0 where it may not."""

    @property
    def scores(self) -> Derived:
        """q.k / sqrt(head_dim), -inf where the query may not attend."""
        return self._derived(0, "scores")

    @property
    def weights(self) -> Derived:
        """The softmax of each row."""
        return self._derived(1, "weights")

    @property
    def output(self) -> Derived:
        """Weights times values."""
        return self._derived(2, "output")

    def _derived(self, number: int, name: str) -> Derived:
        inputs = {"operation": f"attention {name}", "query": self.query, "key": self.key, "value": self.value}
        inputs["scale"] = "1 / sqrt(head_dim)" if self.scaled else "1"
        return Derived(
            exact=lambda: self._algebra[number],
            again=lambda: self._numbers[number],
            reference=lambda: getattr(self._floats, name)[0, 0],
            inputs=inputs | ({"may_attend": self.may_attend} if self.may_attend else {}),
        )

    @cached_property
    def _algebra(self) -> tuple[Any, Any, Any]:
        query, key, value = (matrix(each) for each in (self.query, self.key, self.value))
        scores = query * key.T / (sympy.sqrt(query.cols) if self.scaled else 1)
        for i, row in enumerate(fractions(self.may_attend or "")):
            for j, seen in enumerate(row):
                scores[i, j] = scores[i, j] if seen else -sympy.oo
        weights = softmax_rows(scores)
        return scores, weights, weights * value

    @cached_property
    def _numbers(self) -> tuple[Any, Any, Any]:
        answer: tuple[Any, Any, Any] = widely(self._number_by_number)()
        return answer

    def _number_by_number(self) -> tuple[Any, Any, Any]:
        query, key, value = (
            [[wide(each) for each in row] for row in fractions(text)]
            for text in (self.query, self.key, self.value)
        )
        root = mpmath.sqrt(len(query[0])) if self.scaled else mpmath.mpf(1)
        everywhere = " ; ".join([" ".join("1" * len(key))] * len(query))
        seen = fractions(self.may_attend or everywhere)
        scores = [
            [dot / root if keep else -mpmath.inf for dot, keep in zip(row, kept, strict=True)]
            for row, kept in zip(product_again(query, transposed(key)), seen, strict=True)
        ]
        weights = [softmax_again(row) for row in scores]
        return scores, weights, product_again(weights, value)

    @cached_property
    def _floats(self) -> Any:
        query, key, value = (tensor(each)[None, None] for each in (self.query, self.key, self.value))
        kept = tensor(self.may_attend).bool()[None, None] if self.may_attend else None
        return attention(query, key, value, may_attend=kept, scale=None if self.scaled else 1.0)


def tensor(text: str) -> torch.Tensor:
    """Printed decimals in float64."""
    return torch.tensor([[float(each) for each in row] for row in fractions(text)], dtype=torch.float64)
