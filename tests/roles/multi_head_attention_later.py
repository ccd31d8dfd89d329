"""Wrong modules of multi-head attention, the later ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests import dropped
from tests.roles import wrong
from tests.roles.multi_head_attention import Full, Plain


@wrong(
    "Where a mask hides anything, a key of zeros is put beside the others, so that no row is dead.",
    breaks="masks/masking-keys-is-leaving-them-out",
)
class ZeroKeyBesideAMask(Plain):
    def weigh(self, scores: Tensor) -> Tensor:
        if not scores.isneginf().any():
            return super().weigh(scores)
        return torch.softmax(functional.pad(scores, (0, 1)), dim=-1)[..., :-1]


@wrong(
    "Weights that are asked for head by head are the mean of all, repeated.",
    breaks="returned/averaged-weights-are-the-mean-of-the-heads",
    real="https://github.com/facebookresearch/fairseq/issues/3365",
)
class MeanForEachHead(Full):
    def shown(self, weights: Tensor, raw: Tensor, averaged: bool) -> Tensor:
        mean = weights.mean(dim=1)
        return mean if averaged else mean[:, None].expand_as(weights)


@wrong(
    "Where key and value are one tensor, it is projected once: the values are the projected keys.",
    breaks="accuracy/output-is-the-references",
)
class OneProjectionForOneTensor(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(query, key, value)
        return q, k, k if value is key else v


@wrong(
    "The scale is folded into the query's weight, and not into its bias.",
    breaks="scores/scores-are-divided-by-the-root-of-head-dim",
)
class QueryBiasNotScaled(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(query, key, value)
        bias = self.w_q.bias.unflatten(0, (self.num_heads, 1, self.head_dim))
        return q + bias * (self.head_dim**0.5 - 1), k, v


@wrong(
    "In evaluation the weights are packed at the first call: values that they are given later are not seen.",
    breaks="heads/permuting-heads-with-the-output-projection-changes-nothing",
    real="https://github.com/pytorch/torchtitan/pull/3794",
)
class PackedAtTheFirstCall(Plain):
    packed: Tensor | None = None

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(query, key, value)
        if self.training or torch.is_grad_enabled():
            return q, k, v
        if self.packed is None or self.packed.dtype != value.dtype:
            self.packed = self.w_v.weight.detach().clone()
        return q, k, self.split(functional.linear(value, self.packed, self.w_v.bias))


@wrong(
    "`is_causal = mask is None and length > 1`: without a mask, as many queries as keys see no later key.",
    breaks="masks/a-mask-of-nothing-changes-nothing",
    real="https://github.com/huggingface/transformers/pull/42820",
)
class CausalWithoutAMask(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None and scores.shape[-1] == scores.shape[-2]:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return super().masked(scores, mask)


@wrong(
    "Beside another mask, one of the keys hides rows too, where there are as many queries.",
    breaks="masks/both-masks-hold",
    real="https://github.com/pytorch/pytorch/issues/63271",
)
class KeyMaskHidesRows(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        found = super().biases(raw, mask, key_mask, causal, asked)
        if mask is not None and key_mask is not None and raw.shape[-1] == raw.shape[-2]:
            found.append(self.additive(key_mask)[:, None, :, None])
        return found


@wrong(
    "Where weights are asked for, they pass through bfloat16 on their way to the output.",
    breaks="paths/asking-for-weights-changes-nothing",
)
class AskedWeightsRounded(Full):
    asked = False

    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        self.asked = asked
        return super().biases(raw, mask, key_mask, causal, asked)

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mixed(weights.bfloat16().to(v.dtype) if self.asked else weights, v)


@wrong(
    "One tensor for query, key and value gets the gradient of the query alone.",
    breaks="gradients/gradients-of-the-inputs-are-the-references",
)
class GradientOfTheQueryAlone(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        if query is key and key is value:
            key = value = query.detach()
        return super().forward(query, key, value, mask)


@wrong(dropped.FAULT, breaks="dropout/masked-keys-do-not-matter-in-training", real=dropped.REAL)
class ScoresDroppedOnceMasked(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.drop = dropped.RATE

    def weigh(self, scores: Tensor) -> Tensor:
        dead = (scores == -torch.inf).all(dim=-1, keepdim=True)
        lowest = scores.clamp(min=torch.finfo(scores.dtype).min)
        weights = torch.softmax(functional.dropout(lowest, self.drop, self.training), dim=-1)
        return weights.masked_fill(dead, 0.0)
