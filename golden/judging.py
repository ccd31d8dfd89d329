"""The verdict on a claim is computed, then held to the declared one."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from headcheck.golden.derived import Derived
from headcheck.golden.ledger import Claim, Verdict, ledger
from headcheck.golden.stated import EPSILON, SAME, all_near, as_printed, written


@dataclass(frozen=True)
class Judgement:
    """What was found about one claim, and what is wrong with its entry in the ledger, if anything."""

    verdict: Verdict
    right: str
    """The value that the document should have printed, at its precision."""
    exact: str
    """The exact value with 15 digits."""
    problems: tuple[str, ...]


def judge(claim: Claim) -> Judgement:
    """Compute the verdict, and hold the second way, the reference, the chain and the slip to what they say."""
    if claim.derived is None or claim.stated is None:
        problems = () if claim.reason else ("no derivation, and no reason for that",)
        return Judgement("not-checkable", "", "", problems)
    value = claim.derived.exact()
    found: list[str] = []
    verdict: Verdict = "confirmed"
    if not claim.stated.agrees(value):
        verdict = "rounding" if claim.chain and claim.stated.agrees(claim.chain()) else "erratum"
    if verdict != claim.verdict:
        found.append(f"declared {claim.verdict}, found {verdict}: the exact value is {written(value)}")
    if claim.gives and not claim.stated.agrees(claim.gives()):
        found.append(f"the slip gives {written(claim.gives())}, not {claim.stated.text}")
    if claim.verdict == "erratum" and not claim.slip:
        found.append("an erratum says what slipped, or that it cannot be told")
    found += _ways(claim.derived) + _second_way(claim, value) + _reference(claim, value)
    return Judgement(verdict, as_printed(value, claim.stated), written(value), tuple(found))


@cache
def judged(claim_id: str) -> Judgement:
    """The judgement on a claim of the ledger, computed once."""
    return judge(ledger().claims[claim_id])


def _ways(derived: Derived) -> list[str]:
    if derived.ways == 1 and not derived.one_way:
        return ["reached in one way, and no reason why in no other"]
    if derived.ways > 1 and derived.one_way:
        return ["a reason why there is one way, and there are more"]
    return []


def _second_way(claim: Claim, value: Any) -> list[str]:
    if claim.derived is None or claim.derived.again is None:
        return []
    again = claim.derived.again()
    if all_near(value, again, SAME):
        return []
    return [f"the second way gives {written(again, 30)}, the first {written(value, 30)}"]


def _reference(claim: Claim, value: Any) -> list[str]:
    if claim.derived is None or claim.derived.reference is None:
        return []
    got = claim.derived.reference()
    bound = EPSILON * Fraction(claim.derived.steps)
    if all_near(value, got, bound):
        return []
    return [f"the reference gives {written(got, 17)}, more than {float(bound):.2g} from {written(value, 17)}"]
