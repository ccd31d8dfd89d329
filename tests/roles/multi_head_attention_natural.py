"""Wrong modules of multi-head attention, as they come in ports, refactorings and exercises."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.multi_head_attention import Full, Plain


@wrong(
    "Heads are split by a reshape alone: a head is a piece of the sequence.",
    breaks="heads/heads-are-attentions-run-one-by-one",
    real="https://github.com/reczoo/FuxiCTR/issues/30",
)
class SplitByReshape(Plain):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), self.num_heads, -1, self.head_dim)


@wrong(
    "Heads are merged by a reshape alone: tokens get pieces of other tokens.",
    breaks="heads/heads-are-attentions-run-one-by-one",
    real="https://github.com/jsbaan/transformer-from-scratch/pull/6",
)
class MergedByReshape(Plain):
    def merge(self, heads: Tensor) -> Tensor:
        return heads.reshape(len(heads), heads.shape[2], -1)


@wrong(
    "The weights of a key add up to one over the queries.",
    breaks="heads/heads-are-attentions-run-one-by-one",
    real="https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/282",
)
class SharesOverQueries(Plain):
    def weigh(self, scores: Tensor) -> Tensor:
        return super().weigh(scores.mT).mT


@wrong(
    "Scores are divided by the root of d_model, not of one head's width.",
    breaks="scores/scores-are-divided-by-the-root-of-head-dim",
)
class RootOfTheModelsWidth(Plain):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(self.num_heads * self.head_dim)


@wrong(
    "Masked weights become zero after the softmax, and the others do not add up to one.",
    breaks="masks/masking-keys-is-leaving-them-out",
)
class MaskedTooLate(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        q, k, v = self.projected(query, key, value)
        weights = torch.softmax(self.scores(q, k), dim=-1)
        if mask is not None:
            weights = weights * (mask[:, None] if mask.ndim == 3 else mask)
        return self.w_o(self.merge(weights @ v))


@wrong(
    "A mask of numbers is taken as a boolean one: what is not zero hides its key.",
    breaks="masks/a-key-bias-of-log-two-counts-a-key-twice",
    real="https://github.com/pytorch/pytorch/issues/107084",
    masks=("boolean", "additive"),
)
class NumbersAsBooleans(Full):
    def additive(self, mask: Tensor) -> Tensor:
        return super().additive(mask == 0 if mask.is_floating_point() else mask)


@wrong(
    "The mask of the keys takes the place of the other mask, where both are given.",
    breaks="masks/both-masks-hold",
)
class OneMaskOrTheOther(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        return super().biases(raw, mask if key_mask is None else None, key_mask, causal, asked)


@wrong(
    "Heads come before the batch in one axis, but masks are repeated one sequence after the other.",
    breaks="batch/permuting-the-batch-permutes-the-output",
    real="https://github.com/lsdefine/attention-is-all-you-need-keras/issues/36",
)
class MasksRepeatedInTheOtherOrder(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or mask.ndim != 3:
            return super().masked(scores, mask)
        flat = scores.transpose(0, 1).flatten(0, 1)
        repeated = mask.expand(len(scores), -1, -1).repeat_interleave(self.num_heads, dim=0)
        return flat.masked_fill(~repeated, -torch.inf).unflatten(0, (self.num_heads, -1)).transpose(0, 1)


@wrong(
    "Keys go by in blocks of 16, and a block that is padding in the first sequence is skipped in all.",
    breaks="padding/a-padded-batch-gives-what-each-sequence-gives-alone",
)
class SkipsByTheFirstSequence(Full):
    def biases(self, raw: Tensor, *masks: Any) -> Any:
        for bias in super().biases(raw, *masks):
            blocks = bias.broadcast_to(raw.shape)[:1].split(16, dim=-1)
            skipped = [torch.where((block == -torch.inf).all(), -torch.inf, 0.0) for block in blocks]
            widths = torch.tensor([block.shape[-1] for block in blocks])
            yield bias + torch.stack(skipped).repeat_interleave(widths).to(bias.dtype)
