"""A kernel with conventions of its own, and the declaration that says so. The gate says that it conforms:

headcheck examples/declared_kernel.py:subject
"""

import torch
from torch import Tensor

import headcheck


def kernel(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None
) -> Tensor:
    """Tensors (batch, length, heads, dim); the last query sees the last key; computed in float32 or wider."""
    wide = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[2] // k.shape[2]
    query, key, value = (x.to(wide).transpose(1, 2) for x in (q, k, v))
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = query @ key.mT * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if causal:
        q_len, kv_len = scores.shape[-2:]
        past = torch.ones(q_len, kv_len, dtype=torch.bool).tril(diagonal=kv_len - q_len)
        scores = scores.masked_fill(~past, -torch.inf)
    dead = scores.isneginf().all(dim=-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(dead, 0.0), dim=-1).masked_fill(dead, 0.0)
    return (weights @ value).transpose(1, 2).to(q.dtype)


subject = headcheck.Attention(
    kernel,
    layout="bshd",
    causal="bottom-right",
    grouped_heads="interleaved",
    masks=(),
    dropout=False,
    dtypes=("float32", "float64", "bfloat16", "float16"),
    arithmetic={"bfloat16": "wide", "float16": "wide"},
)
