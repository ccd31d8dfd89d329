"""What the roles `encoder` and `decoder` are asked by the engine."""

from typing import Any

import torch
from torch import Tensor

from headcheck.calling import refuses_a_length
from headcheck.modules.lengths import MARGIN
from headcheck.modules.role import ModuleRole
from headcheck.modules.settling import settled_masks
from headcheck.modules.state_hints import (
    CANDIDATES,
    is_right,
    limit_hint,
    norm_order_note,
    one_sided_hint,
    unrecognised,
)
from headcheck.modules.states import LONGEST, AnyCase, AnyStates, StatesSubject

OF_TOKENS = ("lm", "languagemodel")
"""How the name ends of a model that reads tokens and no states."""


class StatesRole(ModuleRole[AnyCase, AnyStates]):
    """A role is this class with its names and `build`."""

    other_word: str
    """A word that makes a name one of another role: encoder is in encoder_decoder."""
    inputs: int
    """How many inputs come before the masks."""

    def recognises(self, attribute: Any) -> bool:
        """By torch's classes, or by the role's name in the name of a function or of a module's class."""
        said = attribute if hasattr(attribute, "__name__") else type(attribute)
        name = getattr(said, "__name__", "").lower().replace("_", "")
        named = self.name in name and self.other_word not in name and not name.endswith(OF_TOKENS)
        return isinstance(attribute, self.kinds) or named

    def limits(self, subject: StatesSubject[AnyStates]) -> list[str]:
        def of_length(length: int) -> AnyStates:
            return subject.plain(2, length, subject.d_model)

        lengths = range(1, LONGEST + MARGIN + 1)
        refused = subject.settle_length(of_length, lengths, refuses_a_length)
        return refused or [*limit_hint(subject, of_length, lengths)]

    def find(self, subject: Any) -> list[str]:
        """The forms of the masks, which are written into the subject; notes of them."""
        raise NotImplementedError

    def notes(self, subject: Any) -> list[str]:
        unknown, order = unrecognised(subject, self.inputs), subject.norm_order
        said = [f"norm order: {order}"] if order else norm_order_note(subject)
        masks = settled_masks(subject, self.find, is_right, call="plain call", candidates=CANDIDATES)
        return [*masks, *unknown, *said, *one_sided_hint(subject)]

    def settle(self, case: AnyCase, subject: Any) -> AnyCase:
        case = case.but(length=subject.fitting(case.length))
        if case.padding != "none" and subject.lacks(f"{case.padding}_padding"):
            case = case.but(padding="none")
        if hasattr(case, "memory_padding"):
            sides = () if subject.lacks("memory_is_real") else subject.declaration.padding
            case = case if case.memory_padding in sides else case.but(memory_padding="none")
        return case


def ragged(shape: tuple[int, int], side: str, generator: torch.Generator) -> Tensor | None:
    """Which states are real in a batch whose sequences are padded on one side; at least one of each is."""
    batch, length = shape
    if side == "none":
        return None
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    real = torch.arange(length) < lengths
    return real if side == "right" else real.flip(1)
