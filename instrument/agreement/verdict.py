"""What became of a family: each member by the laws of attention, each pair by those of agreement."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headcheck import __version__
from headcheck.agreement.observe import Observation
from headcheck.baseline import Compared, Known, compare
from headcheck.verdict import EXIT_CODES, LawResult, Verdict, plain, strict

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
    baseline: Sequence[Compared] | None = None
    """What a file of known deviations says of each member and each pair, where one was given."""

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
        """0 conforms, 1 breaks, 2 untested; beside a baseline 0 where only what it lists breaks, 1 where that is gone."""
        if self.fixed or any(each.new for each in self.baseline or ()):
            return 1
        if not self.known:
            return EXIT_CODES[self.verdict]
        compared = any(pair.judged for pair in self.pairs)
        return 0 if compared and not self.unfinished else 2

    @property
    def known(self) -> dict[str, dict[str, str]]:
        """Member or pair -> its broken laws that are known deviations, and why."""
        return {each.verdict.subject: each.reasons for each in self.baseline or () if each.reasons}

    @property
    def fixed(self) -> list[Known]:
        """Entries for pairs of which none of the laws breaks, in the gate: elsewhere too few cases are met to tell."""
        if self.profile != "gate":
            return []
        return [
            entry for each in self.baseline or () for entry in each.fixed if each.verdict.role == "agreement"
        ]

    def beside(self, known: Iterable[Known], file: str, *, narrowed: bool) -> "FamilyVerdict":
        """The same beside the known deviations of a file. narrowed: only some dtypes were asked for."""
        rows = {("attention", each.name): each.laws for each in self.judged}
        rows |= {("agreement", f"{pair.one}=={pair.other}"): pair.laws for pair in self.pairs}
        run, known = [name for _, name in rows], tuple(known)
        compared = [
            compare(
                Verdict(name, role, self.profile, self.seed, laws, 0.0, unfinished=self.unfinished),
                known,
                file=file,
                narrowed=narrowed,
                run=run,
            )
            for (role, name), laws in rows.items()
        ]
        return replace(self, baseline=compared)

    @property
    def told_beside(self) -> list[str]:
        """What the baseline says, a line each."""
        lines = []
        for each in self.baseline or ():
            lines += [f"baseline: {each.verdict.subject}: new: {row.id}" for row in each.new]
            lines += [
                f"{entry.told_as_fixed}: take it out of {each.file}"
                for entry in each.fixed
                if entry in self.fixed
            ]
        return lines + list(dict.fromkeys(told for each in self.baseline or () for told in each.remarks))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, JSON schema version 1 of a family."""
        return {
            "schema": SCHEMA,
            "headcheck": __version__,
            "verdict": self.verdict,
            **{
                name: value
                for name, value in vars(self).items()
                if name not in ("members", "pairs", "baseline")
            },
            "members": [plain(each) for each in self.members],
            "pairs": [plain(each) for each in self.pairs],
        } | ({} if self.baseline is None else {"baseline": self._baseline_as_dict()})

    def _baseline_as_dict(self) -> dict[str, Any]:
        new = {each.verdict.subject: [row.id for row in each.new] for each in self.baseline or () if each.new}
        return {
            "file": next((each.file for each in self.baseline or ()), ""),
            "exit_code": self.exit_code,
            "new": new,
            "known": self.known,
            "fixed": {each.subject: each.reason for each in self.fixed},
            "remarks": list(dict.fromkeys(told for each in self.baseline or () for told in each.remarks)),
        }

    def to_json(self) -> str:
        """The verdict as JSON; numbers that JSON lacks are written as strings."""
        return json.dumps(strict(self.as_dict()), indent=2, allow_nan=False)
