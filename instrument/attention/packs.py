"""Sequences of several lengths: packed on one axis, (tokens, heads, dim), or each at the front of a row of its own."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

WITHOUT = ("attn_mask", "boolean", "additive", "key_lengths", "log_sum_exp", "weights")
"""Features that are not asked of a call with packed sequences: their form is nowhere agreed on."""


OF_KERNELS = ("seqlen", "seqused", "seq_len", "context_len")
"""What stands in the name of a parameter of lengths that takes them in int32, as kernels do."""


def packed(x: Tensor) -> Tensor:
    """(batch, heads, length, dim) as (batch x length, heads, dim)."""
    return x.transpose(1, 2).flatten(0, 1)


def unpacked(x: Tensor, batch: int) -> Tensor:
    """(tokens, heads, dim) as (batch, heads, length, dim), for sequences of one length."""
    length = x.shape[0] // batch if batch else 0
    return x.reshape(batch, length, *x.shape[1:]).transpose(1, 2)


def starts(lengths: Sequence[int]) -> Tensor:
    """cu_seqlens: where each sequence begins, and where the last one ends, as int32 (sequences + 1,)."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def lengths(of_keys: Sequence[int], parameter: str) -> Tensor:
    """How many keys each sequence has (batch,), in the dtype that functions with such a parameter take."""
    return torch.tensor(
        of_keys, dtype=torch.int32 if any(each in parameter for each in OF_KERNELS) else torch.int64
    )
