"""What a law is, and how the laws are found.

A law is one short function in `headcheck.properties`. Its first docstring paragraph is its statement, its
module and name are its id, its arguments are a subject and one drawn input, and what it returns or yields
are comparisons. Writing the function is all that is needed for it to be run, listed and replayed.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from headcheck.comparison import Comparison
from headcheck.errors import HeadcheckError
from headcheck.given import Choice, Repair
from headcheck.ids import Identified
from headcheck.verdict import LawResult

Finding = Comparison | Iterable[Comparison] | None


@dataclass(frozen=True)
class Law(Identified):
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
    home: str
    """The module that it stands in: attention/masks, functions/memory."""
    roles: tuple[str, ...]
    """The roles that it holds for; a law of one role has its id from its module."""
    unless: tuple[str, ...] = ()
    """What a subject declares that means to do otherwise, each as FIELD=VALUE; empty: there is no other right way."""

    def repaired(self, case: Any) -> Any:
        """The case, changed as little as possible so that the law has something to say about it."""
        return _after(self.given, case)

    def required(self, case: Any) -> Any:
        """The same without what is the case's own choice: where the case is left as it is, the law speaks of it."""
        return _after([each for each in self.given if not isinstance(each, Choice)], case)

    def not_applicable(self, reason: str) -> LawResult:
        """The row of a law that says nothing of a subject, or was not asked."""
        return LawResult(self.id, self.statement, "not-applicable", reason=reason)


def _after(repairs: Iterable[Repair], case: Any) -> Any:
    for repair in repairs:
        case = repair(case)
    return case


def law(
    *,
    source: str,
    guards: str,
    formula: str,
    needs: tuple[str, ...] = (),
    given: tuple[Repair, ...] = (),
    share: float = 1.0,
    roles: tuple[str, ...] = (),
    unless: tuple[str, ...] = (),
) -> Callable[[Callable[[Any, Any], Finding]], Law]:
    """Make a law of a function.

    source: paper or document. guards: the kind of bug, its effect, a real case. formula: the statement in
    symbols. needs: the features without which the law is not applicable. given: functions that bring a drawn
    case to where the law speaks. share: how many examples it gets, 1 being the profile's number. roles: where
    one law is for several roles, their names; it then has an id in each. unless: where it is a convention, what a
    subject declares that has another, such as deterministic=False.
    """

    def make(check: Callable[[Any, Any], Finding]) -> Law:
        statement = inspect.cleandoc(check.__doc__ or "").split("\n\n", 1)[0].replace("\n", " ")
        if not statement.endswith("."):
            raise ValueError(
                f"the law {check.__name__} has no statement: a docstring that ends with a full stop"
            )
        place = check.__module__.split("properties.")[-1].replace(".", "/")
        place = place.replace("_", "-")
        name = check.__name__.replace("_", "-")
        of_roles = roles or (place.partition("/")[0].replace("-", "_"),)
        return Law(
            id=f"{place}/{name}",
            statement=statement,
            check=check,
            source=source,
            guards=guards,
            formula=formula,
            needs=needs,
            given=given,
            share=share,
            home=place,
            roles=of_roles,
            unless=unless,
        )

    return make


@cache
def all_laws() -> dict[str, Law]:
    """Every law of `headcheck.properties`, by id: role by role, in the order in which the modules name them."""
    from headcheck import properties

    found: dict[str, Law] = {}
    for module in walk_packages(properties.__path__, "headcheck.properties."):
        for each in vars(import_module(module.name)).values():
            if isinstance(each, Law):
                for law_id in _ids(each):
                    if found.setdefault(law_id, replace(each, id=law_id)).check is not each.check:
                        raise ValueError(f"two laws are called {law_id}")
    return dict(sorted(found.items(), key=lambda pair: pair[1].family))


def _ids(each: Law) -> list[str]:
    """Its id in each of its roles: functions/memory/name is softmax/memory/name there."""
    return [f"{role.replace('_', '-')}/{each.name_in_role}" for role in each.roles]


def families_of(role: str) -> tuple[str, ...]:
    """The families of a role, the most specific first; those that its package gives no place, last."""
    placed: tuple[str, ...] = import_module(f"headcheck.properties.{role}").FAMILIES
    others = {law.family_in_role for law in choose(role)} - {*placed}
    return (*placed, *sorted(others))


def choose(role: str | Sequence[str], patterns: Iterable[str] = ()) -> list[Law]:
    """The laws of a role, or of several, whose id holds one of the patterns; all of them where none is given."""
    roles = (role,) if isinstance(role, str) else tuple(role)
    of_role = [each for each in all_laws().values() if each.role in roles]
    wanted = list(patterns)
    for pattern in wanted:
        if not any(pattern in each.id for each in of_role):
            raise HeadcheckError(
                f"no law of the role {' or '.join(roles)} matches {pattern!r}; {_meant(pattern, of_role, parts=True)}"
            )
    return [each for each in of_role if not wanted or any(pattern in each.id for pattern in wanted)]


def law_named(law_id: str) -> Law:
    """The law of that id. HeadcheckError: there is none."""
    laws = all_laws()
    ending = [each for each in laws if each.endswith(f"/{law_id}")]
    if law_id not in laws and len(ending) == 1:
        return laws[ending[0]]
    if law_id not in laws:
        raise HeadcheckError(f"there is no law {law_id!r}; {_meant(law_id, laws.values())}")
    return laws[law_id]


def _meant(text: str, laws: Iterable[Law], *, parts: bool = False) -> str:
    """Which law may have been meant by a text that is none: one that holds it, or one of a similar name.

    parts: a part of an id will do, such as the name of a family.
    """
    text = text.lower().replace("_", "-")
    first = sorted(laws, key=lambda each: each.role != "attention")  # Asked about most.
    by_name: dict[str, str] = {}
    for each in first:
        by_name.setdefault(each.id.rpartition("/")[2], each.id)
        if parts:
            by_name.setdefault(each.family_in_role, each.family_in_role)
    holding = [law_id for law_id in by_name.values() if text in law_id]
    close = get_close_matches(text.rpartition("/")[2], by_name, n=1)
    exact = [by_name[text]] if text in by_name else []
    meant = [*exact, *holding, *(by_name[name] for name in close)]
    return f"do you mean {meant[0]}?" if meant else "`headcheck laws` lists them"
