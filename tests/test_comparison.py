"""Comparing number by number: NaN and infinities first, then the error as a share of its bound."""

import math

import pytest
import torch
from torch import Tensor

from headcheck.comparison import LawBroken, compared_gradients, holds, none, place, same, within

INF, NAN = math.inf, math.nan
FINITE = (0.0, -0.0, 1.0, -2.5, 5e-324, 1.7e308)


def row(*numbers: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


@pytest.mark.parametrize(
    ("observed", "expected"), [(NAN, 1.0), (1.0, NAN), (NAN, INF), (INF, NAN), (NAN, 0.0)]
)
@pytest.mark.parametrize("bound", [0.0, 1.0, 1e300])
def test_nan_agrees_with_nan_alone(observed: float, expected: float, bound: float) -> None:
    """NaN on one side only is a break, whatever the finite bound."""
    found = within(row(observed), row(expected), bound)
    assert found.broken
    assert found.ratio == INF
    assert not within(row(NAN), row(NAN), bound).broken


@pytest.mark.parametrize("infinity", [INF, -INF])
@pytest.mark.parametrize("other", [*FINITE, "the other infinity"])
@pytest.mark.parametrize("bound", [0.0, 1e300])
def test_an_infinity_agrees_with_itself_alone(infinity: float, other: float | str, bound: float) -> None:
    """An infinity against a number, or against the other infinity, is a break on both sides."""
    number = -infinity if isinstance(other, str) else other
    assert within(row(infinity), row(number), bound).ratio == INF
    assert within(row(number), row(infinity), bound).ratio == INF
    assert within(row(infinity), row(infinity), bound).ratio == 0.0


@pytest.mark.parametrize("number", FINITE)
def test_a_bound_of_zero_asks_for_equality(number: float) -> None:
    """Under a bound of 0 equal is 0 and the next number up is infinitely far."""
    assert same(row(number), row(number)).ratio == 0.0
    assert same(row(math.nextafter(number, INF)), row(number)).ratio == INF


def test_minus_zero_is_zero() -> None:
    """0 equals -0, under a bound of 0 as well."""
    assert same(row(0.0, -0.0), row(-0.0, 0.0)).ratio == 0.0


@pytest.mark.parametrize("observed", [NAN, INF, -INF, 1e308, 0.0])
@pytest.mark.parametrize("expected", [NAN, INF, 0.0, 1.0])
def test_an_infinite_bound_claims_nothing(observed: float, expected: float) -> None:
    """Where the bound is infinite anything may come out, and it counts as no error at all."""
    assert within(row(observed), row(expected), INF).ratio == 0.0
    assert within(row(observed, 1.0), row(expected, 0.0), row(INF, 0.5)).ratio == 2.0


@pytest.mark.parametrize("bound", [NAN, -1.0, -INF])
def test_a_bound_that_is_no_bound_lets_nothing_pass(bound: float) -> None:
    """A bound of NaN or below zero is a mistake of a law, and must not pass as agreement."""
    assert within(row(1.0), row(0.0), bound).broken


def test_the_ratio_is_the_error_as_a_share_of_its_bound() -> None:
    """Each element has its own bound; the ratio is the largest share, exactly 1 is still within."""
    found = within(row(1.5, 2.0, 3.0), row(1.0, 2.0, 4.0), row(1.0, 0.0, 4.0))
    assert (found.ratio, found.index, found.broken) == (0.5, (0,), False)
    assert not within(row(1.5), row(1.0), 0.5).broken
    assert within(row(1.5), row(1.0), math.nextafter(0.5, 0)).broken


def test_the_ratio_neither_overflows_to_agreement_nor_underflows() -> None:
    """An error of 1e308 over a bound of 5e-324 is infinitely far; huge numbers of unlike sign too."""
    assert within(row(1e308), row(0.0), 5e-324).ratio == INF
    assert within(row(1.7e308), row(-1.7e308), 1.0).ratio == INF


@pytest.mark.parametrize("index", [(0, 0, 0), (1, 2, 3), (0, 2, 1), (1, 0, 0)])
def test_the_index_is_that_of_the_worst_element(index: tuple[int, ...]) -> None:
    """The worst element is named by its full index, a NaN before a large error."""
    observed = torch.zeros(2, 3, 4)
    observed[index] = 2.0
    found = within(observed, torch.zeros(2, 3, 4), 1.0)
    assert (found.index, found.ratio) == (index, 2.0)
    observed = torch.full((2, 3, 4), 1e6)
    observed[index] = NAN
    assert within(observed, torch.zeros(2, 3, 4), 1.0).index == index


def test_a_scalar_and_an_empty_tensor_have_the_empty_index() -> None:
    """No axes, and no elements: both compare, and an empty comparison holds."""
    assert within(torch.tensor(3.0), torch.tensor(1.0), 1.0).ratio == 2.0
    assert within(torch.tensor(3.0), torch.tensor(1.0), 1.0).index == ()
    for shape in [(0,), (2, 0, 3)]:
        found = within(torch.ones(shape), torch.zeros(shape), 0.0)
        assert (found.ratio, found.index, found.broken) == (0.0, (), False)


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (2,), (), (0,)])
def test_another_shape_is_a_break_even_if_it_broadcasts(shape: tuple[int, ...]) -> None:
    """Shapes are compared, never broadcast; the message names both."""
    with pytest.raises(LawBroken, match=r"weights has shape .*, expected \(3,\)"):
        within(torch.zeros(shape), torch.zeros(3), 1.0, "weights")


