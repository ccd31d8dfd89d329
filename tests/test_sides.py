"""Of two calls that disagree, which one is shown as off, and how the two are told apart."""

import torch
from torch import Tensor

from headcheck.attention.case import Case
from headcheck.attention.inputs import build
from headcheck.comparison import Comparison, within
from headcheck.sides import of_two_calls, told_apart

X = build(Case(q_len=2, kv_len=3), "top-left")


def compared(first: float, second: float, what: str = "output") -> Comparison:
    """Two calls, of which the exact answer is 1: one plain, one causal."""
    observed, expected, exact = (torch.full((1,), number) for number in (first, second, 1.0))
    found = within(observed, expected, 0.1, what)
    return of_two_calls(found, (exact, exact), (X, X.but(is_causal=True)))


def told(found: Comparison) -> tuple[float, str, float, str]:
    """Both numbers with their words."""
    first, second = (float(side[found.index]) for side in (found.observed, found.expected))
    return first, found.what, second, found.against


def test_the_side_that_is_off_is_the_one_observed() -> None:
    """Whichever the law named first."""
    assert told(compared(1.0, 5.0)) == (5.0, "output with is_causal", 1.0, "output without is_causal")
    assert told(compared(5.0, 1.0)) == (5.0, "output without is_causal", 1.0, "output with is_causal")


def test_what_is_no_number_is_off() -> None:
    """It is never what the other call is held to."""
    nan = float("nan")
    first, what, second, against = told(compared(1.0, nan))
    assert (str(first), what, second, against) == (
        "nan",
        "output with is_causal",
        1.0,
        "output without is_causal",
    )
    assert told(compared(nan, 1.0))[1:] == ("output without is_causal", 1.0, "output with is_causal")


def test_a_law_that_has_words_of_its_own_keeps_them() -> None:
    """And its order; what is expected is named all the same."""
    assert told(compared(1.0, 5.0, "output of the last query")) == (
        1.0,
        "output of the last query",
        5.0,
        "output with is_causal",
    )


def test_calls_are_told_apart_by_what_they_are_given() -> None:
    """Arguments before shapes, shapes before numbers."""
    shorter: Tensor = X.key[:, :, :2]
    assert told_apart(X, X.but(scale=0.5)) == (" without scale", " with scale=0.5")
    assert told_apart(X.but(softcap=5.0, key=shorter), X) == (" with softcap=5", " without softcap")
    assert told_apart(X.but(key=shorter), X) == (" with key (1, 1, 2, 1)", " with key (1, 1, 3, 1)")
    moved = X.but(key=X.key + 1, value=X.value + 1)
    assert told_apart(moved, X) == ("", " of a call with another key and another value")
