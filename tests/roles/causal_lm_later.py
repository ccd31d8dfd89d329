"""Wrong causal language models, the later ones by somebody who did not know the laws."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.causal_lm import Memory, Small


@wrong(
    "Values in the cache are cut to the range of its first chunk, as by eight bits whose scale is set once.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
)
def values_cut_by_the_first_chunk() -> nn.Module:
    def mixed(self: Small, layer: int, x: Tensor, mask: Tensor, cache: Memory | None) -> Tensor:
        found = Small.mixed(self, layer, x, mask, cache)
        if cache is not None:
            value = cache.kept[layer, 1]
            largest = cache.kept.setdefault(("scale", layer), value.detach().abs().amax())
            cache.kept[layer, 1] = value.clamp(-largest, largest)
        return found

    return Small(mixed=mixed)


def told_of_the_cache(attend: Callable[..., Tensor]) -> Small:
    """`self.remembered` says in `attend` whether there is a cache."""

    def mixed(self: Small, layer: int, x: Tensor, mask: Tensor, cache: Memory | None) -> Tensor:
        self.remembered = cache is not None
        return Small.mixed(self, layer, x, mask, cache)

    return Small(mixed=mixed, attend=attend)


@wrong(
    "Queries and keys are normed, but for the path with a cache.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
    real="https://github.com/paiml/aprender/pull/2085",
)
def not_normed_with_a_cache() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        if not self.remembered:
            query, key = (nn.functional.rms_norm(each, each.shape[-1:]) for each in (query, key))
        return Small.attend(self, query, key, value, mask)

    return told_of_the_cache(attend)


@wrong(
    "What a step finds in the cache as values are the keys.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
    real="https://github.com/ikawrakow/ik_llama.cpp/pull/1592",
)
def keys_for_values() -> nn.Module:
    def mixed(self: Small, layer: int, x: Tensor, mask: Tensor, cache: Memory | None) -> Tensor:
        found = Small.mixed(self, layer, x, mask, cache)
        if cache is not None:
            cache.kept[layer, 1] = cache.kept[layer, 0].clone()
        return found

    return Small(mixed=mixed)


@wrong(
    "Token 1 is taken for the start of a document: what stands before it in the sequence is hidden behind it.",
    breaks="causality/every-earlier-token-counts",
)
def start_mark_hides_the_past() -> nn.Module:
    def forward(self: Small, tokens: Tensor, is_real: Tensor | None = None, cache: Any = None) -> Tensor:
        starts = (tokens == 1).long()
        self.remembered = starts if cache is None else cache.extend("starts", starts, 1)
        return Small.forward(self, tokens, is_real, cache)

    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        document = self.remembered.cumsum(dim=1)
        same = document[:, -new:, None] == document[:, None, :]
        return Small.mask(self, real, new) & same[:, None]

    return Small(forward=forward, mask=mask)


@wrong(
    "The output layer is a copy of the table, made at the first call.",
    breaks="state/weights-changed-in-place-are-read-again",
)
def copied_at_the_first_call() -> nn.Module:
    def logits(self: Small, x: Tensor, real: Tensor) -> Tensor:
        if self.remembered is None:
            self.remembered = self.table.weight.detach().clone()
        return x @ self.remembered.to(x.dtype).T

    model = Small(logits=logits, tied=True)
    del model.head
    return model


@wrong(
    "The cache has ten slots; what comes later is written into the last, as a clamped index does.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
    real="https://github.com/lightseekorg/tokenspeed/pull/506",
)
def last_slot_written_again() -> nn.Module:
    def forward(self: Small, tokens: Tensor, is_real: Tensor | None = None, cache: Any = None) -> Tensor:
        self.remembered = cache is not None
        return Small.forward(self, tokens, is_real, cache)

    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        seen = Small.mask(self, real, new)
        j, total = torch.arange(real.shape[1]), real.shape[1]
        kept = (j < 10 - new) | (j >= total - new)
        return seen & kept if self.remembered and total > 10 else seen

    return Small(forward=forward, mask=mask)


class _Lookup(torch.autograd.Function):
    """Rows of a table; the backward writes where it should add."""

    @staticmethod
    def forward(context: Any, table: Tensor, tokens: Tensor) -> Tensor:
        context.save_for_backward(tokens)
        context.size = len(table)
        return table[tokens]

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (tokens,), (g,) = context.saved_tensors, gradients
        found = g.new_zeros(context.size, g.shape[-1])
        found[tokens.flatten()] = g.flatten(0, -2)
        return found, None


@wrong(
    "The row of a token that occurs more than once gets the gradient of one occurrence.",
    breaks="gradients/gradients-of-the-weights-are-slopes",
    real="https://github.com/pymc-devs/pytensor/pull/2242",
)
def occurrences_not_added() -> nn.Module:
    def embed(self: Small, tokens: Tensor, positions: Tensor) -> Tensor:
        return _Lookup.apply(self.table.weight, tokens) + self.places(positions)

    return Small(embed=embed)


@wrong(
    "Far keys count less, but a step with a cache has no such bias.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
    real="https://github.com/NVIDIA/TensorRT-LLM/pull/13870",
)
def no_bias_with_a_cache() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        new, total = query.shape[2], key.shape[2]
        slope = 0.5 if new == total else 0.0
        distance = torch.arange(total)[-new:, None] - torch.arange(total)
        scores = query @ key.mT / 2 - slope * distance.to(query.dtype)
        return torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), -1) @ value

    return Small(attend=attend)


@wrong(
    "A block of four tokens that an earlier row has at its place is not computed again, whatever stands before it.",
    breaks="causality/what-ends-alike-is-told-apart",
    real="https://github.com/vllm-project/aibrix/issues/2329",
)
def blocks_known_by_their_tokens() -> nn.Module:
    def embed(self: Small, tokens: Tensor, positions: Tensor) -> Tensor:
        self.remembered = tokens
        return Small.embed(self, tokens, positions)

    def logits(self: Small, x: Tensor, real: Tensor) -> Tensor:
        blocks, rows = self.remembered.split(4, dim=1), list(x.split(4, dim=1))
        for place, block in enumerate(blocks):
            if block.shape[1] == 4:
                first = (block[:, None] == block).all(dim=-1).long().argmax(dim=1)
                rows[place] = rows[place][first]
        return self.head(torch.cat(rows, dim=1))

    return Small(embed=embed, logits=logits)
