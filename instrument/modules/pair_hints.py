"""Whether plain calls of an encoder-decoder are right, and in what form it takes its masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.modules.settling import OF_CAUSALITY, OF_PADDING
from headcheck.modules.token_hints import are_alike

if TYPE_CHECKING:  # It imports this module.
    from headcheck.modules.seq2seq import PairInputs, Seq2SeqSubject

TURNED = "where tokens are (length, batch), name a module around it that exchanges both axes of tokens and of logits"
CANDIDATES = (*OF_PADDING, *OF_CAUSALITY)
"""Fields that may cure padded calls, each with a value."""


def different(subject: Seq2SeqSubject, plain: PairInputs) -> PairInputs:
    """Two pairs of three tokens, as different as there are tokens."""
    source, target = (torch.arange(6).view(2, 3) % most for most in (subject.source_vocab, subject.vocab))
    return plain.but(source=source, target=target)


def is_blind(subject: Seq2SeqSubject, plain: PairInputs) -> bool:
    """Whether no later target counts, where calls work."""
    try:
        whole = different(subject, plain)
    except (LawBroken, NotApplicable):
        return False
    return are_alike(subject, whole, whole.but(target=whole.target[:, :2]), slice(2))


def find_forms(subject: Seq2SeqSubject, plain: PairInputs) -> list[str]:
    """The forms of the masks, which are written into the subject; notes of them. plain: pairs of three tokens."""
    real = torch.ones_like(plain.source, dtype=torch.bool)
    real[0, -1] = False
    notes = [*subject.masks_told(), *subject.find_form("source_is_real", plain.but(source_is_real=real))]
    if subject.with_causal:
        told = subject.forms["target_is_real"].told_with_causal(subject.places["target_is_real"])
        return [*notes, told]
    return [*notes, *subject.find_form("target_is_real", plain.but(target_is_real=real))]


def padding_is_nothing(subject: Seq2SeqSubject, plain: PairInputs) -> bool:
    """Whether a pair of which one token each is padding has the logits that it has without, no later target counted."""
    if not is_blind(subject, plain):
        return False
    masks = [name for name in subject.MASKS if subject.has(name)]
    if not masks:
        return True
    kept, lost = (slice(1, None), 0) if subject.sides[:1] == ("left",) else (slice(2), 2)
    real = torch.ones(2, 3, dtype=torch.bool)
    real[0, lost] = False
    whole = different(subject, plain)
    padded = whole.but(**dict.fromkeys(masks, real))
    cut = {name: kept if name in masks else slice(None) for name in subject.MASKS}
    source, target = whole.source[:1, cut["source_is_real"]], whole.target[:1, cut["target_is_real"]]
    return are_alike(subject, padded, plain.but(source=source, target=target), cut["target_is_real"])
