"""What each source of inputs contributes: the faults of the corpus with one source switched off at a time.

    python benchmarks/ablation.py [--profile quick] [--all] [--markdown docs/ablation.md]

Attention only, until the first broken law; by default the quarter of the faults that is held out by a hash of its id.
"""

import argparse
import datetime as dt
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from headcheck.attention import drawing
from headcheck.engine import PROFILES, Profile
from headcheck.teeth.corpus import held_out
from headcheck.teeth.trial import Outcome, Way, tried
from tests.faults import FAULTS

Setting = tuple[Callable[[Profile], Profile], Callable[[], AbstractContextManager[object]]]


@contextmanager
def plain_sizes() -> Iterator[None]:
    """Lengths and dims as one would draw them without thinking of blocks, tails and equal axes."""

    def lengths(random: Random) -> tuple[int, int]:
        return random.randint(1, 32), random.randint(1, 32)

    def dims(random: Random) -> tuple[int, int]:
        dim = random.randint(1, 16)
        return dim, dim

    with (
        patch.object(drawing, "_lengths", lengths),
        patch.object(drawing, "_dims", dims),
        patch.object(drawing, "_twin", lambda random, case: case),
    ):
        yield


def plain_values() -> AbstractContextManager[object]:
    """Standard normal numbers only."""
    return patch.object(drawing, "REGIMES", {"normal": drawing.REGIMES["normal"]})


def contiguous() -> AbstractContextManager[object]:
    """No strides but those of a fresh tensor."""
    return patch.multiple(drawing, DRAWN_STRIDES=("contiguous",), MIXED=())


SETTINGS: dict[str, Setting] = {
    "everything": (lambda profile: profile, nullcontext),
    "no drawn numbers (Hypothesis)": (lambda profile: replace(profile, drawn=0), nullcontext),
    "no seeded cases": (lambda profile: replace(profile, seeded=0), nullcontext),
    "lengths and dims without the boundary cases": (lambda profile: profile, plain_sizes),
    "normal values only": (lambda profile: profile, plain_values),
    "contiguous tensors only": (lambda profile: profile, contiguous),
}


def outcome(setting: str, profile: str, name: str) -> Outcome:
    """One fault with one source switched off; the counterexample is not made small."""
    torch.set_num_threads(1)
    changed, patched = SETTINGS[setting]
    with patched():
        return tried(FAULTS[name], replace(changed(PROFILES[profile]), shrinks=0), 0, Way.FIRST)


def main() -> None:
    parser = argparse.ArgumentParser(description="What each source of inputs contributes.")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="quick")
    parser.add_argument("--all", action="store_true", help="every fault, not only those held out")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()

    names = [name for name, fault in FAULTS.items() if not fault.peril and (arguments.all or held_out(name))]
    lines = [
        "# What each source of inputs contributes",
        "",
        (
            f"{dt.datetime.now(tz=dt.UTC).date()}, torch {torch.__version__}, profile {arguments.profile}, "
            f"{len(names)} faults of attention. "
            "Rerun: `python benchmarks/ablation.py --markdown docs/ablation.md`."
        ),
        "",
        "What a law itself asks for, a length, a stride, values of its own, is not switched off: only what is drawn is.",
        "",
        "| switched off | faults caught | median examples to the first broken law | what gets away |",
        "|---|---|---|---|",
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        for setting in SETTINGS:
            found = list(
                pool.map(outcome, *zip(*((setting, arguments.profile, each) for each in names), strict=True))
            )
            caught = [each for each in found if each.broken]
            away = ", ".join(each.id for each in found if not each.broken) or "none"
            examples = statistics.median(each.until_broken for each in caught)
            lines.append(f"| {setting} | {len(caught)} of {len(found)} | {examples:.0f} | {away} |")
            print(lines[-1], flush=True)
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
