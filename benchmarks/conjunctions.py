"""Which conditions of an attention call meet in the cases of one gate: faults come in conjunctions.

    python benchmarks/conjunctions.py [SUBJECT] [--profile gate] [--page docs/conjunctions.md]

A condition is one thing that is true of a case: more than 512 keys, a boolean mask, groups of eight heads. Of
every two, and every three, that speak of different things, the cases are counted in which they meet.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import combinations
from math import comb
from pathlib import Path

from headcheck.attention.case import Case
from headcheck.attention.role import role
from headcheck.engine import PROFILES, Engine
from headcheck.laws import choose
from headcheck.subjects import builtins

Holds = Callable[[Case], bool]


def above(axis: str, *sizes: int) -> dict[str, Holds]:
    """One condition for each size: the axis is longer."""
    return {f"{axis} > {size}": lambda case, size=size: getattr(case, axis) > size for size in sizes}


CONDITIONS: dict[str, dict[str, Holds]] = {
    "dtype": {
        name: lambda case, name=name: case.dtype == name
        for name in ("float16", "bfloat16", "float32", "float64")
    },
    "queries": {
        "q_len = 1": lambda case: case.q_len == 1,
        **above("q_len", 1, 8, 64, 128, 256, 512),
        "q_len a multiple of 64": lambda case: case.q_len % 64 == 0,
    },
    "keys": {
        **above("kv_len", 1, 8, 64, 128, 256, 512, 1024, 2048),
        "kv_len a multiple of 64": lambda case: case.kv_len % 64 == 0,
    },
    "lengths": {
        "q_len = kv_len": lambda case: case.q_len == case.kv_len,
        "q_len < kv_len": lambda case: case.q_len < case.kv_len,
        "q_len > kv_len": lambda case: case.q_len > case.kv_len,
    },
    "batch": above("batch", 1, 4, 8, 16),
    "heads": above("heads", 1, 4, 8, 16, 32),
    "groups": {
        **{
            f"groups of {size} or more": lambda case, size=size: case.heads >= size * case.kv_heads
            for size in (2, 4, 8)
        },
        "one key head for several": lambda case: case.heads > case.kv_heads == 1,
    },
    "head_dim": {
        **above("head_dim", 1, 16, 32, 64, 128, 256),
        "head_dim = 64": lambda case: case.head_dim == 64,
        "head_dim no multiple of 8": lambda case: case.head_dim % 8 != 0,
    },
    "value_dim": {
        **above("value_dim", 32, 64, 128),
        "value_dim other than head_dim": lambda case: case.value_dim != case.head_dim,
    },
    "mask": {
        "no mask": lambda case: case.mask == "none",
        "boolean mask": lambda case: case.mask != "none" and case.mask_form == "boolean",
        "bias": lambda case: case.mask != "none" and case.mask_form != "boolean",
        "mask that is broadcast": lambda case: case.mask != "none" and case.mask_axes != "bhqk",
    },
    "causal": {"causal": lambda case: case.is_causal},
    "scale": {"scale given": lambda case: case.scale is not None},
    "strides": {"not contiguous": lambda case: case.strides != "contiguous"},
}


def cases(name: str, profile: str) -> Iterator[Case]:
    """The seeded cases of every law that applies, at seed 0."""
    subject, _ = role.prepare(builtins()[name].declaration(), dtypes=(), device="cpu", seed=0)
    engine = Engine(role, subject, PROFILES[profile], 0, lambda law, case: "")
    for law in choose("attention"):
        if not any(map(subject.lacks, law.needs)):
            yield from engine.seeded(law)


def met(found: list[Case], together: int) -> tuple[Counter[int], list[tuple[str, ...]]]:
    """How many conjunctions of so many conditions occur in no case, in 1 to 9, in more; and those in none."""
    counts: Counter[tuple[str, ...]] = Counter()
    for case in found:
        true = [name for group in CONDITIONS.values() for name, holds in group.items() if holds(case)]
        counts.update(combinations(true, together))
    names: list[tuple[str, ...]] = []
    for groups in combinations(CONDITIONS.values(), together):
        names += _each_with_each(list(groups))
    missing = [each for each in names if not counts[each]]
    seen = Counter(min(2, (counts[each] + 9) // 10 + (counts[each] > 9)) for each in names)
    return seen, missing


def _each_with_each(groups: list[dict[str, Holds]]) -> list[tuple[str, ...]]:
    if not groups:
        return [()]
    return [(name, *rest) for name in groups[0] for rest in _each_with_each(groups[1:])]


def page(name: str, profile: str) -> str:
    """The counts as a page."""
    found = list(cases(name, profile))
    total = sum(map(len, CONDITIONS.values()))
    lines = [
        "# Which conditions meet",
        "",
        f"{datetime.now(UTC).date()}. The {len(found):,} seeded cases of the profile {profile} on {name}, seed 0;",
        f"{total} conditions of {len(CONDITIONS)} kinds, by `python benchmarks/conjunctions.py`. Some of those that",
        "never meet cannot: this subject refuses a mask beside is_causal, and one query is never more than the keys.",
        "",
        "| | conjunctions | in no case | in 1 to 9 | in 10 or more |",
        "|---|---|---|---|---|",
    ]
    missing: list[tuple[str, ...]] = []
    for together in (1, 2, 3):
        seen, never = met(found, together)
        missing += never if together == 2 else []
        row = (sum(seen.values()), seen[0], seen[1], seen[2])
        lines.append(f"| of {together} | " + " | ".join(f"{count:,}" for count in row) + " |")
    assert comb(total, 2) >= len(missing)
    lines += ["", f"The {len(missing)} pairs that never meet:", ""]
    return "\n".join([*lines, *(f"- {one}, {other}" for one, other in missing), ""])


def main() -> int:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subject", nargs="?", default="torch-sdpa-math")
    parser.add_argument("--profile", choices=tuple(PROFILES), default="gate")
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    text = page(asked.subject, asked.profile)
    if asked.page:
        asked.page.write_text(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
