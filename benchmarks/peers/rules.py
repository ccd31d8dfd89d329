"""What a peer is: a rule, as a list of trials that pass or raise."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.peers.subjects import NotTaken

Trial = Callable[[Any], None]
"""Called with a subject: raises NotTaken where it does not take the call, anything else where it fails."""


@dataclass(frozen=True)
class Peer:
    """One way to test an attention function."""

    name: str
    """How the command line calls it."""
    title: str
    """How the page calls it."""
    rule: str
    """What it does, in our words."""
    source: str
    """Where the rule is from."""
    trials: Callable[[], Sequence[Trial]]
    role: Literal["attention", "rotary"] = "attention"
    needs: str = ""
    """A package that it cannot do without."""


@dataclass(frozen=True)
class Outcome:
    """What a peer said of one subject."""

    peer: str
    id: str
    complaint: str
    """Empty where everything passed."""
    made: int
    """Trials made."""
    seconds: float
    """Of processor time: others may be at work on the machine."""

    @property
    def failed(self) -> bool:
        return bool(self.complaint)


def judged(peer: Peer, subject: Any) -> Outcome:
    """The trials until the first that fails."""
    began, made, complaint = time.process_time(), 0, ""
    for trial in peer.trials():
        try:
            trial(subject)
        except NotTaken:
            continue
        except Exception as problem:  # noqa: BLE001 - a wrong function may raise anything
            complaint = said(problem)
        made += 1
        if complaint:
            break
    return Outcome(peer.name, subject.entry.id, complaint, made, time.process_time() - began)


def said(problem: Exception) -> str:
    """An exception in one line."""
    text = " ".join(str(problem).split()).replace("|", "/")
    kind = "" if isinstance(problem, AssertionError) else f"{type(problem).__name__}: "
    return kind + text or type(problem).__name__
