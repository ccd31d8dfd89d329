"""Code blocks, read out of the documents where these are at hand, and run as printed.

Where a document lost its indentation, each line gets back the level that the ledger gives for it, four blanks
to a level; nothing else is changed.
"""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from headcheck.errors import HeadcheckError
from headcheck.golden.ledger import DOCUMENTS, Block, Probe, Run, ledger

NOT_AT_HAND = "the documents are not at hand; --documents DIR says where they are"
LIMIT_S = 1800
INDENT = "    "


@dataclass(frozen=True)
class Library:
    """A folder that holds the documents as text files whose names begin with their numbers."""

    folder: Path

    def lines(self, document: str) -> list[str]:
        """The lines of a document; an error where it is another text than the ledger was written for."""
        found = sorted(self.folder.glob(f"{document}*.txt")) + sorted(self.folder.glob(f"{document}*.md"))
        if not found:
            raise HeadcheckError(
                f"{self.folder} holds no {document}*.txt and no {document}*.md: name their folder with --documents DIR"
            )
        data = found[0].read_bytes()
        if hashlib.sha256(data).hexdigest() != DOCUMENTS[document].sha256:
            raise HeadcheckError(
                f"{found[0].name} is another text than the ledger was written for: its SHA-256 is not "
                f"{DOCUMENTS[document].sha256}"
            )
        return data.decode("utf-8").split("\n")

    def source(self, block: Block) -> str:
        """The text of a block, its indentation restored."""
        lines = self.lines(block.document)[block.first - 1 : block.last]
        if not block.levels:
            return "\n".join(lines) + "\n"
        levels = iter(block.levels.replace(" ", ""))
        return "".join(f"{INDENT * int(next(levels))}{line}\n" if line.strip() else "\n" for line in lines)


@dataclass(frozen=True)
class Outcome:
    """What running one source came to."""

    error: str
    warnings: tuple[str, ...]
    printed: tuple[str, ...]


def run_jobs(jobs: list[list[str]]) -> list[list[Outcome]]:
    """Each job's sources in one namespace, in a process of its own."""
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "headcheck.golden.runner"],
            input=json.dumps(jobs),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=LIMIT_S,
            check=False,
            env=os.environ | {"MPLBACKEND": "Agg"},
        )
    except subprocess.TimeoutExpired as late:
        raise HeadcheckError(f"the blocks of the documents were not done in {LIMIT_S} s") from late
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"]
        raise HeadcheckError(f"the blocks could not be run: {said[-1]}")
    return [[_outcome(each) for each in job] for job in json.loads(ran.stdout)]


def _outcome(found: dict[str, Any]) -> Outcome:
    return Outcome(found["error"], tuple(found["warnings"]), tuple(found["printed"]))


@dataclass(frozen=True)
class Ran:
    """A document's blocks alone and in order, and its probes, by id."""

    alone: dict[str, Outcome]
    in_order: dict[str, Outcome]
    probes: dict[str, Outcome]


@cache
def ran(folder: Path, document: str) -> Ran:
    """Run everything that the ledger holds of a document's code."""
    library = Library(folder)
    blocks = [block for block in ledger().blocks.values() if block.document == document]
    probes = [probe for probe in ledger().probes.values() if probe.document == document]
    sources = {block.id: library.source(block) for block in blocks}
    jobs = [list(sources.values()), *([source] for source in sources.values())]
    jobs += [
        [probe.setting, *(sources[each.id] for each in ledger().blocks_named(probe)), probe.probe]
        for probe in probes
    ]
    in_order, *rest = run_jobs(jobs)
    alone, probed = rest[: len(blocks)], rest[len(blocks) :]
    return Ran(
        {block.id: outcome[0] for block, outcome in zip(blocks, alone, strict=True)},
        {block.id: outcome for block, outcome in zip(blocks, in_order, strict=True)},
        {probe.id: outcome[-1] for probe, outcome in zip(probes, probed, strict=True)},
    )


# What was found against what the ledger says


def not_applicable(entry: Block | Probe, folder: Path | None) -> str:
    """Why a block or a probe cannot be run here; empty where it can."""
    if folder is None:
        return NOT_AT_HAND
    if not hasattr(os, "fork"):
        return "blocks are run in copies of a process, which this system does not have"
    blocks = [entry] if isinstance(entry, Block) else ledger().blocks_named(entry)
    missing = [name for block in blocks for name in block.needs if find_spec(name) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


def block_problems(block: Block, folder: Path) -> list[str]:
    """Where a block does otherwise than the ledger says."""
    found = ran(folder, block.document)
    return [
        f"{manner}: {problem}"
        for manner, said, outcome in (
            ("alone", block.alone, found.alone[block.id]),
            ("in order", block.in_order, found.in_order[block.id]),
        )
        for problem in _differences(said, outcome)
    ]


def _differences(said: Run, outcome: Outcome) -> list[str]:
    problems = []
    if outcome.error != said.error:
        problems.append(f"expected {said.error or 'no error'}, found {outcome.error or 'none'}")
    if outcome.warnings != said.warnings:
        problems.append(f"expected the warnings {said.warnings}, found {outcome.warnings}")
    places = [outcome.printed.index(line) if line in outcome.printed else -1 for line in said.prints]
    problems += [f"does not print {line!r}" for line, at in zip(said.prints, places, strict=True) if at < 0]
    if not problems and any(a > b for a, b in pairwise(places)):
        problems.append(f"prints {said.prints} in another order")
    return problems


def probe_problems(probe: Probe, folder: Path) -> list[str]:
    """Where a probe finds otherwise than the ledger says."""
    outcome = ran(folder, probe.document).probes[probe.id]
    printed = "\n".join(outcome.printed)
    if outcome.error or printed != probe.prints:
        return [f"expected {probe.prints!r}, found {outcome.error or printed!r}"]
    return []


def place_problem(document: str, line: int, place: str, folder: Path) -> str:
    """Where the few words of a place do not stand in the line that is named."""
    text = Library(folder).lines(document)[line - 1]
    return "" if place in text else f"line {line} does not hold {place!r}"
