"""Wrong decoders, the third ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from tests.roles import wrong
from tests.roles.decoder import Layer


@wrong(
    "What is real in the memory of any sequence is read by all of the batch.",
    breaks="memory/a-padded-memory-gives-what-it-gives-alone",
)
def memory_real_for_any_is_for_all() -> nn.Module:
    class Wrong(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is not None:
                is_real = is_real.any(dim=0, keepdim=True).expand_as(is_real)
            return super().read(x, memory, is_real)

    return Wrong()


@wrong(
    "With padding the keys of self-attention end, for all, where the shortest sequence of the batch does.",
    breaks="padding/a-padded-batch-gives-what-each-sequence-gives-alone",
)
def keys_end_with_the_shortest() -> nn.Module:
    class Wrong(Layer):
        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is not None and len(x):
                is_real = is_real & (torch.arange(x.shape[1]) < is_real.sum(dim=1).min())
            return super().attend(x, is_real)

    return Wrong()


@wrong(
    "Without gradients one state more than in the call before is its next step: the others' answers are kept.",
    breaks="state/another-call-between-changes-nothing",
)
def earlier_answers_kept() -> nn.Module:
    class Wrong(Layer):
        last = torch.empty(0, 0, 0)

        def forward(
            self,
            x: Tensor,
            memory: Tensor,
            is_real: Tensor | None = None,
            memory_is_real: Tensor | None = None,
        ) -> Tensor:
            found: Tensor = super().forward(x, memory, is_real, memory_is_real)
            if torch.is_grad_enabled():
                return found
            next_step = found[:, :-1].shape == self.last.shape and found.dtype == self.last.dtype
            self.last = torch.cat((self.last, found[:, -1:]), dim=1) if next_step else found
            return self.last.clone()

    return Wrong()


@wrong(
    "Whether x has a mask is asked of the memory's: without that one it is dropped.",
    breaks="padding/what-stands-in-padding-does-not-matter",
)
def mask_dropped_without_the_other() -> nn.Module:
    class Wrong(Layer):
        def forward(
            self,
            x: Tensor,
            memory: Tensor,
            is_real: Tensor | None = None,
            memory_is_real: Tensor | None = None,
        ) -> Tensor:
            is_real = None if memory_is_real is None else is_real
            return super().forward(x, memory, is_real, memory_is_real)

    return Wrong()


@wrong(
    "The hidden layer is made by a function that holds the layer: a deep copy goes on reading its original's weights.",
    breaks="state/a-copy-is-a-module-of-its-own",
)
def copy_reads_the_original() -> nn.Module:
    class Wrong(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.make = lambda x: gelu(self.up(x))

        def feed(self, x: Tensor) -> Tensor:
            return self.down(self.make(x))

    return Wrong()


@wrong(
    "The feed-forward goes through a random matrix that the state of the layer does not hold.",
    breaks="state/the-state-holds-all-that-was-drawn",
)
def random_matrix_not_in_the_state() -> nn.Module:
    class Wrong(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.features = torch.randn(8, 8)

        def feed(self, x: Tensor) -> Tensor:
            return super().feed(x @ self.features.to(x.dtype))

    return Wrong()


@wrong(
    "Each call of eval folds the gain of a scale into the weight behind it, be it folded already or not.",
    breaks="state/a-mode-that-is-set-again-changes-nothing",
)
def folded_by_each_eval() -> nn.Module:
    class Wrong(Layer):
        def train(self, mode: bool = True) -> Any:
            with torch.no_grad():
                self.up.weight *= 0.5 if not mode else 2.0
            return super().train(mode)

    return Wrong()


@wrong(
    "The mask is the least number in the dtype of the input, which the scores cannot hold under autocast.",
    breaks="padding/padding-is-nothing-under-autocast-too",
)
def least_number_of_the_input() -> nn.Module:
    class Wrong(Layer):
        least = 0.0

        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            covered = (
                scores if is_real is None else scores.masked_fill(~is_real[:, None, None, :], self.least)
            )
            return super().hide(covered, None)

        def forward(
            self,
            x: Tensor,
            memory: Tensor,
            is_real: Tensor | None = None,
            memory_is_real: Tensor | None = None,
        ) -> Tensor:
            self.least = torch.finfo(x.dtype).min
            return super().forward(x, memory, is_real, memory_is_real)

    return Wrong()
