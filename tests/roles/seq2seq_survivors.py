"""Wrong pairs of encoder and decoder on paths that were not asked for."""

from typing import Any

import torch
from torch import Tensor, nn

from tests import dropped, lost, redrawn
from tests.kept import (
    ANSWERS,
    CHANGED,
    COARSE,
    FAULT,
    OF_AUTOCAST,
    OF_FLOAT32,
    REAL,
    with_kept_answers,
    with_kept_gain,
    with_kept_third,
)
from tests.roles import right, wrong
from tests.roles.seq2seq import SOURCES, TARGETS, Attention, Pair, reference_learned


@wrong("Logits are halved in training.", breaks="paths/training-without-dropout-gives-evaluation")
def halved_in_training() -> nn.Module:
    def logits(self: Pair, x: Tensor, real: Tensor) -> Tensor:
        found: Tensor = self.head(x)
        return found / 2 if self.training else found

    return Pair(logits=logits)


@wrong(
    "Logits are scaled down and up again, through numbers that float32 does not have: NaN there, and there alone.",
    breaks="paths/single-precision-is-finite-too",
)
def logits_below_float32() -> nn.Module:
    def logits(self: Pair, x: Tensor, real: Tensor) -> Tensor:
        small: Tensor = self.head(x) * 1e-60
        return small / small.new_full((), 1e-60)

    return Pair(logits=logits)


def one_by_one(model: Pair, target: Tensor, memory: Tensor) -> Tensor:
    """The logits of each token, decoded after those before it."""
    lengths = range(1, target.shape[1] + 1)
    return torch.cat([model.decode(target[:, :length], memory)[:, -1:] for length in lengths], dim=1)


def each_alone(model: Pair, target: Tensor, memory: Tensor) -> Tensor:
    """The same of a cache that is lost between the steps."""
    places = range(target.shape[1])
    return torch.cat([model.decode(target[:, place : place + 1], memory) for place in places], dim=1)


@right("Decoding token by token is declared, and the module has its own encode.", decode=one_by_one)
def decoded_one_by_one() -> nn.Module:
    return Pair()


@wrong(
    "Decoded token by token, each stands at position 0 and sees none before it.",
    breaks="halves/encoding-then-decoding-is-the-whole",
    real="https://github.com/huggingface/candle/pull/899",
    decode=each_alone,
)
def decoded_each_alone() -> nn.Module:
    return Pair()


@wrong(FAULT, breaks="state/inference-mode-leaves-nothing-behind", real=REAL)
def factor_of_inference_kept() -> nn.Module:
    return with_kept_gain(Pair(), "head")


@right("As it is made, before any training.", fresh=True)
def as_it_is_made() -> nn.Module:
    return Pair()


@wrong(
    "Logits by a head of standard deviation 2: training starts with unlearning.",
    breaks="start/the-first-loss-is-near-ln-vocab",
    fresh=True,
)
def a_wide_head() -> nn.Module:
    model = Pair()
    nn.init.normal_(model.head.weight, std=2.0)
    return model


@wrong("From the 33rd token on all stand at one place.", breaks="source/the-order-of-the-source-counts")
def places_end_at_thirty_two() -> nn.Module:
    def positions(self: Pair, real: Tensor, decoding: bool) -> Tensor:
        return Pair.positions(self, real, decoding).clamp(max=80 if decoding else 31)

    return Pair(positions=positions)


@wrong(lost.FAULT, breaks=lost.LAYERS)
def last_layer_of_the_decoder_lost() -> nn.Module:
    model: Any = reference_learned()
    lost.losing_the_last(model.decoder)
    return model


@wrong(redrawn.FAULT, breaks=redrawn.LAW, real=redrawn.REAL)
def drawn_again_on_the_way_back() -> nn.Module:
    return redrawn.with_another_draw(Pair(), "head")


@wrong(ANSWERS, breaks=CHANGED)
def answers_kept_by_tensor() -> nn.Module:
    return with_kept_answers(Pair())


class Whole(nn.Module):
    """torch's own, with no halves of its own."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.source, self.target = nn.Embedding(SOURCES, 8), nn.Embedding(TARGETS, 8)
        self.transformer = nn.Transformer(8, 2, 2, 1, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, TARGETS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        seen, read = (
            nn.Transformer.generate_square_subsequent_mask(each.shape[1], dtype=self.head.weight.dtype)
            for each in (target, source)
        )
        states = self.transformer(
            self.source(source),
            self.target(target),
            src_mask=read if self.causal else None,
            tgt_mask=seen,
        )
        return self.head(states)


@right("torch's own transformer, without positions.", positions=False)
def torch_whole() -> nn.Module:
    return Whole(causal=False)


@wrong(
    "The encoder inside torch's transformer has the causal mask of the decoder.",
    breaks="halves/each-state-of-the-memory-sees-the-whole-source",
    positions=False,
)
def encoder_inside_is_causal() -> nn.Module:
    return Whole(causal=True)


@wrong(redrawn.UNDROPPED, breaks=redrawn.OF_A_DRAW)
def undropped_on_the_way_back() -> nn.Module:
    return redrawn.with_an_undropped_gradient(Pair(), "head")


@wrong(COARSE, breaks=(OF_AUTOCAST, OF_FLOAT32))
def factor_of_autocast_kept() -> nn.Module:
    return with_kept_third(Pair(), "head")


class Dropping(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.drop = dropped.RATE

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (2, 4)).transpose(1, 2)
            for part in (self.query(x), *self.both(memory).chunk(2, -1))
        )
        return self.out(dropped.attend(self, query, key, value, mask).transpose(1, 2).flatten(2))


@wrong(dropped.FAULT, breaks="target/later-targets-do-not-matter-in-training", real=dropped.REAL)
def scores_dropped_once_masked() -> nn.Module:
    model = Pair()
    model.own = nn.ModuleList([Dropping(), Dropping()])
    return model
