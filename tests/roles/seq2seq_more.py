"""Wrong encoder-decoders, written by somebody who did not know the laws."""

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.seq2seq import Attention, Pair


@wrong(
    "Where source and target are of one length, the memory is masked like the target.",
    breaks="halves/every-target-reads-the-whole-memory",
)
def equal_lengths_share_the_mask() -> nn.Module:
    def memory_mask(self: Pair, real: Tensor, length: int) -> Tensor:
        mask = Pair.memory_mask(self, real, length)
        return mask & self.causal(length) if real.shape[1] == length else mask

    return Pair(memory_mask=memory_mask)


@wrong(
    "The memory is kept under the source's shape and its first tokens.",
    breaks="halves/each-state-of-the-memory-sees-the-whole-source",
)
def memory_kept_by_first_tokens() -> nn.Module:
    def encode(self: Pair, source: Tensor, real: Tensor | None = None) -> Tensor:
        key = (source.shape, tuple(source[:, 0].tolist()), self.norms[0].weight.dtype)
        if real is not None or torch.is_grad_enabled():
            return Pair.encode(self, source, real)
        self.remembered = self.remembered or {}
        if key not in self.remembered:
            self.remembered[key] = Pair.encode(self, source, real)
        return self.remembered[key].clone()

    return Pair(encode=encode)


@wrong(
    "A source beyond 16 tokens is cut off without a word.",
    breaks="halves/every-target-reads-the-whole-memory",
)
def long_source_cut() -> nn.Module:
    def memory_mask(self: Pair, real: Tensor, length: int) -> Tensor:
        return Pair.memory_mask(self, real & (torch.arange(real.shape[1]) < 16), length)

    return Pair(memory_mask=memory_mask)


@wrong(
    "The second layer of the decoder reads the memory detached.",
    breaks="gradients/gradients-of-the-weights-are-slopes",
)
def second_layer_detached() -> nn.Module:
    class Detached(Attention):
        def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
            return super().forward(x, memory.detach(), mask)

    model = Pair()
    model.cross[1] = Detached()
    return model


@wrong(
    "Target tokens of padding at the front shift the causal mask of their sequence.",
    breaks="padding/padding-the-target-changes-nothing",
)
def front_padding_shifts_the_mask() -> nn.Module:
    def target_mask(self: Pair, real: Tensor) -> Tensor:
        lead = (real.long().cumsum(dim=1) == 0).sum(dim=1)
        j = torch.arange(real.shape[1])
        causal = j[None, None, :] <= j[None, :, None] + lead[:, None, None]
        return causal[:, None] & real[:, None, None, :]

    return Pair(target_mask=target_mask)
