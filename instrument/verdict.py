"""The verdict: one structured object, of which every report is a rendering."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headcheck import __version__
from headcheck.ids import Identified

if TYPE_CHECKING:
    from headcheck.baseline import Compared

INTERRUPTED = "interrupted"
"""How `Verdict.unfinished` begins where the user ended the work."""
SCHEMA = 1
MILLION = 1e6
"""By what factor a bound is exceeded, at most, for the number to say anything."""
Outcome = Literal["holds", "breaks", "not-applicable"]
EXIT_CODES = {"conforms": 0, "breaks": 1, "untested": 2}


IF_MEANT = "and wrong without it: declare it if that is what you mean"
"""How a hint ends that names a declaration under which a plain call is right."""
IN_FLOAT32 = (
    f"a plain call is right with --declare dtypes=float32, {IF_MEANT}; a constant, such as a scale, may be a tensor of "
    "float32"
)
"""What is said where float64 is wrong and float32 right; beside such a tensor 16 bits may raise, and are not named."""


class Hint(str):
    """A note that may explain what is broken: a verdict says it again beside the first broken law."""

    __slots__ = ()


@dataclass(frozen=True)
class Counterexample:
    """The smallest case found that breaks a law."""

    case: str | None
    """The recipe, as `headcheck replay` reads it; None where the process died between two cases."""
    replay: str
    """A command line that shows exactly this case."""
    what: str
    """What was compared: the output, a gradient, ..."""
    index: list[int] = field(default_factory=list)
    observed: float | str | None = None
    expected: float | str | None = None
    against: str = ""
    """What was expected, where it is an answer of the subject too: the output with is_causal."""
    bound: float | None = None
    factor: float | None = None
    """By how much the bound is exceeded; None where it is no matter of degree."""
    message: str = ""
    """The break in one line."""
    inputs: dict[str, Any] = field(default_factory=dict)
    """The tensors, written out, where they are small."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """What the law gave to the subject beside these: the first calls that differ, each by its small tensors and flags."""
    found_after: int = 0
    """How many examples this law had seen when it broke."""
    only: str = ""
    """A command line that judges this law alone."""


@dataclass(frozen=True)
class LawResult(Identified):
    """One row: what became of one law."""

    id: str
    statement: str
    outcome: Outcome
    reason: str = ""
    examples: int = 0
    worst_error_over_bound: float = 0.0
    dtypes: list[str] = field(default_factory=list)
    counterexample: Counterexample | None = None
    duration_s: float = 0.0
    """Wall time spent on this law, in seconds."""
    subject_s: float = 0.0
    """Of it, inside the subject."""
    hung: bool = False
    """Whether the break is an example that did not return; `plain` leaves it out, `reason` says it."""

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "LawResult":
        """The row that was made plain data by `dataclasses.asdict`, or stands in the JSON of a verdict."""
        shown = plain["counterexample"]
        return cls(**{**plain, "counterexample": Counterexample(**shown) if shown else None})


@dataclass(frozen=True, repr=False)
class Verdict:
    """Everything that was found about one subject."""

    subject: str
    role: str
    profile: str
    seed: int
    laws: list[LawResult]
    duration_s: float
    environment: dict[str, str] = field(default_factory=dict)
    declaration: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What the preparation found: dtypes refused, arithmetic inferred; a `Hint` where it may explain a break."""
    unfinished: str = ""
    """Why not every law got its turn, if so: then the subject does not conform, for all that is known."""
    baseline: "Compared | None" = None
    """What a file of known deviations says of it, where one was given."""

    @property
    def verdict(self) -> Literal["conforms", "breaks", "untested"]:
        outcomes = {each.outcome for each in self.laws}
        if "breaks" in outcomes:
            return "breaks"
        return "conforms" if "holds" in outcomes and not self.unfinished else "untested"

    @property
    def conforms(self) -> bool:
        """Whether laws were judged and all of them hold; beside a baseline, whether what breaks is what it lists."""
        return self.exit_code == 0

    def __bool__(self) -> bool:
        """As `conforms`, so that `assert verify(...)` does not pass for a subject that breaks."""
        return self.conforms

    @property
    def interrupted(self) -> bool:
        """Whether the user ended it, and does not wait for more."""
        return self.unfinished.startswith(INTERRUPTED)

    @property
    def exit_code(self) -> int:
        """Of the command: 0 conforms, 1 breaks, 2 untested; 1, too, where a listed deviation does not show any more."""
        return EXIT_CODES[self.verdict] if self.baseline is None else self.baseline.exit_code

    @property
    def examples(self) -> int:
        return sum(each.examples for each in self.laws)

    @property
    def broken(self) -> list[LawResult]:
        return [each for each in self.laws if each.outcome == "breaks"]

    @property
    def known(self) -> Mapping[str, str]:
        """The broken laws that are known deviations, and why."""
        return {} if self.baseline is None else self.baseline.reasons

    @property
    def new(self) -> list[LawResult]:
        """The broken laws that are no known deviations."""
        return [each for each in self.broken if each.id not in self.known]

    @property
    def beside(self) -> list[str]:
        """What the baseline says of it, a line each."""
        return [] if self.baseline is None else [*self.baseline.lines(), *self.baseline.remarks]

    def as_dict(self) -> dict[str, Any]:
        """The verdict as plain data, JSON schema version 1: docs/ci.md has its fields."""
        from headcheck.ranking import most_telling_first

        return {
            "schema": SCHEMA,
            "headcheck": __version__,
            "subject": self.subject,
            "role": self.role,
            "verdict": self.verdict,
            "profile": self.profile,
            "seed": self.seed,
            "duration_s": round(self.duration_s, 3),
            "examples": self.examples,
            "environment": self.environment,
            "declaration": self.declaration,
            "notes": self.notes,
            "hints": [note for note in self.notes if isinstance(note, Hint)],
            "unfinished": self.unfinished,
            "broken": [each.id for each in most_telling_first(self.broken)],
            "laws": [plain(each) for each in self.laws],
        } | ({} if self.baseline is None else {"baseline": self.baseline.as_dict()})

    def to_json(self) -> str:
        """The verdict as JSON; numbers that JSON lacks (NaN, infinities) are written as strings."""
        return json.dumps(strict(self.as_dict()), indent=2, allow_nan=False)

    def __str__(self) -> str:
        from headcheck.console import as_text

        return as_text(self)

    def __repr__(self) -> str:
        """A few lines, those that say most first: pytest cuts what it shows of an assertion on no string."""
        from headcheck.console import short

        return f"<{short(self)}; print it to see all>"


def exceeded(factor: float) -> str:
    """By how much an error is above its bound, in words."""
    return (
        f"exceeded by a factor of {factor:.4g}"
        if factor <= MILLION
        else "exceeded by a factor of over a million"
    )


def apart(observed: float, expected: float) -> tuple[str, str]:
    """Both in nine digits, or in as many as it takes to tell them from each other."""
    short = f"{observed:.9g}", f"{expected:.9g}"
    return short if len(set(short)) > 1 or observed == expected else (f"{observed!r}", f"{expected!r}")


def plain(found: Any) -> dict[str, Any]:
    """What was found as plain data, of the fields that the JSON schema has."""
    return asdict(found, dict_factory=lambda pairs: {name: each for name, each in pairs if name != "hung"})


def strict(value: Any) -> Any:
    """The value with NaN and infinities as words, which strict JSON lacks."""
    if isinstance(value, dict):
        return {key: strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [strict(each) for each in value]
    if isinstance(value, float) and (not math.isfinite(value)):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    return value
