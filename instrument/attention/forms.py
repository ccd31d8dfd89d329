"""Tensors in the form that a subject takes: heads in another order, masks in another shape."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headcheck.comparison import NotApplicable
from headcheck.declarations import BROADCAST_SHAPES, MERGED

CANONICAL = "bhsd"
"""The layout in which laws have tensors."""


def to_tiled(x: Tensor, kv_heads: int) -> Tensor:
    """Head order h * group + j (interleaved) to j * kv_heads + h (tiled)."""
    by_group = x.reshape(x.shape[0], kv_heads, x.shape[1] // kv_heads, *x.shape[2:])
    return by_group.transpose(1, 2).flatten(1, 2)


def from_tiled(x: Tensor, kv_heads: int) -> Tensor:
    """Tiled head order to interleaved."""
    by_key_head = x.reshape(x.shape[0], x.shape[1] // kv_heads, kv_heads, *x.shape[2:])
    return by_key_head.transpose(1, 2).flatten(1, 2)


def to_layout(x: Tensor, layout: str) -> Tensor:
    """(batch, heads, length, dim) in a layout; the axes that it leaves out are of one."""
    if layout == CANONICAL:
        return x
    axes = layout.replace(MERGED, "hd")
    lacking = lacking_axes(layout)
    ordered = x.permute([CANONICAL.index(axis) for axis in lacking + axes])
    ordered = ordered.reshape(ordered.shape[len(lacking) :])
    return ordered.flatten(-2) if MERGED in layout else ordered


def from_layout(native: Tensor, layout: str, heads: int) -> Tensor:
    """A tensor in a layout as (batch, heads, length, dim)."""
    if layout == CANONICAL:
        return native
    if MERGED in layout:
        native = native.reshape(*native.shape[:-1], heads, native.shape[-1] // max(heads, 1))
    lacking = lacking_axes(layout)
    whole = native.reshape((1,) * len(lacking) + tuple(native.shape))
    axes = lacking + layout.replace(MERGED, "hd")
    return whole.permute([axes.index(axis) for axis in CANONICAL])


def lacking_axes(layout: str) -> str:
    """Which of batch and heads a layout leaves out."""
    return "".join(axis for axis in "bh" if axis not in layout)


def mask_shapes_of(layout: str) -> tuple[str, ...] | None:
    """The shapes of a mask for tensors without an axis of heads or batch; None where they have both."""
    return {"": None, "h": ("bqk", "qk"), "b": ("hqk", "qk"), "bh": ("qk",)}[lacking_axes(layout)]


LEFT_OUT = {"bqk": (1,), "bk": (1, 2), "b1k": (1,)}
"""Of shapes that leave out axes between others, the places of these axes."""


def canonical_shape(shape: str) -> str:
    """The broadcast shape of the same mask: with axes of one where axes are left out between others."""
    for place in LEFT_OUT.get(shape, ()):
        shape = f"{shape[:place]}1{shape[place:]}"
    return shape


def shape_for(mask: Tensor, shapes: Sequence[str], sizes: Sequence[int]) -> str:
    """The shape of `shapes` that a mask has, or else the first that can say what it says.

    sizes: (batch, heads, q_len, kv_len). NotApplicable: none can.
    """
    having = (shape for shape in shapes if _sizes(canonical_shape(shape), sizes) == tuple(mask.shape))
    saying = (shape for shape in shapes if _can_say(canonical_shape(shape), mask))
    found = next(having, None) or next(saying, None)
    if found is None:
        raise NotApplicable(
            f"takes attn_mask in the shape {' or '.join(shapes)} only, which cannot say this one"
        )
    return found


def of_shape(mask: Tensor, shape: str, sizes: Sequence[int]) -> Tensor:
    """The mask in a shape that can say it."""
    axes = canonical_shape(shape)
    whole = mask.reshape((1,) * (len(sizes) - mask.ndim) + tuple(mask.shape))
    for position, axis in enumerate(axes.rjust(len(sizes), "1")):
        if axis == "1":
            whole = whole.narrow(position, 0, min(1, whole.shape[position]))
    return whole.expand([1] * (len(sizes) - len(axes)) + [*_sizes(axes, sizes)]).reshape(_sizes(shape, sizes))


def in_broadcast_shape(mask: Tensor, shape: str) -> Tensor:
    """A mask in one of the shapes, with axes of one where the shape leaves out axes between others."""
    for place in LEFT_OUT.get(shape, ()):
        mask = mask.unsqueeze(place)
    return mask


def expanded_sizes(shape: str, shapes: Sequence[str], sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes to which torch may expand a mask of a shape, where only `shapes` are taken."""
    whole = next((each for each in ("bhqk", "hqk", "qk") if each in shapes), shape)
    fits = shape in BROADCAST_SHAPES and len(whole) >= len(shape)
    return _sizes(whole if fits else shape, sizes)


def gradient_of_shape(gradient: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of a mask of that shape, which was given in another. NotApplicable: in a smaller one."""
    gradient = gradient.reshape((1,) * (len(shape) - gradient.ndim) + tuple(gradient.shape))
    whole = gradient.shape[gradient.ndim - len(shape) :]
    if any(wanted > given for wanted, given in zip(shape, whole, strict=True)):
        raise NotApplicable(f"is given no attn_mask of the shape {tuple(shape)}")
    if gradient.shape == shape:
        return gradient
    return gradient.double().sum_to_size(shape)  # No rounding of our own.


def _sizes(shape: str, sizes: Sequence[int]) -> tuple[int, ...]:
    by_name = dict(zip("bhqk1", (*sizes, 1), strict=True))
    return tuple(by_name[axis] for axis in shape)


def _can_say(shape: str, mask: Tensor) -> bool:
    """Whether a mask is the same along every axis that a shape has not, or has as an axis of one."""
    axes = shape.rjust(4, "1")[-mask.ndim :]
    lost = [position for position, axis in enumerate(axes) if axis == "1"]
    return all(torch.equal(mask, mask.narrow(p, 0, min(1, mask.shape[p])).expand(mask.shape)) for p in lost)
