"""The role `decoder`: a layer or a stack from states and a memory to states, each blind to the future."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headcheck.declarations import Declaration
from headcheck.modules.masks import (
    CAUSAL,
    CAUSAL_ALONE,
    LENGTHS,
    LOOK_AHEAD,
    OF_SOURCE,
    OF_TARGET,
    ROWS,
    SQUARE,
    WITH_CAUSAL,
    MaskForm,
    forms_to_try,
)
from headcheck.modules.own_causal import OWN_NAMES
from headcheck.modules.state_hints import later_unheard
from headcheck.modules.states import StateInputs, States, StatesCase, StatesSubject
from headcheck.modules.states_role import StatesRole, ragged
from headcheck.modules.subject import problem_of
from headcheck.recipes import option

TORCH = (nn.TransformerDecoderLayer, nn.TransformerDecoder)


@dataclass(frozen=True)
class Decoder(States):
    """A decoder with attention to a memory, a layer or a stack, with its conventions.

    function: the module, a function without parameters that makes one, or
    f(x, memory, is_real=None, memory_is_real=None) itself. x (batch, length, d_model), memory
    (batch, memory_len, d_model) -> states of the shape of x, causal: state t sees x up to t, and all of the
    memory. is_real (batch, length) and memory_is_real (batch, memory_len) are True at what is no padding.
    torch's own modules are given the causal tgt_mask that they need; any other is causal by itself, or is given
    its mask of the caller, as `causal_mask` says: in an argument of its own, or with that of what is padding.
    """

    causal_mask: bool | None = None
    """Whether the caller gives the causal mask, in an argument of its own beside a mask of what is padding, or with that:
    (batch, 1, length, length), (batch, length, length), or (length, length), which says nothing of padding. None: where
    the module requires a mask called tgt_mask, trg_mask, target_mask or look_ahead_mask."""
    memory_positions: bool = False
    """Whether the module itself has positions for the memory, so that its order counts."""

    role = "decoder"
    ARGUMENTS: ClassVar = {
        "is_real": (
            "is_real",
            LOOK_AHEAD,
            "tgt_key_padding_mask",
            "key_padding_mask",
            *("padding_mask", "pad_mask", "tgt_pad_mask"),
            "attention_mask",
            "may_attend",
            *WITH_CAUSAL,
            "mask",
            *OF_TARGET,
            *LENGTHS,
        ),
        "memory_is_real": (
            "memory_is_real",
            "memory_key_padding_mask",
            "encoder_padding_mask",
            "encoder_attention_mask",
            *("memory_padding_mask", "memory_pad_mask"),
            "memory_may_attend",
            "memory_mask",
            "cross_attention_mask",
            "context_mask",
            "src_mask",
            "padding_mask",
            *OF_SOURCE,
        ),
        CAUSAL: OWN_NAMES,
    }


@dataclass(frozen=True)
class DecoderCase(StatesCase):
    """A batch of sequences of states, each with its memory."""

    SIZES: ClassVar[tuple[str, ...]] = ("batch", "length", "memory_len")

    memory_len: int = option(2, 1, 2, 3, 4, 5, 6, 9, 33, rarely=(48, 65))
    memory_padding: str = option("none", "none", "right", "left")
    """On which side the shorter memories are padded."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DecoderInputs(StateInputs):
    """memory (batch, memory_len, d_model); memory_is_real (batch, memory_len) or None, True at no padding."""

    memory: Tensor
    memory_is_real: Tensor | None = None

    @property
    def memory_len(self) -> int:
        return self.memory.shape[1]

    @property
    def real_memory(self) -> Tensor:
        """Which states of the memory are real, as a tensor in any case."""
        everywhere = torch.ones(self.memory.shape[:2], dtype=torch.bool)
        return everywhere if self.memory_is_real is None else self.memory_is_real


