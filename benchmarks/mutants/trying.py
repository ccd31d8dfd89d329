"""One mutant under the laws, in a process of its own: it may hang, die, or eat the memory."""

import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from benchmarks.mutants.sites import Mutant
from headcheck.engine import PROFILES, Engine, Profile
from headcheck.errors import HeadcheckError
from headcheck.forks import end_with
from headcheck.laws import choose
from headcheck.roles import role
from headcheck.teeth.corpus import Entry
from tests import corpus

PATIENCE_S = 900.0
MOST_BYTES = 12 * 2**30


@dataclass(frozen=True)
class Found:
    """What a copy of this process saw."""

    by: str
    law: str = ""
    measured: Sequence[Any] = ()
    """Of each law of quick: its outcome, examples and largest error over its bound."""
    reached: bool = True


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    id: str
    base: str
    role: str
    kind: str
    by: str
    """What saw it: `refused` (it does not run as a plain call asks), `quick`, `gate`, `hung`, `died`; or nothing."""
    law: str = ""
    """The first law that broke, or why it was refused."""
    reached: bool = True
    """Whether the slip was run at all, in quick."""
    gate: bool = False
    """Whether the gate was asked as well."""
    differs: bool = True
    """Whether a law of quick measured another largest error, or another number of examples, than of what is right."""


def outcomes(mutants: list[Mutant], known: Mapping[str, Outcome], processes: int) -> Iterator[Outcome]:
    """Of each, as they come: by quick, or by the gate where quick is known to let it through."""
    torch.set_num_threads(1)
    for name in {mutant.role: mutant.base for mutant in mutants}.values():
        _judged(corpus.RIGHT[name], replace(PROFILES["quick"], seeded=1, drawn=1))  # Imports, once for all.
    with ThreadPoolExecutor(processes) as pool:
        pending = [
            pool.submit(in_gate, each, known[each.id]) if each.id in known else pool.submit(outcome, each)
            for each in mutants
        ]
        for done in as_completed(pending):
            yield done.result()


def outcome(mutant: Mutant) -> Outcome:
    """What becomes of one mutant."""
    found = _apart(lambda: _quick(mutant))
    differs = bool(found.by) or found.measured != _of_the_right(mutant.base)
    return Outcome(
        mutant.id, mutant.base, mutant.role, mutant.kind, found.by, found.law, found.reached, differs=differs
    )


def in_gate(mutant: Mutant, survived: Outcome) -> Outcome:
    """What the gate sees of a mutant that quick let through."""
    found = _apart(lambda: _judged(mutant.put(_same), PROFILES["gate"]))
    return replace(survived, by=found.by, law=found.law, gate=True)


@cache
def _of_the_right(base: str) -> Sequence[Any]:
    """What each law of quick measures of the function without a slip."""
    return _apart(lambda: _judged(corpus.RIGHT[base], PROFILES["quick"])).measured


def _apart(question: Callable[[], Found]) -> Found:
    """The answer of a copy of this process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def answer(parent: int) -> None:
        end_with(parent)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            found = question()
        except Exception as problem:  # noqa: BLE001 - as a module of a user's that cannot be imported
            found = Found("refused", f"{type(problem).__name__}: {problem}".partition("\n")[0])
        there.send(found)

    process = context.Process(target=partial(answer, os.getpid()))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(PATIENCE_S) else Found("hung")
    except EOFError:
        return Found("died")
    finally:
        process.kill()
        process.join()


def _same(value: Any) -> Any:
    return value


def _quick(mutant: Mutant) -> Found:
    """What quick sees, and whether the slip was run."""
    times = 0

    def reached(value: Any) -> Any:
        nonlocal times
        times += 1
        return value

    return replace(_judged(mutant.put(reached), PROFILES["quick"]), reached=times > 0)


def _judged(entry: Entry, profile: Profile) -> Found:
    """Until a law breaks."""
    of_role = role(entry.role)
    try:
        subject, _ = of_role.prepare(entry.declaration(), dtypes=(), device="cpu", seed=0)
    except HeadcheckError as problem:
        return Found("refused", str(problem).partition("\n")[0])
    measured = []
    for row in Engine(of_role, subject, profile, 0, lambda law, case: "").rows(choose(entry.role)):
        if row.outcome == "breaks":
            return Found(profile.name, row.name_in_role)
        measured.append((row.id, row.outcome, row.examples, row.worst_error_over_bound))
    return Found("", "", measured)
