"""The shapes in which a module takes a mask, and what each of them can say."""

from collections.abc import Collection

import torch
from torch import Tensor

from headcheck.comparison import NotApplicable
from headcheck.reference import masks

KEY_SHAPES = ("b11k", "bk", "b1k")
"""Shapes in which all queries of a sequence have the same keys."""
HEAD_SHAPES = ("bhqk", "(bh)qk")
"""Shapes in which each head may have a mask of its own."""
SHARED_SHAPES = ("qk",)
"""Shapes in which all sequences of a batch have one mask."""
PATTERNS = ("none", "random", "keys", "causal", "banded", "by-head")


def pattern(
    name: str, sizes: tuple[int, int, int, int], anchor: int, generator: torch.Generator
) -> Tensor | None:
    """may_attend (batch, heads or 1, q_len, kv_len) by the name of a pattern; every query sees the key `anchor`."""
    batch, heads, q_len, kv_len = sizes
    if name == "none":
        return None
    if name in ("causal", "banded"):
        right = 0 if name == "causal" else 1
        seen = masks.sliding_window(q_len, kv_len, None if name == "causal" else 1, right)
        seen[:, anchor] = True
        return seen.expand(batch, 1, q_len, kv_len).clone()
    rows = 1 if name == "keys" else q_len
    keep = torch.rand(batch, heads if name == "by-head" else 1, rows, kv_len, generator=generator) < 0.6
    keep[..., anchor] = True
    return keep.expand(-1, -1, q_len, -1).clone()


def can_say(shape: str, may_attend: Tensor) -> bool:
    """Whether a mask of this shape can say what `may_attend` (batch, heads or 1, q_len, kv_len) says."""
    if shape not in HEAD_SHAPES and not bool((may_attend == may_attend[:, :1]).all()):
        return False
    if shape in SHARED_SHAPES:
        return bool((may_attend == may_attend[:1]).all())
    return shape not in KEY_SHAPES or bool((may_attend == may_attend[:, :, :1]).all())


def axes_of(shape: str, sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Of (batch, heads, q_len, kv_len) the axes along which a mask of this shape may differ; the others are 1."""
    batch, heads, q_len, kv_len = sizes
    return (
        1 if shape in SHARED_SHAPES else batch,
        heads if shape in HEAD_SHAPES else 1,
        1 if shape in KEY_SHAPES else q_len,
        kv_len,
    )


def shape_for(may_attend: Tensor, wanted: str, taken: Collection[str]) -> str:
    """A shape that is taken and can say it, the wanted one if it does. NotApplicable: no shape does."""
    for shape in (wanted, *taken):
        if shape in taken and can_say(shape, may_attend):
            return shape
    raise NotApplicable("takes no mask of a shape that could say it")


def in_shape(may_attend: Tensor, shape: str, heads: int) -> Tensor:
    """The mask (batch, heads or 1, q_len, kv_len) in one of the shapes, True keeps."""
    if shape in HEAD_SHAPES:
        whole = may_attend.expand(-1, heads, -1, -1)
        return whole.flatten(0, 1) if shape == "(bh)qk" else whole.clone()
    one = may_attend[:, :1]
    return {
        "qk": one[0, 0],
        "b1qk": one,
        "bqk": one[:, 0],
        "b11k": one[:, :, :1],
        "bk": one[:, 0, 0],
        "b1k": one[:, 0, :1],
    }[shape].clone()


def as_kind(keep: Tensor, kind: str, true_means: str, dtype: torch.dtype) -> Tensor:
    """A mask in which True keeps, as the module reads it: booleans of its polarity, or 0 and -inf."""
    if kind == "additive":
        return masks.additive(keep, dtype)
    return keep if true_means == "keep" else ~keep


def sliced(mask: Tensor) -> Tensor:
    """The same mask as a slice of a larger one, which says the contrary around it."""
    around = ~mask if mask.dtype == torch.bool else torch.where(mask == 0, -torch.inf, 0.0).to(mask.dtype)
    whole = torch.cat((around, mask, around), dim=-1)
    return whole[..., mask.shape[-1] : 2 * mask.shape[-1]]
