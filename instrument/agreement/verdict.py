"""What became of a family: each member by the laws of attention, each pair by those of agreement."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from headcheck import __version__
from headcheck.agreement.observe import Observation
from headcheck.verdict import EXIT_CODES, LawResult, plain, strict

SCHEMA = 1


@dataclass(frozen=True)
class Standing:
    """One member and its rows."""

    name: str
    observation: Observation | None
    laws: list[LawResult] = field(default_factory=list)
    reason: str = ""
    """Why it could not be judged here, if so."""

    @property
    def broken(self) -> list[LawResult]:
        return [row for row in self.laws if row.outcome == "breaks"]


@dataclass(frozen=True)
class Agreement:
    """One pair and its rows."""

    one: str
    other: str
    laws: list[LawResult]

    @property
    def broken(self) -> list[LawResult]:
        return [row for row in self.laws if row.outcome == "breaks"]

    @property
    def judged(self) -> list[LawResult]:
        return [row for row in self.laws if row.outcome != "not-applicable"]

    @property
    def examples(self) -> int:
        """On so many inputs, drawn for pairs, the two were compared."""
        return sum(row.examples for row in self.judged)

    @property
    def worst(self) -> float:
        """The largest difference as a share of the sum of both bounds."""
        return max((row.worst_error_over_bound for row in self.judged), default=0.0)


@dataclass(frozen=True)
class FamilyVerdict:
    """Everything that was found about a family."""

    members: list[Standing]
    pairs: list[Agreement]
    profile: str
    seed: int
    duration_s: float
    environment: dict[str, str]
    left_out: list[str] = field(default_factory=list)
    """Members that the profile leaves out."""
    unfinished: str = ""
    pairs_asked: bool = True
    """Whether any law of pairs was asked; parts of law ids may leave none."""

    @property
    def judged(self) -> list[Standing]:
        return [each for each in self.members if not each.reason]

    @property
    def rows(self) -> list[LawResult]:
        """Every row, of members and of pairs."""
        return [row for each in self.members for row in each.laws] + [
            row for pair in self.pairs for row in pair.laws
        ]

    @property
    def verdict(self) -> Literal["conforms", "breaks", "untested"]:
        if any(row.outcome == "breaks" for row in self.rows):
            return "breaks"
        compared = any(row.outcome == "holds" for pair in self.pairs for row in pair.laws)
        return "conforms" if compared and not self.unfinished else "untested"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, JSON schema version 1 of a family."""
        return {
            "schema": SCHEMA,
            "headcheck": __version__,
            "verdict": self.verdict,
            **{name: value for name, value in plain(self).items() if name not in ("members", "pairs")},
            "members": [plain(each) for each in self.members],
            "pairs": [plain(each) for each in self.pairs],
        }

    def to_json(self) -> str:
        """The verdict as JSON; numbers that JSON lacks are written as strings."""
        return json.dumps(strict(self.as_dict()), indent=2, allow_nan=False)
