"""The Python front: `verify`, `replay` and `probe`, and what every front makes a verdict with.

Here the subject runs in this very process, many times if need be; `isolate=True` puts a process around it.
"""

import ast
import inspect
import itertools
import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Never

from headcheck.baseline import compare, read_baseline
from headcheck.calling import DeviceLost, impatient
from headcheck.engine import Profile
from headcheck.errors import HeadcheckError
from headcheck.hints import hints_of
from headcheck.isolation import Workers
from headcheck.laws import choose, law_named
from headcheck.plan import Plan, dtype_names, profile_named
from headcheck.preparing import Introduction, subject_of
from headcheck.time_limits import LONGEST_S, NOT_SECONDS
from headcheck.verdict import INTERRUPTED, LawResult, Verdict

Declared = str | Iterable[str] | Mapping[str, Any]
"""FIELD=VALUE, as on the command line; several of them; or plain values by their fields: {"layout": "bshd"}."""
OnRow = Callable[[LawResult], None]


def verify(
    subject: Any,
    *,
    role: str | None = None,
    profile: str | Profile = "gate",
    seed: int | None = None,
    dtype: Any = None,
    device: str | None = None,
    declare: Declared = (),
    timeout: float | None = None,
    laws: str | Iterable[str] = (),
    baseline: str | Path | None = None,
    isolate: bool = False,
    processes: int = 1,
    on_row: OnRow = lambda row: None,
    **unknown: Never,
) -> Verdict:
    """Judge a subject by the laws of its role.

    subject: a callable, a declaration (`headcheck.Attention(...)`), or a SUBJECT as on the command line.
    role: what the subject's name or class tells, or attention. profile: quick, gate or deep, or a `Profile`.
    seed: 0, or a fresh one for the profile `deep`. dtype: a name, a torch.dtype, or several; None for all
    that the subject supports. device: the first that it declares, or cpu. declare: FIELD=VALUE, as on the command line,
    or a mapping. timeout: seconds that one example, a call or a few, may take before it counts as hung. laws: parts of
    law ids; all laws by default. baseline: a file of known deviations (docs/ci.md); where only these break, the verdict
    conforms. isolate: judge in a process of its own, so that a subject that crashes or hangs in native code is a finding
    too. processes: so many at a time; more than one are processes of their own anyway. on_row: told of each row.
    HeadcheckError: the subject cannot be had, or an argument is none.
    """
    _require_no_other(verify, unknown)
    if processes < 1:
        raise HeadcheckError(f"processes={processes} is no number of processes; 1 is the least")
    plan = make_plan(
        subject,
        role=role,
        profile=profile,
        seed=seed,
        dtype=dtype,
        device=device,
        declare=declare,
        timeout=timeout,
    )
    patterns = (laws,) if isinstance(laws, str) else tuple(laws)
    known = None if baseline is None else read_baseline(str(baseline))
    if isolate or processes > 1:
        with Workers(plan, processes) as workers:
            verdict = judged_apart(workers, patterns, _Told(on_row))
    else:
        verdict = _judged_here(plan, patterns, on_row)
    if known is None:
        return verdict
    compared = compare(verdict, known, file=str(baseline), narrowed=bool(plan.dtypes))
    return replace(verdict, baseline=compared)


def _judged_here(plan: Plan, patterns: Sequence[str], on_row: OnRow) -> Verdict:
    """The verdict of this very process."""
    began = time.perf_counter()
    with (
        undisturbed(),
        _device_kept("; isolate=True judges it in processes of their own, and names the call"),
    ):
        prepared = subject_of(plan).prepared()
        chosen = choose(prepared.introduction.role, patterns)
        rows: dict[str, LawResult] = {}
        for row in prepared.engine.rows(chosen):
            rows[row.id] = with_only(plan, row)
            on_row(rows[row.id])
    in_order = [rows[law.id] for law in chosen]
    return verdict_of(plan, prepared.introduction, in_order, time.perf_counter() - began)


