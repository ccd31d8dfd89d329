"""Which query may attend to which key: every mask is a boolean tensor in which True keeps.

Axes: batch, heads, q_len (queries, index i), kv_len (keys, index j). All functions return `may_attend`,
shaped so that it broadcasts to (batch, heads, q_len, kv_len).
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Alignment = Literal["top-left", "bottom-right"]
"""Where the causal diagonal stands when q_len differs from kv_len.

top-left: query 0 stands at key 0. bottom-right: the last query stands at the last key, as in decoding.
"""


def query_positions(q_len: int, kv_len: int, alignment: Alignment = "top-left") -> Int[Tensor, " q_len"]:
    """The key index at which each query stands: i, or i + kv_len - q_len."""
    return torch.arange(q_len) + (kv_len - q_len if alignment == "bottom-right" else 0)


def causal(q_len: int, kv_len: int, alignment: Alignment = "top-left") -> Bool[Tensor, "q_len kv_len"]:
    """A query sees its own position and the past: j <= i.  Vaswani et al. 2017, section 3.2.3."""
    return torch.arange(kv_len) <= query_positions(q_len, kv_len, alignment)[:, None]


def sliding_window(
    q_len: int,
    kv_len: int,
    left: int | None,
    right: int | None,
    alignment: Alignment = "top-left",
) -> Bool[Tensor, "q_len kv_len"]:
    """A query sees `left` keys before its position and `right` after it, itself included.

    i - left <= j <= i + right; None is unbounded.  Beltagy et al. 2020 (Longformer), section 3.1.
    """
    distance = torch.arange(kv_len) - query_positions(q_len, kv_len, alignment)[:, None]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left is not None:
        seen &= distance >= -left
    if right is not None:
        seen &= distance <= right
    return seen


def padding(lengths: Int[Tensor, " batch"], kv_len: int) -> Bool[Tensor, "batch 1 1 kv_len"]:
    """Only the first `lengths[b]` keys of sequence b are real."""
    return (torch.arange(kv_len, device=lengths.device) < lengths[:, None])[:, None, None, :]


def document(
    query_ids: Int[Tensor, "batch q_len"], key_ids: Int[Tensor, "batch kv_len"]
) -> Bool[Tensor, "batch 1 q_len kv_len"]:
    """Packed sequences: a query sees the keys of its own document."""
    return (query_ids[:, :, None] == key_ids[:, None, :])[:, None]


def prefix(
    q_len: int, kv_len: int, prefix_len: int, alignment: Alignment = "top-left"
) -> Bool[Tensor, "q_len kv_len"]:
    """Prefix language model: everyone sees the first `prefix_len` keys, and causally the rest.

    Raffel et al. 2020 (T5), section 3.2.1.
    """
    return causal(q_len, kv_len, alignment) | (torch.arange(kv_len) < prefix_len)


def additive(may_attend: Bool[Tensor, "*axes"], dtype: torch.dtype = torch.float64) -> Float[Tensor, "*axes"]:
    """The mask as a bias: 0 where a query may attend, -inf where it may not."""
    bias = torch.zeros(may_attend.shape, dtype=dtype, device=may_attend.device)
    return bias.masked_fill(~may_attend, float("-inf"))
