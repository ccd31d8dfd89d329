"""The reference behind the signature that torch gave attention, with the features that others added."""

import torch
from torch import Tensor

from headcheck.reference import masks
from headcheck.reference.attention import attention
from headcheck.reference.positions import alibi_bias


def canonical_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    key_lengths: Tensor | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Attention as `torch.nn.functional.scaled_dot_product_attention` is called.

    query (batch, heads, q_len, head_dim), key (batch, kv_heads, kv_len, head_dim), value (batch, kv_heads,
    kv_len, value_dim) -> (batch, heads, q_len, value_dim), then the log-sum-exp and the weights if asked for.
    key_lengths (batch,): how many keys each sequence has, the first ones.
    bfloat16 and float16 are computed in float32 and rounded once. ValueError: grouped heads without enable_gqa.
    """
    if key.shape[1] != query.shape[1] and not enable_gqa:
        raise ValueError("key has fewer heads than query: pass enable_gqa=True")
    work = torch.promote_types(query.dtype, torch.float32)
    q_len, kv_len = query.shape[2], key.shape[2]
    may_attend = query.new_ones((q_len, kv_len), dtype=torch.bool)
    bias = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        may_attend = may_attend & attn_mask
    elif attn_mask is not None:
        may_attend = may_attend & ~attn_mask.isneginf()
        bias = attn_mask.to(work).masked_fill(attn_mask.isneginf(), 0.0)
    if is_causal:
        may_attend = may_attend & masks.causal(q_len, kv_len).to(query.device)
    if window is not None:
        may_attend = may_attend & masks.sliding_window(q_len, kv_len, *window).to(query.device)
    if key_lengths is not None:
        may_attend = may_attend & masks.padding(key_lengths, kv_len)
    if alibi_slopes is not None:
        slopes = alibi_bias(alibi_slopes, q_len, kv_len).to(query.device, work)
        bias = slopes if bias is None else bias + slopes
    attended = attention(
        query.to(work),
        key.to(work),
        value.to(work),
        may_attend=may_attend,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=None if sinks is None else sinks.to(work),
    )
    output = attended.output
    if dropout_p:
        dropped = torch.nn.functional.dropout(attended.weights, dropout_p)
        output = dropped @ value.to(work).repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    extras = (attended.log_sum_exp,) * return_lse + (attended.weights.to(query.dtype),) * return_weights
    return (output.to(query.dtype), *extras) if extras else output.to(query.dtype)
