"""Layers of two sub-layers: right, or with one of three slips of the hand that no shape shows."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

BY_ITSELF = "layers/each-sub-layer-adds-by-itself"
STALE = "The residual is not updated: the feed-forward is added to what the layer was given, without its attention."
STANDS_IN = "layers/no-part-stands-in-for-another"
ONE_NORM = "The first norm is called before the feed-forward, too, and the second one never."
EACH_PART = "layers/each-part-of-a-projection-counts"
READ_TWICE = "Of query, key and value in one projection the key's part is read as the value, too, and the last by nobody."

Slip = Literal["", "stale", "one norm", "read twice"]


class TwoSubLayers(nn.Module):
    """Pre-norm, with two heads: x (batch, length, width); mask, of scores, is True at what may be attended to."""

    def __init__(self, width: int, slip: Slip = "") -> None:
        super().__init__()
        self.slip = slip
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.attn(x).chunk(3, -1)
        )
        value = key if self.slip == "read twice" else value
        return self.out(scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        read = x + self.attend(self.norm1(x), mask)
        normed = self.norm1(read) if self.slip == "one norm" else self.norm2(read)
        return (x if self.slip == "stale" else read) + self.down(gelu(self.up(normed)))


def causal(length: int) -> Tensor:
    """Which of them each may attend to."""
    return torch.ones(length, length, dtype=torch.bool).tril()
