"""Two calls that should agree and do not: which of them is off, and what tells it from the other, in words."""

import math
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from headcheck.comparison import Comparison

UNTOLD = ("case", "generic", "alignment")
"""Fields of inputs that are no argument of the call."""
OUTPUT = "output"


def of_two_calls(found: Comparison, exact: tuple[Tensor, Tensor], calls: tuple[Any, Any]) -> Comparison:
    """A broken comparison of two outputs: the one that is further from its exact answer is what was observed.

    exact: the answer of each in float64, in the form of the comparison. calls: the inputs of each. A law that has
    words of its own for what it observes keeps them and its order.
    """
    first, second = told_apart(*calls)
    if found.what != OUTPUT:
        return replace(found, against=f"{OUTPUT}{second}")
    errors = [
        _off(float(side[found.index]), float(answer.detach()[found.index]))
        for side, answer in zip((found.observed, found.expected), exact, strict=True)
    ]
    if errors[1] > errors[0]:
        swapped = replace(found, observed=found.expected, expected=found.observed)
        return replace(swapped, what=f"{OUTPUT}{second}", against=f"{OUTPUT}{first or ' of the case itself'}")
    return replace(found, what=f"{OUTPUT}{first}", against=f"{OUTPUT}{second}")


def told_apart(one: Any, other: Any) -> tuple[str, str]:
    """What each of two calls is given that the other is not: ' with attn_mask', ' without scale', ' with softcap=5'.

    Shapes are told where all arguments are given to both, and where all that differs are numbers in tensors, the
    first call is taken for the case itself.
    """
    names = [each.name for each in fields(one) if each.name not in UNTOLD]
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in names]
    differ = [pair for pair in pairs if not _alike(*pair[1:])]
    if given := [pair for pair in differ if not _both_tensors(pair)]:
        return _given(given), _given([(name, second, first) for name, first, second in given])
    shaped = [
        (name, first.shape, second.shape) for name, first, second in differ if first.shape != second.shape
    ]
    if shaped:
        first, second = (
            ", ".join(f"{name} {tuple(shapes[side])}" for name, *shapes in shaped) for side in (0, 1)
        )
        return f" with {first}", f" with {second}"
    others = (
        " with another " + " and another ".join(name for name, *_ in differ)
        if differ
        else " of the same kind"
    )
    return "", f" of a call{others}"


def _off(given: float, exact: float) -> float:
    """By how much: NaN is as far off as can be, unless it is what is asked for."""
    if given == exact or (math.isnan(given) and math.isnan(exact)):
        return 0.0
    return math.inf if math.isnan(given - exact) else abs(given - exact)


def _both_tensors(pair: tuple[str, Any, Any]) -> bool:
    return all(isinstance(each, Tensor) for each in pair[1:])


def _given(differ: list[tuple[str, Any, Any]]) -> str:
    """The arguments that a call is given, of those that differ; what it lacks, where it is given none of them."""
    given = [(name, own) for name, own, _ in differ if own is not None and own is not False]
    if not given:
        return f" without {', '.join(name for name, *_ in differ)}"
    return f" with {', '.join(name + _value(own) for name, own in given)}"


def _value(own: Any) -> str:
    if own is True or isinstance(own, Tensor):
        return ""
    return f"={own:.6g}" if isinstance(own, float) else f"={own}"


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one is other or (one.shape == other.shape and one.dtype == other.dtype and one.equal(other))
    return type(one) is type(other) and bool(one == other)
