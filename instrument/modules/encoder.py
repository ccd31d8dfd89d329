"""The role `encoder`: a layer or a stack from states to states, each of which sees all the others, or those before it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.errors import SubjectError
from headcheck.modules.masks import LENGTHS, OF_SOURCE, ROWS
from headcheck.modules.state_hints import causal_hint
from headcheck.modules.states import StateInputs, States, StatesCase, StatesSubject
from headcheck.modules.states_role import StatesRole, ragged
from headcheck.verdict import IF_MEANT, Hint

TORCH = (nn.TransformerEncoderLayer, nn.TransformerEncoder)


NEEDLESS = (
    "only_tokens=False is declared, yet five copies of a token give what it gives alone: without it the law "
    "symmetry/copies-of-a-token-give-what-it-gives-alone is asked too"
)
"""Of an encoder whose weights do sum to one."""


@dataclass(frozen=True)
class Encoder(States):
    """An encoder, a layer or a stack, with its conventions.

    function: the module, a function without parameters that makes one, or f(x, is_real=None) itself.
    x (batch, length, d_model) -> states of the same shape. is_real (batch, length), True at what is no padding.
    """

    causal: bool = False
    """Whether no state sees those behind it, as in the blocks of a decoder-only model."""
    only_tokens: bool = True
    """Whether attention shares its whole weight among the tokens: not so with a sink or registers, nor with sigmoids or a
    sum that is not divided exactly, as in linear attention."""

    role = "encoder"
    ARGUMENTS: ClassVar = {
        "is_real": (
            "is_real",
            "src_key_padding_mask",
            "key_padding_mask",
            "encoder_padding_mask",
            *("padding_mask", "pad_mask", "src_pad_mask"),
            "attention_mask",
            "may_attend",
            "src_mask",
            "mask",
            *LENGTHS,
            *OF_SOURCE,
        ),
    }


class EncoderSubject(StatesSubject[StateInputs]):
    """Laws see x, is_real and states."""

    TORCH = TORCH
    FEATURES: ClassVar = {
        **StatesSubject.FEATURES,
        "only_tokens": "attends to more than its tokens",
        "causal": "is not declared causal",
        "bidirectional": "is causal, as declared",
    }

    def __init__(self, declaration: Encoder, *, dtypes: tuple[str, ...], device: str = "cpu") -> None:
        super().__init__(declaration, dtypes=dtypes, device=device)
        if declaration.causal and "is_real" in self.always:
            raise SubjectError(
                f"the module requires {self.places['is_real']}, and is declared causal: where the causal mask belongs in "
                "it, name a module around it that adds it"
            )

    def lacks(self, feature: str) -> str | None:
        if feature in ("causal", "bidirectional"):
            return None if self.declaration.causal == (feature == "causal") else self.FEATURES[feature]
        return super().lacks(feature)

    def output(self, x: StateInputs) -> Tensor:
        self.require_room(x.length)
        returned = self.call(self.arranged(x.x), is_real=self.masked("is_real", x.is_real, x.x))
        return self.states_in(returned, x)

    def another(self, x: StateInputs) -> StateInputs:
        """A call with other states, and one more of them."""
        other = x.noise("another", x.x)
        return x.but(x=torch.cat([other, other[:, :1]], dim=1), is_real=None)

    def plain(self, batch: int, length: int, width: int) -> StateInputs:
        generator = torch.Generator().manual_seed(0)
        return StateInputs(StatesCase(), torch.randn(batch, length, width, generator=generator))


class EncoderRole(StatesRole[StatesCase, StateInputs]):
    """Case, declaration and subject of an encoder."""

    name = "encoder"
    other_word = "decoder"
    inputs = 1
    case = StatesCase
    declaration = Encoder
    subject = EncoderSubject
    kinds = TORCH

    def build(self, case: StatesCase, subject: EncoderSubject) -> StateInputs:
        generator = torch.Generator().manual_seed(case.seed)
        shape = (case.batch, case.length)
        x = torch.randn(*shape, subject.d_model, generator=generator, dtype=torch.float64) * case.spread
        return StateInputs(case, x.to(subject.dtype), ragged(shape, case.padding, generator))

    def find(self, subject: Any) -> list[str]:
        x = subject.plain(ROWS, 5, subject.d_model)
        return list(subject.find_forms("is_real", x.but(is_real=x.real & (torch.arange(5) < 4))))

    def notes(self, subject: EncoderSubject) -> list[str]:
        return [*super().notes(subject), *_beside_tokens(subject), *causal_hint(subject)]


def _beside_tokens(subject: EncoderSubject) -> list[Hint]:
    """A hint where no order counts and copies of a token are not what it is alone: as with registers or a sink.

    And one where that is declared, and they are: then a law could be asked that is not.
    """
    if subject.lacks("no_positions"):
        return []
    x = subject.plain(2, 5, subject.d_model)
    copies = x.but(x=x.x[:, :1].expand_as(x.x).clone())
    try:
        alone = subject.close(subject(copies), subject(x.but(x=x.x[:, :1])).expand(-1, 5, -1), x)
        if subject.lacks("only_tokens"):
            return [] if alone.broken else [Hint(NEEDLESS)]
        turned = subject.close(subject(x.but(x=x.x.flip(1))), subject(x).flip(1), x)
    except (LawBroken, NotApplicable):
        return []
    if turned.broken or not alone.broken:
        return []
    return [Hint(f"a plain call is right with --declare only_tokens=False, {IF_MEANT}")]


role = EncoderRole()
