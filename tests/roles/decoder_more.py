"""Wrong decoders, written by somebody who did not know the laws."""

import torch
from torch import Tensor, nn

from headcheck.reference.masks import causal
from tests.roles import wrong
from tests.roles.decoder import Layer


@wrong(
    "The memory is kept like the window of self-attention: only its last 16 states.",
    breaks="memory/permuting-the-memory-changes-nothing",
    real="https://github.com/huggingface/transformers/pull/46111",
)
def memory_in_a_window() -> nn.Module:
    class Wrong(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            return super().read(x, memory[:, -16:], None if is_real is None else is_real[:, -16:])

    return Wrong()


@wrong(
    "The memory is cut to its longest sequence, counted from the left: padding on the left displaces it.",
    breaks="memory/permuting-the-memory-changes-nothing",
)
def memory_cut_by_its_length() -> nn.Module:
    class Wrong(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is not None and is_real.any():
                longest = int(is_real.sum(dim=1).max())
                memory, is_real = memory[:, :longest], is_real[:, :longest]
            return super().read(x, memory, is_real)

    return Wrong()


@wrong(
    "A memory as long as x is taken for x: attention to it is causal.",
    breaks="causality/a-prefix-gives-the-same-states",
)
def equal_lengths_mean_causal() -> nn.Module:
    class Wrong(Layer):
        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            hidden = super().hide_memory(scores, is_real)
            if scores.shape[-2] != scores.shape[-1]:
                return hidden
            return hidden.masked_fill(~causal(*scores.shape[-2:]), torch.finfo(scores.dtype).min)

    return Wrong()


@wrong(
    "A single state sees one key, in the memory too: the first.",
    breaks="causality/a-prefix-gives-the-same-states",
)
def single_state_reads_one_key() -> nn.Module:
    class Wrong(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            memory = memory[:, :1] if x.shape[1] == 1 else memory
            return super().read(x, memory, None if is_real is None or x.shape[1] == 1 else is_real)

    return Wrong()
