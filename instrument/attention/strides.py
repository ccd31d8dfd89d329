"""How the tensors of a call lie in memory: each function takes a contiguous tensor, and gives a fresh one equal to it."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from headcheck.strides import FOREIGN, contiguous, dim_first, offset, packed, shift


def _transposed(x: Tensor) -> Tensor:
    """As if made by transposing the head and length axes: (batch, length, heads, dim) in memory."""
    return contiguous(x.transpose(1, 2)).transpose(1, 2)


def _sliced(x: Tensor) -> Tensor:
    """Every second row of a larger tensor; the rows between hold other numbers."""
    wide = torch.full((*x.shape[:2], 2 * x.shape[2], x.shape[3]), FOREIGN, dtype=x.dtype, device=x.device)
    wide[:, :, ::2] = x
    return wide[:, :, ::2]


def _cached(x: Tensor) -> Tensor:
    """The first rows of a longer cache: dense rows, gaps between the heads."""
    longer = torch.full((*x.shape[:2], x.shape[2] + 5, x.shape[3]), FOREIGN, dtype=x.dtype, device=x.device)
    longer[:, :, : x.shape[2]] = x
    return longer[:, :, : x.shape[2]]


def _stacked(x: Tensor) -> Tensor:
    """The first heads of a taller stack, as q, k and v that one projection made: gaps between the sequences."""
    taller = torch.full((x.shape[0], x.shape[1] + 2, *x.shape[2:]), FOREIGN, dtype=x.dtype, device=x.device)
    taller[:, : x.shape[1]] = x
    return taller[:, : x.shape[1]]


def _projected(x: Tensor) -> Tensor:
    """A third of the heads of (batch, length, heads, dim), as one projection makes query, key and value."""
    wide = torch.full(
        (x.shape[0], x.shape[2], 3 * x.shape[1], x.shape[3]), FOREIGN, dtype=x.dtype, device=x.device
    )
    wide[:, :, x.shape[1] : 2 * x.shape[1]] = x.transpose(1, 2)
    return wide[:, :, x.shape[1] : 2 * x.shape[1]].transpose(1, 2)


def _expanded(x: Tensor) -> Tensor:
    """Stride 0 over the batch, the heads or the length, where all along it are equal; otherwise contiguous."""
    for axis in (0, 1, 2):
        first = x.narrow(axis, 0, min(1, x.shape[axis]))
        if x.shape[axis] > 1 and bool((x == first).all()):
            return contiguous(first).expand(x.shape)
    return contiguous(x)


def _windowed(x: Tensor) -> Tensor:
    """Some columns of a wider mask."""
    before = shift(x, usual=1)
    return torch.nn.functional.pad(x, (before, 2 * before), value=0)[..., before : -2 * before]


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": contiguous,
    "transposed": _transposed,
    "dim-first": dim_first,
    "sliced": _sliced,
    "cached": _cached,
    "packed": packed,
    "offset": offset,
    "projected": _projected,
    "expanded": _expanded,
    "expanded-heads": _expanded,
    "expanded-queries": _expanded,
    "expanded-rows": _expanded,
    "stacked": _stacked,
}
MIXED: Mapping[str, tuple[str, str, str]] = {
    "mixed": ("transposed", "contiguous", "dim-first"),
    "keys-transposed": ("contiguous", "transposed", "contiguous"),
}
"""Layouts in which query, key and value lie differently."""


MASK_STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": contiguous,
    "expanded": contiguous,
    "keys-first": lambda x: contiguous(x.mT).mT if x.ndim > 1 else x.clone(),
    "sliced": lambda x: torch.stack([x, x], dim=-1)[..., 0],
    "windowed": _windowed,
}
"""How attn_mask lies in memory; an expanded one is given its full shape with strides of 0."""


def lay_out_mask(mask: Tensor, strides: str, shape: tuple[int, ...]) -> Tensor:
    """A fresh mask that lies in memory as these strides say; `shape` is the largest it may have."""
    fresh = MASK_STRIDES[strides](mask)
    return fresh.expand(shape) if strides == "expanded" else fresh


def lay_out(tensors: Sequence[Tensor], strides: str) -> list[Tensor]:
    """Fresh copies of query, key and value that lie in memory as these strides say; with fewer axes than four, as if axes
    of one stood before them.

    Projected, they lie in one memory, where their shapes allow it.
    """
    if tensors[0].ndim < len("bhsd"):
        return [tensor[0] for tensor in lay_out([tensor[None] for tensor in tensors], strides)]
    if strides == "projected" and len({(x.shape[0], *x.shape[2:]) for x in tensors}) == 1:
        together = _transposed(torch.cat([*tensors], dim=1))
        return [*torch.split(together, [x.shape[1] for x in tensors], dim=1)]
    names = MIXED.get(strides, (strides,) * 3)
    return [STRIDES[name](tensor) for name, tensor in zip(names, tensors, strict=True)]
