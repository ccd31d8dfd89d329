"""Many trials, spread over processes; what was found is kept in a file, so that a long campaign can go on later."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from headcheck.engine import PROFILES
from headcheck.errors import HeadcheckError
from headcheck.forks import end_with
from headcheck.results import append_result, no_results, read_results
from headcheck.teeth.corpus import load
from headcheck.teeth.trial import Outcome, Way, tried

Key = tuple[str, str, int, Way, str]


@dataclass(frozen=True)
class Campaign:
    """Which entries are judged, how, and how often."""

    corpus: Path
    names: Sequence[str]
    profile: str
    seeds: Sequence[int]
    way: Way = Way.FIRST
    """Of the faults: a right variant has to stand up to all laws."""
    processes: int = 1
    results: Path | None = None
    """Outcomes that are there already are not judged again; new ones are added."""
    told: Callable[[Outcome], None] = field(default=lambda outcome: None)
    device: str = "cpu"

    def run(self) -> list[Outcome]:
        """Every outcome of this campaign; Ctrl-C loses none that was found."""
        known = {key(each): each for each in read(self.results)} if self.results else {}
        wanted = [self._key(name, seed) for seed in self.seeds for name in self.names]
        for outcome in self._judged([each for each in wanted if each not in known]):
            known[key(outcome)] = outcome
            append_result(self.results, asdict(outcome))
            self.told(outcome)
        return [known[each] for each in wanted]

    def _key(self, name: str, seed: int) -> Key:
        corpus = load(self.corpus)
        if name in corpus.right:
            return name, self.profile, seed, Way.ALL, self.device
        way = Way.FIRST if getattr(corpus.entry(name), "peril", None) else self.way
        return name, self.profile, seed, way, self.device

    def _judged(self, keys: Sequence[Key]) -> Iterator[Outcome]:
        begin = partial(_begin, os.getpid())
        # A copy of a process cannot use a GPU, and a fault may leave it unusable for its own: each has a fresh one.
        where: dict[str, Any] = (
            {"mp_context": get_context("fork")}
            if self.device == "cpu"
            else {"mp_context": get_context("spawn"), "max_tasks_per_child": 1}
        )
        with ProcessPoolExecutor(self.processes, initializer=begin, **where) as pool:
            pending = {pool.submit(_try_one, self.corpus, each): each[0] for each in keys}
            refused: dict[str, HeadcheckError] = {}
            try:
                for done in as_completed(pending):
                    try:
                        yield done.result()
                    except HeadcheckError as problem:
                        refused[pending[done]] = problem
                if refused:
                    first, asked = min(refused), {*pending.values()}
                    raise HeadcheckError(
                        f"{len(refused)} of {len(asked)} entries cannot be judged; {first}: {refused[first]}"
                    )
            except BrokenProcessPool as problem:
                raise HeadcheckError(
                    "a process of the campaign was killed, as where memory runs out; "
                    "the same line with --results goes on from what was found"
                ) from problem
            except KeyboardInterrupt:  # What a process is in the middle of may take minutes.
                for process in active_children():
                    process.kill()
                raise
            finally:
                pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """A process of a campaign ends with it, and leaves Ctrl-C to it: a subject would be blamed for that."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _try_one(corpus: Path, wanted: Key) -> Outcome:
    name, profile, seed, way, device = wanted
    torch.set_num_threads(1)
    return tried(load(corpus).entry(name), PROFILES[profile], seed, way, device)


def key(outcome: Outcome) -> Key:
    """What an outcome is the outcome of."""
    return outcome.id, outcome.profile, outcome.seed, outcome.way, outcome.device


def read(path: Path) -> list[Outcome]:
    """The outcomes of a file; none where it does not exist yet. Raises HeadcheckError where it holds other things."""
    what = "results of `headcheck teeth`"
    rows = read_results(path, what)
    try:
        return [
            Outcome(**{**_known(row), "broken": tuple(row["broken"]), "way": Way(row["way"])}) for row in rows
        ]
    except (ValueError, TypeError, KeyError) as problem:
        raise no_results(path, what) from problem


def _known(row: dict[str, Any]) -> dict[str, Any]:
    """Without what an older version of headcheck wrote and nobody reads."""
    return {each.name: row[each.name] for each in fields(Outcome) if each.name in row}
