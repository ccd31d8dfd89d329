"""What all rows of a verdict together say that no row does: the declaration that may be missing."""

import re
from collections.abc import Sequence

from headcheck.calling import REFUSALS
from headcheck.declarations import DTYPES, LOW_PRECISION
from headcheck.plan import Plan
from headcheck.preparing import Introduction
from headcheck.roles import OF_LENGTHS
from headcheck.roles import role as role_named
from headcheck.verdict import IF_MEANT, Hint, LawResult

MANY = 10
"""Of fewer laws that are judged, nothing is said about most of them."""
REFUSED = tuple(f"raised {each.__name__}" for each in REFUSALS)
"""How the reason of a law begins that a subject broke by saying that it is not made for such a call."""
MAY_REFUSE = "may_refuse=True"
RAISED = "raised "
"""The same, whatever it raised."""
TO_HALF = "/under-autocast-to-half"
"""What stands in the id of a law whose cases are in float32, and computed in float16."""
CHANGED_IN_PLACE = "needed for gradient computation has been modified by an inplace operation"
"""What autograd says of a tensor that it would need as it was."""
SHORTEST = 16
"""A table of fewer positions is none: axes in another order differ in lengths as well."""
TOO_SHORT = re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")
"""What torch raises of a table or a buffer that ends before the sequence, with both lengths."""


def hints_of(plan: Plan, introduction: Introduction, rows: Sequence[LawResult]) -> list[str]:
    """All that there are."""
    return [
        *_conventions_note(plan, introduction.role, rows),
        *_refusals_note(introduction, rows),
        *_length_note(introduction, rows),
        *_dtype_note(introduction, rows),
        *_gradients_note(introduction, rows),
    ]


def _conventions_note(plan: Plan, role: str, rows: Sequence[LawResult]) -> list[str]:
    """Where most laws break at their first example, it may be a convention and no fault."""
    judged = [row for row in rows if row.outcome != "not-applicable"]
    at_once = [
        row
        for row in judged
        if row.counterexample
        and row.counterexample.found_after == 1
        and not row.hung
        and not row.reason.startswith(REFUSED)  # It says itself why.
    ]
    if role == "agreement" or len(at_once) * 2 <= len(judged) or len(judged) < MANY:
        return []
    return [
        Hint(
            f"most laws break at their first example, often for a convention that is not declared: {plan.probe} tells"
        )
    ]


def _refusals_note(introduction: Introduction, rows: Sequence[LawResult]) -> list[str]:
    """What can be declared of a kernel of some shapes, where laws broke by what it raised."""
    refusing = [
        row
        for row in rows
        if row.outcome == "breaks" and row.reason.startswith(REFUSED) and MAY_REFUSE not in row.reason
    ]
    if not refusing or introduction.role == "agreement" or introduction.declaration.get("may_refuse"):
        return []
    return [Hint(f"where calls that it is not made for are meant to be refused: --declare {MAY_REFUSE}")]


def _length_note(introduction: Introduction, rows: Sequence[LawResult]) -> list[str]:
    """What can be declared of a table or a buffer that is too short, where laws broke by what torch raised of it."""
    found = [TOO_SHORT.search(row.reason) for row in rows if row.outcome == "breaks"]
    limits = [min(map(int, each.groups())) for each in found if each]
    declared = introduction.role not in OF_LENGTHS or "max_length" in introduction.declaration
    if declared or min(limits, default=0) < SHORTEST:
        return []
    cure = f"--declare max_length={min(limits)}"
    if any(note.endswith(f"{cure}, {IF_MEANT}") for note in introduction.notes):
        return []
    return [Hint(f"where longer sequences are not meant to work: {cure}")]


def _dtype_note(introduction: Introduction, rows: Sequence[LawResult]) -> list[str]:
    """What can be declared where all that breaks, or all that raises, does so in one 16-bit format.

    Each case is tried in the first format, too.
    """
    broken = [
        row for row in rows if row.outcome == "breaks" and row.counterexample and row.counterexample.case
    ]
    raising = [row for row in broken if row.reason.startswith(RAISED)]
    for said, told in (("breaks", broken), ("raises", raising)):
        formats = {_format(introduction.role, row) for row in told}
        others = [name for name in DTYPES if any(name in row.dtypes for row in rows) and name not in formats]
        tried = any({*row.dtypes} & {*others} for row in told)
        first = (introduction.declaration.get("dtypes") or others)[:1]
        if len(formats) == 1 and formats <= set(LOW_PRECISION) and tried and formats != {*first}:
            cure = f"--declare dtypes={','.join(others)}"
            return [
                Hint(
                    f"all that {said} does so in {formats.pop()}: where it is not meant to work there, {cure}"
                )
            ]
    return []


def _format(role: str, row: LawResult) -> str:
    """The dtype of the smallest case, or of the region of autocast that the law speaks of."""
    assert row.counterexample is not None
    assert row.counterexample.case is not None
    return "float16" if TO_HALF in row.id else str(role_named(role).parse(row.counterexample.case).dtype)


def _gradients_note(introduction: Introduction, rows: Sequence[LawResult]) -> list[str]:
    """What can be declared of code for inference alone, where autograd says that it cannot go back through it."""
    refused = any(row.outcome == "breaks" and CHANGED_IN_PLACE in row.reason for row in rows)
    if not refused or "gradients" in introduction.declaration:
        return []
    return [Hint("where it is for inference alone, and no gradients are meant: --declare gradients=False")]
