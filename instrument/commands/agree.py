"""`headcheck agree`: do several subjects compute the same?"""

import argparse
import sys

from headcheck.commands._shared import (
    MOST_PROCESSES,
    processes,
    require_writable,
    say,
    timeout_option,
    whole,
    write_json,
)

SENTENCE = "judge subjects that should compute the same, each by itself and each pair on the same inputs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which subjects, and how."""
    parser.add_argument(
        "subjects",
        metavar="SUBJECT",
        nargs="+",
        help="two attention subjects or more; or a family: torch, every backend of torch on this machine",
    )
    parser.add_argument(
        "--profile",
        choices=("quick", "gate"),
        default="quick",
        help="default: quick, under a minute for torch",
    )
    parser.add_argument(
        "--law", metavar="PART", action="append", default=[], help="only laws whose id holds PART"
    )
    parser.add_argument(
        "--dtype", action="append", help="float32, float64, bfloat16, float16; repeat, or use commas"
    )
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    timeout_option(parser)
    parser.add_argument(
        "--baseline",
        metavar="FILE",
        help="known deviations (TOML): fail only on others, and on those of pairs that are gone; docs/ci.md",
    )
    parser.add_argument("--json", metavar="FILE", help="write the verdict as JSON; - is stdout")
    parser.add_argument(
        "-n", metavar="N", type=whole, help=f"processes (default: cores, at most {MOST_PROCESSES})"
    )
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="no tables and no progress, only what the baseline says and the last line",
    )


def run(arguments: argparse.Namespace) -> int:
    """Judge, show, write; the verdict's exit code."""
    from headcheck.agreement.families import expanded
    from headcheck.agreement.judging import PROFILES, judge_family
    from headcheck.agreement.report import show, summary
    from headcheck.baseline import read_baseline
    from headcheck.console import plain_console
    from headcheck.judging import make_plan
    from headcheck.preparing import require_device
    from headcheck.progress import Progress

    require_writable(arguments.json)
    require_device(arguments.device)
    known = read_baseline(arguments.baseline) if arguments.baseline else None
    names, left_out = expanded(arguments.subjects, arguments.device, arguments.profile)
    plan = make_plan(
        names[0] if names else "",
        profile=PROFILES[arguments.profile],
        seed=arguments.seed,
        dtype=arguments.dtype,
        device=arguments.device,
        timeout=arguments.timeout,
    )
    with Progress(plain_console(sys.stderr), quiet=arguments.quiet) as progress:
        verdict = judge_family(
            names,
            plan,
            processes=arguments.n or processes(),
            laws=arguments.law,
            watcher=progress,
            left_out=left_out,
            asked_for=[name for name in names if name in arguments.subjects],
        )
    if known is not None:
        verdict = verdict.beside(known, arguments.baseline, narrowed=bool(arguments.dtype))
    console = plain_console(sys.stderr if arguments.json == "-" else sys.stdout)
    if arguments.quiet:
        print(*verdict.told_beside, summary(verdict), sep="\n", file=console.file)
    else:
        show(verdict, console)
    if verdict.unfinished:
        say(f"headcheck: {verdict.unfinished}")
    return verdict.exit_code if write_json(arguments.json, verdict.to_json()) else 2
