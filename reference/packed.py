"""Sequences of several lengths without padding: their tokens stand on one axis, and each attends to itself alone.

Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination", section 3.2.2. Axes: tokens and
kv_tokens of all sequences, heads, kv_heads, head_dim, value_dim; `starts` holds where each sequence begins and,
last, where the last one ends (elsewhere called cu_seqlens).
"""

from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcheck.reference import masks
from headcheck.reference.attention import attention


def packed_attention(
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "kv_tokens kv_heads head_dim"],
    value: Float[Tensor, "kv_tokens kv_heads value_dim"],
    query_starts: Int[Tensor, " boundaries"],
    key_starts: Int[Tensor, " kv_boundaries"],
    *,
    causal: masks.Alignment | None = None,
    scale: float | None = None,
) -> Float[Tensor, "tokens heads value_dim"]:
    """softmax(scale Q K^T) V of each sequence, one after another; without keys, zeros.

    causal: where the diagonal of each sequence stands; None: every query sees all keys of its sequence.
    ValueError: not as many sequences of keys as of queries, or tokens that belong to none.
    """
    rows, columns = (list(pairwise(starts.tolist())) for starts in (query_starts, key_starts))
    if len(rows) != len(columns):
        raise ValueError(f"{len(rows)} sequences of queries, {len(columns)} of keys")
    if rows and (rows[-1][1] != len(query) or columns[-1][1] != len(key)):
        raise ValueError("the last sequence does not end with the last token")
    outputs = [
        _alone(query[a:b], key[c:d], value[c:d], causal, scale)
        for (a, b), (c, d) in zip(rows, columns, strict=True)
    ]
    return torch.cat([query.new_zeros(0, query.shape[1], value.shape[2]), *outputs])


def _alone(
    query: Float[Tensor, "q_len heads head_dim"],
    key: Float[Tensor, "kv_len kv_heads head_dim"],
    value: Float[Tensor, "kv_len kv_heads value_dim"],
    causal: masks.Alignment | None,
    scale: float | None,
) -> Float[Tensor, "q_len heads value_dim"]:
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    may_attend = masks.causal(len(query), len(key), causal).to(query.device) if causal else None
    return attention(q, k, v, may_attend=may_attend, scale=scale).output[0].transpose(0, 1)
