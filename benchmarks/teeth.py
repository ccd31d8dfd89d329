"""The fault corpus against the laws: what is caught, by which law, after how long; and what is failed wrongly.

    python benchmarks/teeth.py [--profile gate] [--seeds 1] [--only PART] [--markdown docs/teeth.md]

Every fault of tests/faults is judged by all laws of its role, every right variant too. Times are wall seconds
of shared machines: compare them within one run only.
"""

import argparse
import datetime as dt
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from headcheck.engine import PROFILES, Engine
from headcheck.isolation import Workers
from headcheck.laws import choose
from headcheck.plan import Plan
from headcheck.roles import role
from tests.faults import FAULTS, VARIANTS, Entry, Fault
from tests.faults.judging import declared


@dataclass(frozen=True)
class Outcome:
    """What the laws said of one entry of the corpus."""

    id: str
    seed: int
    broken: tuple[str, ...]
    """The names of the broken laws, without the role."""
    first_s: float
    """Seconds of judging until the first law broke."""
    first_examples: int
    """Examples until the first law broke."""


def judged(entry_id: str, profile: str, seed: int) -> Outcome:
    """One entry under all laws; the counterexamples are not made small."""
    torch.set_num_threads(1)
    entry: Entry = FAULTS.get(entry_id) or VARIANTS[entry_id]
    if isinstance(entry, Fault) and entry.peril:
        return _judged_apart(entry, profile, seed)
    attention = role("attention")
    subject, _ = attention.prepare(declared(entry), dtypes=(), device="cpu", seed=seed)
    engine = Engine(attention, subject, replace(PROFILES[profile], shrinks=0), seed, lambda law, case: "")
    began, first_s, examples, broken = time.perf_counter(), 0.0, 0, []
    for law in choose("attention"):
        row = engine.judge(law)
        examples += 0 if broken else row.examples
        if row.outcome == "breaks":
            first_s = first_s or time.perf_counter() - began
            broken.append(row.id.removeprefix("attention/"))
    return Outcome(entry_id, seed, tuple(broken), first_s, examples)


def _judged_apart(entry: Fault, profile: str, seed: int) -> Outcome:
    """A fault that does harm to the process it runs in, under the laws named for it: each may hang."""
    began, first_s, broken = time.perf_counter(), 0.0, []
    quick = replace(PROFILES[profile], shrinks=0, limit_s=5.0)
    with Workers(Plan(declared(entry), quick, seed)) as workers:
        named = [law for law in choose("attention") if law.id.removeprefix("attention/") in entry.breaks]
        for row in workers.judge(named):
            if row.outcome == "breaks":
                first_s = first_s or time.perf_counter() - began
                broken.append(row.id.removeprefix("attention/"))
    return Outcome(entry.id, seed, tuple(broken), first_s, 0)


def main() -> int:
    arguments = _arguments()
    ids = [each for each in (*FAULTS, *VARIANTS) if arguments.only in each]
    work = [(each, seed) for seed in range(arguments.seeds) for each in ids]
    with ProcessPoolExecutor(2) as pool:
        pending = [pool.submit(judged, each, arguments.profile, seed) for each, seed in work]
        outcomes = []
        for done, future in enumerate(pending, 1):
            outcomes.append(future.result())
            if done % 25 == 0:
                print(f"{done} of {len(work)}", file=sys.stderr, flush=True)
    page = report(outcomes, arguments.profile, arguments.seeds)
    print(page)
    if arguments.markdown:
        arguments.markdown.write_text(page, encoding="utf-8")
    survived = [each for each in outcomes if each.id in FAULTS and not each.broken]
    failed = [each for each in outcomes if each.id in VARIANTS and each.broken]
    return 1 if survived or failed else 0


def report(outcomes: list[Outcome], profile: str, seeds: int) -> str:
    """The numbers, then one line for each fault."""
    faults = [each for each in outcomes if each.id in FAULTS]
    variants = [each for each in outcomes if each.id in VARIANTS]
    killed = [each for each in faults if each.broken]
    named = [each for each in killed if set(FAULTS[each.id].breaks) & set(each.broken)]
    kills = Counter(law for each in killed for law in each.broken)
    alone = Counter(each.broken[0] for each in killed if len(each.broken) == 1)
    laws = [law.id.removeprefix("attention/") for law in choose("attention")]
    lines = [
        "# Teeth",
        "",
        (
            f"{dt.datetime.now(tz=dt.UTC).date()}, torch {torch.__version__}, profile {profile}, {seeds} seed(s). "
            f"Rerun: `python benchmarks/teeth.py --profile {profile} --seeds {seeds}`."
        ),
        "",
        f"- Faults caught: {len(killed)} of {len(faults)}; by a law that a person would name: {len(named)}.",
        f"- Right variants failed: {sum(bool(each.broken) for each in variants)} of {len(variants)}.",
    ]
    if killed:
        seconds = [each.first_s for each in killed]
        examples = [each.first_examples for each in killed if each.first_examples]
        lines.append(
            f"- To the first broken law: median {statistics.median(seconds):.2f} s and "
            f"{statistics.median(examples):.0f} examples, worst {max(seconds):.1f} s, on one busy core."
        )
    lines += ["", "Survivors: " + (", ".join(each.id for each in faults if not each.broken) or "none") + "."]
    lines += [
        "Failed variants: "
        + (", ".join(f"{e.id} by {e.broken}" for e in variants if e.broken) or "none")
        + "."
    ]
    lines += [
        "Laws that catch nothing: " + (", ".join(law for law in laws if not kills[law]) or "none") + "."
    ]
    lines += ["", "| law | faults caught | caught by it alone |", "|---|---|---|"]
    lines += [f"| {law} | {kills[law]} | {alone[law]} |" for law in laws]
    lines += ["", "| fault | broken laws | first named law broken |", "|---|---|---|"]
    for each in faults:
        hit = next((law for law in FAULTS[each.id].breaks if law in each.broken), "-")
        lines.append(f"| {each.id} | {len(each.broken)} | {hit} |")
    return "\n".join(lines) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The fault corpus against the laws.")
    parser.add_argument("--profile", default="gate", choices=sorted(PROFILES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="part of the ids to judge")
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
