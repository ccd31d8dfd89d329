"""Slips that nobody chose: how they are made, and that those which once went unseen are seen."""

import ast
from functools import cache

import pytest

from benchmarks.mutants.__main__ import table
from benchmarks.mutants.sites import Mutant, mutants
from benchmarks.mutants.slips import slips
from benchmarks.mutants.trying import Outcome, outcome

ONCE_UNSEEN = (
    "causal_lm.Small: causal & real[:, None, None, :] -> real[:, None, None, :]",
    "causal_lm.Small: causal & real[:, None, None, :] -> causal",
    (
        "causal_lm.Torch: torch.ones(length, length, dtype=torch.bool, device=tokens.device) -> "
        "torch.ones(length, length, device=tokens.device)"
    ),
    "causal_lm.linear_attention: 1 -> 0",
    "rotary.by_logarithms: math.log(10000.0) / dim -> dim",
)


@cache
def mutant(name: str) -> Mutant:
    """The one of that id."""
    return next(each for each in mutants() if each.id == name)


def made_of(source: str) -> list[str]:
    """What the slips of one function are, in words."""
    return [each.told for each in slips(ast.parse(source).body[0])]


def test_a_slip_is_one_node_for_another() -> None:
    """An operator, an operand, a constant, a name, an argument, a step."""
    assert made_of("def f(query, key): return query - 2") == [
        "query - 2 -> query + 2",
        "query - 2 -> query",
        "query - 2 -> 2",
        "query -> key",
        "2 -> 3",
        "2 -> 1",
    ]
    assert made_of("def f(x): return x.sum(dim=0).abs()") == [
        "x.sum(dim=0).abs() -> x.sum(dim=0)",
        "x.sum(dim=0) -> x",
        "x.sum(dim=0) -> x.sum()",
        "x.sum -> x.mean",
        "0 -> 1",
        "0 -> -1",
    ]


def test_what_only_says_something_does_not_slip() -> None:
    """Annotations, docstrings, messages and checks."""
    source = "def f(x: Tensor = None) -> Literal[1]:\n    'Two.'\n    assert x, 3\n    raise ValueError(4)"
    assert made_of(source) == []


@pytest.mark.parametrize("name", ONCE_UNSEEN)
def test_what_once_went_unseen_is_seen(name: str) -> None:
    """In a process of its own, by quick."""
    found = outcome(mutant(name))
    assert (found.by, found.reached) == ("quick", True), found


def test_a_slip_that_does_not_run_is_told_apart() -> None:
    """It is refused, as a subject that cannot be called."""
    found = outcome(mutant("variants.einsum: value -> key"))
    assert (found.by, bool(found.law)) == ("refused", True), found


def test_the_table_counts_each_once() -> None:
    """By role, and together."""
    rows = [Outcome("a", "b", "rotary", "name", by) for by in ("refused", "quick", "gate", "")]
    assert table(rows).splitlines()[-2:] == [
        "| rotary | 4 | 1 | 2 | 1 | 1 |",
        "| together | 4 | 1 | 2 | 1 | 1 |",
    ]
