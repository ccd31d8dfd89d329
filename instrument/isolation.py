"""Laws are judged in processes of their own: a subject that crashes, hangs or eats memory is a finding.

The parent hands out law ids one at a time and hears of each case before it is run. When a worker dies, does
not come back or grows too large, the case in flight is the counterexample, and a fresh worker goes on with
the next law. The parent itself never runs the subject.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from headcheck.calling import never_returned
from headcheck.errors import HeadcheckError, SubjectError
from headcheck.laws import Law, all_laws
from headcheck.plan import Plan
from headcheck.preparing import Introduction
from headcheck.processes import DYING_S, death, end, machine_memory, resident, start
from headcheck.roles import role as role_named
from headcheck.time_limits import Stopwatch
from headcheck.verdict import Counterexample, LawResult
from headcheck.worker import Task, work

Tick = Callable[[list[str]], None]

TICK_S = 0.1
SHRUNK = 1
"""So many cases that end the process in the same way are made smaller: they will be one fault."""


@dataclass(frozen=True)
class Limits:
    """What a worker may take."""

    memory_growth: int = 4 << 30
    """Bytes of resident memory, over what it had when the subject was ready to be judged, and as much again as the
    preparation took; watched on Linux."""
    to_prepare: int = field(default_factory=lambda: machine_memory() // 2)
    """The same from the import until then: what is made for the subject, and copied of it, is not its fault."""
    grace_s: float = 5.0
    """Seconds after the profile's limit, which reaches Python code only, until the process is ended."""
    import_s: float = 600.0
    """Seconds to import a subject, which may compile itself."""
    answer_s: float = 120.0
    """Seconds without an answer to any of the small cases on which a subject is tried before it is judged."""
    prepare_s: float = 600.0
    """Seconds for all of them: a subject may compile itself for each."""


@dataclass
class _Worker:
    """One process, and what the parent knows of it."""

    process: Any
    connection: Connection
    since: Stopwatch
    """From when it last reported."""
    loaded: Introduction | None = None
    preparing: Stopwatch | None = None
    """From when it had been imported."""
    answered: bool = False
    """Whether a call of the subject has come back."""
    ready: Introduction | None = None
    size: int = 0
    """Resident bytes when the subject had been imported, and then when it was ready."""
    taken: int = 0
    """The most beyond it that was seen in between: a law copies the subject as the preparation does."""
    task: Task | None = None
    case: str | None = None
    limit_s: float = 0.0
    """Seconds that it will wait for that case."""
    cases: int = 0


