"""The role `agreement`: what the engine needs to judge two attention functions on the same inputs."""

from collections.abc import Iterator
from copy import copy
from random import Random
from typing import Any

from hypothesis.strategies import SearchStrategy

from headcheck.agreement.pair import Pair, PairSubject, pair_of
from headcheck.attention import drawing, inputs, simpler, trial
from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs
from headcheck.attention.role import role as attention
from headcheck.attention.subject import DEAD_ROWS, AttentionSubject
from headcheck.declarations import Attention
from headcheck.errors import SubjectError

KEPT = 64
"""So many members that have been tried are kept, at most."""


class AgreementRole:
    """Case and inputs are those of the role attention, so that a case of a pair can be replayed on each side."""

    name = "agreement"
    declaration = Pair

    def __init__(self) -> None:
        self._tried: dict[
            tuple[int, tuple[str, ...], str, int], tuple[Attention, tuple[AttentionSubject, list[str]]]
        ] = {}

    def recognises(self, attribute: Any) -> bool:
        return False

    def declare(self, attribute: Any, name: str) -> Pair:
        return attribute if isinstance(attribute, Pair) else Pair(attribute, name)

    def of(self, one: Attention, other: Attention) -> Pair:
        """The pair of two declared functions."""
        return pair_of(one, other)

    def prepare(
        self, declaration: Pair, *, dtypes: tuple[str, ...], device: str, seed: int
    ) -> tuple[PairSubject, list[str]]:
        prepared = [self._prepared_side(side, dtypes, device, seed) for side in declaration.sides]
        subject = PairSubject(*(copy(side) for side, _ in prepared))
        if not subject.dtypes:
            raise SubjectError(f"{declaration.name}: no dtype in common")
        notes = [
            f"{side.name}: {note}"
            for side, (_, told) in zip(declaration.sides, prepared, strict=True)
            for note in told
        ]
        return subject, notes

    def _prepared_side(
        self, side: Attention, dtypes: tuple[str, ...], device: str, seed: int
    ) -> tuple[AttentionSubject, list[str]]:
        """A member of a family is tried once, not for each of its pairs; it is kept, so that its id stays its own."""
        key = (id(side), dtypes, device, seed)
        if key not in self._tried:
            if len(self._tried) == KEPT:
                del self._tried[next(iter(self._tried))]
            self._tried[key] = side, trial.prepare(side, dtypes=dtypes, device=device, seed=seed)
        return self._tried[key][1]

    def limited(self, subject: PairSubject) -> tuple[str, ...]:
        return tuple(field for side in subject.sides for field in attention.limited(side))

    def draw(self, random: Random, subject: PairSubject) -> Case:
        return self.fit(drawing.draw(random, subject.one), subject)

    def drawn(self, subject: PairSubject) -> SearchStrategy[Case]:
        return drawing.drawn(subject.one).map(lambda case: self.fit(case, subject))

    def fit(self, case: Case, subject: PairSubject) -> Case:
        """What both can do; what one of them settles may unsettle the other, so it is done twice."""
        for _ in range(2):
            case = subject.shared(drawing.fit(drawing.fit(case, subject.one), subject.other))
        return case

    def build(self, case: Case, subject: PairSubject) -> Inputs:
        return inputs.build(case, subject.one.alignment, dead_rows=DEAD_ROWS not in subject.one.avoids)

    def simpler(self, case: Case, subject: PairSubject) -> Iterator[Case]:
        return simpler.simpler(case, subject.one)

    def parse(self, text: str) -> Case:
        return attention.parse(text)

    def show(self, inputs: Inputs) -> dict[str, Any]:
        """Each argument of the call that is not at its default."""
        return attention.show(inputs)


role = AgreementRole()
