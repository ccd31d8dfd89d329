"""Tensors in the form that a subject takes: heads in another order, masks with more axes or fewer."""

import torch
from torch import Tensor

from headcheck.comparison import NotApplicable


def to_tiled(x: Tensor, kv_heads: int) -> Tensor:
    """Head order h * group + j (interleaved) to j * kv_heads + h (tiled)."""
    by_group = x.reshape(x.shape[0], kv_heads, x.shape[1] // kv_heads, *x.shape[2:])
    return by_group.transpose(1, 2).flatten(1, 2)


def from_tiled(x: Tensor, kv_heads: int) -> Tensor:
    """Tiled head order to interleaved."""
    by_key_head = x.reshape(x.shape[0], x.shape[1] // kv_heads, kv_heads, *x.shape[2:])
    return by_key_head.transpose(1, 2).flatten(1, 2)


def with_axes(mask: Tensor, axes: int) -> Tensor:
    """The same mask with so many axes. NotApplicable: along an axis that would be lost it differs."""
    if mask.ndim < axes:
        return mask.reshape((1,) * (axes - mask.ndim) + tuple(mask.shape))
    for _ in range(mask.ndim - axes):
        if not torch.equal(mask, mask[:1].expand(mask.shape)):
            raise NotApplicable(f"takes no attn_mask of {mask.ndim} axes")
        mask = mask[0]
    return mask


def of_shape(gradient: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of a mask of that shape, which was given in another. NotApplicable: with axes left out."""
    if gradient.ndim >= len(shape):
        return gradient.double().sum_to_size(shape)  # No rounding of our own.
    if shape[: len(shape) - gradient.ndim].numel() > 1:
        raise NotApplicable(f"takes no attn_mask of {len(shape)} axes")
    return gradient.reshape(shape)
