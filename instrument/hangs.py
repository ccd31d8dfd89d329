"""Examples that do not return: how long each is waited for, and how one is made small though every try is dear.

The steps of the minimiser are many, and each that hangs costs its whole time limit. Here a plain case is tried,
and then the sizes alone, each down to where calls come back.
"""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Generic

from headcheck.minimise import Found

DEAR = 10
"""So many smaller cases may hang on the way to the smallest."""


class Hangs(Generic[Found]):
    """What an engine knows of the examples of one subject that did not return."""

    def __init__(self) -> None:
        self.seen = False
        self.longest_s = 0.0
        """Of the examples that came back."""
        self._sizes: dict[str, int] = {}
        """Of the smallest case that hung, whichever law it belonged to."""
        self._told = ""

    @property
    def met(self) -> bool:
        """Whether a case that hangs was made small already."""
        return bool(self._sizes)

    def limit_s(self, limit_s: float, after_a_hang_s: float) -> float:
        """Seconds for the next example. After a hang, as long as the longest that came back leads to expect."""
        if not self.seen:
            return limit_s
        likely_s = (
            max(after_a_hang_s / 4, math.ceil(4 * self.longest_s) / 2) if self.longest_s else after_a_hang_s
        )
        return min(limit_s, likely_s)

    def came_back(self, seconds: float) -> None:
        """An example took so long."""
        self.longest_s = max(self.longest_s, seconds)

    def smallest(
        self, found: Found, prepared: Callable[[Any], Any], try_case: Callable[[Any], Found | None]
    ) -> tuple[Found, str]:
        """A smaller case that hangs too, and what was seen beside it, in words.

        prepared: the nearest case of which the law speaks. try_case: what hung, or None. Of a later law one case
        is tried: that to which the first came down.
        """
        if not self._sizes:
            search = _Search(found, prepared, try_case)
            smallest = search.run()
            self._sizes = sizes_of(smallest.case)
            self._told = f"; with {' or '.join(search.returned)} it does" if search.returned else ""
            return smallest, self._told
        known = prepared(type(found.case)().but(**self._sizes))
        hung = try_case(known) if known != found.case else found
        return (found, "") if hung is None else (hung, self._told)


def sizes_of(case: Any) -> dict[str, int]:
    """The fields of a case that count something."""
    values = {each.name: getattr(case, each.name) for each in fields(case) if each.name != "seed"}
    return {name: value for name, value in values.items() if type(value) is int}


class _Search(Generic[Found]):
    """One case on its way down."""

    def __init__(
        self, found: Found, prepared: Callable[[Any], Any], try_case: Callable[[Any], Found | None]
    ) -> None:
        self.found = found
        self.prepared = prepared
        self.try_case = try_case
        self.hung = 0
        self.returned: list[str] = []
        """Sizes with which the smallest case comes back."""

    def run(self) -> Found:
        case = self.found.case
        sizes = sizes_of(case)
        self.found = self._tried(self.prepared(type(case)().but(**sizes))) or self.found
        for name in sizes:
            self._down(name)
        return self.found

    def _down(self, name: str) -> None:
        """Halve the way between the largest size that comes back and the smallest that does not."""
        returns = 0
        while self.hung < DEAR and (size := self._size(name)) > returns + 1:
            smaller = self._with(name, (returns + size) // 2 if returns else 1)
            if not returns < getattr(smaller, name) < size:
                return  # The law does not speak of that size.
            hung = self._tried(smaller)
            if hung is None:
                returns = getattr(smaller, name)
            self.found = hung or self.found
        if returns:
            larger = self._with(name, self._size(name) + 1)
            beside = self._size(name) < getattr(larger, name) and self._tried(larger) is None
            self.returned += [f"{name}={returns}", *([f"{name}={getattr(larger, name)}"] if beside else [])]

    def _with(self, name: str, size: int) -> Any:
        return self.prepared(self.found.case.but(**{name: size}))

    def _size(self, name: str) -> int:
        return int(getattr(self.found.case, name))

    def _tried(self, case: Any) -> Found | None:
        hung = None if case == self.found.case else self.try_case(case)
        self.hung += hung is not None
        return hung
