"""Processes that a subject may end: how they are started, measured, ended and understood."""

import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from pickle import PicklingError
from typing import Any

from headcheck.errors import HeadcheckError, SubjectError
from headcheck.plan import Plan

Target = Callable[[Plan, Connection, Connection], None]

DYING_S = 10.0
"""Seconds that a process may take from closing its connection to its end."""


def start(plan: Plan, target: Target) -> tuple[Any, Connection]:
    """A process that runs target(plan, its end, our end), and our end of the connection."""
    context = _context(plan)
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(plan, theirs, ours), name="headcheck")
    with warnings.catch_warnings():
        # Python 3.12 warns of threads in the parent, numpy's among them; the child does not use those.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            process.start()
        except (PicklingError, AttributeError, TypeError) as problem:
            raise SubjectError(
                "a fresh process cannot import this subject, and with CUDA there is no fork; "
                "name it as module:attribute or file.py:attribute"
            ) from problem
    theirs.close()
    return process, ours


def end(process: Any, connection: Connection) -> int | None:
    """End a process, and whatever the subject started in it; the exit code."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
    connection.close()
    code: int | None = process.exitcode
    return code


def answer_apart(plan: Plan, target: Target, limit_s: float) -> str:
    """What target sends as ("answer", text); ("refused", why) and ("bug", traceback) are raised."""
    process, connection = start(plan, target)
    return _answer(process, connection, limit_s)


def answers_apart(plans: Sequence[Plan], target: Target, limit_s: float, side_by_side: int) -> Iterator[Any]:
    """The same for several plans, so many at a time, in their order: the text, or the HeadcheckError of a refusal."""
    waiting, running = deque(plans), deque[Any]()
    try:
        while waiting or running:
            while waiting and len(running) < side_by_side:
                running.append(start(waiting.popleft(), target))
            try:
                process, connection = running.popleft()
                yield _answer(process, connection, limit_s)
            except HeadcheckError as problem:
                yield problem
    finally:
        for process, connection in running:  # Left early, as by Ctrl-C: nobody waits for these.
            end(process, connection)


def _answer(process: Any, connection: Connection, limit_s: float) -> str:
    try:
        if not connection.poll(limit_s):
            raise SubjectError(f"the subject did not return within {limit_s:g} s")
        kind, content = connection.recv()
    except (EOFError, ConnectionError):
        process.join(DYING_S)
        raise SubjectError(f"the subject cannot be tried: {death(process.exitcode)}") from None
    finally:
        end(process, connection)
    if kind == "refused":
        raise HeadcheckError(content)
    if kind == "bug":
        raise RuntimeError(content)
    return str(content)


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 where the system does not say."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def machine_memory() -> int:
    """Bytes of memory that the machine has; more than any where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def death(exit_code: int | None) -> str:
    """How a process ended, in words."""
    if exit_code is None or exit_code >= 0:
        return f"the process ended with exit status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "an unknown one"
    return f"the process died with signal {-exit_code} ({name})"


def _context(plan: Plan) -> Any:
    """Fork where it can be had: it costs nothing. A process that has used CUDA cannot be forked."""
    import torch

    used = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    cuda = used or (plan.device or "").startswith("cuda")
    forks = "fork" in multiprocessing.get_all_start_methods() and not cuda
    return multiprocessing.get_context("fork" if forks else "spawn")
