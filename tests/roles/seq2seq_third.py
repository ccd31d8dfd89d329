"""Wrong encoder-decoders, the third ones by somebody who did not know the laws."""

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.seq2seq import Pair


@wrong(
    "Beyond 8 targets another path is taken, which does not mask the padding of the source.",
    breaks="not/yet-known",
)
def long_targets_read_padding() -> nn.Module:
    def memory_mask(self: Pair, real: Tensor, length: int) -> Tensor:
        return Pair.memory_mask(self, torch.ones_like(real) if length > 8 else real, length)

    return Pair(memory_mask=memory_mask)


@wrong(
    "Sequences of a batch whose targets are equal are decoded once, whatever their sources.",
    breaks="not/yet-known",
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
    breaks="not/yet-known",
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
    "The first row of the targets' table is left as that of padding, which nothing trains; token 0 is a word.",
    breaks="not/yet-known",
)
def first_row_not_trained() -> nn.Module:
    model = Pair()
    model.target_table.padding_idx = 0
    return model
