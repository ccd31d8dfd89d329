"""The kill matrix as a picture: laws in rows, faults in columns, one panel for each role."""

from collections.abc import Sequence
from html import escape

from headcheck.laws import choose
from headcheck.teeth.corpus import Corpus
from headcheck.teeth.trial import Outcome

CELL = 4
"""Pixels of one law against one fault."""
MARGIN, HEADING = 12, 20
INK, PAPER, GRID = "#1b4f72", "#ffffff", "#e8eef2"


def picture(outcomes: Sequence[Outcome], corpus: Corpus) -> str:
    """An SVG of the faults that were judged by all laws."""
    faults = [each for each in outcomes if each.id in corpus.wrong]
    panels, top, widest = [], MARGIN, 0
    for role in dict.fromkeys(corpus.wrong[each.id].role for each in faults):
        of_role = sorted((each for each in faults if corpus.wrong[each.id].role == role), key=_family_first)
        laws = [law.name_in_role for law in choose(role)]
        panels.append(_panel(role, laws, of_role, top))
        top += HEADING + CELL * len(laws) + MARGIN
        widest = max(widest, CELL * len(of_role))
    width = max(widest, 360) + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}">'
        f'<rect width="100%" height="100%" fill="{PAPER}"/>' + "".join(panels) + "</svg>\n"
    )


def _family_first(outcome: Outcome) -> tuple[str, int]:
    return outcome.id.partition("/")[0], -len(outcome.broken)


def _panel(role: str, laws: Sequence[str], faults: Sequence[Outcome], top: int) -> str:
    row = {law: number for number, law in enumerate(laws)}
    dots = "".join(
        f"M{MARGIN + CELL * column} {top + HEADING + CELL * row[law]}h{CELL - 1}v{CELL - 1}h{1 - CELL}z"
        for column, fault in enumerate(faults)
        for law in fault.broken
        if law in row
    )
    heading = f"{role}: {len(laws)} laws, {len(faults)} faults"
    return (
        f'<text x="{MARGIN}" y="{top + HEADING - 7}" font-family="sans-serif" font-size="12">{escape(heading)}</text>'
        f'<rect x="{MARGIN}" y="{top + HEADING}" width="{CELL * len(faults)}" height="{CELL * len(laws)}" '
        f'fill="{GRID}"/><path d="{dots}" fill="{INK}"/>'
    )
