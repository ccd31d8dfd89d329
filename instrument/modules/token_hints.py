"""Whether padding is nothing to a module that reads tokens, and what may be said of its plain calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.verdict import Hint

if TYPE_CHECKING:  # It imports this module.
    from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs

ALIKE = 1e-3
"""The share of the largest number up to which logits are alike: a wrong order of axes moves far more."""
LENGTH_FIRST = (
    "sequences change the logits of those beside them, and do not where tokens are (length, batch): where that is "
    "meant, name a function around it that exchanges both axes of tokens and of logits"
)
HOLDS_THE_CAUSAL_ONE = (
    "{} is required, and given as a mask of padding: where the causal mask belongs in it, "
    "name a module around it that adds it"
)


def different(subject: Any) -> Tensor:
    """Two sequences of three tokens, as different as there are tokens."""
    return torch.arange(6).view(2, 3) % int(subject.vocab)


def are_alike(
    subject: Any, one: Any, other: Any, kept: slice = slice(None), among: slice = slice(None)
) -> bool:
    """Whether the first sequences of two calls have the same logits, at `kept` in one and `among` in the other."""
    try:
        return not subject.close(subject(one)[:1, kept], subject(other)[:1, among], other).broken
    except (LawBroken, NotApplicable):
        return False


def padding_is_nothing(subject: CausalLMSubject, plain: TokenInputs) -> bool:
    """Whether padding behind a sequence changes nothing, nor what stands in padding before it, nor later tokens."""
    if subject.lacks("is_real"):
        return True
    tokens, real = different(subject), torch.tensor([[True, True, False], [True, True, True]])
    right = plain.but(tokens=tokens, is_real=real)
    left = right.but(is_real=real.flip(1))
    other = left.but(tokens=torch.where(real.flip(1), tokens, tokens.flip(0)))
    alone = plain.but(tokens=tokens[:, :2])
    if not are_alike(subject, plain.but(tokens=tokens), alone, slice(2)):
        return False
    return ("right" not in subject.sides or are_alike(subject, right, alone, slice(2))) and (
        "left" not in subject.sides or are_alike(subject, left, other, slice(1, None), slice(1, None))
    )


def of_axes_and_masks(subject: CausalLMSubject, plain: TokenInputs) -> list[Hint]:
    """That tokens are (length, batch), or that the causal mask is the caller's, where plain calls look like it."""
    try:
        if not _apart(subject, turned=False) and _apart(subject, turned=True):
            return [Hint(LENGTH_FIRST)]
    except (LawBroken, NotApplicable):
        pass
    tokens = different(subject)
    whole, prefix = plain.but(tokens=tokens), plain.but(tokens=tokens[:, :2])
    if "is_real" in subject.required and not are_alike(subject, whole, prefix, slice(2)):
        return [Hint(HOLDS_THE_CAUSAL_ONE.format(subject.places["is_real"]))]
    return []


def _apart(subject: CausalLMSubject, *, turned: bool) -> bool:
    """Whether each of two sequences has the logits that it has alone; turned: the length is the first axis."""
    tokens = different(subject)

    def logits(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            given = subject.given(tokens.mT if turned else tokens)
            found = subject.logits_in(subject.call(given), tuple(given.shape)).double()
        return found.transpose(0, 1) if turned else found

    both = logits(tokens)
    alone = torch.cat([logits(tokens[:1]), logits(tokens[1:])])
    return bool((both - alone).abs().max() <= ALIKE * both.abs().max())
