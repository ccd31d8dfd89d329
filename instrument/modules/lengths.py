"""The longest sequence that a module takes: declared, or found by trying."""

from collections.abc import Callable, Sequence
from typing import Any

from headcheck.calling import SubjectRaised
from headcheck.comparison import LawBroken, NotApplicable

MARGIN = 5
"""So many tokens may be added to a sequence of a case: padding, or what is generated."""
LEAST = 5
"""The length that some laws need; where the module takes little more, less is added."""


class OfSomeLength:
    """A subject that may take sequences up to some length only, as for its positions or its causal mask."""

    max_length: int | None = None

    def settle_length(
        self,
        of_length: Callable[[int], Any],
        lengths: Sequence[int],
        refuses: Callable[[BaseException], bool] = lambda problem: True,
    ) -> list[str]:
        """Where some lengths, the shortest first, work and all above them raise, no law asks for more; and a note.

        refuses: whether what is raised may say that a sequence is too long, and is no slip.
        """
        if self.max_length is not None:
            return []
        raised = self._raised(of_length(lengths[-1]))
        if raised is None or not refuses(raised.problem):
            return []
        works = [self._raised(of_length(length)) is None for length in lengths]
        fitting = sum(works)
        if not fitting or not all(works[:fitting]):
            return []
        self.max_length = lengths[fitting - 1]
        return [f"sequences of more than {self.max_length} tokens are refused ({raised})"]

    def _raised(self, x: Any) -> SubjectRaised | None:
        """What a call raises, if anything: what else is wrong is for laws to say."""
        call: Callable[[Any], Any] = self  # type: ignore[assignment]  # Every subject is called with its inputs.
        try:
            call(x)
        except SubjectRaised as raised:
            return raised
        except (LawBroken, NotApplicable):
            pass
        return None

    def fitting(self, length: int) -> int:
        """The length, cut to what the module takes with what laws add to it."""
        if self.max_length is None:
            return length
        return min(length, max(self.max_length - MARGIN, min(self.max_length, LEAST)))

    def room(self, length: int) -> int:
        """How many tokens may be added to so many."""
        return MARGIN if self.max_length is None else min(MARGIN, self.max_length - length)

    def require_room(self, length: int) -> None:
        """NotApplicable: the module takes no sequence of this length."""
        if self.max_length is not None and length > self.max_length:
            raise NotApplicable(f"takes sequences of at most {self.max_length} tokens")
