"""Wrong causal language models, written by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.causal_lm import Memory, Small


def seen(real: Tensor, new: int) -> Tensor:
    total = real.shape[1]
    return torch.ones(new, total, dtype=torch.bool).tril(total - new) & real[:, None, None, :]


@wrong(
    "A cache of 8 slots is attended to whole before it is full: empty slots score zero.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
    real="https://github.com/huggingface/transformers/pull/45940",
)
def empty_slots_seen() -> nn.Module:
    def mixed(self: Small, layer: int, x: Tensor, mask: Tensor, cache: Memory | None) -> Tensor:
        self.remembered = cache is not None
        return Small.mixed(self, layer, x, mask, cache)

    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        empty = 8 - key.shape[2] if self.remembered else 0
        if empty > 0:
            slots = key.new_zeros(*key.shape[:2], empty, key.shape[3])
            key, value = torch.cat([key, slots], dim=2), torch.cat([value, slots], dim=2)
            mask = torch.cat([mask, mask.new_ones(*mask.shape[:3], empty)], dim=3)
        return Small.attend(self, query, key, value, mask)

    return Small(mixed=mixed, attend=attend)


@wrong(
    "With a cache the window is laid by the rows of the new chunk: its later tokens see too far back.",
    breaks="cache/every-split-gives-the-full-pass",
    full_context=False,
    real="https://github.com/pytorch/executorch/pull/21857",
)
def window_of_the_first_row() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        total, past = real.shape[1], real.shape[1] - new
        if past == 0:
            return seen(real, new).triu(-3)
        return seen(real, new) & (torch.arange(total) >= past - 3)

    return Small(mask=mask)


@wrong(
    "The cache keeps the last eight tokens; behind that, positions are counted within the cache.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
    full_context=False,
    real="https://github.com/Sudharsanselvaraj/Token-Print/pull/268",
)
def positions_within_the_cache() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        return seen(real, new).triu(real.shape[1] - new - 7)

    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        right = Small.positions(self, real, new)
        return right.clamp(max=7) if new < real.shape[1] else right

    return Small(mask=mask, positions=positions)


@wrong(
    "With a cache all tokens of a chunk have the position of its last.",
    breaks="cache/every-split-gives-the-full-pass",
    real="https://github.com/NVIDIA/TransformerEngine/pull/536",
)
def chunk_at_one_position() -> nn.Module:
    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        right = Small.positions(self, real, new)
        return right[:, -1:].expand(right.shape) if new < real.shape[1] else right

    return Small(positions=positions)


@wrong(
    "With a cache the padding before the new tokens is not taken off their positions.",
    breaks="cache/a-left-padded-prompt-is-continued-as-if-it-were-alone",
    real="https://github.com/mosaicml/examples/pull/257",
)
def padding_counted_in_decoding() -> nn.Module:
    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        past = real.shape[1] - new
        if past == 0:
            return Small.positions(self, real, new)
        return (past + real[:, -new:].long().cumsum(dim=1) - 1).clamp(min=0)

    return Small(positions=positions)


@wrong(
    "Token 0 is taken for padding, whatever the mask says.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
)
def token_zero_is_padding() -> nn.Module:
    def forward(self: Small, tokens: Tensor, is_real: Tensor | None = None, cache: Any = None) -> Tensor:
        real = tokens != 0 if is_real is None else is_real & (tokens != 0)
        return Small.forward(self, tokens, real, cache)

    return Small(forward=forward)


@wrong(
    "Beyond 16 tokens the causal mask is made of blocks: one sees its whole block of 16.",
    breaks="causality/later-tokens-do-not-matter",
)
def later_blocks_seen_whole() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        j = torch.arange(real.shape[1])
        i = j[-new:, None]
        return ((j <= i) | ((j // 16 == i // 16) & (i >= 16))) & real[:, None, None, :]

    return Small(mask=mask)


@wrong(
    "The last two rows of a batch of three or more exchange their caches after each step.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
)
def caches_exchanged() -> nn.Module:
    def mixed(self: Small, layer: int, x: Tensor, mask: Tensor, cache: Memory | None) -> Tensor:
        found = Small.mixed(self, layer, x, mask, cache)
        if cache is not None and len(x) > 2:
            order = torch.arange(len(x))
            order[-2:] = order[-2:].flip(0)
            cache.kept[(layer, 0)] = cache.kept[(layer, 0)][order]
        return found

    return Small(mixed=mixed)


@wrong("A cached key is rounded to bfloat16.", breaks="cache/decoding-one-by-one-gives-the-full-pass")
def cached_keys_rounded() -> nn.Module:
    def mixed(self: Small, layer: int, x: Tensor, mask: Tensor, cache: Memory | None) -> Tensor:
        if cache is not None and (layer, 0) in cache.kept:
            key = cache.kept[(layer, 0)]
            cache.kept[(layer, 0)] = key.bfloat16().to(key.dtype)
        return Small.mixed(self, layer, x, mask, cache)

    return Small(mixed=mixed)
