"""Functions that disagree with the reference, one for each law of a pair, and some that agree with it."""

import math
from typing import Any

import torch
from torch import Tensor

from headcheck.reference.attention import attention
from tests.roles import right, wrong


def keeps(attn_mask: Tensor | None) -> Tensor | None:
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return attn_mask
    return ~attn_mask.isneginf()


def bias(attn_mask: Tensor | None) -> Tensor | None:
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return None
    return attn_mask.masked_fill(attn_mask.isneginf(), 0.0)


@wrong("The scores are divided by head_dim, not by its root.", breaks="pairs/outputs-agree")
def scaled_twice(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attention(query, key, value, scale=1 / query.shape[-1]).output


@wrong("The value gets no gradient.", breaks="pairs/gradients-agree")
def value_detached(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attention(query, key, value.detach()).output


@wrong("The log-sum-exp is to base 2.", breaks="pairs/log-sum-exps-agree", real="flashinfer")
def log_sum_exp_to_base_two(query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False) -> Any:
    attended = attention(query, key, value)
    found = attended.log_sum_exp / math.log(2)
    return (attended.output, found) if return_lse else attended.output


@wrong("The weights are returned with their queries in reverse order.", breaks="pairs/weights-agree")
def weights_turned_round(query: Tensor, key: Tensor, value: Tensor, return_weights: bool = False) -> Any:
    attended = attention(query, key, value)
    return (attended.output, attended.weights.flip(2)) if return_weights else attended.output


@wrong(
    "A query without keys gives the mean of all values.",
    breaks="pairs/dead-rows-agree",
    real="https://github.com/pytorch/pytorch/issues/110213",
)
def dead_rows_give_the_mean(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if (added := bias(attn_mask)) is not None:
        scores = scores + added
    if (kept := keeps(attn_mask)) is not None:
        scores = scores.masked_fill(~kept, torch.finfo(query.dtype).min)
    return torch.softmax(scores, dim=-1) @ value


@wrong("A scale of zero is taken for none.", breaks="pairs/scales-of-zero-and-below-agree")
def scale_of_zero_is_none(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    given = {"may_attend": keeps(attn_mask), "bias": bias(attn_mask)}
    return attention(query, key, value, scale=scale or query.shape[-1] ** -0.5, **given).output


@wrong("The running maximum begins at -1e4.", breaks="pairs/low-biases-agree")
def maximum_from_minus_ten_thousand(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if (added := bias(attn_mask)) is not None:
        scores = scores + added
    if (kept := keeps(attn_mask)) is not None:
        scores = scores.masked_fill(~kept, -torch.inf)
    raised = torch.exp(scores - scores.amax(dim=-1, keepdim=True).clamp(min=-1e4))
    total = raised.sum(dim=-1, keepdim=True)
    return raised @ value / total.masked_fill(total == 0, 1.0)


@wrong("A mask of two axes is read as one of sequences and keys.", breaks="pairs/masks-of-two-axes-agree")
def mask_of_two_axes_for_sequences(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    if attn_mask is not None and attn_mask.ndim == 2 and attn_mask.shape[0] == query.shape[0] > 1:
        attn_mask = attn_mask[:, None, None]
    return attention(query, key, value, may_attend=keeps(attn_mask), bias=bias(attn_mask)).output


@wrong(
    "The causal flag is dropped beside an additive mask of one row.",
    breaks="pairs/biases-beside-the-causal-flag-agree",
    real="https://github.com/keras-team/keras/issues/23040",
)
def causal_flag_dropped_beside_a_row(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    kept = keeps(attn_mask)
    if is_causal and not (bias(attn_mask) is not None and attn_mask.shape[-2] == 1):
        triangle = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        kept = triangle if kept is None else kept & triangle
    return attention(query, key, value, may_attend=kept, bias=bias(attn_mask)).output


@wrong("Of an odd number of keys above 1024 the last is lost.", breaks="pairs/long-rows-agree")
def last_of_many_keys_lost(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    kept = key.shape[-2] if key.shape[-2] <= 1024 else key.shape[-2] // 2 * 2
    return attention(query, key[..., :kept, :], value[..., :kept, :]).output


@right("The textbook's steps, in the dtype of the inputs or in float32.")
def plain(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in (query, key, value)]
    added = bias(attn_mask)
    added = None if added is None else added.to(wide[0].dtype)
    return attention(*wide, may_attend=keeps(attn_mask), bias=added).output.to(query.dtype)


@right("The scale stands on the query, and the sum is taken at the end.")
def normalised_late(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, return_weights: bool = False
) -> Any:
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.mT
    raised = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    total = raised.sum(dim=-1, keepdim=True)
    output = raised @ value / total
    return (output, raised / total) if return_weights else output


@right("With its log-sum-exp and its weights.")
def with_extras(
    query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False, return_weights: bool = False
) -> Any:
    wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in (query, key, value)]
    attended = attention(*wide)
    output, weights = attended.output.to(query.dtype), attended.weights.to(query.dtype)
    if return_lse:
        return output, attended.log_sum_exp
    return (output, weights) if return_weights else output
