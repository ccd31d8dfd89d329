"""`headcheck verify`, the default: judge a subject by the laws of its role."""

import argparse
import sys

from headcheck.commands._shared import (
    MOST_PROCESSES,
    common_options,
    plan_of,
    processes,
    require_writable,
    say,
    seconds,
    whole,
    write_json,
)

SENTENCE = "judge a subject by the laws of its role (the default command)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a verdict can be asked for."""
    from headcheck.loading import DEFAULT

    parser.add_argument("subject", metavar="SUBJECT", nargs="?", default=DEFAULT, help=f"default: {DEFAULT}")
    parser.add_argument("--profile", choices=("quick", "gate", "deep"), default="gate", help="default: gate")
    parser.add_argument("--fuzz", metavar="SECONDS", type=seconds, help="go on with fresh seeds for so long")
    parser.add_argument(
        "--law", metavar="PART", action="append", default=[], help="only laws whose id holds PART"
    )
    parser.add_argument("--json", metavar="FILE", help="write the verdict as JSON; - is stdout")
    parser.add_argument(
        "--baseline", metavar="FILE", help="known deviations (TOML): only what is not listed there fails"
    )
    parser.add_argument(
        "-n", metavar="N", type=whole, help=f"processes (default: cores, at most {MOST_PROCESSES})"
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="no table and no progress, only the last line"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="name the laws that are not applicable")
    common_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Judge, show, write; the verdict's exit code."""
    from headcheck.baseline import compare, read_baseline
    from headcheck.console import Progress, plain_console, show, summary
    from headcheck.isolation import Workers
    from headcheck.judging import fresh_seed, judged_apart

    if arguments.fuzz and arguments.seed is None:
        arguments.seed = fresh_seed()
    known = read_baseline(arguments.baseline) if arguments.baseline else None
    require_writable(arguments.json)
    plan = plan_of(arguments, profile=arguments.profile)
    with (
        Progress(plain_console(sys.stderr), quiet=arguments.quiet) as progress,
        Workers(plan, arguments.n or processes()) as workers,
    ):
        verdict = judged_apart(workers, arguments.law, progress, arguments.fuzz or 0.0)
    compared = compare(verdict, known or ())
    console = plain_console(sys.stderr if arguments.json == "-" else sys.stdout)
    if arguments.quiet:
        print(summary(verdict), file=console.file)
    else:
        show(verdict, console, known=compared.reasons, verbose=arguments.verbose)
    for bug in workers.bugs:
        say(f"headcheck: this is a bug in headcheck, please report it: {bug}")
    exit_code = verdict.exit_code
    if known is not None:
        exit_code = compared.exit_code
        print(*compared.lines(arguments.baseline), sep="\n", file=console.file)
    return exit_code if write_json(arguments.json, verdict) else 2
