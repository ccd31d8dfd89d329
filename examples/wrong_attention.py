"""Right attention with one wrong line each. The gate says that every one breaks a law:

headcheck examples/wrong_attention.py:scale_by_dim
headcheck examples/wrong_attention.py:causal_off_by_one
headcheck examples/wrong_attention.py:leaky_mask
headcheck examples/wrong_attention.py:late_rescale
"""

import torch
from torch import Tensor


def scale_by_dim(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The scores are divided by head_dim, not by its root."""
    scores = query @ key.mT / query.shape[-1]
    return torch.softmax(scores, dim=-1) @ value


def causal_off_by_one(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The diagonal stands one key too far to the right: each query sees the next token."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if is_causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(diagonal=1)
        scores = scores.masked_fill(~past, -torch.inf)
    return torch.softmax(scores, dim=-1) @ value


def leaky_mask(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A masked score is lowered by 10,000, which is not enough for every score."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores - 10_000.0 * (~attn_mask).to(scores.dtype)
    elif attn_mask is not None:
        scores = scores + attn_mask
    dead = scores.isneginf().all(dim=-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(dead, 0.0), dim=-1)
    return weights.masked_fill(dead, 0.0) @ value


def late_rescale(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """An online softmax that rescales its sum when the maximum rises, and forgets its output."""
    scale, block = query.shape[-1] ** -0.5, 8
    top = query.new_full((*query.shape[:-1], 1), -torch.inf)
    total = torch.zeros_like(top)
    output = query.new_zeros((*query.shape[:-1], value.shape[-1]))
    for keys, values in zip(key.split(block, dim=-2), value.split(block, dim=-2), strict=True):
        scores = query @ keys.mT * scale
        rises = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
        weights = torch.exp(scores - rises)
        total = total * torch.exp(top - rises) + weights.sum(dim=-1, keepdim=True)
        output = output + weights @ values
        top = rises
    return output / total
