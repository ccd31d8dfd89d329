"""What several subcommands share: options, processes, files, and how a problem is told."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headcheck.errors import HeadcheckError
from headcheck.time_limits import LONGEST_S, NOT_SECONDS

MOST_PROCESSES = 4


def say(message: str) -> int:
    """One problem on stderr; the exit code that says so."""
    print(message.rstrip(), file=sys.stderr)
    return 2


def tell_of_bugs(workers: Any) -> None:
    """What headcheck itself got wrong in a crew's work, for a report; stderr."""
    for bug in workers.bugs:
        say(f"headcheck: this is a bug in headcheck, please report it: {bug}")


def common_options(parser: argparse.ArgumentParser) -> None:
    """What `verify` and `replay` both take."""
    parser.add_argument("--seed", type=int, help="default: 0, and a fresh one for deep and --fuzz")
    parser.add_argument(
        "--dtype", action="append", help="float32, float64, bfloat16, float16; repeat, or use commas"
    )
    parser.add_argument("--device", help="default: what the subject declares first, or cpu")
    parser.add_argument("--role", help="default: what the subject's name or class tells, else attention")
    timeout_option(parser)
    declare_option(parser)


def timeout_option(parser: argparse.ArgumentParser) -> None:
    """How long a call is waited for."""
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        help="one example, a call or a few, that takes longer has hung (default: 30; 120 for the first call, "
        "which may compile)",
    )


def declare_option(parser: argparse.ArgumentParser) -> None:
    """The conventions of a subject, where they are said on the command line."""
    parser.add_argument(
        "--declare",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="a convention of the subject, such as layout=bshd; repeat (docs/declarations.md)",
    )


def whole(text: str) -> int:
    """A number of processes."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of processes; 1 is the least")
    return int(text)


def seconds(text: str) -> float:
    """A time."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} {NOT_SECONDS}")
    return number


def processes() -> int:
    """As many as there are cores, within reason."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def plan_of(arguments: argparse.Namespace, subject: str, **more: Any) -> Any:
    """The plan that the common options ask for."""
    from headcheck.judging import make_plan
    from headcheck.roles import role

    if arguments.role:
        role(arguments.role)  # An unknown one is refused here.
    given = {
        name: getattr(arguments, name) for name in ("role", "seed", "dtype", "device", "declare", "timeout")
    }
    return make_plan(subject, **given, **more)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, which a time limit sends, does what Ctrl-C does: what was found is shown."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # Not the main thread: whoever called us there handles signals.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def require_writable(path: str | Path | None, option: str = "--json") -> None:
    """Find out before the work whether its result can be written, for which an option of that name was given."""
    if path in (None, "-"):
        return
    file = Path(str(path))
    existed = file.exists()
    try:
        with file.open("a", encoding="utf-8"):
            pass
    except OSError as problem:
        raise HeadcheckError(f"cannot write {option} {path}: {problem.strerror}") from problem
    if not existed:
        file.unlink()


def write_json(path: str | None, text: str) -> bool:
    """Write a verdict where it was asked for; False where that failed."""
    try:
        if path == "-":
            print(text)
        elif path is not None:
            Path(path).write_text(f"{text}\n", encoding="utf-8")
    except OSError as problem:
        say(f"headcheck: cannot write --json {path}: {problem.strerror}; the verdict stands above")
        return False
    return True
