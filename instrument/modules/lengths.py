"""The longest sequence and the largest batch that a module takes: declared, or found by trying."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from headcheck.calling import SubjectRaised, refuses_a_length
from headcheck.comparison import LawBroken, NotApplicable

MARGIN = 5
"""So many tokens may be added to a sequence of a case: padding, or what is generated."""
LEAST = 5
"""The length that some laws need; where the module takes little more, less is added."""
LARGEST_BATCH = 17
"""The largest batch of a case."""


class Cropped(LawBroken):
    """An answer for fewer tokens than were given."""

    def __init__(self, message: str, length: int) -> None:
        super().__init__(message)
        self.length = length


class OfSomeLength:
    """A subject that may take sequences up to some length only, as for its positions or its causal mask."""

    max_length: int | None = None
    max_batch: int | None = None

    def settle_length(
        self,
        of_length: Callable[[int], Any],
        lengths: Sequence[int],
        refuses: Callable[[BaseException], bool] = lambda problem: True,
    ) -> list[str]:
        """Where some lengths, the shortest first, work and all above them do not, no law asks for more; and a note.

        Those above raise, or are all cropped to the longest. refuses: whether what is raised may say that a sequence is
        too long, and is no slip.
        """
        if self.max_length is not None:
            return []
        why = self._refusal(of_length(lengths[-1]))
        if why is None or (isinstance(why, SubjectRaised) and not refuses(why.problem)):
            return []
        most = self._most(of_length, lengths)
        if most is None or (isinstance(why, Cropped) and why.length != most):
            return []
        self.max_length = most
        done = "cropped" if isinstance(why, Cropped) else "refused"
        return [f"sequences of more than {most} tokens are {done} ({why})"]

    def settle_batch(self, of_batch: Callable[[int], Any], module: nn.Module | None) -> list[str]:
        """Where all batches above some size raise, no law asks for more; and a note.

        They do so in so many words, or the module keeps a tensor with as many rows; else it is a slip.
        """
        why = self._refusal(of_batch(LARGEST_BATCH))
        most = self._most(of_batch, range(1, LARGEST_BATCH + 1)) if isinstance(why, SubjectRaised) else None
        if most is None or most == 1 or not isinstance(why, SubjectRaised):
            return []
        if not (refuses_a_length(why.problem) or _keeps_rows(module, most)):
            return []
        self.max_batch = most
        return [f"batches of more than {most} are refused ({why})"]

    def _most(self, of_size: Callable[[int], Any], sizes: Sequence[int]) -> int | None:
        """The size up to which all work and beyond which none does, the smallest coming first."""
        works = [self._refusal(of_size(size)) is None for size in sizes]
        fitting = sum(works)
        return sizes[fitting - 1] if fitting and all(works[:fitting]) else None

    def _refusal(self, x: Any) -> SubjectRaised | Cropped | None:
        """What a call raises, or that its answer is cropped: what else is wrong is for laws to say."""
        call: Callable[[Any], Any] = self  # type: ignore[assignment]  # Every subject is called with its inputs.
        try:
            call(x)
        except (SubjectRaised, Cropped) as why:
            return why
        except (LawBroken, NotApplicable):
            pass
        return None

    def rows(self, batch: int) -> int:
        """The batch, cut to what the module takes."""
        return batch if self.max_batch is None else min(batch, self.max_batch)

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


def _keeps_rows(module: nn.Module | None, rows: int) -> bool:
    """Whether a part of the module holds a tensor, and no weight, with so many rows: a cache for the largest batch."""
    parts = module.modules() if module is not None else ()
    held = (each for part in parts for each in (*vars(part).values(), *part.buffers(recurse=False)))
    return any(isinstance(each, Tensor) and each.ndim > 1 and len(each) == rows for each in held)
