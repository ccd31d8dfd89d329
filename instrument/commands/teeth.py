"""`headcheck teeth`: what the laws catch of a corpus of faults, and whether they fail anything right."""

import argparse
import datetime as dt
import sys
from pathlib import Path
from typing import Any

from headcheck.commands._shared import processes, require_writable, whole
from headcheck.errors import HeadcheckError

SENTENCE = "judge a corpus of faults and right variants: what is caught, what is failed wrongly"
EVERY = 25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which entries, how thoroughly, and where the results go."""
    parser.add_argument("--corpus", metavar="FILE", type=Path, help="default: tests/corpus.py")
    parser.add_argument("--role", help="only entries of this role")
    parser.add_argument("--of", choices=("faults", "variants"), help="only the faults, or only what is right")
    parser.add_argument("--only", metavar="PART", default="", help="only entries whose id holds PART")
    parser.add_argument(
        "--profile", choices=("quick", "gate", "deep"), default="quick", help="default: quick"
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=_seeds,
        default=range(1),
        help="judge with the seeds 0 to N - 1; M:N for those from M on",
    )
    parser.add_argument("--device", metavar="DEVICE", default="cpu", help="default: cpu")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--matrix", action="store_true", help="go on after the first broken law of a fault")
    ways.add_argument(
        "--named-first",
        action="store_true",
        help="ask only whether a fault is caught: the laws that are named for it go first, nothing is made small",
    )
    parser.add_argument(
        "--results", metavar="FILE", type=Path, help="keep outcomes in FILE, and go on from it"
    )
    parser.add_argument("--page", metavar="FILE", type=Path, help="write a page, and a picture beside it")
    parser.add_argument("-n", metavar="N", type=whole, help="processes (default: cores, at most 4)")


def run(arguments: argparse.Namespace) -> int:
    """0 where every fault was caught and no right variant failed, 1 otherwise."""
    from headcheck.preparing import require_device
    from headcheck.teeth.campaign import Campaign, read
    from headcheck.teeth.corpus import HERE, load
    from headcheck.teeth.summary import runs
    from headcheck.teeth.trial import Way

    require_writable(arguments.page, "--page")
    require_writable(arguments.results, "--results")
    require_device(arguments.device)
    place = arguments.corpus or HERE
    corpus = load(place)
    faults, variants = corpus.wrong.values(), corpus.right.values()
    asked = {"faults": faults, "variants": variants, None: (*faults, *variants)}[arguments.of]
    names = [each.id for each in asked if _asked(each, arguments)]
    if not names:
        raise HeadcheckError(f"{place} has no entry of that role and name")
    told = _Told(len(names) * len(arguments.seeds))
    outcomes = Campaign(
        place,
        names,
        arguments.profile,
        arguments.seeds,
        Way.ALL if arguments.matrix else Way.NAMED if arguments.named_first else Way.FIRST,
        arguments.n or processes(),
        arguments.results,
        told,
        arguments.device,
    ).run()
    every = read(arguments.results) if arguments.results else outcomes
    if arguments.page:
        _write(arguments.page, every, corpus)
    found = runs(outcomes, corpus)
    for each in found:
        print(_line(each))
    return 1 if any(each.survivors or each.failed for each in found) else 0


def _seeds(text: str) -> range:
    """Of "3" the seeds 0, 1, 2; of "2:5" the seeds 2, 3, 4."""
    first, colon, last = text.rpartition(":")
    if not last.isdecimal() or (colon and not first.isdecimal()) or not range(int(first or 0), int(last)):
        raise argparse.ArgumentTypeError(
            f"{text} names no seeds; write 5 for the seeds 0 to 4, or 5:8 for 5, 6, 7"
        )
    return range(int(first or 0), int(last))


def _asked(entry: Any, arguments: argparse.Namespace) -> bool:
    return arguments.only in entry.id and arguments.role in (None, entry.role)


class _Told:
    """Says on stderr, now and then, how far it is."""

    def __init__(self, of: int) -> None:
        self.done, self.of = 0, of

    def __call__(self, outcome: Any) -> None:
        self.done += 1
        if self.done % EVERY == 0:
            print(f"{self.done} of {self.of}", file=sys.stderr, flush=True)


def _line(run: Any) -> str:
    """One run in words."""
    from headcheck.teeth.summary import effort, killed

    caught, faults = killed(run.faults)
    parts = [f"{run.profile}, seed {run.seed}: {caught} of {faults} faults caught"]
    taken = effort(run.faults)
    if taken is not None:
        parts.append(
            f"the first law after {taken.seconds[0]:.2f} s and {taken.examples[0]:.0f} examples (medians)"
        )
    if run.variants:
        examples = sum(each.examples for each in run.variants)
        parts.append(
            f"{len(run.failed)} of {len(run.variants)} right variants failed in {examples:,} examples"
        )
    told = [f"  survives: {name}" for name in run.survivors]
    for each in run.failed:
        told.append(f"  failed wrongly: {each.id} by {', '.join(each.broken)}")
        told += [f"    {each.why}"] if each.why else []
    return "\n".join(["; ".join(parts), *told])


def _write(file: Path, outcomes: Any, corpus: Any) -> None:
    """The page, and the picture of the kill matrix where all laws were judged."""
    from headcheck.teeth.page import page
    from headcheck.teeth.picture import picture
    from headcheck.teeth.trial import Way

    whole_ones = [each for each in outcomes if each.way is Way.ALL and each.id in corpus.wrong]
    image = file.with_suffix(".svg")
    date = str(dt.datetime.now(tz=dt.UTC).date())
    try:
        file.write_text(page(outcomes, corpus, date, image.name if whole_ones else ""), encoding="utf-8")
        if whole_ones:
            image.write_text(picture(whole_ones, corpus), encoding="utf-8")
    except OSError as problem:
        raise HeadcheckError(f"cannot write --page {file}: {problem.strerror}") from problem
