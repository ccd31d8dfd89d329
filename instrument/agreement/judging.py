"""One verdict for a family: every member and every pair, in one crew of processes."""

import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from headcheck.agreement.observe import Observation, observed
from headcheck.agreement.verdict import Agreement, FamilyVerdict, Standing
from headcheck.engine import Profile
from headcheck.errors import HeadcheckError
from headcheck.isolation import Workers
from headcheck.judging import Watcher, with_only
from headcheck.laws import Law, choose
from headcheck.plan import Plan
from headcheck.verdict import INTERRUPTED, LawResult
from headcheck.worker import Task

PATIENCE_S = 180.0
"""Seconds for one example: the first may compile."""
_PATIENT = {"limit_s": PATIENCE_S, "after_a_hang_s": PATIENCE_S}
PROFILES = {
    "quick": Profile("quick", seeded=3, drawn=1, shrinks=100, **_PATIENT),
    "gate": Profile("gate", seeded=12, drawn=4, shrinks=200, **_PATIENT),
}
"""Smaller than those of one subject: a family of n has n (n - 1) / 2 pairs."""


def judge_family(
    names: Sequence[str],
    plan: Plan,
    *,
    processes: int = 1,
    laws: Sequence[str] = (),
    watcher: Watcher | None = None,
    left_out: Sequence[str] = (),
    asked_for: Sequence[str] = (),
) -> FamilyVerdict:
    """Observe each subject, then judge each by the laws of attention and each pair by those of agreement.

    plan: how to judge; its subject is not looked at. laws: parts of law ids; all laws by default. asked_for: the
    subjects that were named one by one: without any of them the verdict is not whole.
    HeadcheckError: fewer than two of the subjects can be had here, or no law has such an id.
    """
    began, watcher = time.perf_counter(), watcher or Watcher()
    chosen = choose(("attention", "agreement"), laws)
    met = dict(zip(names, observed([plan.of(name) for name in names], processes), strict=True))
    here = [name for name, each in met.items() if isinstance(each, Observation)]
    if len(here) < 2:
        told = "; ".join(f"{name}: {each}" for name, each in met.items() if isinstance(each, str))
        why = f"; {told}" if told else "; name one more, such as torch-sdpa-math"
        raise HeadcheckError(f"agreement needs two subjects, and {len(here)} can be had here{why}")
    rows: dict[str, list[LawResult]] = defaultdict(list)
    unfinished = ""
    tasks = _tasks(here, chosen)
    watcher.expect(len(tasks))
    with Workers(plan.of(here[0]), processes) as workers:
        try:
            for task, row in workers.carry_out(tasks, watcher.tick):
                rows[task.subject].append(with_only(plan.of(task.subject), row))
                watcher.row(row)
        except KeyboardInterrupt:
            for task, row in workers.seen():
                rows[task.subject].append(with_only(plan.of(task.subject), row))
            unfinished = f"{INTERRUPTED} after {sum(map(len, rows.values()))} of {len(tasks)} laws"
        if workers.bugs:
            unfinished = f"a bug in headcheck, please report it: {workers.bugs[0]}"
        missing = [f"{name}: {met[name]}" for name in asked_for if isinstance(met[name], str)]
        unfinished = unfinished or workers.unfinished or "; ".join(missing)
    return FamilyVerdict(
        members=[_standing(name, found, rows[name]) for name, found in met.items()],
        pairs=[Agreement(one, other, rows[f"{one}=={other}"]) for one, other in combinations(here, 2)],
        profile=plan.profile.name,
        seed=plan.seed,
        duration_s=time.perf_counter() - began,
        environment=_environment(met[here[0]]),
        left_out=list(left_out),
        unfinished=unfinished,
        pairs_asked=any(law.role == "agreement" for law in chosen),
    )


def _tasks(names: Sequence[str], laws: Sequence[Law]) -> list[Task]:
    """Every law of each member, then every law of each pair; one subject's together."""
    of_member = [law for law in laws if law.role == "attention"]
    of_pair = [law for law in laws if law.role == "agreement"]
    members = [Task(law.id, subject=name) for name in names for law in of_member]
    pairs = [f"{one}=={other}" for one, other in combinations(names, 2)]
    return members + [Task(law.id, subject=pair) for pair in pairs for law in of_pair]


def _standing(name: str, found: Observation | str, rows: list[LawResult]) -> Standing:
    if isinstance(found, str):
        return Standing(name, None, reason=found)
    return Standing(name, found, sorted(rows, key=lambda row: row.id))


def _environment(found: Any) -> dict[str, str]:
    return dict(found.environment)
