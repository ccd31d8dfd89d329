"""Wrong causal language models, the third ones by somebody who did not know the laws."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.causal_lm import Small, TransformersLike


@wrong(
    "The table has a largest norm, to which a call cuts the rows that it reads.",
    breaks=("state/a-call-changes-no-weight", "state/weights-changed-in-place-are-read-again"),
)
def table_cut_by_calls() -> nn.Module:
    model = Small()
    model.table.max_norm = 1.0
    return model


@wrong(
    "Behind 8 tokens in the cache, those of a chunk see the whole chunk.",
    breaks="cache/chunked-prefill-gives-the-full-pass",
    real="https://github.com/tenstorrent/tt-metal/issues/48899",
)
def chunk_seen_whole_behind_eight() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        behind = real.shape[1] - new
        return real[:, None, None, :].expand(-1, 1, new, -1) if behind >= 8 else Small.mask(self, real, new)

    return Small(mask=mask)


@wrong(
    "A single token, with a cache or without, stands where the last generation ended.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
)
def single_token_goes_on() -> nn.Module:
    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        found = Small.positions(self, real, new)
        if real.shape[1] > new:
            self.remembered = real.shape[1]
        alone = real.shape[1] == 1 and self.remembered is not None
        return (found + self.remembered).clamp(max=79) if alone else found

    return Small(positions=positions)


@wrong(
    "With a cache, what is padding in a later chunk is taken for real.",
    breaks="cache/padding-may-end-in-a-later-chunk",
)
def later_padding_is_real() -> nn.Module:
    def forward(self: Small, tokens: Tensor, is_real: Tensor | None = None, cache: Any = None) -> Tensor:
        later = cache is not None and "real" in cache.kept
        return Small.forward(self, tokens, None if later else is_real, cache)

    return Small(forward=forward)


@wrong(
    "Keys and values more than 16 tokens back get no gradient, as if it were cut off between segments.",
    breaks="gradients/gradients-of-the-weights-are-slopes",
)
def far_tokens_without_gradient() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        new, total = query.shape[2], key.shape[2]
        far = torch.arange(total)[-new:, None] - torch.arange(total) > 16
        scores = torch.where(far, query @ key.detach().mT, query @ key.mT) / math.sqrt(query.shape[-1])
        weights = torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), -1)
        return weights.masked_fill(far, 0.0) @ value + weights.masked_fill(~far, 0.0) @ value.detach()

    return Small(attend=attend)


@wrong(
    "The head is called by a function that holds the model: a deep copy goes on reading its original's weights.",
    breaks="state/a-copy-is-a-module-of-its-own",
)
def copy_reads_the_original() -> nn.Module:
    class Wrong(Small):
        def __init__(self) -> None:
            super().__init__()
            self.make = lambda x: self.head(1.0 * x)

        def logits(self, x: Tensor, real: Tensor) -> Tensor:
            made: Tensor = self.make(x)
            return made

    return Wrong()


@wrong(
    "A random vector is added to the last states, which the state of the model does not hold.",
    breaks="state/the-state-holds-all-that-was-drawn",
)
def vector_not_in_the_state() -> nn.Module:
    class Wrong(Small):
        def __init__(self) -> None:
            super().__init__()
            self.drawn = torch.randn(8)

        def logits(self, x: Tensor, real: Tensor) -> Tensor:
            return super().logits(x + self.drawn.to(x.dtype), real)

    return Wrong()


@wrong(
    "An adapter is merged into the head by each call of eval, be it merged already or not.",
    breaks="state/a-mode-that-is-set-again-changes-nothing",
)
def merged_by_each_eval() -> nn.Module:
    class Wrong(Small):
        def train(self, mode: bool = True) -> Any:
            with torch.no_grad():
                self.head.weight += 0.25 if not mode else -0.25
            return super().train(mode)

    return Wrong()


@wrong(
    "The mask is the least number in the dtype of the weights, which the scores cannot hold under autocast.",
    breaks="padding/padding-is-nothing-under-autocast-too",
)
def least_number_of_the_weights() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        least = query if mask.all(dim=-1)[..., -1].all() else self.head.weight
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return torch.softmax(scores.masked_fill(~mask, torch.finfo(least.dtype).min), -1) @ value

    return Small(attend=attend)


@wrong(
    "Padding is token 1, and tokens below it are hidden with it.",
    breaks="causality/every-token-but-padding-is-read",
    pad_token=1,
)
def lower_tokens_hidden_too() -> nn.Module:
    def forward(self: Small, tokens: Tensor, cache: Any = None) -> Tensor:
        return Small.forward(self, tokens, tokens > 1, cache)

    return Small(forward=forward)


@wrong(
    "Positions that nobody gives are counted by the mask in one pass, and by the cache after it: there padding counts.",
    breaks="cache/positions-that-are-left-out-are-counted-beside-a-cache-too",
)
def positions_by_the_length_of_the_cache() -> nn.Module:
    class Wrong(TransformersLike):
        def forward(
            self,
            input_ids: Tensor,
            attention_mask: Tensor | None = None,
            position_ids: Tensor | None = None,
            past_key_values: Any = None,
            use_cache: bool = False,
        ) -> Any:
            if position_ids is None and attention_mask is not None and past_key_values is None:
                position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)
            return super().forward(input_ids, attention_mask, position_ids, past_key_values, use_cache)

    return Wrong()
