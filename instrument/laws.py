"""What a law is, and how the laws are found.

A law is one short function in `headcheck.properties`. Its first docstring paragraph is its statement, its
module and name are its id, its arguments are a subject and one drawn input, and what it returns or yields
are comparisons. Writing the function is all that is needed for it to be run, listed and replayed.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from headcheck.comparison import Comparison
from headcheck.errors import HeadcheckError

Finding = Comparison | Iterable[Comparison] | None
Repair = Callable[[Any], Any]


@dataclass(frozen=True)
class Law:
    """One law and what a reader wants to know of it."""

    id: str
    statement: str
    check: Callable[[Any, Any], Finding]
    source: str
    guards: str
    formula: str
    needs: tuple[str, ...]
    given: tuple[Repair, ...]
    share: float

    @property
    def role(self) -> str:
        return self.id.split("/")[0]

    @property
    def family(self) -> str:
        return self.id.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.id.rpartition("/")[2]

    def repaired(self, case: Any) -> Any:
        """The case, changed as little as possible so that the law has something to say about it."""
        for repair in self.given:
            case = repair(case)
        return case


def law(
    *,
    source: str,
    guards: str,
    formula: str = "",
    needs: tuple[str, ...] = (),
    given: tuple[Repair, ...] = (),
    share: float = 1.0,
) -> Callable[[Callable[[Any, Any], Finding]], Law]:
    """Make a law of a function.

    source: paper or document. guards: the kind of bug, its effect, a real case. formula: the statement in
    symbols. needs: the features without which the law is not applicable. given: functions that bring a drawn
    case to where the law speaks. share: how many examples it gets, 1 being the profile's number.
    """

    def make(check: Callable[[Any, Any], Finding]) -> Law:
        statement = inspect.cleandoc(check.__doc__ or "").split("\n\n", 1)[0].replace("\n", " ")
        if not statement.endswith("."):
            raise ValueError(
                f"the law {check.__name__} has no statement: a docstring that ends with a full stop"
            )
        place = check.__module__.split("properties.")[-1].replace(".", "/")
        identity = f"{place}/{check.__name__}".replace("_", "-")
        return Law(identity, statement, check, source, guards, formula, needs, given, share)

    return make


@cache
def all_laws() -> dict[str, Law]:
    """Every law of `headcheck.properties`, by id, in the order in which the modules name them."""
    from headcheck import properties

    found: dict[str, Law] = {}
    for module in walk_packages(properties.__path__, "headcheck.properties."):
        for each in vars(import_module(module.name)).values():
            if isinstance(each, Law) and found.setdefault(each.id, each) is not each:
                raise ValueError(f"two laws are called {each.id}")
    return found


def most_specific_first(law_ids: Iterable[str]) -> list[str]:
    """Law ids in the order in which they tell of a fault: a role's package lists its families in FAMILIES."""

    def rank(law_id: str) -> int:
        role, family, _ = law_id.split("/")
        families: tuple[str, ...] = import_module(f"headcheck.properties.{role}").FAMILIES
        return families.index(family) if family in families else len(families)

    return sorted(law_ids, key=rank)


def choose(role: str, patterns: Iterable[str] = ()) -> list[Law]:
    """The laws of a role whose id holds one of the patterns; all of them where none is given."""
    of_role = [each for each in all_laws().values() if each.role == role]
    wanted = list(patterns)
    for pattern in wanted:
        if not any(pattern in each.id for each in of_role):
            raise HeadcheckError(
                f"no law of the role {role} matches {pattern!r}; `headcheck laws` lists them"
            )
    return [each for each in of_role if not wanted or any(pattern in each.id for pattern in wanted)]
