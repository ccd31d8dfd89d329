"""Which of several broken laws is shown first: the one that tells most of the fault.

One fault breaks many laws. What a plain call shows needs no mask, window or cache to be explained, so it comes before
what only a call with more arguments shows; of these, a law that speaks of the arguments comes before one that they
happened to be drawn for. Among the rest the families of a role stand in an order that was measured on the corpus, by
how often the law that was named for a fault comes first.
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
OF_THEIR_OWN = ("masks", "padding", "caches")
"""Families whose laws give masks or caches of their own, whatever the case says."""
IN_ANOTHER_DTYPE = ("dtypes", "autocast")
"""Families whose laws choose a dtype: they say little where the output is wrong in any."""
OF_THE_OUTPUT = "output-is-within-the-bound"
OF_THE_FORM = "output-has-the-right-form"
"""Where it breaks of a plain call, nothing else can hold."""
OF_CHANCE = "same-call-same-answer"
"""Where it breaks of a plain call, no comparison of two calls says anything."""
RAISED = "raised "
"""How the reason of a row begins whose call raised."""
DEFAULT_SCALE, GIVEN_SCALE = "default-scale-is-one-over-root-head-dim", "explicit-scale-is-used"
"""Where the first breaks beside a call that is given the scale, and the second does not, all else follows from it."""
OF_TWO_CALLS = ("state", "memory")
"""Families whose laws make calls of several kinds: one that raises says nothing of what they speak of."""


def most_telling_first(rows: Iterable[LawResult]) -> list[LawResult]:
    """Broken rows in the order in which they are shown."""
    laws = all_laws()
    places = {law_id: number for number, law_id in enumerate(laws)}
    rows = list(rows)
    wrong_in_any = _is_wrong_in_any(rows)
    scaled_wrongly = all(row.name != GIVEN_SCALE for row in rows)

    def key(row: LawResult) -> tuple[float, ...]:
        law = laws.get(row.id)
        if law is None:
            return (math.inf,)
        families, case = families_of(law.role), _case(law, row)
        beyond = _beyond_a_plain_call(law, case)
        return (
            is_slight(row),
            wrong_in_any and (law.family_in_role in IN_ANOTHER_DTYPE or not _is_wide(row)),
            bool(beyond) or row.name not in (OF_THE_FORM, OF_CHANCE),
            not (scaled_wrongly and row.name == DEFAULT_SCALE and _is_beside_a_given_scale(row)),
            row.reason.startswith(RAISED) and law.family_in_role in OF_TWO_CALLS,
            _is_of_rows_without_keys(law),
            beyond,
            families.index(law.family_in_role),
            not _is_general(law, case),
            places[row.id],
        )

    return sorted(rows, key=key)


def told_in_full(rows: list[LawResult], number: int) -> list[LawResult]:
    """The first row and those that add most to it: of families not shown yet, with a case whose numbers are printed.

    rows: in the order of `most_telling_first`.
    """
    chosen, others = rows[:1], rows[1:]
    wrong_in_any = _is_wrong_in_any(rows)

    def key(row: LawResult) -> tuple[bool, ...]:
        follows = wrong_in_any and row.family_in_role in OF_TWO_CALLS
        return is_slight(row), follows, row.family in {each.family for each in chosen}, not _has_numbers(row)

    while others and len(chosen) < number:
        best = min(others, key=key)
        others.remove(best)
        chosen.append(best)
    return chosen


def _is_wrong_in_any(rows: Iterable[LawResult]) -> bool:
    """Whether the output itself is wrong, and not in 16 bits alone."""
    return any(row.name == OF_THE_OUTPUT and _is_wide(row) for row in rows)


def _has_numbers(row: LawResult) -> bool:
    example = row.counterexample
    return example is None or any(isinstance(value, list) for value in example.inputs.values())


def _case(law: Law, row: LawResult) -> Recipe | None:
    """The smallest case; None for a break that has none, as where the process died between two cases."""
    example = row.counterexample
    return role(law.role).parse(example.case) if example is not None and example.case is not None else None


def _is_wide(row: LawResult) -> bool:
    """Whether the case is in float32 or float64, or in none that is known."""
    case = row.counterexample.case if row.counterexample is not None else None
    return not case or "float16" not in case  # Nor bfloat16.


def is_slight(row: LawResult) -> bool:
    """Whether the break says little of others: a bound exceeded by not much, or a NaN that is answered otherwise."""
    example = row.counterexample
    if example is None:
        return False
    nan_expected = isinstance(example.expected, float) and math.isnan(example.expected)
    return nan_expected or (example.factor is not None and example.factor < SLIGHT)


def _is_beside_a_given_scale(row: LawResult) -> bool:
    """Whether the call without a scale was compared with one that has it."""
    return row.counterexample is not None and any("scale" in call for call in row.counterexample.calls)


def _is_of_rows_without_keys(law: Law) -> bool:
    """Whether the law holds to a convention for them that may not be meant; no other law breaks for it alone."""
    return bool(law.unless) and all(each.startswith("empty_rows=") for each in law.unless)


def _beyond_a_plain_call(law: Law, case: Recipe | None) -> int:
    """0: a plain call breaks. 1: it takes more, such as a mask, of which the law speaks. 2: of which it does not."""
    asked = case.asked_for() if case is not None else []
    if case is not None and any(not _speaks_of(law, case, name) for name in asked):
        return 2
    features = [need for need in law.needs if need not in SHAPES]
    return int(bool(asked or features) or law.family_in_role in OF_THEIR_OWN)


def _speaks_of(law: Law, case: Recipe, name: str) -> bool:
    """Whether the law brings a case to it that does not ask for that."""
    if name.startswith("mask_"):
        return _speaks_of(law, case, "mask")
    plainly = case.heads if name == "kv_heads" else getattr(type(case)(), name)  # type: ignore[attr-defined]
    plain = case.but(**{name: plainly, "numbers": ()})
    return bool(getattr(law.repaired(plain), name) != plainly)


def _is_general(law: Law, case: Recipe | None) -> bool:
    """Whether the law speaks of any case, and broke on one that is read at a glance."""
    if case is None or not all(isinstance(each, Choice) for each in law.given):
        return False
    return sum(map(math.prod, case.shapes().values())) <= SHORT
