"""Wrong encoders, written by somebody who did not know the laws."""

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.encoder import Block


@wrong(
    "Columns that are padding in every sequence are cut off, and not put back.",
    breaks="padding/padding-on-the-right-changes-nothing",
    real="https://github.com/pytorch/pytorch/issues/97111",
)
def padding_cut_off() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            found = super().forward(x, is_real)
            if is_real is None or not is_real.any():
                return found
            return found[:, : int(is_real.any(dim=0).nonzero().max()) + 1]

    return Wrong()


@wrong(
    "The mask is skipped for a batch of one.",
    breaks="batch/a-sequence-in-a-batch-is-itself-alone",
    real="https://github.com/huggingface/transformers/pull/46773",
)
def batch_of_one_unmasked() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return super().forward(x, is_real if len(x) > 1 else None)

    return Wrong()


@wrong(
    "The feed-forward works on chunks of 8 tokens; those beyond a multiple of 8 do without.",
    breaks="padding/padding-on-the-left-changes-nothing",
)
def rest_of_the_chunks_not_fed() -> nn.Module:
    class Wrong(Block):
        def feed(self, x: Tensor) -> Tensor:
            length = x.shape[1]
            whole = length if length < 8 else length // 8 * 8
            return super().feed(x) * (torch.arange(length) < whole)[:, None]

    return Wrong()


@wrong(
    "Without a mask, that of the last call of this shape is used.",
    breaks="padding/a-mask-is-for-its-own-call",
)
def mask_of_the_last_call() -> nn.Module:
    class Wrong(Block):
        last: Tensor | None = None

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            if is_real is None and self.last is not None and self.last.shape == x.shape[:2]:
                is_real = self.last
            self.last = is_real
            return super().forward(x, is_real)

    return Wrong()


@wrong(
    "Recomputed for the backward without its mask: values are right, gradients are not.",
    breaks="gradients/gradients-of-the-weights-are-slopes",
)
def recomputed_without_a_mask() -> nn.Module:
    class Wrong(Block):
        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            found = super().attend(x, is_real)
            if is_real is None:
                return found
            again = super().attend(x, None)
            return found.detach() + (again - again.detach())

    return Wrong()


@wrong(
    "Beyond 32 tokens each block of 32 attends to itself alone.",
    breaks="symmetry/permuting-the-input-permutes-the-states",
)
def blocks_of_32() -> nn.Module:
    class Wrong(Block):
        def scores(self, q: Tensor, k: Tensor) -> Tensor:
            block = torch.arange(q.shape[-2]) // 32
            scores = super().scores(q, k)
            return scores.masked_fill(block[:, None] != block, torch.finfo(scores.dtype).min)

    return Wrong()
