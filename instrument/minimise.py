"""From a case that breaks a law to the smallest one that still does.

Both kinds of cases, seeded and drawn, end here. The steps are those of the case, not of the way in which it
was drawn: fewer heads, no mask, rounder numbers. That is why Hypothesis' own shrinker, which works on the
choices of a draw, is not used: a seeded case has none.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar


class HasCase(Protocol):
    """Something that carries the case it came from."""

    case: Any


Found = TypeVar("Found", bound=HasCase)


def minimise(
    found: Found,
    simpler: Callable[[Any], Iterator[Any]],
    try_case: Callable[[Any], Found | None],
    tries: int,
    seconds: float = math.inf,
) -> Found:
    """Take the first simpler case that still breaks, again and again, until none does or tries or time are spent.

    simpler: cases simpler than the given one, the boldest first; it must never lead back.
    """
    tried: set[str] = set()
    until = time.monotonic() + seconds
    moved = True
    while moved:
        moved = False
        for candidate in simpler(found.case):
            text = str(candidate)
            if text in tried:
                continue
            tried.add(text)
            if len(tried) > tries or time.monotonic() > until:
                return found
            better = try_case(candidate)
            if better is not None:
                found, moved = better, True
                break
    return found
