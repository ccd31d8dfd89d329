"""Wrong modules of multi-head attention, written by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.multi_head_attention import Full, Plain


@wrong(
    "Key and value of the query's shape are taken for the query: self-attention.",
    breaks="accuracy/output-is-the-references",
)
class ShapeMeansSelf(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if key.shape == query.shape and value.shape == query.shape:
            key = value = query
        return super().projected(query, key, value)


@wrong(
    "The mask is skipped for a batch of one, which is taken to have no padding.",
    breaks="accuracy/output-is-the-references",
    real="https://github.com/huggingface/transformers/pull/46773",
)
class BatchOfOneUnmasked(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(scores, mask if len(scores) > 1 else None)


@wrong(
    "For a single query in evaluation the output's bias is left out.",
    breaks="accuracy/output-is-the-references",
)
class BiasLostInDecoding(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        found = super().forward(query, key, value, mask)
        return found - self.w_o.bias if query.shape[1] == 1 and not self.training else found


@wrong(
    "The gradient of the queries is doubled where there are as many keys as queries.",
    breaks="gradients/gradients-of-the-weights-are-the-references",
)
class SquareGradientDoubled(Plain):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        twice = q + (q - q.detach()) if q.shape[2] == k.shape[2] else q
        return super().scores(twice, k)


@wrong(
    "With an odd number of heads beyond one, the last head has the keys of the one before.",
    breaks="accuracy/output-is-the-references",
)
class OddLastHeadBorrows(Plain):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        heads = k.shape[1]
        if heads > 1 and heads % 2:
            k = torch.cat([k[:, :-1], k[:, -2:-1]], dim=1)
        return super().scores(q, k)


@wrong(
    "Weights that are not averaged come with heads and queries swapped when there are as many.",
    breaks="returned/averaged-weights-are-the-mean-of-the-heads",
)
class WeightsWithAxesSwapped(Full):
    def shown(self, weights: Tensor, raw: Tensor, averaged: bool) -> Tensor:
        shown = super().shown(weights, raw, averaged)
        return shown if averaged or weights.shape[1] != weights.shape[2] else shown.transpose(1, 2)


@wrong(
    "An additive mask of the keys is added once for the mask and once for the keys.",
    breaks="masks/a-key-bias-of-log-two-counts-a-key-twice",
)
class KeyBiasTwice(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        found = super().biases(raw, mask, key_mask, causal, asked)
        both = mask is not None and key_mask is not None
        return [*found, self.additive(key_mask)[:, None, None]] if both and key_mask is not None else found
