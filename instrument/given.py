"""Repairs that any role can use: they bring a drawn case to where a law speaks, and leave the rest as it was drawn.

Each gives a function from a case to a case that does nothing to a case that is already there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headcheck.recipes import Recipe

AnyCase = TypeVar("AnyCase", bound=Recipe)

Repair = Callable[[Any], Any]
"""A function from a role's case to a case of the same kind."""


class RepairOfAny(Protocol):
    """A repair for the cases of every role."""

    def __call__(self, case: AnyCase, /) -> AnyCase:
        """The case, where the law speaks."""


def at_least(**sizes: int) -> RepairOfAny:
    """With axes of at least these sizes: at_least(kv_len=2)."""

    def repair(case: AnyCase, /) -> AnyCase:
        return case.but(**{axis: max(size, getattr(case, axis)) for axis, size in sizes.items()})

    return repair


def at_most(**sizes: int) -> RepairOfAny:
    """With axes of at most these sizes."""

    def repair(case: AnyCase, /) -> AnyCase:
        return case.but(**{axis: min(size, getattr(case, axis)) for axis, size in sizes.items()})

    return repair


def having(**fields: object) -> RepairOfAny:
    """With these very values in these fields."""

    def repair(case: AnyCase, /) -> AnyCase:
        return case.but(**fields)

    return repair


def one_of(field: str, *options: object) -> RepairOfAny:
    """With one of these for a field; which one is the case's own choice."""

    def repair(case: AnyCase, /) -> AnyCase:
        if getattr(case, field) in options:
            return case
        if field == "values" and case.written_out:
            return case
        return case.but(**{field: options[case.seed % len(options)]})

    return repair


@dataclass(frozen=True)
class Choice:
    """Repairs that are made for some cases and not for others: the law speaks of those others too."""

    groups: tuple[Sequence[Repair], ...]

    def __call__(self, case: AnyCase) -> AnyCase:
        if case.written_out or not case.seed:  # Seed 0 is the plainest case: nothing is chosen for it.
            return case
        for each in self.groups[case.seed // 11 % len(self.groups)]:
            case = each(case)
        return case


def alternately(*groups: Sequence[Repair]) -> Choice:
    """One of these groups of repairs, for some cases none: which one is the case's own choice."""
    return Choice(groups)


def one_in(share: int, *repairs: Repair) -> Choice:
    """Repairs for one case in so many; which ones is their own choice."""
    return Choice((repairs, *[()] * (share - 1)))