def _require_no_other(
    function: Callable[..., Any], keywords: Collection[str], options: Callable[..., Any] | None = None
) -> None:
    """TypeError: a keyword that a function does not have, such as law= for laws=. options: who has them, if not it."""
    parameters = inspect.signature(options or function).parameters
    known = [name for name in parameters if name not in ("subject", "unknown")]
    for name in keywords:
        if options and name in known:
            continue
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}=?" if close else f"it takes {', '.join(known)}"
        raise TypeError(f"{function.__name__}() takes no {name}=; {hint}")


def replay(subject: Any, law_id: str, case: str, **options: Any) -> LawResult:
    """Judge one law on one case, as it was printed; the row's counterexample shows what was compared.

    case: 'kv_len=2 is_causal=true seed=7', in any order; what it leaves out is at its default. Where the law does not
    speak of it, the row is not-applicable, with the reason.
    options: those of `verify` that say how the subject is called: role, profile, seed, dtype, device, declare, timeout.
    HeadcheckError: the subject, the law or the case cannot be had.
    """
    _require_no_other(replay, options, make_plan)
    plan = make_plan(subject, **options)
    with undisturbed(), _device_kept():
        return subject_of(plan).prepared().replayed(law_named(law_id), case)


def probe(
    subject: Any,
    *,
    role: str | None = None,
    device: str | None = None,
    declare: Declared = (),
    timeout: float | None = None,
) -> Any:
    """Find out a subject's conventions on tiny inputs; printed, the result is the declaration to paste.

    The arguments are those of `verify`. HeadcheckError: the subject cannot be had, or no call of it works.
    """
    from headcheck.attention.probe import probe_function
    from headcheck.pasting import found_out

    loaded = subject_of(make_plan(subject, role=role, device=device, declare=declare, timeout=timeout))
    with undisturbed(), _device_kept(), impatient(timeout_s=timeout):
        if loaded.role == "attention":
            return probe_function(loaded.declaration, device=loaded.device, name=loaded.function)
        return found_out(loaded.declaration, device=loaded.device, name=loaded.function)


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


class _Told(Watcher):
    """A function is told of each row."""

    def __init__(self, on_row: OnRow) -> None:
        self.on_row = on_row

    def row(self, row: LawResult) -> None:
        self.on_row(row)


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
    unfinished, enough, interrupted = "", False, False
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
    if interrupted:
        unfinished = f"{INTERRUPTED} after {len(rows)} of {len(laws)} laws"
    if enough:
        left = len(laws) - len(rows)
        unfinished = f"stopped after the first broken laws, {left} of {len(laws)} not judged" if left else ""
    if workers.bugs and not unfinished:
        unfinished = f"{len(workers.bugs)} times a law could not be judged for a bug in headcheck"
    unfinished = unfinished or workers.unfinished
    in_order = [rows[law.id] for law in laws if law.id in rows]
    return verdict_of(plan, introduction, in_order, time.perf_counter() - began, unfinished)


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


@contextmanager
def _device_kept(cure: str = "") -> Iterator[None]:
    """HeadcheckError: a call left the device unusable for this process."""
    try:
        yield
    except DeviceLost as lost:
        raise HeadcheckError(f"the subject left the device unusable: {lost}{cure}") from lost


@contextmanager
def undisturbed() -> Iterator[None]:
    """Torch as laws expect it, on one thread, whatever the caller is in the middle of; afterwards as it was."""
    import numpy  # noqa: ICN001, F401 - a subject may import it, and draw from its generator
    import torch

    from headcheck.library import devices_in_use, generators_restored, usual_settings

    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices_in_use()))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if str(torch.get_default_device()) != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(generators_restored())
        import headcheck.console  # noqa: F401 - rich, for who prints the verdict: it draws from Python's generator

        stack.enter_context(usual_settings())
        yield
