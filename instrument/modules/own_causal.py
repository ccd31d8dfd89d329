"""The causal mask that a caller gives in an argument of its own, beside those of what is padding."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from headcheck.modules.masks import CAUSAL, CAUSAL_BESIDE, WITH_CAUSAL, MaskForm, MaskKind
from headcheck.modules.subject import AnyInputs, ModuleSubject
from headcheck.signatures import needed_by

OWN_NAMES = (*WITH_CAUSAL, *CAUSAL_BESIDE)
KINDS: tuple[tuple[MaskKind, bool], ...] = (
    ("boolean", False),
    ("boolean", True),
    ("additive", False),
    ("number", False),
    ("number", True),
)
"""Of what it is made, and whether True is what may be seen, in the order in which they are tried: torch's own first."""
RANKS = (2, 4, 3)
"""(length, length), (batch, 1, length, length), (batch, length, length)."""


def own_forms(kinds: Sequence[tuple[MaskKind, bool]] = KINDS) -> Iterator[MaskForm]:
    """The forms in which it is tried."""
    return (MaskForm(rank, kind, seen) for rank, (kind, seen) in product(RANKS, kinds))


def taken_forms() -> Iterator[MaskForm]:
    """As many of them as show whether a call is refused: not by what True says."""
    return own_forms((("boolean", False), ("number", False)))


class OwnCausal(ModuleSubject[AnyInputs]):
    """A module whose caller may give it."""

    forms: dict[str, MaskForm]
    needed: tuple[str, ...]
    """The parameters that a call does not do without."""

    def place_masks(self) -> None:
        """Where the causal mask is given, if it is; what other masks are asked for, and known to nobody, are None.

        It is given where it is asked for, or declared, in an argument that takes no mask of padding.
        """
        self.needed = tuple(needed_by(self.function) or ())
        if CAUSAL in self.places:
            place = self._own_place()
            declared: bool | None = self.declaration.causal_mask
            given = place in self.needed if declared is None else declared
            self.places[CAUSAL] = place if given else None
        placed = {*self.places.values()}
        unknown = [name for name in self.needed if name.endswith("mask") and name not in placed]
        self.left_at_none = dict.fromkeys(unknown)

    def _own_place(self) -> str | None:
        """The first of its names that the module has, and takes for no mask of padding."""
        others = {place for name, place in self.places.items() if name != CAUSAL}
        found = self.places[CAUSAL]
        if found in others and CAUSAL not in self.declaration.arguments:
            found = next((each for each in OWN_NAMES if each in self.needed and each not in others), None)
        return found

    @property
    def has_own_causal(self) -> bool:
        """Whether the caller gives it."""
        return bool(self.places.get(CAUSAL))

    def settle_causal(self, is_blind: Callable[[], bool]) -> None:
        """Its form is the first with which a plain call hears nothing later, otherwise as it was."""
        if not self.has_own_causal:
            return
        before = self.forms[CAUSAL]
        for self.forms[CAUSAL] in own_forms():
            if is_blind():
                return
        self.forms[CAUSAL] = before

    def own_causal(self, batch: int, length: int, new: int | None = None) -> Tensor | None:
        """It, for so many positions, of which the last `new` are asked about; None where it is not given."""
        if not self.has_own_causal:
            return None
        dtype: torch.dtype = getattr(torch, self.dtypes[0])
        whole = self.forms[CAUSAL].with_causal(torch.ones(batch, length, dtype=torch.bool), dtype)
        return whole[..., length - (new or length) :, :].contiguous().to(self.device)

    def masks_told(self) -> list[str]:
        """Notes of how it is given, and of which masks are None in every call."""
        told = [f"{name} is asked for, and given as None" for name in self.left_at_none]
        return (
            [self.forms[CAUSAL].told_as_causal(self.places[CAUSAL]), *told] if self.has_own_causal else told
        )
