"""headcheck in the same run: the quick profile, every dtype that the subject works in, until a law breaks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from benchmarks.peers.rules import Peer, Trial
from headcheck.engine import PROFILES, Engine
from headcheck.laws import choose
from headcheck.roles import role

QUICK = replace(PROFILES["quick"], shrinks=0)


def holds(name: str) -> Callable[[Any], None]:
    """No law of the role is broken."""

    def trial(subject: Any) -> None:
        of_role = role(name)
        prepared, _ = of_role.prepare(subject.declaration, dtypes=(), device="cpu", seed=0)
        engine = Engine(of_role, prepared, QUICK, 0, lambda law, case: "")
        for row in engine.rows(choose(name)):
            assert row.outcome != "breaks", row.id

    return trial


def peer(name: Literal["attention", "rotary"]) -> Peer:
    def trials() -> list[Trial]:
        return [holds(name)]

    return Peer(
        name="headcheck" if name == "attention" else f"headcheck-{name}",
        title="headcheck, quick profile",
        rule="All laws of the role, seed 0, a first look at each, then in full, until one breaks; nothing is made small.",
        source="",
        trials=trials,
        role=name,
    )


PEER, ROTARY = peer("attention"), peer("rotary")
