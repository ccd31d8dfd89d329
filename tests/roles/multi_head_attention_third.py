"""Wrong modules of multi-head attention, the third ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.multi_head_attention import Full, Plain


@wrong(
    "Beyond 16 queries they come in chunks of 16, and the causal mask of each begins at the first key again.",
    breaks="masks/is-causal-is-the-causal-mask",
)
class CausalBeginsAgainInEachChunk(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        found = super().biases(raw, mask, key_mask, False, asked)
        rows = torch.arange(raw.shape[2])[:, None] % 16
        return [*found, self.additive(torch.arange(raw.shape[3]) <= rows)] if causal else found


@wrong(
    "The values are made by a lambda that holds the module: a deep copy goes on reading the weights of its original.",
    breaks="state/a-copy-is-a-module-of-its-own",
)
class CopyReadsTheOriginal(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.make_value = lambda value: self.split(self.w_v(value))

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.split(self.w_q(query)), self.split(self.w_k(key)), self.make_value(value)


@wrong(
    "The mean of the weights is taken over the heads in which a query may attend to anything.",
    breaks="returned/the-average-is-over-all-heads",
)
class MeanOfLivingHeads(Full):
    def shown(self, weights: Tensor, raw: Tensor, averaged: bool) -> Tensor:
        living = (weights.sum(dim=-1, keepdim=True) > 0).sum(dim=1).clamp(min=1)
        return weights.sum(dim=1) / living if averaged else weights


@wrong(
    "Weights that were asked for once are returned ever after.",
    breaks="returned/what-is-asked-for-is-for-its-own-call",
)
class WeightsEverAfter(Full):
    asked = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
        return_weights: bool = False,
        average_attn_weights: bool = True,
    ) -> Any:
        self.asked = self.asked or return_weights
        return super().forward(query, key, value, mask, key_mask, is_causal, self.asked, average_attn_weights)


@wrong(
    "The scale of the scores is folded into the weight of the queries by each call of eval.",
    breaks="state/a-mode-that-is-set-again-changes-nothing",
)
class FoldedByEachEval(Full):
    folded = False

    def train(self, mode: bool = True) -> Any:
        if not mode and self.folded:
            with torch.no_grad():
                self.w_q.weight *= 0.5
        self.folded = True
        return super().train(mode)


@wrong(
    "The mask is the least number in the dtype of the weights, which the scores cannot hold under autocast.",
    breaks="autocast/masked-keys-do-not-matter",
)
class LeastNumberOfTheWeights(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores
        mask = mask[:, None] if mask.ndim == 3 else mask
        return scores.masked_fill(~mask, torch.finfo(self.w_q.weight.dtype).min)
