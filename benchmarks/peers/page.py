"""docs/peers.md: what each peer caught, and what it failed wrongly."""

import datetime as dt
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from textwrap import shorten

import torch

from benchmarks.peers import corpus
from benchmarks.peers.rules import Outcome, Peer

LONGEST = 130
"""Characters of a complaint."""


@dataclass(frozen=True)
class Run:
    """The outcomes of the peers of one role."""

    role: str
    peers: Sequence[Peer]
    outcomes: Mapping[tuple[str, str], Outcome]
    """By peer and subject."""

    def of(self, peer: Peer, names: Sequence[str]) -> list[Outcome]:
        """What the peer said of those of the names that were run."""
        return [self.outcomes[peer.name, name] for name in names if (peer.name, name) in self.outcomes]

    def failed(self, peer: Peer, names: Sequence[str]) -> list[Outcome]:
        return [each for each in self.of(peer, names) if each.failed]

    @property
    def ourselves(self) -> Peer | None:
        return next((peer for peer in self.peers if peer.name.startswith("headcheck")), None)

    @property
    def missed(self) -> list[str]:
        """The wrong functions that headcheck was asked and did not catch."""
        asked = self.of(self.ourselves, corpus.wrong(self.role)) if self.ourselves else []
        return [each.id for each in asked if not each.failed]

    def ahead(self, peer: Peer) -> list[str]:
        """Those of them that a peer catches."""
        return [each.id for each in self.failed(peer, self.missed)]


def page(runs: Sequence[Run], command: str, missing: Sequence[str]) -> str:
    """The whole page."""
    packages = ("hypothesis", "numpy", *(("onnx",) if find_spec("onnx") else ()))
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    left_out = corpus.perilous()
    lines = [
        "# Against what people use today",
        "",
        (
            f"{dt.datetime.now(tz=dt.UTC).date()}, torch {torch.__version__}, {versions}, Python "
            f"{platform.python_version()}, {platform.machine()}, one thread a process. Rerun: `{command}`."
        ),
        "",
        "The same wrong and the same right functions, each peer by its own rule, inputs and shapes, scaled to a CPU.",
        "A call that a function does not take is left out; functions made for some dtypes only are given the closest",
        "one; functions that take none of a peer's calls are counted as not asked. Seconds are of processor time, summed",
        "over all functions, what a peer computes or loads once in a process included. Left out for every peer are",
        f"the {len(left_out)} faults that would harm the process they run in: {', '.join(left_out)}.",
        *missing,
    ]
    for run in runs:
        lines += ["", *section(run)]
    lines += ["", "## The rules", "", *rules(runs)]
    return "\n".join(lines) + "\n"


def section(run: Run) -> Iterator[str]:
    """One role: the table, the families, who is ahead, and the false alarms."""
    yield f"## {run.role.capitalize()}"
    yield ""
    yield from table(run)
    yield ""
    yield from families(run)
    yield "### Caught by a peer and not by headcheck"
    yield ""
    for peer in run.peers:
        if peer is not run.ourselves:
            yield f"- {peer.title}: {', '.join(run.ahead(peer)) or 'none'}."
    yield ""
    if run.ourselves:
        yield f"Not caught by headcheck in this profile, at this seed: {', '.join(run.missed) or 'none'}."
        yield ""
    yield "### Right functions failed"
    yield ""
    for peer in run.peers:
        alarms = run.failed(peer, corpus.right(run.role))
        yield f"- {peer.title}: {len(alarms) or 'none'}."
        for each in alarms:
            yield f"  - {each.id}: {shorten(each.complaint, LONGEST, placeholder=' ...')}"


def table(run: Run) -> Iterator[str]:
    """The numbers."""
    yield "| peer | faults caught | right functions failed | not asked | seconds |"
    yield "|---|---|---|---|---|"
    for peer in run.peers:
        wrong, right = run.of(peer, corpus.wrong(run.role)), run.of(peer, corpus.right(run.role))
        seconds = sum(each.seconds for each in (*wrong, *right))
        caught = f"{sum(each.failed for each in wrong)} of {len(wrong)}"
        alarms = f"{sum(each.failed for each in right)} of {len(right)}"
        silent = sum(not each.made for each in (*wrong, *right))
        yield f"| {peer.title} | {caught} | {alarms} | {silent} | {seconds:.0f} |"


def families(run: Run) -> Iterator[str]:
    """Faults caught by family."""
    names = corpus.wrong(run.role)
    found = dict.fromkeys(name.partition("/")[0] for name in names)
    if len(found) < 2:
        return
    yield "Faults caught, by family:"
    yield ""
    yield f"| family | faults | {' | '.join(peer.name for peer in run.peers)} |"
    yield f"|---|---|{'---|' * len(run.peers)}"
    for family in found:
        members = [name for name in names if name.startswith(f"{family}/")]
        counts = [str(len(run.failed(peer, members))) for peer in run.peers]
        yield f"| {family} | {len(members)} | {' | '.join(counts)} |"
    yield ""


def rules(runs: Sequence[Run]) -> Iterator[str]:
    """Each rule in our words, with its source."""
    for peer in (peer for run in runs for peer in run.peers):
        name = f"**{peer.title}** (`{peer.name}`)"
        source = f" Source: {peer.source}." if peer.source else ""
        yield f"- {name}: {peer.rule}{source}"
