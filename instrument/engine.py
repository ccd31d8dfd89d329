"""The engine: one subject is judged by one law at a time. Every front of headcheck runs this.

The examples of a law come in two phases. Seeded cases draw their conditions jointly and their numbers from a
generator: fast, and they reach the large shapes. Drawn cases come from Hypothesis, which chooses each number:
slower, and they reach the corners. The first case that breaks the law is made as small as it will go.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase

from headcheck import heard
from headcheck.comparison import Comparison, LawBroken, NotApplicable, place
from headcheck.draws import drawn_by_the_seed_alone
from headcheck.hangs import Hangs
from headcheck.laws import Law
from headcheck.library import put_back
from headcheck.minimise import minimise
from headcheck.roles import Role
from headcheck.time_limits import OutOfTime, time_limit
from headcheck.verdict import Counterexample, LawResult, apart, exceeded

SHRINK_SHARE = 0.1
"""So much of the rest of a time box may go into making the counterexample of one law smaller."""
LEAST_SHRINK_S = 0.2
"""Seconds that each law has for that, however little is left."""


@dataclass(frozen=True)
class Profile:
    """How many examples each law gets, and how long one of them may take."""

    name: str
    seeded: int
    """Examples of each law whose cases come from the seed alone, over the whole space."""
    drawn: int
    """Examples of each law that Hypothesis draws, small and with every number written out."""
    shrinks: int = 400
    """How many simpler cases are tried on the way to the smallest counterexample."""
    limit_s: float = 30.0
    """Wall seconds after which one example counts as hanging."""
    after_a_hang_s: float = 2.0
    """The same once one has hung, so that a subject that often hangs does not take hours; a quarter of it, or
    twice the longest example if that is more, where some have come back."""


PROFILES = {
    each.name: each
    for each in (
        Profile("quick", seeded=12, drawn=4, shrinks=200),
        Profile("gate", seeded=100, drawn=30),
        Profile("deep", seeded=800, drawn=200, shrinks=2000),
    )
}


@dataclass
class Judged:
    """What one example showed."""

    case: Any
    comparison: Comparison | None = None
    """The worst comparison that the law made; None if it made none."""
    error: str = ""
    """The break, where it is no comparison."""
    reason: str = ""
    """Why the law does not apply, where it does not."""
    hung: bool = False
    """Whether it did not return."""

    @property
    def broken(self) -> bool:
        return bool(self.error) or (self.comparison is not None and self.comparison.broken)

    @property
    def in_a_number(self) -> bool:
        """Whether it breaks in a number: not by NaN, an infinity or an exception."""
        worst = self.comparison
        return not self.error and worst is not None and bool(worst.observed[worst.index].isfinite())


@dataclass
class _Tally:
    examples: int = 0
    worst: float = 0.0
    dtypes: set[str] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)
    broken: Judged | None = None

    def add(self, judged: Judged) -> None:
        if judged.reason:
            self.reasons.append(judged.reason)
        elif judged.broken:
            self.broken = judged
            self.examples += 1
            self.dtypes.add(judged.case.dtype)
        elif judged.comparison is not None:
            self.examples += 1
            self.dtypes.add(judged.case.dtype)
            self.worst = max(self.worst, judged.comparison.ratio)


class Engine:
    """Judges one prepared subject, law by law.

    replay: makes of a law and a case the command line that shows it again.
    watch: told of each case before it is run, so that a front can say what was running when all went dark.
    """

    def __init__(
        self,
        role: Role,
        subject: Any,
        profile: Profile,
        seed: int,
        replay: Callable[[Law, Any], str],
        watch: Callable[[Law, Any], None] = lambda law, case: None,
    ) -> None:
        self.role = role
        self.subject = subject
        self.profile = profile
        self.seed = seed
        self.replay = replay
        self.watch = watch
        self.hangs: Hangs[Judged] = Hangs()
        put_back()  # What it was tried with before may have left something otherwise.
        self.until = math.inf
        """When a time box ends, by the monotonic clock; without one the same seed gives the same rows."""

    def rows(self, laws: Sequence[Law]) -> Iterator[LawResult]:
        """The rows of these laws: those that break at a first look, then the others.

        A law that a fault breaks at once does not wait for the many examples of the laws before it.
        """
        waiting = []
        for law in laws:
            row = self.judge(law, glance=True)
            if row.outcome == "breaks":
                yield row
            else:
                waiting.append(law)
        yield from map(self.judge, waiting)

    def judge(self, law: Law, *, glance: bool = False) -> LawResult:
        """One row of the verdict. glance: by the first of its seeded examples only."""
        began, inside = time.perf_counter(), self.subject.seconds
        lacking = [reason for feature in law.needs if (reason := self.subject.lacks(feature))]
        if lacking:
            return law.not_applicable("; ".join(dict.fromkeys(lacking)))
        tally = _Tally()
        glances = self._glances(law)
        for number, case in enumerate(islice(self.seeded(law), glances if glance else None)):
            if number >= glances and self._is_over():
                break
            tally.add(self.example(law, case))
            if tally.broken:
                break
        else:
            if not glance:
                self._drawn(law, tally)
        row = self._row(law, tally)
        taken, within_subject = time.perf_counter() - began, self.subject.seconds - inside
        return replace(row, duration_s=taken, subject_s=within_subject)

    def example(self, law: Law, case: Any) -> Judged:
        """Run a law on one case."""
        self.watch(law, case)
        limit_s, began = self.limit_s, time.perf_counter()
        comparisons: list[Comparison] = []
        try:
            self._require_sizes(law, case)
            with time_limit(limit_s):
                found = law.check(self.subject, self.role.build(case, self.subject))
                for each in [found] if isinstance(found, Comparison) else found or ():
                    comparisons.append(each)  # noqa: PERF402 - what was compared before an exception counts
        except NotApplicable as why:
            if not comparisons:
                return Judged(case, reason=str(why))
        except LawBroken as why:
            return Judged(case, error=str(why))
        except OutOfTime:
            self.hangs.seen = True
            return Judged(case, error=f"did not return within {limit_s:g} s", hung=True)
        except MemoryError:
            return Judged(case, error="ran out of memory")
        finally:
            put_back()  # Where a call has changed a setting, what comes after is not to be judged by it.
        self.hangs.came_back(time.perf_counter() - began)
        comparisons = [each for each in comparisons if each.claims]
        if not comparisons:
            return Judged(case)
        return Judged(case, comparison=max(comparisons, key=lambda each: each.ratio))

    @property
    def limit_s(self) -> float:
        """Seconds for the next example."""
        return self.hangs.limit_s(self.profile.limit_s, self.profile.after_a_hang_s)

    def _require_sizes(self, law: Law, case: Any) -> None:
        """NotApplicable: the subject takes no case of which the law speaks."""
        spoken_of = law.required(case)
        for name in self.role.limited(self.subject):
            if (wanted := getattr(spoken_of, name)) != getattr(case, name):
                raise NotApplicable(f"takes no {name}={wanted}, of which the law speaks")

    def _is_over(self) -> bool:
        return time.monotonic() > self.until

    def _shrink_s(self) -> float:
        """A share of what is left of a time box, so that many broken laws do not take it all."""
        left_s = self.until - time.monotonic()
        return math.inf if left_s == math.inf else max(LEAST_SHRINK_S, left_s * SHRINK_SHARE)

    def _glances(self, law: Law) -> int:
        """So many examples are a first look at a law, one in 25: they are run again later."""
        return math.ceil(self._share(self.profile.seeded, law) / 25)

    def _prepared(self, law: Law, case: Any) -> Any:
        return self.role.fit(law.repaired(case), self.subject)

    def nearest(self, law: Law, case: Any) -> Any:
        """The case itself where this law speaks of it, on this subject; otherwise changed as little as need be."""
        if self._prepared(law, case) == case:
            return case
        return self.role.fit(law.required(case), self.subject)

    def seeded(self, law: Law) -> Iterator[Any]:
        """The seeded cases of a law, each within what the subject supports and where the law speaks."""
        for number in range(self._share(self.profile.seeded, law)):
            random = Random(f"{self.seed}/{law.id}/{number}")
            yield self._prepared(law, self.role.draw(random, self.subject))

    def _share(self, examples: int, law: Law) -> int:
        """How many of the profile's examples this law gets: at least one, if there are any."""
        return max(1, round(examples * law.share * self.subject.effort)) if examples else 0

    def _drawn(self, law: Law, tally: _Tally) -> None:
        """Let Hypothesis draw the cases. The first break ends it: making it smaller is not left to chance."""
        examples = self._share(self.profile.drawn, law)
        if not examples:
            return

        @hypothesis.seed(Random(f"{self.seed}/{law.id}").getrandbits(64))
        @hypothesis.settings(
            max_examples=examples,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(self.role.drawn(self.subject))
        def run(case: Any) -> None:
            if tally.broken is None and not self._is_over():
                tally.add(self.example(law, self._prepared(law, case)))

        with drawn_by_the_seed_alone():
            run()

    def _row(self, law: Law, tally: _Tally) -> LawResult:
        row = LawResult(
            id=law.id,
            statement=law.statement,
            outcome="holds",
            examples=tally.examples,
            worst_error_over_bound=tally.worst,
            dtypes=sorted(tally.dtypes),
        )
        if tally.broken:
            smallest = self.smallest(law, tally.broken)
            replay = self.replay(law, smallest.case)
            calls = self._calls(law, smallest)
            shown = describe(self.role, self.subject, smallest, replay, tally.examples, calls)
            return replace(
                row,
                outcome="breaks",
                reason=shown.message,
                worst_error_over_bound=max(tally.worst, _ratio(tally.broken)),
                counterexample=shown,
                hung=tally.broken.hung,
            )
        if not tally.examples:
            reason = tally.reasons[0] if tally.reasons else "no case reached what the law speaks of"
            return replace(row, outcome="not-applicable", reason=reason)
        return row

    def _calls(self, law: Law, judged: Judged) -> list[heard.Call]:
        """What the law gives to the subject on that case; nothing where it would hang again."""
        if judged.hung:
            return []
        with heard.listening() as calls:
            self.example(law, judged.case)
        return calls

    def smallest(
        self, law: Law, broken: Judged, try_case: Callable[[Any], Judged | None] | None = None
    ) -> Judged:
        """The simplest case that still breaks. try_case: the break of a case, or None; it is run here by default."""

        def run_here(case: Any) -> Judged | None:
            judged = self.example(law, case)
            return judged if judged.broken and judged.hung == broken.hung else None

        def alike(case: Any) -> Judged | None:
            # The smallest case may show something else: a variance divided by n - 1 is NaN where n is 1.
            judged = (try_case or run_here)(case)
            return judged if judged and judged.in_a_number >= broken.in_a_number else None

        if broken.hung:
            first, prepared = not self.hangs.met, partial(self._prepared, law)
            found, told = self.hangs.smallest(broken, prepared, try_case or run_here)
            if first and not self._hangs_in_full(found.case, try_case or run_here):
                return replace(broken, error=f"{broken.error}; not each time")
            return replace(found, error=found.error + told)

        def simpler(case: Any) -> Iterator[Any]:
            for candidate in self.role.simpler(case, self.subject):
                if self._prepared(law, candidate) == candidate:
                    yield candidate

        return minimise(broken, simpler, alike, self.profile.shrinks, self._shrink_s())

    def _hangs_in_full(self, case: Any, try_case: Callable[[Any], Judged | None]) -> bool:
        """Whether a case that was not waited for as long as others does hang: on a busy machine it may just be slow."""
        self.hangs.seen = False
        try:
            return try_case(case) is not None
        finally:
            self.hangs.seen = True


def describe(
    role: Role,
    subject: Any,
    judged: Judged,
    replay: str,
    found_after: int,
    calls: Sequence[heard.Call] = (),
) -> Counterexample:
    """An example as the verdict shows it: one that breaks the law, or, in a replay, one that does not."""
    try:
        inputs = role.show(role.build(judged.case, subject))
    except LawBroken:  # The break is in what the subject makes of the case itself.
        inputs = {}
    given: dict[str, Any] = {
        "inputs": inputs,
        "calls": heard.told(calls, vars(judged.case) | inputs),
        "found_after": found_after,
    }
    comparison = judged.comparison
    if judged.error or comparison is None or not comparison.observed.numel():
        return Counterexample(str(judged.case), replay, "call", message=judged.error, **given)
    observed, expected, bound = (
        float(part[comparison.index]) for part in (comparison.observed, comparison.expected, comparison.bound)
    )
    where = place(comparison.what, comparison.index)
    found, right = apart(observed, expected)
    factor = comparison.ratio if comparison.ratio != float("inf") else None
    of_it = f", the {comparison.against}" if comparison.against else ""
    allowed = f"; the bound is {bound:.3g}" if bound else "; they must be equal"
    # A condition has none, nor has what would be computed of a NaN of the subject's.
    has_bound = not math.isnan(bound)
    beyond = f", {exceeded(factor)}" if factor and comparison.broken else ""
    return Counterexample(
        case=str(judged.case),
        replay=replay,
        what=comparison.what,
        index=list(comparison.index),
        observed=observed,
        expected=expected,
        against=comparison.against,
        bound=bound if has_bound else None,
        factor=factor,
        message=f"{where} is {found}, expected {right}{of_it}{allowed if has_bound else ''}{beyond}",
        **given,
    )


def _ratio(judged: Judged) -> float:
    return judged.comparison.ratio if judged.comparison is not None else float("inf")