class DecoderSubject(StatesSubject[DecoderInputs]):
    """Laws see x, memory, their masks, and states."""

    TORCH = TORCH
    FEATURES: ClassVar = {
        **StatesSubject.FEATURES,
        "memory_is_real": "takes no mask of what is padding in the memory",
        "no_memory_mask": "is given a mask of the memory in every call",
        "no_memory_positions": "has positions for the memory",
    }

    def __init__(self, declaration: Declaration, *, dtypes: tuple[str, ...], device: str = "cpu") -> None:
        super().__init__(declaration, dtypes=dtypes, device=device)
        for form in self._forms("is_real") if self.with_causal else ():
            self.forms["is_real"] = form
            if problem_of(self, self.plain(ROWS, 3, self.d_model)) is None:
                break

        self.settle_causal(lambda: later_unheard(self, self.plain(ROWS, 3, self.d_model)))

    def place_masks(self) -> None:
        if self.places["memory_is_real"] == self.places["is_real"]:
            said = self.declaration.arguments
            of_memory = "memory_is_real" in said and "is_real" not in said
            self.places["is_real" if of_memory else "memory_is_real"] = None
        super().place_masks()
        if isinstance(self.module, self.TORCH):  # They are given it in any case.
            self.places[CAUSAL] = None

    @property
    def with_causal(self) -> bool:
        """Whether the mask of what is padding holds the causal one."""
        place = self.places["is_real"]
        if self.has_own_causal:
            return False
        if self.declaration.causal_mask is not None or place not in WITH_CAUSAL:
            return bool(self.declaration.causal_mask) and place is not None
        return not isinstance(self.module, self.TORCH) and place in self.needed

    def _forms(self, name: str) -> Iterator[MaskForm]:
        if name != "is_real" or not self.with_causal:
            return super()._forms(name)
        return forms_to_try(self.declaration, str(self.places[name]), SQUARE)

    def _own_mask(self, x: DecoderInputs) -> Tensor | None:
        """The mask of what is padding in x, with the causal one where the caller gives it."""
        if not self.with_causal:
            return self.masked("is_real", x.is_real, x.x)
        return self.forms["is_real"].with_causal(x.real, self.dtype).to(self.device)

    def lacks(self, feature: str) -> str | None:
        if feature == "no_memory_mask":
            return self.FEATURES[feature] if "memory_is_real" in self.always else None
        if feature == "no_mask" and self.with_causal:
            return self.FEATURES[feature]
        if feature == "is_real" and self.with_causal and self.forms[feature].rank == min(SQUARE):
            return CAUSAL_ALONE
        if feature == "no_memory_positions":
            return f"{self.FEATURES[feature]}, as declared" if self.declaration.memory_positions else None
        return super().lacks(feature)

    def output(self, x: DecoderInputs) -> Tensor:
        self.require_room(x.length)
        causal: dict[str, Any] = {}
        if isinstance(self.module, self.TORCH):
            future = torch.ones(x.length, x.length, dtype=torch.bool, device=self.device).triu(1)
            causal = {"tgt_mask": future, "tgt_is_causal": True}
        returned = self.call(
            self.arranged(x.x),
            self.arranged(x.memory),
            plain=causal,
            is_real=self._own_mask(x),
            memory_is_real=self.masked("memory_is_real", x.memory_is_real, x.memory),
            causal_mask=self.own_causal(len(x.x), x.length),
        )
        return self.states_in(returned, x)

    def another(self, x: DecoderInputs) -> DecoderInputs:
        """A call with other states, one more of them, and less memory where there is more than one."""
        other, memory = x.noise("another", x.x), x.noise("another memory", x.memory)
        longer = torch.cat([other, other[:, :1]], dim=1)
        return x.but(
            x=longer, is_real=None, memory=memory[:, : max(1, x.memory_len - 1)], memory_is_real=None
        )

    def plain(self, batch: int, length: int, width: int) -> DecoderInputs:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(batch, length, width, generator=generator)
        return DecoderInputs(DecoderCase(), x, memory=torch.randn(batch, 4, width, generator=generator))


def first(count: int, states: Tensor) -> Tensor:
    """A mask of the first states of each sequence."""
    return (torch.arange(states.shape[1]) < count).expand(states.shape[:2])


class DecoderRole(StatesRole[DecoderCase, DecoderInputs]):
    """Case, declaration and subject of a decoder."""

    name = "decoder"
    plain_call = "f(x, memory)"
    other_word = "encoder"
    inputs = 2
    case = DecoderCase
    declaration = Decoder
    subject = DecoderSubject
    kinds = TORCH

    def build(self, case: DecoderCase, subject: DecoderSubject) -> DecoderInputs:
        generator = torch.Generator().manual_seed(case.seed)
        shape, memory_shape = (case.batch, case.length), (case.batch, case.memory_len)
        x, memory = (
            torch.randn(*each, subject.d_model, generator=generator, dtype=torch.float64) * case.spread
            for each in (shape, memory_shape)
        )
        return DecoderInputs(
            case,
            x.to(subject.dtype),
            ragged(shape, case.padding, generator),
            memory=memory.to(subject.dtype),
            memory_is_real=ragged(memory_shape, case.memory_padding, generator),
        )

    def find(self, subject: Any) -> list[str]:
        x = subject.plain(ROWS, 5, subject.d_model)
        # The second try, with a memory as long as x, is for a mask that is taken at equal lengths only.
        alike = x.but(memory=x.x.flip(1))
        notes = []
        if not subject.with_causal:
            notes += subject.find_forms("is_real", *(each.but(is_real=first(4, x.x)) for each in (x, alike)))
        notes += subject.find_forms(
            "memory_is_real", *(each.but(memory_is_real=first(3, each.memory)) for each in (x, alike))
        )
        if isinstance(subject.module, TORCH):
            notes.append("tgt_mask is given a causal mask")
        if subject.with_causal:
            notes.append(subject.forms["is_real"].told_with_causal(subject.places["is_real"]))
        return [*notes, *subject.masks_told()]


role = DecoderRole()
