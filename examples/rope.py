"""Rotary positions as many models have them: the half-split pairing, angles in float32.

headcheck examples/rope.py:apply_rope --role rotary
"""

import torch
from torch import Tensor


def apply_rope(x: Tensor, position_ids: Tensor, theta: float = 10000.0) -> Tensor:
    """x (batch, heads, length, dim), position_ids (length,) or (batch, length)."""
    dim = x.shape[-1]
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = position_ids.float()[..., None] * frequencies
    angles = angles if position_ids.ndim == 1 else angles[:, None]
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)
