"""One entry of a corpus under the laws of its role."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from math import prod
from typing import Any

from headcheck.calling import DeviceLost
from headcheck.engine import Engine, Profile
from headcheck.isolation import Workers
from headcheck.laws import Law, choose
from headcheck.plan import Plan
from headcheck.roles import role
from headcheck.teeth.corpus import Entry
from headcheck.verdict import LawResult

LOST = "the device cannot be used any more"
"""What stands in place of a law where a call did that: nothing could be judged after it."""
HANGING_S = 5.0
"""Wall seconds for an example of an entry that is known to do harm."""


class Way(StrEnum):
    """How far an entry is judged."""

    FIRST = "first"
    """Until a law breaks, in the order of a verdict; its counterexample is made small."""
    ALL = "all"
    """By every law."""
    NAMED = "named"
    """Only whether a law breaks: those that are named for the fault are judged before the others."""


@dataclass(frozen=True)
class Outcome:
    """What the laws said of one entry."""

    id: str
    profile: str
    seed: int
    way: Way
    broken: tuple[str, ...]
    """The broken laws, in the order in which they broke, without the role."""
    examples: int
    """How many examples were run in all."""
    until_broken: int
    """How many until the first broken law; 0 where none broke."""
    first_s: float
    """Seconds of judging until the first broken law, after the subject had been tried."""
    smallest: int
    """How many numbers the tensors of its smallest counterexample hold; 0 where it was not made small."""
    device: str = "cpu"
    why: str = ""
    """Of the first broken law: the case, and what was seen there."""


def tried(entry: Entry, profile: Profile, seed: int, way: Way, device: str = "cpu") -> Outcome:
    """Judge an entry by the laws of its role. One that does harm to its process is judged by those named for it."""
    if getattr(entry, "peril", None):
        rows = _apart(entry, profile, seed, device)
        return replace(_summed(entry, profile, seed, rows, Way.FIRST), device=device)
    try:
        return replace(_tried_here(entry, profile, seed, way, device), device=device)
    except DeviceLost:
        return Outcome(entry.id, profile.name, seed, way, (LOST,), 1, 1, 0.0, 0, device)


def _tried_here(entry: Entry, profile: Profile, seed: int, way: Way, device: str) -> Outcome:
    of_role = role(entry.role)
    subject, _ = of_role.prepare(entry.declaration(), dtypes=(), device=device, seed=seed)
    swift = Engine(of_role, subject, replace(profile, shrinks=0), seed, _no_replay)
    laws = choose(entry.role)
    rows = chain(map(swift.judge, _named(entry)), swift.rows(laws)) if way is Way.NAMED else swift.rows(laws)
    outcome = _summed(entry, profile, seed, rows, way)
    if way is not Way.FIRST or not outcome.broken:
        return outcome
    (law,) = (law for law in laws if law.name_in_role == outcome.broken[0])
    again = Engine(of_role, subject, profile, seed, _no_replay).judge(law)
    return replace(outcome, smallest=numbers_shown(again))


def _named(entry: Entry) -> list[Law]:
    """The laws that a person would name for the fault."""
    return [law for law in choose(entry.role) if law.name_in_role in entry.breaks]


def _summed(entry: Entry, profile: Profile, seed: int, rows: Iterator[LawResult], way: Way) -> Outcome:
    began, first_s = time.perf_counter(), 0.0
    broken: list[str] = []
    why = ""
    examples = until_broken = 0
    for row in rows:
        examples += row.examples
        if row.outcome == "breaks":
            broken.append(row.name_in_role)
            first_s = first_s or time.perf_counter() - began
            until_broken = until_broken or examples
            why = why or _why(row)
            if way is not Way.ALL:
                break
    return Outcome(
        entry.id, profile.name, seed, way, tuple(broken), examples, until_broken, first_s, 0, why=why
    )


def _why(row: LawResult) -> str:
    """What a broken law saw, and where."""
    seen = row.counterexample
    return row.reason if seen is None else f"{row.reason or seen.message} ({seen.case})"


def _apart(entry: Entry, profile: Profile, seed: int, device: str) -> Iterator[LawResult]:
    """The rows of an entry that hangs, exits or spoils its process, by the laws named for it: each may take long."""
    swift = replace(profile, shrinks=0, limit_s=HANGING_S)
    with Workers(Plan(entry.declaration(), swift, seed, device=device)) as workers:
        yield from workers.judge(_named(entry))


def _no_replay(law: Law, case: Any) -> str:
    return ""


def numbers_shown(row: LawResult) -> int:
    """How many numbers the tensors of a counterexample hold."""
    inputs = row.counterexample.inputs if row.counterexample else {}
    return sum(_size(shown) for shown in inputs.values() if isinstance(shown, list | str))


def _size(shown: list[Any] | str) -> int:
    """Of a tensor as a verdict shows it: written out, or its dtype and shape where it is large."""
    if isinstance(shown, list):
        return sum(_size(each) if isinstance(each, list) else 1 for each in shown)
    shape = shown.partition("(")[2].rstrip(")")
    return prod(int(length) for length in shape.split(",") if length.strip()) if shape else 0
