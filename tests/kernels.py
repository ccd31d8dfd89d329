"""Small attention functions as users write them, right and wrong: subjects for the tests."""

import math
import sys

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def right(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Right, with torch's conventions; computed in float64 and rounded once."""
    scores = query.double() @ key.double().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask.double()
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    dead = scores.isneginf().all(dim=-1, keepdim=True) if scores.shape[-1] else torch.zeros(())
    weights = torch.softmax(scores.masked_fill(dead.bool(), 0.0), dim=-1).masked_fill(dead.bool(), 0.0)
    return (weights @ value.double()).to(query.dtype)


def wrong_scale(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The scale is left out."""
    return torch.softmax(query @ key.mT, dim=-1) @ value


def raises(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Raises for more than three keys."""
    if key.shape[2] > 3:
        raise RuntimeError("out of luck\nand a second line")
    return scaled_dot_product_attention(query, key, value)


def refuses_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raise NotImplementedError("this kernel takes no call at all")


def refuses_two_batches(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if len(query) > 1:
        raise NotImplementedError("this kernel takes one sequence")
    return scaled_dot_product_attention(query, key, value)


def wrong_shape(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value).transpose(1, 2)


def takes_one(query: Tensor) -> Tensor:
    return query


def prints(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    print("a subject that talks")
    print("a subject that talks to stderr", file=sys.stderr)
    return scaled_dot_product_attention(query, key, value)


def other_conventions(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    sm_scale: float | None = None,
) -> Tensor:
    """bshd, True blocks, bottom-right, the mean for dead rows."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    q_len, kv_len = scores.shape[-2:]
    if mask is not None:
        scores = scores.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if causal:
        future = torch.ones(q_len, kv_len, dtype=torch.bool).triu(kv_len - q_len + 1)
        scores = scores.masked_fill(future, -torch.inf)
    scores = scores.masked_fill(scores.isneginf(), -1e30 if scores.dtype != torch.float16 else -6e4)
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2)


def tiled_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    group = query.shape[1] // key.shape[1]
    return scaled_dot_product_attention(query, key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1))


def windows_alone(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: tuple[int | None, int | None] = (None, None),
    *,
    fill: float = -math.inf,
) -> Tensor:
    """A window and no masks: one that leaves no keys gives NaN, or with another fill the mean."""
    back = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
    left, right = (10**6 if side is None else side for side in window)
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill((back > left) | (-back > right), fill)
    return scores.softmax(dim=-1) @ value


def drops_the_mask(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """With is_causal the mask is silently dropped."""
    mask = None if is_causal else attn_mask
    return scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal)


NOT_CALLABLE = 3


def never_returns(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """As where a loop forgets to count."""
    while True:
        pass
