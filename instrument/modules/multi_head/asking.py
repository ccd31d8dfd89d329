"""Calls that several laws make: with a mask of numbers, and with is_causal beside a mask."""

from collections.abc import Callable

import torch
from torch import Tensor

from headcheck.calling import REFUSALS, SubjectRaised
from headcheck.comparison import NotApplicable
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.masks import axes_of, can_say
from headcheck.modules.multi_head.oracle import with_bias
from headcheck.modules.multi_head.subject import MultiHeadSubject


def with_numbers_added(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> tuple[MultiHeadInputs, Callable[[MultiHeadInputs], Tensor]]:
    """The same call with a mask of numbers, and what such a call gives exactly."""
    shapes = [shape for kind, shape in attention.found.mask_forms if kind == "additive"]
    shape = x.case.mask_shape if x.case.mask_shape in shapes else shapes[0]
    bias = x.random("bias", *axes_of(shape, (len(x.query), x.heads, x.query.shape[1], x.keys.shape[1])))
    whole = bias.expand(len(x.query), -1, x.query.shape[1], -1)
    keep = x.may_attend
    if keep is None or not can_say(shape, keep):
        keep = torch.ones_like(whole, dtype=torch.bool)
    case = x.case.but(mask_kind="additive", mask_shape=shape)
    biased = x.masked(keep).but(case=case, score_bias=whole)
    return biased, lambda call: with_bias(call, whole.double(), attention.visible(call))


def answer_beside_causal(attention: MultiHeadSubject, both: MultiHeadInputs) -> Tensor:
    """The output of a call with a mask and is_causal. NotApplicable: it is refused."""
    try:
        return attention(both)
    except SubjectRaised as refusal:
        said_so = "causal" in str(refusal.problem)  # As torch's own does.
        if said_so or isinstance(refusal.problem, REFUSALS):
            raise NotApplicable(f"attn_mask with is_causal is refused: {refusal}") from refusal
        raise
