"""What every front makes a verdict with: a plan of what is given, the passes of a crew, and what the rows say."""

import ast
import itertools
import math
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headcheck.engine import Profile
from headcheck.errors import HeadcheckError
from headcheck.hints import hints_of
from headcheck.isolation import Workers
from headcheck.laws import choose
from headcheck.plan import Plan, dtype_names, profile_named
from headcheck.preparing import Introduction
from headcheck.time_limits import LONGEST_S, NOT_SECONDS
from headcheck.verdict import INTERRUPTED, LawResult, Verdict

Declared = str | Iterable[str] | Mapping[str, Any]
"""FIELD=VALUE, as on the command line; several of them; or plain values by their fields: {"layout": "bshd"}."""


def make_plan(
    subject: Any,
    *,
    role: str | None = None,
    profile: str | Profile = "gate",
    seed: int | None = None,
    dtype: Any = None,
    device: str | None = None,
    declare: Declared = (),
    timeout: float | None = None,
) -> Plan:
    """What to judge and how, from what a caller gives. declare: FIELD=VALUE as on the command line, or a mapping."""
    chosen = profile_named(profile)
    if timeout is not None:
        if not 0 < timeout < LONGEST_S:
            raise HeadcheckError(f"timeout={timeout!r} {NOT_SECONDS}")
        chosen = replace(chosen, limit_s=timeout)
    if seed is None:
        seed = fresh_seed() if chosen.name == "deep" else 0
    return Plan(subject, chosen, seed, role, dtype_names(dtype), device, _declared(declare), timeout)


def _declared(declare: Declared) -> tuple[str, ...]:
    if isinstance(declare, str):
        return (declare,)
    if isinstance(declare, Mapping):
        return tuple(f"{field}={_typed(field, value)}" for field, value in declare.items())
    return tuple(declare)


def _typed(field: str, value: Any) -> str:
    """A value as it is typed on a command line. HeadcheckError: it cannot be, as a function or an Arithmetic."""
    if isinstance(value, str):
        return value
    try:
        ast.literal_eval(repr(value))
    except (SyntaxError, ValueError):
        cure = f"write it where the function is declared, such as headcheck.Attention(function, {field}=...)"
        raise HeadcheckError(f"declare: {field} is no plain value, but {value!r}; {cure}") from None
    return repr(value)


def fresh_seed() -> int:
    """A seed that nobody has used; it stands in the verdict."""
    return secrets.randbelow(2**31)


class Watcher:
    """Told how the work goes; a front that shows it overrides what it needs."""

    def expect(self, laws: int) -> None:
        """So many laws are about to be judged."""

    def row(self, row: LawResult) -> None:
        """A law has been judged."""

    def tick(self, awaited: list[str]) -> None:
        """Called a few times a second: the names of the laws in work, or that the subject is imported or tried."""


def judged_apart(
    workers: Workers,
    patterns: Sequence[str] = (),
    watcher: Watcher | None = None,
    fuzz_s: float = 0.0,
    *,
    exit_first: bool = False,
) -> Verdict:
    """The verdict of a crew: one pass over the laws, then more with fresh seeds until `fuzz_s` are over.

    exit_first: it ends after the laws that break at a first look. Ctrl-C ends it early, too, and keeps what was found.
    """
    began, watcher = time.perf_counter(), watcher or Watcher()
    introduction = workers.introduce(watcher.tick)
    plan = workers.plan
    ends = time.monotonic() + fuzz_s
    workers.until = ends if fuzz_s else math.inf
    laws = choose(introduction.role, patterns)
    rows: dict[str, LawResult] = {}
    enough = interrupted = False
    try:
        for number in itertools.count():
            seed = plan.seed + number
            open_laws = [law for law in laws if law.id not in rows or rows[law.id].outcome == "holds"]
            watcher.expect(len(open_laws))
            for row in workers.judge(open_laws, seed, watcher.tick):
                rows[row.id] = merged(rows.get(row.id), with_only(plan, row, seed))
                watcher.row(rows[row.id])
                enough = exit_first and _is_enough(rows.values(), row)
                if enough or (number and time.monotonic() > ends):
                    break
            if enough or not open_laws or time.monotonic() >= ends:
                break
    except KeyboardInterrupt:
        interrupted = True
    for _, row in () if enough else workers.seen():
        rows[row.id] = merged(rows.get(row.id), with_only(plan, row, seed))
        watcher.row(rows[row.id])
    unfinished = _why_unfinished(workers, len(rows), len(laws), enough=enough, interrupted=interrupted)
    in_order = [rows[law.id] for law in laws if law.id in rows]
    return verdict_of(plan, introduction, in_order, time.perf_counter() - began, unfinished)


def _why_unfinished(workers: Workers, judged: int, laws: int, *, enough: bool, interrupted: bool) -> str:
    """Why so many of the laws are judged and no more, or not as they should be; '' where there is nothing to say.

    enough: it ended after the first broken laws, as was asked for.
    """
    if enough and judged < laws:
        return f"stopped after the first broken laws, {laws - judged} of {laws} not judged"
    if interrupted and not enough:
        return f"{INTERRUPTED} after {judged} of {laws} laws"
    if workers.bugs:
        return f"{len(workers.bugs)} times a law could not be judged for a bug in headcheck"
    return workers.unfinished


def _is_enough(rows: Iterable[LawResult], last: LawResult) -> bool:
    """Whether a law that tells something of the fault has been broken, and those that break at a first look are known.

    They come first, one after another; what hangs or ends its process is not waited for again.
    """
    from headcheck.ranking import is_slight

    broken = [row for row in rows if row.outcome == "breaks"]
    died = last.hung or (last.counterexample is not None and last.counterexample.what == "process")
    return not all(map(is_slight, broken)) and (last.outcome != "breaks" or died)


def merged(earlier: LawResult | None, row: LawResult) -> LawResult:
    """What two passes with different seeds say of one law together."""
    if earlier is None:
        return row
    shown = row.counterexample
    return replace(
        row,
        counterexample=shown and replace(shown, found_after=earlier.examples + shown.found_after),
        outcome="holds" if row.outcome == "not-applicable" else row.outcome,
        reason="" if row.outcome == "not-applicable" else row.reason,
        examples=earlier.examples + row.examples,
        worst_error_over_bound=max(earlier.worst_error_over_bound, row.worst_error_over_bound),
        dtypes=sorted({*earlier.dtypes, *row.dtypes}),
        duration_s=earlier.duration_s + row.duration_s,
        subject_s=earlier.subject_s + row.subject_s,
    )


def verdict_of(
    plan: Plan, introduction: Introduction, rows: list[LawResult], duration_s: float, unfinished: str = ""
) -> Verdict:
    """The rows of one subject, with all that a reader of them needs to know."""
    notes = [*introduction.notes, *hints_of(plan, introduction, rows)]
    return Verdict(
        subject=introduction.name,
        role=introduction.role,
        profile=plan.profile.name,
        seed=plan.seed,
        laws=rows,
        duration_s=duration_s,
        environment=dict(introduction.environment),
        declaration=introduction.declaration,
        notes=notes,
        unfinished=unfinished,
    )


def with_only(plan: Plan, row: LawResult, seed: int | None = None) -> LawResult:
    """The row, and the line that judges its law alone."""
    if row.counterexample is None:
        return row
    return replace(row, counterexample=replace(row.counterexample, only=plan.but(seed).only(row.id)))
