"""What the outcomes of a campaign add up to."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from headcheck.laws import choose
from headcheck.teeth.corpus import Corpus, Entry, held_out
from headcheck.teeth.trial import Outcome, Way


@dataclass(frozen=True)
class Run:
    """The outcomes of one profile at one seed."""

    profile: str
    seed: int
    faults: list[Outcome]
    variants: list[Outcome]

    @property
    def survivors(self) -> list[str]:
        """Faults that broke no law."""
        return [each.id for each in self.faults if not each.broken]

    @property
    def failed(self) -> list[Outcome]:
        """Right variants that broke one."""
        return [each for each in self.variants if each.broken]


def runs(outcomes: Iterable[Outcome], corpus: Corpus) -> list[Run]:
    """The outcomes sorted into runs; where a fault was judged in several ways, the most telling one counts."""
    found: dict[tuple[str, int, str], dict[str, Outcome]] = {}
    for each in sorted(outcomes, key=lambda outcome: (Way.NAMED, Way.FIRST, Way.ALL).index(outcome.way)):
        found.setdefault((each.profile, each.seed, each.device), {})[each.id] = each
    return [
        Run(
            profile,
            seed,
            [each for name, each in by_id.items() if name in corpus.wrong],
            [each for name, each in by_id.items() if name in corpus.right],
        )
        for (profile, seed, _), by_id in sorted(found.items())
    ]


def killed(faults: Iterable[Outcome], *, outside: bool | None = None) -> tuple[int, int]:
    """How many faults were caught, of how many; outside: only those held out, or only the others."""
    counted = [each for each in faults if outside is None or held_out(each.id) is outside]
    return sum(bool(each.broken) for each in counted), len(counted)


def named(outcome: Outcome, entry: Entry) -> str:
    """The first law that a person would name and that broke; '' if none did."""
    return next((law for law in entry.breaks if law in outcome.broken), "")


@dataclass(frozen=True)
class LawTeeth:
    """What one law catches."""

    id: str
    kills: int
    alone: int
    """Faults that no other law catches."""


def of_laws(whole: Sequence[Outcome], corpus: Corpus, role: str) -> list[LawTeeth]:
    """Each law of a role against the faults that were judged by all laws."""
    faults = [each for each in whole if each.id in corpus.wrong and corpus.wrong[each.id].role == role]
    kills = Counter(law for each in faults for law in each.broken)
    alone = Counter(each.broken[0] for each in faults if len(each.broken) == 1)
    names = [law.name_in_role for law in choose(role)]
    return [LawTeeth(name, kills[name], alone[name]) for name in names]


def cover(faults: Iterable[Outcome]) -> list[str]:
    """A small set of laws that catches every fault that is caught: again and again the law that catches most."""
    left = [set(each.broken) for each in faults if each.broken]
    chosen: list[str] = []
    while left:
        best, _ = Counter(law for laws in left for law in sorted(laws)).most_common(1)[0]
        chosen.append(best)
        left = [laws for laws in left if best not in laws]
    return chosen


@dataclass(frozen=True)
class Effort:
    """What it took until the first law broke, and what was shown: median and worst."""

    seconds: tuple[float, float]
    examples: tuple[float, int]
    numbers: tuple[float, int] | None
    """In the tensors of the smallest counterexample; None where none was made small."""


def effort(faults: Iterable[Outcome]) -> Effort | None:
    """Of the faults that were caught, in the order of a verdict; None if none was, or that order was left."""
    caught = [each for each in faults if each.broken]
    if not caught or any(each.way is Way.NAMED for each in caught):
        return None
    seconds = [each.first_s for each in caught]
    examples = [each.until_broken for each in caught]
    numbers = [each.smallest for each in caught if each.smallest]
    return Effort(
        (median(seconds), max(seconds)),
        (median(examples), max(examples)),
        (median(numbers), max(numbers)) if numbers else None,
    )
