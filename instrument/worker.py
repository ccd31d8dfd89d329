"""The inside of a process that judges laws (`headcheck.isolation` is the outside).

It reports in pairs: ("loaded", Introduction), ("answered", "") while calls of the subject come back,
("ready", Introduction), ("refused", why), then for each law that it is given
("case", (case, seconds that it may take)) before each example, and ("row", LawResult), ("raised", what),
("lost", how the device became unusable) or ("bug", traceback); ("trying", "") is a sign of life.
"""

import faulthandler
import math
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hypothesis.configuration import set_hypothesis_home_dir

from headcheck.calling import Clock, DeviceLost, require_the_device
from headcheck.engine import Engine, Judged, describe
from headcheck.errors import HeadcheckError
from headcheck.forks import Fate, can_fork, end_with, fate_of
from headcheck.hangs import Hangs
from headcheck.laws import Law, all_laws
from headcheck.plan import Plan
from headcheck.preparing import Prepared, subject_of
from headcheck.verdict import LawResult

TRIES = 120
"""So many simpler cases are tried at most on the way from a fatal case to the smallest; each costs a fork."""
SIGN_OF_LIFE_S = 0.2
"""Calls that come back are told of no more often."""


@dataclass(frozen=True)
class Task:
    """What the parent asks for: one law on drawn cases, or on one case."""

    law_id: str
    case: str | None = None
    fatal: LawResult | None = None
    """The case ended a process, as this row says; a smaller one that does the same is asked for."""
    subject: Any = None
    """Another subject than the plan's; it is prepared when its first task comes."""
    glance: bool = False
    """A first look only: what does not break will be judged in full later."""
    hung: bool = False
    """Whether an example has hung in any worker; what follows is known when the task is handed out, too."""
    seed: int = 0
    until: float = math.inf
    """When the time box ends, by the monotonic clock, which all processes share."""

    @property
    def law(self) -> Law:
        return all_laws()[self.law_id]


def work(plan: Plan, connection: Connection, other_end: Connection) -> None:
    """Import and prepare the subject, then judge what is asked for until told to stop."""
    other_end.close()
    leave_the_terminal()
    with suppress(EOFError, BrokenPipeError):
        try:
            prepared = _prepared(plan, connection)
            known = {None: prepared}
            while prepared is not None:
                task: Task = connection.recv()
                connection.send(_answer(task, plan, known, connection))
        except DeviceLost as lost:
            connection.send(("lost", f"left the device unusable: {lost}"))


def try_out(plan: Plan, connection: Connection, other_end: Connection) -> None:
    """Probe the subject; an answer in words."""
    from headcheck.python_front import probe

    def found() -> str:
        return str(
            probe(
                plan.subject,
                role=plan.role,
                device=plan.device,
                declare=plan.declared,
                timeout=plan.timeout_s,
            )
        )

    answer_once(found, connection, other_end)


def answer_once(answer: Callable[[], str], connection: Connection, other_end: Connection) -> None:
    """The inside of a process that has one thing to tell, as `processes.answer_apart` hears it."""
    other_end.close()
    leave_the_terminal()
    try:
        connection.send(("answer", answer()))
    except HeadcheckError as problem:
        connection.send(("refused", str(problem)))
    except DeviceLost as lost:
        connection.send(("refused", f"the subject left the device unusable: {lost}"))
    except Exception as problem:  # noqa: BLE001 - the parent tells what it was.
        connection.send(("bug", _traced(problem)))


def leave_the_terminal() -> None:
    """Ctrl-C is for the parent, whose end is ours; what the subject prints or warns of must not drown the report."""
    import torch

    if (parent := parent_process()) is not None and parent.pid is not None:
        end_with(parent.pid)
    if hasattr(os, "setsid"):
        import resource

        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # A core file for each crash would fill the disk.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.disable()  # A crash is told as a finding; pytest would print a stack for each.
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    warnings.simplefilter("ignore")  # Laws give rows of one number, and nothing but zeros.
    torch.set_num_threads(1)
    # What Hypothesis keeps between runs would stand in the user's folder.
    user = os.getuid() if hasattr(os, "getuid") else "user"
    set_hypothesis_home_dir(Path(tempfile.gettempdir()) / f"headcheck-{user}")


def _let_it_speak() -> None:
    """In a replay of one case the user wants to see what the subject prints and warns of."""
    warnings.resetwarnings()
    sys.stdout = sys.stderr = sys.__stderr__
    os.dup2(2, 1)


def _prepared(plan: Plan, connection: Connection) -> Prepared | None:
    try:
        loaded = subject_of(plan)
        connection.send(("loaded", loaded.introduction()))
        with _telling_of_answers(connection):
            prepared = _watched(loaded.prepared(), connection)
        connection.send(("ready", prepared.introduction))
        return prepared
    except HeadcheckError as problem:
        connection.send(("refused", str(problem)))
    except Exception as problem:  # noqa: BLE001 - the parent tells what it was.
        connection.send(("bug", _traced(problem)))
    return None


