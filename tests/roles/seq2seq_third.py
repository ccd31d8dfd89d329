"""Wrong encoder-decoders, the third ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.seq2seq import Attention, Pair


@wrong(
    "Beyond 8 targets another path is taken, which does not mask the padding of the source.",
    breaks="padding/padding-the-source-changes-nothing",
)
def long_targets_read_padding() -> nn.Module:
    def memory_mask(self: Pair, real: Tensor, length: int) -> Tensor:
        return Pair.memory_mask(self, torch.ones_like(real) if length > 8 else real, length)

    return Pair(memory_mask=memory_mask)


@wrong(
    "Sequences of a batch whose targets are equal are decoded once, whatever their sources.",
    breaks="batch/permuting-the-batch-permutes-the-output",
)
def equal_targets_decoded_once() -> nn.Module:
    def decode(self: Pair, target: Tensor, memory: Tensor, *masks: Tensor | None) -> Tensor:
        found = Pair.decode(self, target, memory, *masks)
        if not found.numel():
            return found
        return found[(target[:, None] == target).all(dim=-1).long().argmax(dim=1)]

    return Pair(decode=decode)


@wrong(
    "A target without a mask is given that of the source, if it is as long.",
    breaks="padding/a-mask-of-one-says-nothing-of-the-other",
)
def mask_of_the_source_by_default() -> nn.Module:
    def forward(
        self: Pair,
        source: Tensor,
        target: Tensor,
        source_is_real: Tensor | None = None,
        target_is_real: Tensor | None = None,
    ) -> Tensor:
        if target_is_real is None and source.shape == target.shape:
            target_is_real = source_is_real
        return Pair.forward(self, source, target, source_is_real, target_is_real)

    return Pair(forward=forward)


@wrong(
    "Decoding without a mask of the source takes that of the source that was encoded last.",
    breaks="halves/a-memory-is-decoded-whatever-was-encoded-since",
)
def mask_of_the_last_source_by_default() -> nn.Module:
    def encode(self: Pair, source: Tensor, real: Tensor | None = None) -> Tensor:
        self.remembered = torch.ones_like(source, dtype=torch.bool) if real is None else real
        return Pair.encode(self, source, real)

    def decode(
        self: Pair, target: Tensor, memory: Tensor, real: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return Pair.decode(self, target, memory, real, self.remembered if mask is None else mask)

    return Pair(encode=encode, decode=decode)


@wrong(
    "The head is called by a function that holds the model: a deep copy goes on reading its original's weights.",
    breaks="state/a-copy-is-a-module-of-its-own",
)
def copy_reads_the_original() -> nn.Module:
    class Wrong(Pair):
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
    class Wrong(Pair):
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
    class Wrong(Pair):
        def train(self, mode: bool = True) -> Any:
            with torch.no_grad():
                self.head.weight += 0.25 if not mode else -0.25
            return super().train(mode)

    return Wrong()


@wrong(
    "Padding is covered by the least number in the dtype of the states, which the scores cannot hold under autocast.",
    breaks="padding/padding-is-nothing-under-autocast-too",
)
def least_number_of_the_states() -> nn.Module:
    class Wrong(Attention):
        def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
            query, key, value = (
                part.unflatten(-1, (2, 4)).transpose(1, 2)
                for part in (self.query(x), *self.both(memory).chunk(2, -1))
            )
            scores = query @ key.mT / 2
            like = x if mask.shape[2] == 1 else scores
            if not mask.all():
                scores = scores.masked_fill(~mask, torch.finfo(like.dtype).min)
            return self.out((torch.softmax(scores, -1) @ value).transpose(1, 2).flatten(2))

    model = Pair()
    model.reading = Wrong()
    model.own, model.cross = (nn.ModuleList(Wrong() for _ in range(2)) for _ in range(2))
    return model


@wrong(
    "Padding is token 1, and the mask of the source is source > 1: token 0 is hidden, too.",
    breaks="source/every-token-but-padding-is-read",
    pad_token=1,
)
def lower_tokens_hidden_too() -> nn.Module:
    class Wrong(Pair):
        def forward(self, src: Tensor, trg: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(src, trg, src > 1, trg != 1)

    return Wrong()


@wrong(
    "Padding is token 1, and the mask of the target is target > 1: token 0 is hidden, too.",
    breaks="target/every-target-token-but-padding-is-read",
    pad_token=1,
)
def lower_targets_hidden_too() -> nn.Module:
    class Wrong(Pair):
        def forward(self, src: Tensor, trg: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(src, trg, src != 1, trg > 1)

    return Wrong()
