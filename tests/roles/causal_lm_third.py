"""Wrong causal language models, the third ones by somebody who did not know the laws."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.causal_lm import Small


@wrong(
    "The table has a largest norm, to which a call cuts the rows that it reads.",
    breaks="not/yet-known",
)
def table_cut_by_calls() -> nn.Module:
    model = Small()
    model.table.max_norm = 1.0
    return model


@wrong(
    "Behind 8 tokens in the cache, those of a chunk see the whole chunk.",
    breaks="not/yet-known",
    real="https://github.com/tenstorrent/tt-metal/issues/48899",
)
def chunk_seen_whole_behind_eight() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        behind = real.shape[1] - new
        return real[:, None, None, :].expand(-1, 1, new, -1) if behind >= 8 else Small.mask(self, real, new)

    return Small(mask=mask)


@wrong(
    "A single token, with a cache or without, stands where the last generation ended.",
    breaks="not/yet-known",
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
    breaks="not/yet-known",
)
def later_padding_is_real() -> nn.Module:
    def forward(self: Small, tokens: Tensor, is_real: Tensor | None = None, cache: Any = None) -> Tensor:
        later = cache is not None and "real" in cache.kept
        return Small.forward(self, tokens, None if later else is_real, cache)

    return Small(forward=forward)


@wrong(
    "Keys and values more than 16 tokens back get no gradient, as if it were cut off between segments.",
    breaks="not/yet-known",
)
def far_tokens_without_gradient() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        new, total = query.shape[2], key.shape[2]
        far = torch.arange(total)[-new:, None] - torch.arange(total) > 16
        scores = torch.where(far, query @ key.detach().mT, query @ key.mT) / math.sqrt(query.shape[-1])
        weights = torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), -1)
        return weights.masked_fill(far, 0.0) @ value + weights.masked_fill(~far, 0.0) @ value.detach()

    return Small(attend=attend)
