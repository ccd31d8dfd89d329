"""A case that does not return is made small by its sizes, in few tries that hang."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headcheck import time_limits
from headcheck.forks import can_fork, fate_of
from headcheck.hangs import DEAR, Hangs, sizes_of
from headcheck.time_limits import OutOfTime, Stopwatch, time_limit


@dataclass(frozen=True)
class Sizes:
    """Like a case."""

    keys: int = 3
    rows: int = 3
    seed: int = 0
    mask: str = "none"
    causal: bool = False

    def but(self, **changes: Any) -> "Sizes":
        return replace(self, **changes)


@dataclass
class Seen:
    case: Sizes


FOUND = Seen(Sizes(keys=129, rows=40, seed=7, mask="random", causal=True))


def tried(hangs: Callable[[Sizes], bool]) -> tuple[Callable[[Sizes], Seen | None], list[Sizes]]:
    dear: list[Sizes] = []

    def try_case(case: Sizes) -> Seen | None:
        if hangs(case):
            dear.append(case)
            return Seen(case)
        return None

    return try_case, dear


def as_it_is(case: Sizes) -> Sizes:
    return case


@pytest.mark.parametrize(
    ("hangs", "smallest", "told"),
    [
        (lambda case: case.keys > 64, Sizes(keys=65, rows=1), "; with keys=64 it does"),
        (lambda case: case.keys == 129, Sizes(keys=129, rows=1), "; with keys=128 or keys=130 it does"),
        (lambda case: True, Sizes(keys=1, rows=1), ""),
        (lambda case: case.keys > 1, Sizes(keys=2, rows=1), "; with keys=1 it does"),
    ],
)
def test_it_comes_down_to_the_edge(hangs: Callable[[Sizes], bool], smallest: Sizes, told: str) -> None:
    """What is beside the edge and returns is said; conditions that do not matter are gone."""
    try_case, dear = tried(hangs)
    found, said = Hangs[Seen]().smallest(FOUND, as_it_is, try_case)
    assert (found.case, said) == (smallest, told)
    assert len(dear) <= DEAR + 1


def test_a_condition_that_matters_stays() -> None:
    """Then the sizes are those of the case as it was found."""
    try_case, _ = tried(lambda case: case.causal and case.rows > 2)
    found, said = Hangs[Seen]().smallest(FOUND, as_it_is, try_case)
    assert found.case == FOUND.case.but(keys=1, rows=3)
    assert said == "; with rows=2 it does"


def test_what_the_law_does_not_speak_of_is_not_tried() -> None:
    """Of fewer than two keys, say."""
    try_case, _ = tried(lambda case: True)
    found, said = Hangs[Seen]().smallest(FOUND, lambda case: case.but(keys=max(2, case.keys)), try_case)
    assert found.case == Sizes(keys=2, rows=1)
    assert said == ""


def test_a_later_law_tries_one_case() -> None:
    """The one to which the first came down; where that returns, its own stays."""
    hangs = Hangs[Seen]()
    try_case, _ = tried(lambda case: case.keys > 64)
    hangs.smallest(FOUND, as_it_is, try_case)
    later = Seen(Sizes(keys=100, rows=9))
    try_case, dear = tried(lambda case: case.keys > 64)
    assert hangs.smallest(later, as_it_is, try_case) == (
        Seen(Sizes(keys=65, rows=1)),
        "; with keys=64 it does",
    )
    assert len(dear) == 1
    assert hangs.smallest(later, as_it_is, lambda case: None) == (later, "")


def test_after_a_hang_little_is_waited_for() -> None:
    """Twice as long as the longest that came back, within limits."""
    hangs = Hangs[Seen]()
    hangs.came_back(0.01)
    assert hangs.limit_s(30.0, 2.0) == 30.0
    hangs.seen = True
    assert hangs.limit_s(30.0, 2.0) == 0.5
    hangs.came_back(3.1)
    assert hangs.limit_s(30.0, 2.0) == 6.5
    assert hangs.limit_s(5.0, 2.0) == 5.0


def test_sizes_are_what_is_counted() -> None:
    """No flags, no words, no seed."""
    assert sizes_of(FOUND.case) == {"keys": 129, "rows": 40}


def half_waited(pid: int | None) -> float:
    """As if every other second were spent waiting for a core."""
    return time.monotonic() / 2


@pytest.mark.skipif(sys.platform == "win32", reason="there is no alarm")
def test_a_call_that_no_core_takes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with too much to do a right function takes long by the clock; one that sleeps does not."""
    began = time.monotonic()
    with pytest.raises(OutOfTime), time_limit(0.3):
        time.sleep(9)
    slept = time.monotonic() - began
    monkeypatch.setattr(time_limits, "_waited_s", half_waited)
    began = time.monotonic()
    with pytest.raises(OutOfTime), time_limit(0.3):
        time.sleep(9)
    assert slept >= 0.3
    assert 0.55 <= time.monotonic() - began < 9
    if can_fork():
        began = time.monotonic()
        assert fate_of(lambda: time.sleep(9) is None, 0.3) == "hung"
        assert time.monotonic() - began >= 0.55


def test_where_nobody_tells_of_waiting_all_seconds_count() -> None:
    """As of a process that has ended, and elsewhere than on Linux."""
    watch = Stopwatch(pid=2**22 + 1)
    time.sleep(0.05)
    assert 0.05 <= watch.seconds < 5