def _traced(problem: Exception) -> str:
    """The stack of an error of our own. DeviceLost: it is one of the device, told where its answer was fetched."""
    import torch

    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    require_the_device(problem, "cuda" if used else "cpu")
    return traceback.format_exc()


def _watched(prepared: Prepared, connection: Connection) -> Prepared:
    """The parent hears of each case, and how long it is waited for."""
    engine = prepared.engine
    engine.watch = lambda law, case: connection.send(("case", (str(case), engine.limit_s)))
    return prepared


@contextmanager
def _telling_of_answers(connection: Connection) -> Iterator[None]:
    """The parent hears that calls come back, the first at once and then now and again: each may have to compile."""
    told = -math.inf

    def tell() -> None:
        nonlocal told
        if (now := time.monotonic()) > told + SIGN_OF_LIFE_S:
            told = now
            connection.send(("answered", ""))

    Clock.on_return = staticmethod(tell)
    try:
        yield
    finally:
        Clock.on_return = staticmethod(lambda: None)


def _answer(
    task: Task, plan: Plan, known: dict[Any, Prepared | None], connection: Connection
) -> tuple[str, LawResult | str]:
    """What became of a task; a subject met for the first time is prepared first."""
    try:
        if task.subject not in known:
            with _telling_of_answers(connection):
                known[task.subject] = _watched(subject_of(plan.of(task.subject)).prepared(), connection)
            connection.send(("trying", ""))
    except HeadcheckError as problem:
        return "row", task.fatal or task.law.not_applicable(str(problem))
    except Exception as problem:  # noqa: BLE001 - the other subjects go on.
        return "bug", _traced(problem)
    prepared = known[task.subject]
    assert prepared is not None
    prepared.engine.seed = task.seed
    prepared.engine.profile, prepared.engine.until = plan.profile, task.until
    prepared.engine.hangs.seen |= task.hung
    return _carried_out(task, prepared, connection)


def _carried_out(task: Task, prepared: Prepared, connection: Connection) -> tuple[str, LawResult | str]:
    law = task.law
    try:
        if task.case is None:
            return "row", prepared.engine.judge(law, glance=task.glance)
        if not task.fatal:
            _let_it_speak()
            return "row", prepared.replayed(law, task.case)
        return "row", _smaller(task, prepared.engine, lambda: connection.send(("trying", "")))
    except HeadcheckError as problem:
        typed = (
            task.case is not None and not task.fatal
        )  # A case that cannot be had is refused; other laws go on.
        return ("refused", str(problem)) if typed else ("row", task.fatal or law.not_applicable(str(problem)))
    except Exception as problem:  # noqa: BLE001 - the other laws go on.
        return "bug", _traced(problem)
    except DeviceLost:
        raise
    except BaseException as problem:  # noqa: BLE001 - KeyboardInterrupt and its like: the subject's.
        return "raised", f"raised {type(problem).__name__}"


# A case that ends the process is made smaller by trying each simpler one in a child.


def _smaller(task: Task, engine: Engine, sign_of_life: Callable[[], None]) -> LawResult:
    assert task.fatal is not None
    if not can_fork():
        return task.fatal
    law, fatal, hung = task.law, task.fatal.reason, task.fatal.hung

    def try_case(case: Any) -> Judged | None:
        sign_of_life()
        same = _fate(law, case, engine) == ("hung" if hung else "died")
        return Judged(case, error=fatal, hung=hung) if same else None

    given = Judged(engine.role.parse(task.case or ""), error=fatal, hung=hung)
    engine.profile = replace(engine.profile, shrinks=min(engine.profile.shrinks, TRIES))
    alone = try_case(given.case) is not None
    smallest = engine.smallest(law, given, try_case) if alone else given
    why = smallest.error if alone else f"{fatal}; not by this case alone, so the calls before it matter"
    shown = describe(
        engine.role, engine.subject, replace(smallest, error=why), engine.replay(law, smallest.case), 1
    )
    return LawResult(law.id, law.statement, "breaks", reason=why, counterexample=shown)


def _fate(law: Law, case: Any, engine: Engine) -> Fate:
    limit_s = engine.limit_s

    def example() -> bool:
        engine.watch = lambda law, case: None
        # Its own limit comes last: what hangs in Python is waited for as what hangs in native code is, by the parent.
        engine.hangs = Hangs()
        engine.profile = replace(engine.profile, limit_s=2 * limit_s)
        engine.example(law, case)
        return True

    return fate_of(example, limit_s)
