"""A search for false alarms that climbs: from the cases of a right function that come nearest to a bound, nearer.

    python -m benchmarks.climb [--role ROLE] [--only PART] [--seed N] [--results FILE]

A law draws a few cases. Those with the largest error over bound are changed, a field or two at a time, into what
other draws have there, and what comes nearer stays; laws that stay far from their bound are left early. So cases that
random draws meet once in a million are met in hundreds, where the bound can be met at all. Each alarm is printed with
its case; `headcheck replay` shows it.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch

from headcheck.engine import PROFILES, Engine
from headcheck.errors import HeadcheckError
from headcheck.laws import Law, choose
from headcheck.recipes import Recipe
from headcheck.roles import role
from headcheck.teeth.corpus import Entry
from tests.corpus import RIGHT

DRAWN, STEPS = 10, 60
"""Cases that a law begins with, and changes of the nearest."""
KEPT = 3
"""So many of the nearest are changed."""
FAR, STILL_FAR, EARLY = 0.25, 0.5, 25
"""A law is left where its first cases stay below FAR of the bound, or below STILL_FAR after EARLY changes."""
DEAREST = 2_000_000
"""A changed case has no larger product of its sizes than this, or than those that were drawn."""


@dataclass(frozen=True)
class Nearest:
    """How near a law came to its bound, and where."""

    law: str
    ratio: float
    """The largest error over its bound; infinite for a break that is no number."""
    case: str


@dataclass(frozen=True)
class Climbed:
    """What the laws of a role showed of one right function: the nearest first."""

    id: str
    seed: int
    examples: int
    nearest: tuple[Nearest, ...]


class Climb:
    """One right function."""

    def __init__(self, entry: Entry, seed: int) -> None:
        self.entry, self.seed, self.role = entry, seed, role(entry.role)
        self.subject, _ = self.role.prepare(entry.declaration(), dtypes=(), device="cpu", seed=seed)
        self.engine = Engine(self.role, self.subject, PROFILES["quick"], seed, lambda law, case: "")
        self.examples = 0

    def all_laws(self) -> Iterator[Nearest]:
        """Each law that comes near its bound."""
        for law in choose(self.entry.role):
            if not any(self.subject.lacks(feature) for feature in law.needs):
                ratio, case = self.nearest(law)
                if ratio >= FAR:
                    yield Nearest(law.id, ratio, str(case))

    def nearest(self, law: Law) -> tuple[float, Recipe]:
        """The largest error over bound that is found, and its case."""
        random = Random(f"{self.seed}/{self.entry.id}/{law.id}")
        drawn = [self.role.fit(law.repaired(self.draw(random)), self.subject) for _ in range(DRAWN)]
        most = max(DEAREST, *map(cost, drawn))
        best = sorted(((self.ratio(law, case), n, case) for n, case in enumerate(drawn)), reverse=True)[:KEPT]
        for step in range(STEPS):
            if best[0][0] > 1 or best[0][0] < (FAR if step < EARLY else STILL_FAR):
                break
            changed = changed_into(random, random.choice(best)[2], self.draw(random))
            case = self.role.fit(law.repaired(changed), self.subject)
            if cost(case) <= most:
                best = sorted([*best, (self.ratio(law, case), DRAWN + step, case)], reverse=True)[:KEPT]
        return best[0][0], best[0][2]

    def draw(self, random: Random) -> Recipe:
        case: Recipe = self.role.draw(random, self.subject)
        return case

    def ratio(self, law: Law, case: Recipe) -> float:
        """The largest error over bound of one example."""
        self.examples += 1
        judged = self.engine.example(law, case)
        if judged.error:
            return math.inf
        return judged.comparison.ratio if judged.comparison is not None else 0.0


def changed_into(random: Random, case: Recipe, other: Recipe) -> Recipe:
    """The case with up to three fields of another one; with another seed half of the time, and where nothing differs."""
    differ = [each.name for each in fields(case) if each.name not in ("seed", "numbers")]
    differ = [name for name in differ if getattr(case, name) != getattr(other, name)]
    names = random.sample(differ, min(len(differ), random.choice((0, 1, 1, 2, 3))))
    changes: dict[str, Any] = {name: getattr(other, name) for name in names}
    if not changes or random.random() < 0.5:
        changes["seed"] = random.randrange(1_000_000)
    return case.but(**changes)


def cost(case: Recipe) -> int:
    """The product of all sizes."""
    return math.prod(max(1, getattr(case, size)) for size in case.sizes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--role", help="only right functions of this role")
    parser.add_argument("--only", default="", metavar="PART", help="only those whose id holds PART")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep what is found, and go on from it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = options.results.read_text().splitlines() if options.results and options.results.exists() else []
    done = {each["id"] for each in map(json.loads, kept) if each["seed"] == options.seed}
    examples = sum(each["examples"] for each in map(json.loads, kept))
    alarms = 0
    for entry in RIGHT.values():
        if entry.id in done or options.only not in entry.id or options.role not in (None, entry.role):
            continue
        try:
            climb = Climb(entry, options.seed)
        except HeadcheckError as problem:
            print(f"{entry.id}: {problem}", flush=True)
            continue
        found = sorted(climb.all_laws(), key=lambda each: -each.ratio)
        climbed = Climbed(entry.id, options.seed, climb.examples, tuple(islice(found, KEPT)))
        examples += climbed.examples
        for each in found:
            if each.ratio > 1:
                alarms += 1
                print(f"ALARM {entry.id} {each.law} {each.ratio:.3g} {each.case}", flush=True)
        if options.results:
            with options.results.open("a") as file:
                file.write(json.dumps(asdict(climbed)) + "\n")
        print(
            f"{entry.id}: {climbed.examples} examples, nearest {found[0].ratio if found else 0:.2f}",
            flush=True,
        )
    print(f"{examples:,} examples, {alarms} alarms")


if __name__ == "__main__":
    main()
