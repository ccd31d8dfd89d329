"""Two attention functions on the same inputs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headcheck.attention.case import Case
from headcheck.attention.subject import DEAD_ROWS, MASK_WITH_CAUSAL, AttentionSubject
from headcheck.comparison import NotApplicable
from headcheck.declarations import Attention, Declaration


@dataclass(frozen=True)
class Pair(Declaration):
    """Two attention functions that should agree. What each declares stands in a declaration of its own, as an object in
    its file, by the name of which it is then meant.

    That they agree is weaker than that each keeps the laws of attention, which ask for more and of more cases.

    function: the first, undeclared, where `one` is not given. Each is held to what it declares, and cases are
    kept to what both can do and mean the same by.
    """

    role = "agreement"

    one: Attention | None = None
    """The first, with its conventions."""
    other: Attention | None = None
    """The second, with its conventions; None: the reference of headcheck."""

    @property
    def sides(self) -> tuple[Attention, Attention]:
        """Both declarations."""
        from headcheck.subjects.headcheck_reference import reference

        return self.one or Attention(self.function, name=self.name), self.other or reference()

    def summary(self) -> dict[str, Any]:
        """Both sides' conventions."""
        return {each.name: each.summary() for each in self.sides}


def pair_of(one: Attention, other: Attention) -> Pair:
    """The pair of two declared functions."""
    function: Callable[..., Any] = one.function
    return Pair(function, f"{one.name}=={other.name}", one=one, other=other, devices=one.devices)


class PairSubject:
    """Both functions behind their declarations, as the laws of pairs see them."""

    def __init__(self, one: AttentionSubject, other: AttentionSubject) -> None:
        self.one, self.other = one, other
        self.dtypes = tuple(dtype for dtype in one.dtypes if dtype in other.dtypes)
        self.effort = min(one.effort, other.effort)
        avoids = one.avoids | other.avoids
        if one.empty_rows != other.empty_rows:
            avoids |= {DEAD_ROWS}
        for side in self.sides:
            side.dtypes, side.avoids = self.dtypes, avoids

    @property
    def sides(self) -> tuple[AttentionSubject, AttentionSubject]:
        """Both."""
        return self.one, self.other

    @property
    def seconds(self) -> float:
        """Wall time spent inside both so far."""
        return self.one.seconds + self.other.seconds

    def lacks(self, feature: str) -> str | None:
        """Why one of them does not have a feature, or None if both have."""
        reasons = [(side.declaration.name, side.lacks(feature)) for side in self.sides]
        return next((f"{name} {reason}" for name, reason in reasons if reason), None)

    def require_one_convention_for_dead_rows(self) -> None:
        """NotApplicable: they declare different conventions, or one of them claims nothing."""
        one, other = (side.empty_rows for side in self.sides)
        if one != other or one == "undefined":
            raise NotApplicable(f"empty_rows: no common convention ({one!r} and {other!r})")

    def shared(self, case: Case) -> Case:
        """The case where both mean the same: a square where their diagonals differ, one kind of mask."""
        positional = case.is_causal or case.window is not None or case.alibi
        if self.one.alignment != self.other.alignment and positional and case.q_len != case.kv_len:
            case = replace(case, kv_len=case.q_len)
        if MASK_WITH_CAUSAL in self.one.avoids and case.is_causal and case.mask != "none":
            causal = any("is_causal" in side.declaration.always for side in self.sides)
            case = replace(case, mask="none") if causal else replace(case, is_causal=False)
        return case
