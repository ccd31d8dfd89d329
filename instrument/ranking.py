"""Which of several broken laws is shown first: the one that tells most of the fault.

One fault breaks many laws. What a plain call shows needs no mask, window or cache to be explained, so it comes before
what only a call with more arguments shows; among the rest the families of a role stand in an order that was measured
on the corpus, by how often the law that was named for a fault comes first.
"""

import math
from collections.abc import Iterable

from headcheck.given import Choice
from headcheck.laws import Law, all_laws, families_of
from headcheck.recipes import Recipe
from headcheck.roles import role
from headcheck.verdict import LawResult

SLIGHT = 10.0
"""A bound exceeded by less may be what a greater break leaves in other laws."""
SHORT = 32
"""A general law tells most where its tensors hold no more numbers; with more, a law of one regime says why."""
SHAPES = ("lengths", "rectangular")
"""Features that are shapes of a plain call, and no arguments of it."""


def most_telling_first(rows: Iterable[LawResult]) -> list[LawResult]:
    """Broken rows in the order in which they are shown."""
    laws = all_laws()
    places = {law_id: number for number, law_id in enumerate(laws)}

    def key(row: LawResult) -> tuple[float, ...]:
        law = laws.get(row.id)
        if law is None:
            return (math.inf,)
        families, case = families_of(law.role), _case(law, row)
        return (
            _is_slight(row),
            _asks_for_more(law, case),
            families.index(law.family_in_role),
            not _is_general(law, case),
            places[row.id],
        )

    return sorted(rows, key=key)


def _case(law: Law, row: LawResult) -> Recipe | None:
    """The smallest case; None for a break that has none, as where the process died between two cases."""
    example = row.counterexample
    return role(law.role).parse(example.case) if example is not None and example.case else None


def _is_slight(row: LawResult) -> bool:
    """Whether the break says little of others: a bound exceeded by not much, or a NaN that is answered otherwise."""
    example = row.counterexample
    if example is None:
        return False
    nan_expected = isinstance(example.expected, float) and math.isnan(example.expected)
    return nan_expected or (example.factor is not None and example.factor < SLIGHT)


def _asks_for_more(law: Law, case: Recipe | None) -> bool:
    """Whether the break needs more than the plain call: an argument, a mask, a layout."""
    return any(need not in SHAPES for need in law.needs) or (case is not None and bool(case.asked_for()))


def _is_general(law: Law, case: Recipe | None) -> bool:
    """Whether the law speaks of any case, and broke on one that is read at a glance."""
    if case is None or not all(isinstance(each, Choice) for each in law.given):
        return False
    return sum(map(math.prod, case.shapes().values())) <= SHORT
