"""`headcheck matrix`: judge every built-in subject that is installed, and write the page of them."""

import argparse
import sys
from pathlib import Path

from headcheck.commands._shared import processes, require_writable, seconds, whole

SENTENCE = "judge every built-in subject that is installed, side by side"
LIMIT_S = 900.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be narrowed, kept and written."""
    parser.add_argument(
        "subjects",
        metavar="SUBJECT",
        nargs="*",
        help="these only, such as hf:llama; default: all built-in ones",
    )
    parser.add_argument(
        "--only", metavar="PART", action="append", default=[], help="only subjects whose name holds PART"
    )
    parser.add_argument(
        "--profile", choices=("quick", "gate", "deep"), default="quick", help="default: quick"
    )
    parser.add_argument("--resume", metavar="FILE", help="keep what is judged there, and go on from it")
    parser.add_argument("--page", metavar="FILE", help="write the page as Markdown, such as docs/matrix.md")
    parser.add_argument("--baseline", metavar="FILE", help="known deviations, which explain broken laws")
    parser.add_argument(
        "--limit",
        metavar="SECONDS",
        type=seconds,
        default=LIMIT_S,
        help=f"of one subject; default: {LIMIT_S:g}",
    )
    parser.add_argument("-n", metavar="N", type=whole, help="subjects at a time (default: cores, at most 4)")


def run(arguments: argparse.Namespace) -> int:
    """0 where all conform but for known deviations, 1 where one deviates otherwise, 2 where nothing was judged."""
    from headcheck.baseline import compare, read_baseline
    from headcheck.matrix import Record, chosen, judge_all
    from headcheck.matrix_page import matrix_page

    known = read_baseline(arguments.baseline) if arguments.baseline else ()
    require_writable(arguments.page, "--page")
    require_writable(arguments.resume, "--resume")
    here, missing = chosen(arguments.only, arguments.subjects)
    told: list[Record] = []

    def tell(record: Record) -> None:
        told.append(record)
        outcome = record.verdict["verdict"] if record.verdict else record.problem
        print(
            f"{len(told)}: {record.subject}: {outcome}, {record.seconds:.0f} s", file=sys.stderr, flush=True
        )

    records = judge_all(
        here,
        profile=arguments.profile,
        processes=arguments.n or processes(),
        limit_s=arguments.limit,
        file=Path(arguments.resume) if arguments.resume else None,
        told=tell,
    )
    if arguments.page:
        Path(arguments.page).write_text(matrix_page(records, missing, known), encoding="utf-8")
    verdicts = [verdict for record in records if (verdict := record.as_verdict()) is not None]
    compared = [compare(each, known, file=arguments.baseline or "the baseline") for each in verdicts]
    for each in compared:
        for line in each.news():
            print(f"{each.verdict.subject}: {line}")
    deviate = sum(each.exit_code == 1 for each in compared)
    unjudged = len(records) - sum(each.exit_code != 2 for each in compared)
    print(
        f"{len(records)} subjects: {deviate} deviate beyond what is known, {unjudged} could not be judged, "
        f"{len(missing)} not installed"
    )
    if not compared:
        return 2
    return 1 if deviate or unjudged else 0
