"""The Python front: `verify`, `replay` and `probe`.

Here the subject runs in this very process, many times if need be; `isolate=True` puts a process around it.
"""

import inspect
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Never

from headcheck.baseline import compare, read_baseline
from headcheck.calling import DeviceLost, impatient
from headcheck.engine import Profile
from headcheck.errors import HeadcheckError
from headcheck.isolation import Workers
from headcheck.judging import Declared, Watcher, judged_apart, make_plan, verdict_of, with_only
from headcheck.laws import choose, law_named
from headcheck.plan import Plan
from headcheck.preparing import subject_of
from headcheck.verdict import LawResult, Verdict

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


class _Told(Watcher):
    """A function is told of each row."""

    def __init__(self, on_row: OnRow) -> None:
        self.on_row = on_row

    def row(self, row: LawResult) -> None:
        self.on_row(row)


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
