"""`headcheck verify`, the default: judge a subject by the laws of its role."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from headcheck.commands._shared import (
    MOST_PROCESSES,
    common_options,
    plan_of,
    processes,
    require_writable,
    say,
    seconds,
    tell_of_bugs,
    whole,
    write_json,
)
from headcheck.errors import HeadcheckError

if TYPE_CHECKING:
    from headcheck.verdict import Verdict

SENTENCE = "judge a subject by the laws of its role (the default command)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a verdict can be asked for."""
    from headcheck.loading import DEFAULT

    parser.add_argument(
        "subjects",
        metavar="SUBJECT",
        nargs="*",
        default=[DEFAULT],
        help=f"one, or several, each judged by itself; default: {DEFAULT}",
    )
    parser.add_argument("--profile", choices=("quick", "gate", "deep"), default="gate", help="default: gate")
    parser.add_argument("--fuzz", metavar="SECONDS", type=seconds, help="go on with fresh seeds for so long")
    parser.add_argument(
        "--law", metavar="PART", action="append", default=[], help="only laws whose id contains PART"
    )
    parser.add_argument(
        "-x", "--exitfirst", action="store_true", help="stop after the laws that break at a first look"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the verdict as JSON, those of several subjects as a list; - is stdout",
    )
    parser.add_argument(
        "--baseline", metavar="FILE", help="known deviations (TOML): only what is not listed there fails"
    )
    parser.add_argument(
        "--write-baseline", metavar="FILE", help="list what breaks in FILE, for runs with --baseline FILE"
    )
    parser.add_argument(
        "-n", metavar="N", type=whole, help=f"processes (default: cores, at most {MOST_PROCESSES})"
    )
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="no table and no progress: the first broken law, and the last line",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="name each law, whatever became of it")
    common_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Judge, show, write; the verdict's exit code, of several subjects the worst."""
    from headcheck.baseline import read_baseline
    from headcheck.judging import fresh_seed
    from headcheck.loading import require_findable

    several = len(arguments.subjects) > 1
    if arguments.exitfirst and (arguments.baseline or arguments.write_baseline):
        raise HeadcheckError("a baseline needs every law: leave out --exitfirst, which stops early")
    if arguments.baseline and arguments.write_baseline:
        raise HeadcheckError("--write-baseline adds to its own file: leave out --baseline")
    if arguments.fuzz and arguments.seed is None:
        arguments.seed = fresh_seed()
    known = read_baseline(arguments.baseline) if arguments.baseline else None
    require_writable(arguments.json)
    require_writable(arguments.write_baseline, "--write-baseline")
    for subject in arguments.subjects if several else ():
        require_findable(subject)  # A word that was mistyped is told before the work.
    if not several:
        verdict = _judged(arguments, arguments.subjects[0], known)
        return verdict.exit_code if write_json(arguments.json, verdict.to_json()) else 2
    return _judged_in_turn(arguments, known)


def _judged_in_turn(arguments: argparse.Namespace, known: Sequence[Any] | None) -> int:
    """Several subjects; what cannot be judged does not keep the others from it. At the end a line for each."""
    from headcheck.console import summary
    from headcheck.ranking import most_telling_first

    exit_codes, lines, texts = [], [], []
    to_stdout = arguments.json == "-"
    try:
        for subject in arguments.subjects:
            try:
                verdict = _judged(arguments, subject, known)
                exit_code, text = verdict.exit_code, verdict.to_json()
                line, enough = summary(verdict), verdict.interrupted
                if verdict.new:
                    line += f"; first {most_telling_first(verdict.new)[0].id}"
            except HeadcheckError as problem:
                exit_code, enough = say(f"headcheck: {subject}: {problem}"), False
                line = f"could not be judged: {problem}"
                text = json.dumps(
                    {"subject": subject, "verdict": "untested", "error": str(problem)}, indent=2
                )
            exit_codes.append(exit_code)
            lines.append(f"{subject}: {line}")
            texts.append(text)
            if not to_stdout and not write_json(arguments.json, _listed(texts)):  # What is known so far.
                exit_codes.append(2)
            if not arguments.quiet:
                print(file=_told_to(arguments))
            if enough or (exit_code == 1 and arguments.exitfirst):
                break
    finally:  # Whoever ends it keeps what was judged.
        print(*lines, sep="\n", file=_told_to(arguments))
        if to_stdout and not write_json("-", _listed(texts)):
            exit_codes.append(2)
    return min(exit_codes, key=(1, 2, 0).index)


def _listed(texts: Sequence[str]) -> str:
    """Verdicts as one list of JSON."""
    return "[" + ",\n".join(texts) + "]"


def _told_to(arguments: argparse.Namespace) -> TextIO:
    """Where tables and lines go: not among the JSON."""
    return sys.stderr if arguments.json == "-" else sys.stdout


def _judged(arguments: argparse.Namespace, subject: str, known: Sequence[Any] | None) -> "Verdict":
    """One subject: its verdict, shown, beside what is known of it."""
    from headcheck.baseline import add_to, compare, read_baseline
    from headcheck.console import plain_console, short, show
    from headcheck.isolation import Workers
    from headcheck.judging import judged_apart
    from headcheck.progress import Progress

    plan = plan_of(arguments, subject, profile=arguments.profile)
    with (
        Progress(plain_console(sys.stderr), quiet=arguments.quiet) as progress,
        Workers(plan, arguments.n or processes()) as workers,
    ):
        verdict = judged_apart(
            workers, arguments.law, progress, arguments.fuzz or 0.0, exit_first=arguments.exitfirst
        )
    file, narrowed = arguments.baseline or arguments.write_baseline, bool(arguments.dtype)
    added = add_to(file, verdict) if arguments.write_baseline else 0
    if file is not None:
        known = known or read_baseline(file)
        compared = compare(verdict, known, file=file, narrowed=narrowed, run=arguments.subjects)
        verdict = replace(verdict, baseline=compared)
    console = plain_console(_told_to(arguments))
    if not arguments.quiet:
        show(verdict, console, verbose=arguments.verbose)
    elif len(arguments.subjects) == 1:
        print(short(verdict), file=console.file)
    elif verdict.beside:
        print(*verdict.beside, sep="\n", file=console.file)
    if added:
        print(f"baseline: {added} added to {file}: write there why", file=console.file)
    tell_of_bugs(workers)
    return verdict