class Workers:
    """A crew of processes that judge one subject. Use it in a `with` block: leaving it ends them all."""

    def __init__(self, plan: Plan, processes: int = 1, limits: Limits | None = None) -> None:
        self.plan = plan
        self.processes = processes
        self.limits = limits or Limits()
        self.bugs: list[str] = []
        """Tracebacks of headcheck's own failures."""
        self._crew: list[_Worker] = []
        self._waiting: deque[Task] = deque()
        self._deaths: Counter[str] = Counter()
        self.unfinished = ""
        """What was left out, and why: then the subject is not said to conform."""
        self._crash = ""
        """How the subject ended the process when it was first tried: then no law can be judged."""
        self._crash_of: str | None = None
        """The law that says so."""
        self._met: Introduction | None = None
        self._hung = False
        self._seed = plan.seed
        self.until = math.inf
        """When a time box ends, by the monotonic clock: of what is left by then the first look is the row."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._crew:
            self._end(self._crew[0])

    def introduce(self, tick: Tick = lambda laws: None) -> Introduction:
        """Start the crew and wait until the subject is known. Raises SubjectError if it cannot be had."""
        all_laws()  # Imported before the fork, they are there in every worker.
        while self._met is None:
            while len(self._crew) < self.processes and not self._crash:
                self._start()
            list(self._turn(tick))
        return self._met

    def judge(
        self, laws: Sequence[Law], seed: int | None = None, tick: Tick = lambda laws: None
    ) -> Iterator[LawResult]:
        """The rows of these laws, as they come: first those that break at a first look, as `Engine.rows` has it.

        tick: told often what is waited for: the laws that are being judged, or the subject.
        """
        self._seed = self.plan.seed if seed is None else seed
        looked_at = {}
        for task, row in self.carry_out([Task(law.id, glance=True) for law in laws], tick):
            if row.outcome == "breaks":
                yield row
            else:
                looked_at[task.law_id] = row
        for task, row in self.carry_out([Task(law.id) for law in laws if law.id in looked_at], tick):
            del looked_at[task.law_id]
            yield row
            if time.monotonic() > self.until:
                self._waiting = deque(each for each in self._waiting if each.fatal)
        yield from looked_at.values()

    def seen(self) -> list[tuple[Task, LawResult]]:
        """The crashes of which a smaller case is still looked for: they are findings for who does not wait for it."""
        tasks = [*self._waiting, *(worker.task for worker in self._crew)]
        return [(task, task.fatal) for task in tasks if task and task.fatal]

    def replay(self, law: Law, case: str) -> LawResult:
        """The row of one law on one case, as it was printed."""
        ((_, row),) = self.carry_out([Task(law.id, case)])
        return row

    def carry_out(
        self, tasks: Sequence[Task], tick: Tick = lambda laws: None
    ) -> Iterator[tuple[Task, LawResult]]:
        """Each task with its row, as they come; tasks of one subject should stand together."""
        self.introduce(tick)
        self._waiting = deque(tasks)
        while self._waiting or any(worker.task for worker in self._crew):
            while self._crash and self._waiting:
                task = self._waiting.popleft()
                yield task, task.fatal or self._not_judged(task)
            self._hand_out()
            yield from self._turn(tick)

    def _not_judged(self, task: Task) -> LawResult:
        """Where no law can be judged, one says why: it is one fault."""
        if self._crash_of in (None, task.law_id):
            self._crash_of = task.law_id
            return self._broken(task, self._crash, None, 0)
        return task.law.not_applicable(f"not asked: {self._crash}")

    def _start(self) -> None:
        process, connection = start(self.plan, work)
        self._crew.append(_Worker(process, connection, Stopwatch(process.pid)))

    def _hand_out(self) -> None:
        busy = sum(worker.task is not None for worker in self._crew)
        while not self._crash and len(self._crew) < min(self.processes, busy + len(self._waiting)):
            self._start()
        for worker in self._crew:
            if worker.ready and not worker.task and self._waiting:
                worker.task = replace(
                    self._waiting.popleft(), hung=self._hung, seed=self._seed, until=self.until
                )
                worker.since, worker.case, worker.cases = Stopwatch(worker.process.pid), None, 0
                worker.limit_s = self.plan.profile.limit_s
                with suppress(OSError):  # It died meanwhile; the next turn finds out.
                    worker.connection.send(worker.task)

    def _turn(self, tick: Tick) -> Iterator[tuple[Task, LawResult]]:
        """Hear all workers once, and end those that overstep their limits."""
        wait([worker.connection for worker in self._crew], timeout=TICK_S)
        for worker in list(self._crew):
            if worker not in self._crew:
                continue  # It was ended for the fault of another.
            task = worker.task
            row = self._hear(worker)
            if row is None and worker in self._crew:
                if grown := self._grown(worker):
                    row = self._lost(worker, grown)
                elif late := self._late(worker):
                    row = self._lost(worker, late, hung=True)
            if row is not None and task is not None:
                yield task, row
        tick([doing for worker in self._crew if (doing := self._doing(worker))])

    def _doing(self, worker: _Worker) -> str:
        """What a worker is waited for."""
        if worker.task and worker.ready:
            slow = " (calls are slow: a smaller subject is judged sooner)" if worker.ready.is_slow else ""
            return f"{worker.task.law.name}{slow}"
        if worker.ready:
            return ""
        if worker.preparing:
            return f"trying the subject on small cases, {self._to_prepare_s(worker):g} s at most"
        return f"importing the subject, {self.limits.import_s:g} s at most"

    def _hear(self, worker: _Worker) -> LawResult | None:
        try:
            while worker.connection.poll():
                kind, content = worker.connection.recv()
                worker.since = Stopwatch(worker.process.pid)
                if kind == "case":
                    (worker.case, worker.limit_s), worker.cases = content, worker.cases + 1
                elif kind == "row":
                    return self._noted(self._finished(worker), content)
                elif kind == "raised":
                    task = self._finished(worker)
                    return task.fatal or self._broken(task, content, worker.case, worker.cases)
                elif kind == "lost":
                    return self._lost(worker, content)
                elif kind == "bug":
                    return self._failed(worker, content)
                elif kind == "refused":
                    self._end(worker)
                    if worker.task:  # The user's own case cannot be had.
                        raise SubjectError(content)
                    self._cannot_go_on(SubjectError(content))
                    break
                else:
                    self._prepared(worker, kind, content)
        except (EOFError, ConnectionError):
            worker.process.join(DYING_S)  # It ended by itself, and its exit code tells how.
            return self._lost(worker, "")
        return None

    def _prepared(self, worker: _Worker, kind: str, content: Any) -> None:
        """A worker tells how far it is on the way to its first law."""
        if kind == "loaded":
            worker.loaded, worker.size = content, resident(worker.process.pid)
            worker.preparing = worker.since
        elif kind == "answered":
            worker.answered = True
        elif kind == "ready":
            worker.ready = self._met = content
            worker.size = resident(worker.process.pid)

    def _finished(self, worker: _Worker) -> Task:
        assert worker.task is not None
        task, worker.task = worker.task, None
        return task

    def _noted(self, task: Task, row: LawResult) -> LawResult:
        if task.fatal and task.fatal.counterexample and row.counterexample:
            after = task.fatal.counterexample.found_after
            shown = replace(row.counterexample, what="process", found_after=after)
            return replace(task.fatal, reason=row.reason, counterexample=shown)
        self._hung = self._hung or row.hung
        return row

    def _grown(self, worker: _Worker) -> str:
        """By how much a worker oversteps its limit of memory, if it does. SubjectError: it does before any law."""
        taken = resident(worker.process.pid) - worker.size if worker.size else 0
        if worker.ready:
            allowed = self.limits.memory_growth
            return _took_more(allowed) if taken > allowed + worker.taken else ""
        worker.taken = max(worker.taken, taken)
        if taken <= self.limits.to_prepare:
            return ""
        grown = _took_more(self.limits.to_prepare)
        if self._met:  # What others have found is kept.
            return grown
        cure = "a smaller configuration may do, and headcheck.verify in Python judges in the process, without a limit"
        raise SubjectError(f"the subject {grown} before any law was asked: {cure}")

    def _late(self, worker: _Worker) -> str:
        """By how much a worker oversteps its limit of time, if it does."""
        if worker.ready:
            limits = [(worker.since, worker.limit_s)] if worker.task else []
        elif worker.preparing:
            limits = [
                (worker.since, self._to_answer_s(worker)),
                (worker.preparing, self._to_prepare_s(worker)),
            ]
        else:
            limits = [(worker.since, self.limits.import_s)]
        late = (allowed for since, allowed in limits if since.seconds > allowed + self.limits.grace_s)
        return next((f"did not return within {allowed:g} s" for allowed in late), "")

    def _to_answer_s(self, worker: _Worker) -> float:
        """Seconds without an answer to a small case; for the first call what the user says, if anything."""
        timeout_s = self.plan.timeout_s or 0.0
        return timeout_s if timeout_s and not worker.answered else max(timeout_s, self.limits.answer_s)

    def _to_prepare_s(self, worker: _Worker) -> float:
        """Seconds for all small cases; until the first answer as long as it may take."""
        allowed = self._to_answer_s(worker)
        return max(allowed, self.limits.prepare_s) if worker.answered else allowed

    def _lost(self, worker: _Worker, why: str, *, hung: bool = False) -> LawResult | None:
        """A worker is gone, or has to go: what that says of the subject."""
        died = not why
        exit_code = self._end(worker)
        why = why or death(exit_code)
        if worker.task and worker.task.fatal:
            return worker.task.fatal
        if worker.task:
            row = replace(self._broken(worker.task, why, worker.case, worker.cases), hung=hung)
            kind = "hung" if hung else why
            self._deaths[kind] += 1
            self._hung = self._hung or hung
            if (died or hung) and worker.case is not None and self._deaths[kind] <= SHRUNK:
                self._waiting.appendleft(replace(worker.task, case=worker.case, fatal=row))
                return None
            return self._noted(worker.task, row)
        if not worker.loaded:
            self._cannot_go_on(SubjectError(f"the subject cannot be imported: {why}"))
        elif not worker.ready and not worker.answered:
            first = never_returned(self._to_answer_s(worker)) if hung else ""
            first = first or f"the subject cannot be called: {why} in its first and plainest call"
            self._cannot_go_on(SubjectError(first))
        elif not worker.ready:
            self._crashed_in_preparation(worker.loaded, why)
        return None

    def _cannot_go_on(self, problem: HeadcheckError) -> None:
        """No worker can be had. If one could before, what has been found is kept, and one law says why the rest is not
        asked; else the problem is raised.
        """
        if not self._met:
            raise problem
        self._crash = self._crash or f"in a new process {problem}"
        self.unfinished = f"not every law could be judged: {self._crash}"

    def _crashed_in_preparation(self, loaded: Introduction, why: str) -> None:
        """One dtype may still work: the others are given up. If that is no way out, no law can be judged."""
        if self._crash:
            return  # Another process of the crew has told.
        if self.plan.dtypes or self.unfinished:
            self._crash = f"{why} when it was first tried"
            self.unfinished = f"{'not every' if self._met else 'no'} law could be judged: {self._crash}"
            self._met = self._met or loaded
            return
        dtype = loaded.declaration.get("dtypes", ["float32"])[0]
        self.unfinished = f"judged in {dtype} only: {why} when all dtypes were tried"
        self.plan = replace(self.plan, dtypes=(dtype,))
        for worker in [each for each in self._crew if not each.ready]:
            self._end(worker)

    def _end(self, worker: _Worker) -> int | None:
        self._crew.remove(worker)
        return end(worker.process, worker.connection)

    def _failed(self, worker: _Worker, problem: str) -> LawResult | None:
        """headcheck itself failed: no verdict on this law, unless the case has ended a process before."""
        if worker.task is None:
            self._end(worker)
            self._cannot_go_on(HeadcheckError(f"this is a bug in headcheck, please report it:\n{problem}"))
            return None
        task = self._finished(worker)
        self.bugs.append(f"law {task.law_id}, case '{worker.case}'\n{problem}")
        last_line = problem.strip().rsplit("\n", 1)[-1]
        return task.fatal or task.law.not_applicable(f"a bug in headcheck: {last_line}")

    def _broken(self, task: Task, why: str, case: str | None, cases: int) -> LawResult:
        law, plan = task.law, self.plan.of(task.subject)
        replay = plan.only(law.id) if case is None else plan.replay(law, case)
        dtypes = [] if case is None else [role_named(law.role).parse(case).dtype]
        return LawResult(
            law.id,
            law.statement,
            "breaks",
            reason=why,
            examples=max(1, cases),
            worst_error_over_bound=float("inf"),
            dtypes=dtypes,
            counterexample=Counterexample(case, replay, "process", message=why, found_after=max(1, cases)),
        )


def _took_more(size: int) -> str:
    return f"took more than {size / 2**30:.3g} GiB of memory"
