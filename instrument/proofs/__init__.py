"""Proofs of the algebra behind the laws, for small sizes with symbolic entries.

A proof is one short function in a module named in THEMES. Its first docstring paragraph is its statement, its
module and name are its name, and it yields equations made of `headcheck.proofs.terms`, which it is given:

    @proof(proves=("attention/distribution/weights-sum-to-one",))
    def rows_sum_to_one(t: Terms) -> Equations:
        (docstring: The weights of a row sum to 1.)
        yield equal(sum(t.softmax(t.row("s", 3))), 1)

`headcheck.proofs.prover` decides the equations, and the generated page docs/proofs.md shows the same ones.
sympy is loaded when a proof is run, not when the proofs are listed.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

Terms = ModuleType
"""`headcheck.proofs.terms`: the definitions over symbols."""

THEMES = ("softmax", "attention", "gradients", "heads", "positions", "norms", "efficient", "training")


@dataclass(frozen=True, eq=False)
class Equation:
    """left = right or left <= right, of sympy expressions, or of matrices entry by entry."""

    left: Any
    right: Any
    relation: Literal["=", "<="] = "="


Equations = Iterator[Equation]


def equal(left: Any, right: Any) -> Equation:
    """left = right."""
    return Equation(left, right)


def at_most(left: Any, right: Any) -> Equation:
    """left <= right."""
    return Equation(left, right, "<=")


@dataclass(frozen=True)
class Proof:
    """One proof: what it states, and the ids of the laws that it proves in exact arithmetic."""

    name: str
    statement: str
    state: Callable[[Terms], Equations]
    proves: tuple[str, ...]

    @property
    def theme(self) -> str:
        return self.name.partition("/")[0]

    def equations(self) -> list[Equation]:
        """What is to be proved; loads sympy."""
        return list(self.state(import_module("headcheck.proofs.terms")))


def proof(*, proves: tuple[str, ...] = ()) -> Callable[[Callable[[Terms], Equations]], Proof]:
    """Make a proof of a function; `proves`: ids of laws."""

    def make(state: Callable[[Terms], Equations]) -> Proof:
        statement = inspect.cleandoc(state.__doc__ or "").split("\n\n", 1)[0].replace("\n", " ")
        if not statement.endswith("."):
            raise ValueError(
                f"the proof {state.__name__} has no statement: a docstring that ends with a full stop"
            )
        theme = state.__module__.rpartition(".")[2]
        return Proof(f"{theme}/{state.__name__}".replace("_", "-"), statement, state, proves)

    return make


@cache
def all_proofs() -> dict[str, Proof]:
    """Every proof by name, in the order of the themes and of their modules."""
    modules = (import_module(f"{__name__}.{theme}") for theme in THEMES)
    found = (each for module in modules for each in vars(module).values() if isinstance(each, Proof))
    return {each.name: each for each in found}


def proofs_of(law_id: str) -> list[Proof]:
    """The proofs of one law."""
    return [each for each in all_proofs().values() if law_id in each.proves]
