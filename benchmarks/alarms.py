"""The hunt for false alarms: a corpus of everything that is right, on which no law may break.

    headcheck teeth --corpus benchmarks/alarms.py --profile gate --seeds 0:3 --results alarms.jsonl

It holds the built-in subjects that can be had here, the right variants of tests/faults and the right functions of
tests/roles.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from headcheck.agreement.families import TORCH
from headcheck.subjects import builtins
from tests import corpus

COMPILED = {member.subject for member in TORCH if member.slow}
"""Built-in subjects that compile for seconds at each new kind of call: `headcheck agree torch --profile gate`."""


@dataclass(frozen=True)
class Library:
    """A built-in subject as an entry of a corpus."""

    id: str
    role: str
    sentence: str
    declaration: Callable[[], Any]
    breaks: tuple[str, ...] = ()


def libraries() -> Iterator[Library]:
    """The built-in subjects that can be judged on this machine."""
    for name, each in builtins().items():
        if not each.missing and name not in COMPILED and "cpu" in each.declaration().devices:
            yield Library(f"built-in/{name}", each.declaration().role, each.sentence, each.declaration)


WRONG: dict[str, Any] = {}
RIGHT = {**{each.id: each for each in libraries()}, **corpus.RIGHT}
