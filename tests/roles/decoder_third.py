"""Wrong decoders, the third ones by somebody who did not know the laws."""

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.decoder import Layer


@wrong(
    "What is real in the memory of any sequence is read by all of the batch.",
    breaks="not/yet-known",
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
    breaks="not/yet-known",
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
    breaks="not/yet-known",
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
    breaks="not/yet-known",
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