def test_a_bound_may_be_broadcast() -> None:
    """A bound for each row stands for all of its elements."""
    found = within(torch.ones(2, 3), torch.zeros(2, 3), torch.tensor([[1.0], [0.25]]))
    assert (found.ratio, found.index) == (4.0, (1, 0))
    assert found.bound.shape == (2, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_compared_in_float64(dtype: torch.dtype) -> None:
    """The difference is taken of the numbers themselves, not rounded again to their dtype."""
    observed, expected = row(1.0, dtype=dtype), row(1.0 + 2.0**-40)
    assert within(observed, expected, 2.0**-42).ratio == 4.0
    assert within(row(60000.0, dtype=dtype), row(-60000.0, dtype=dtype), 1e9).ratio < 1


def test_tensors_that_carry_gradients_are_compared_as_numbers() -> None:
    """A finding keeps no graph alive."""
    found = within(torch.ones(2, requires_grad=True), torch.zeros(2), 1.0)
    assert not found.observed.requires_grad
    assert found.ratio == 1.0


def test_a_condition_holds_or_is_infinitely_far() -> None:
    """`holds` names the first element at which the condition fails, and what it looked at."""
    observed = row(0.5, -1.0, -2.0)
    found = holds(observed >= 0, observed, "weight")
    assert (found.ratio, found.index, found.broken, found.what) == (INF, (1,), True, "weight")
    assert float(found.observed[found.index]) == -1.0
    assert not holds(observed >= -2, observed, "weight").broken
    assert not holds(row() >= 0, row(), "weight").broken


def test_a_gradient_that_is_left_out_stands_for_zero() -> None:
    """On either side; it is a break where the other is not zero."""
    zero, one, bounds = torch.zeros(2), torch.ones(2), {"key": torch.full((2,), 0.5)}

    def ratio(found: Tensor | None, expected: Tensor | None) -> float:
        (comparison,) = compared_gradients({"key": found}, {"key": expected}, bounds)
        return comparison.ratio

    assert ratio(None, zero) == ratio(zero, None) == ratio(None, None) == 0.0
    assert ratio(one, None) == 2.0
    with pytest.raises(LawBroken, match="carries a gradient, but none for key"):
        ratio(None, 1e-300 * one.double())


def test_what_was_looked_for_and_not_found_is_an_example() -> None:
    """`none` holds, and says what there is none of."""
    found = none("orders that do not count")
    assert (found.ratio, found.broken, float(found.observed[found.index])) == (0.0, False, 0.0)
    assert place(found.what, found.index) == "number of orders that do not count"
    assert place("output of head 1", (0, 1)) == "output[0, 1] of head 1"


@pytest.mark.parametrize(
    ("what", "placed"),
    [
        ("output of an earlier query", "output[0, 1] of an earlier query"),
        ("logits (as a remark says)", "logits[0, 1] (as a remark says)"),
        ("gradient of key, which is value as well", "gradient of key[0, 1], which is value as well"),
        ("gradient of key, the second time", "gradient of key[0, 1], the second time"),
    ],
)
def test_the_index_stands_by_the_name(what: str, placed: str) -> None:
    """What is remarked follows it."""
    assert place(what, (0, 1)) == placed


def test_what_is_equal_needs_no_bound() -> None:
    """A bound that is a function is asked for only where finite numbers differ."""
    asked: list[int] = []

    def bound() -> torch.Tensor:
        asked.append(1)
        return torch.full((2,), 0.5)

    one = torch.tensor([1.0, 2.0])
    found = within(one, one.clone(), bound)
    assert not asked
    assert found.claims
    assert found.ratio == 0.0
    assert found.bound.tolist() == [0.5, 0.5]
    asked.clear()
    assert within(one, one + 0.25, bound).ratio == pytest.approx(0.5)
    assert within(torch.full((2,), torch.nan), one, bound).broken
    nowhere = torch.full((2,), torch.inf)
    assert not within(nowhere, nowhere, lambda: nowhere).claims
    assert len(asked) == 2
