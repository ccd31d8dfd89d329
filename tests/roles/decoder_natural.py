"""Wrong decoders, as they come in ports, refactorings and exercises."""

from typing import Any

import torch
from torch import Tensor, nn

from headcheck.reference.masks import causal
from tests.roles import wrong
from tests.roles.decoder import Layer
from tests.roles.encoder import Block


@wrong(
    "The causal mask is turned round: a token sees itself and what comes after it.",
    breaks="causality/later-states-do-not-matter",
    real="https://github.com/pytorch/examples/issues/649",
)
def sees_the_future_only() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            kept = torch.ones(scores.shape[-2:], dtype=torch.bool).triu()
            return Block.hide(self, scores, is_real).masked_fill(~kept, torch.finfo(scores.dtype).min)

    return Wrong()


@wrong(
    "Where a mask of padding is given, it takes the place of the causal one.",
    breaks="causality/later-states-do-not-matter",
)
def causal_unless_padded() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is not None:
                return Block.hide(self, scores, is_real)
            future = ~causal(scores.shape[-2], scores.shape[-1])
            return scores.masked_fill(future, torch.finfo(scores.dtype).min)

    return Wrong()


@wrong(
    "The memory is masked where the decoder's own input has padding, which raises only if lengths differ.",
    breaks="padding/padding-on-the-right-changes-nothing",
    real="https://github.com/keras-team/keras-io/pull/1046",
)
def memory_masked_by_the_target() -> nn.Module:
    class Wrong(Layer):
        def forward(
            self,
            x: Tensor,
            memory: Tensor,
            is_real: Tensor | None = None,
            memory_is_real: Tensor | None = None,
        ) -> Tensor:
            return super().forward(x, memory, is_real, memory_is_real if is_real is None else is_real)

    return Wrong()


@wrong(
    "Keys and values of a memory are kept, and serve the next memory of that shape.",
    breaks="memory/every-state-depends-on-all-of-the-memory",
)
def keys_of_the_last_memory() -> nn.Module:
    class Wrong(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.kept: dict[Any, tuple[Tensor, Tensor]] = {}

        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            fresh = self.split(self.c_k(memory)), self.split(self.c_v(memory))
            k, v = self.kept.setdefault((memory.shape, memory.dtype), fresh)
            scores = self.hide_memory(self.scores(self.split(self.c_q(x)), k), is_real)
            return self.c_o(self.merge(self.weigh(scores) @ v))

    return Wrong()


@wrong(
    "Pre-norm, but the feed-forward reads the state as it is, not the normed one.",
    breaks="residual/what-a-pre-norm-block-adds-does-not-grow-with-its-states",
)
def feed_forward_without_its_norm() -> nn.Module:
    layer = Layer()
    layer.norm2 = nn.Identity()  # type: ignore[assignment]  # A norm stands there in the right one.
    return layer


@wrong(
    "Whether there is a memory at all is asked of the whole batch: beside others, one of padding only is read.",
    breaks="memory/a-memory-of-padding-only-is-what-it-is-alone",
)
def any_memory_of_the_batch() -> nn.Module:
    class Wrong(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            read = super().read(x, memory, is_real)
            return read if is_real is None or is_real.any() else torch.zeros_like(read)

    return Wrong()
