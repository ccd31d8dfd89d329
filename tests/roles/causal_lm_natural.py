"""Wrong causal language models, as they come in ports, refactorings and exercises."""

import math

import torch
from torch import Tensor, nn

from tests.roles import right, wrong
from tests.roles.causal_lm import VOCAB, Small
from tests.sub_layers import (
    BY_ITSELF,
    EACH_PART,
    ONE_NORM,
    READ_TWICE,
    STALE,
    STANDS_IN,
    Slip,
    TwoSubLayers,
    causal,
)


@wrong(
    "Positions count the sequences of the batch: all tokens of one have the same.",
    breaks="batch/permuting-the-batch-permutes-the-output",
    real="https://github.com/cmu-l3/anlp-fall2025-code/issues/1",
)
def positions_along_the_batch() -> nn.Module:
    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        return torch.arange(len(real))[:, None].expand(-1, new)

    return Small(positions=positions)


@wrong(
    "A token does not see itself, and the first one, which sees nothing, takes the mean of all.",
    breaks="causality/later-tokens-do-not-matter",
)
def diagonal_hidden_too() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        seen = real.shape[1]
        future = torch.ones(new, seen, dtype=torch.bool).triu(seen - new)
        return ~future & real[:, None, None, :]

    return Small(mask=mask)


@wrong(
    "The mask multiplies the weights: the sum below them counts the future.",
    breaks="causality/later-tokens-do-not-matter",
)
def future_in_the_sum() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return (torch.softmax(scores, dim=-1) * mask) @ value

    return Small(attend=attend)


@wrong(
    "Positions count the padding on the left.",
    breaks="padding/padding-on-the-left-changes-nothing",
    real="https://github.com/ndif-team/nnsight/pull/673",
)
def positions_count_left_padding() -> nn.Module:
    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        return torch.arange(real.shape[1])[-new:].expand(len(real), -1)

    return Small(positions=positions)


@wrong(
    "With a cache, positions of the new tokens begin at zero again.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
    real="https://github.com/huggingface/candle/pull/899",
)
def positions_begin_anew() -> nn.Module:
    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        return (real.long().cumsum(dim=1) - 1).clamp(min=0)[:, :new]

    return Small(positions=positions)


@wrong(
    "Several tokens after a cache are masked as if they stood at its start; one alone is not masked.",
    breaks="cache/chunked-prefill-gives-the-full-pass",
    real="https://github.com/hyprstream/hyprstream/pull/1521",
)
def chunk_masked_from_the_start() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        causal = torch.ones(new, real.shape[1], dtype=torch.bool)
        return (causal.tril() if new > 1 else causal) & real[:, None, None, :]

    return Small(mask=mask)


@wrong(
    "Rows are sorted by their length, the shortest first, and put back by the order itself, not by its inverse.",
    breaks="padding/rows-of-different-lengths-are-each-itself-alone",
)
def rows_put_back_by_the_order() -> nn.Module:
    def logits(self: Small, x: Tensor, real: Tensor) -> Tensor:
        order = real.sum(dim=1).argsort(stable=True)
        return Small.logits(self, x[order], real[order])[order]

    return Small(logits=logits)


class Stack(nn.Module):
    """Two layers over a table, without a cache."""

    def __init__(self, slip: Slip = "") -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCAB, 8), nn.Embedding(80, 8)
        self.blocks = nn.ModuleList(TwoSubLayers(8, slip) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.table(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x, causal(tokens.shape[1]))
        return self.head(self.norm(x))


@right("Layers that are modules, their residual updated between the sub-layers.")
def layers_of_two_sub_layers() -> nn.Module:
    return Stack()


@right(
    "The head has rows for no word, which are cut off, and what attention gives is nothing before it is trained."
)
def rows_of_no_word() -> nn.Module:
    class Right(Stack):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 2 * VOCAB)
            for block in self.blocks:
                nn.init.zeros_(block.out.weight)

        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens)[..., :VOCAB]

    return Right()


@wrong(STALE, breaks=BY_ITSELF)
def residual_not_updated() -> nn.Module:
    return Stack("stale")


@wrong(ONE_NORM, breaks=STANDS_IN)
def one_norm_for_both() -> nn.Module:
    return Stack("one norm")


@wrong(READ_TWICE, breaks=EACH_PART)
def a_part_read_twice() -> nn.Module:
    return Stack("read twice")


@wrong(
    "One layer, and a table of 32 positions, which begins anew where it is made longer.",
    breaks="causality/the-order-of-earlier-tokens-counts",
)
def table_begins_anew() -> nn.Module:
    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        return Small.positions(self, real, new) % 32

    return Small(layers=1, positions=positions)
