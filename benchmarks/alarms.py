"""The hunt for false alarms: every law of a role on everything that is right, over several seeds.

    python benchmarks/alarms.py [--profile gate] [--seeds 0:3] [--role ROLE] [--only PART]

What is right: the built-in subjects, the right variants of tests/faults and the right functions of tests/roles.
Any broken law is printed, and the exit code is 1.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from headcheck.agreement.families import TORCH
from headcheck.engine import PROFILES, Engine
from headcheck.laws import choose
from headcheck.roles import role
from headcheck.subjects import builtins
from tests.faults import VARIANTS
from tests.roles import RIGHT

COMPILED = {member.subject for member in TORCH if member.slow}
"""Built-in subjects that compile for seconds at each new kind of call: `headcheck agree torch --profile gate`."""


def subjects() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and declaration of all that is right and can be had here."""
    for name, builtin in builtins().items():
        if not builtin.missing and name not in COMPILED and "cpu" in builtin.declaration().devices:
            yield f"built-in {name}", builtin.declaration
    for name, variant in VARIANTS.items():
        yield f"attention {name}", lambda variant=variant: variant.declaration()
    for name, entry in RIGHT.items():
        yield name, entry.declaration


def judged(name: str, profile: str, seed: int) -> tuple[str, int, list[str]]:
    """The role, the number of examples, and what was broken."""
    torch.set_num_threads(1)
    declaration = dict(subjects())[name]()
    of_role = role(declaration.role)
    subject, _ = of_role.prepare(declaration, dtypes=(), device="cpu", seed=seed)
    asked = replace(PROFILES[profile], limit_s=600.0)
    engine = Engine(of_role, subject, asked, seed, lambda law, case: f"{law.id} '{case}'")
    rows = [engine.judge(law) for law in choose(declaration.role)]
    broken = [
        f"{name}, seed {seed}: {row.reason}; {row.counterexample.replay if row.counterexample else row.id}"
        for row in rows
        if row.outcome == "breaks"
    ]
    return declaration.role, sum(row.examples for row in rows), broken


def main() -> int:
    arguments = _arguments()
    first, last = map(int, arguments.seeds.split(":"))
    names = [name for name, make in subjects() if arguments.only in name]
    names = [name for name in names if arguments.role in ("", dict(subjects())[name]().role)]
    examples: Counter[str] = Counter()
    alarms = []
    with ProcessPoolExecutor(2) as pool:
        pending = [
            pool.submit(judged, name, arguments.profile, s) for s in range(first, last) for name in names
        ]
        for done, future in enumerate(pending, 1):
            of_role, count, broken = future.result()
            examples[of_role] += count
            alarms += broken
            for each in broken:
                print(each, flush=True)
            if done % 25 == 0:
                print(f"{done} of {len(pending)}", file=sys.stderr, flush=True)
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(examples.items()))
    print(f"{len(names)} subjects, seeds {arguments.seeds}, profile {arguments.profile}: {counts}")
    print(f"{sum(examples.values()):,} examples, {len(alarms)} alarms")
    return 1 if alarms else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The hunt for false alarms.")
    parser.add_argument("--profile", default="gate", choices=sorted(PROFILES))
    parser.add_argument("--seeds", default="0:1", help="first:last, the last left out")
    parser.add_argument("--role", default="", help="only subjects of this role")
    parser.add_argument("--only", default="", help="part of the names to judge")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
