"""How a tensor lies in memory. Each but `memory_of` takes a tensor and gives one equal to it, freshly allocated."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor

FOREIGN = 7.0
"""What stands in memory beside the tensor's own numbers."""

ALIGNED = 16
"""Bytes. Kernels of GPUs load so many at once: one that begins elsewhere leaves the device unusable, as torch's flash."""


def memory_of(x: Tensor) -> Tensor:
    """All of the memory behind a tensor, what lies between its rows included; not a copy."""
    size = x.untyped_storage().nbytes() // x.element_size()
    return torch.as_strided(x.detach(), (size,), (1,), 0)


def moved(x: Tensor, like: Tensor) -> Tensor:
    """A copy in the dtype and on the device of another one, as it lies in memory: `to` alone would close gaps, and
    write out what is expanded. On a GPU it begins at a multiple of what is read at once.
    """
    x = x.detach().to(like.dtype)
    if x.device.type == like.device.type:
        return deepcopy(x)
    memory = memory_of(x)
    before = -x.storage_offset() % shift(like, usual=1)
    there = torch.cat([memory.new_full((before,), FOREIGN), memory]).to(like.device)
    return there.as_strided(x.shape, x.stride(), before + x.storage_offset())


def placed(x: Tensor, device: str) -> Tensor:
    """On a device, as it lies in memory; what wants a gradient is moved as it can be followed."""
    if x.requires_grad or x.device.type == torch.device(device).type:
        return x.to(device)
    return moved(x, torch.empty(0, dtype=x.dtype, device=device))


def contiguous(x: Tensor) -> Tensor:
    """One number after the other."""
    return x.clone(memory_format=torch.contiguous_format)


def dim_first(x: Tensor) -> Tensor:
    """The last axis is not the one with stride 1."""
    return contiguous(x.transpose(-1, -2)).transpose(-1, -2) if x.ndim > 1 else every_second(x)


def packed(x: Tensor) -> Tensor:
    """A slice of a fused projection: the rows are wider than the tensor."""
    size = x.shape[-1]
    wide = torch.full((*x.shape[:-1], 3 * size), FOREIGN, dtype=x.dtype, device=x.device)
    wide[..., size : 2 * size] = x
    return wide[..., size : 2 * size]


def every_second(x: Tensor) -> Tensor:
    """Every second number of each row; those between are others."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), FOREIGN, dtype=x.dtype, device=x.device)
    wide[..., ::2] = x
    return wide[..., ::2]


def shift(x: Tensor, usual: int) -> int:
    """By how many numbers a tensor may begin later: on a GPU, by as many as are read at once."""
    return usual if x.device.type == "cpu" else ALIGNED // x.element_size()


def offset(x: Tensor) -> Tensor:
    """It does not begin where its storage begins: anywhere on a CPU, on a GPU at a multiple of what it reads at once."""
    before = shift(x, usual=3)
    longer = torch.full((x.numel() + before,), FOREIGN, dtype=x.dtype, device=x.device)
    longer[before:] = x.reshape(-1)
    return longer[before:].view(x.shape)


def outer_gap(x: Tensor) -> Tensor:
    """All but the first row of each stack, as tokens[:, 1:] are: dense rows, a gap from stack to stack."""
    if x.ndim < 3:
        return offset(x)
    longer = torch.full(
        (*x.shape[:-2], x.shape[-2] + 1, x.shape[-1]), FOREIGN, dtype=x.dtype, device=x.device
    )
    longer[..., 1:, :] = x
    return longer[..., 1:, :]


def outer_transposed(x: Tensor) -> Tensor:
    """Dense rows, the axes before them in the other order: (length, batch, dim) seen as (batch, length, dim)."""
    return contiguous(x.transpose(-2, -3)).transpose(-2, -3) if x.ndim > 2 else contiguous(x)


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": contiguous,
    "dim-first": dim_first,
    "packed": packed,
    "every-second": every_second,
    "offset": offset,
    "outer-gap": outer_gap,
    "outer-transposed": outer_transposed,
}
"""Those that a tensor of any rank may have."""
