"""Multi-head modules that are told how many keys of each sequence are real, as d2l's is, right and wrong."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import right, wrong
from tests.roles.multi_head_attention import Plain

ALONE = "padding/a-padded-batch-gives-what-each-sequence-gives-alone"


@right(
    "valid_lens says how many keys of each sequence are real; to the others a large number is given.",
)
class Counted(Plain):
    def forward(  # type: ignore[override]
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Any:
        mask = None if valid_lens is None else self.seen(valid_lens, keys.shape[1])
        return super().forward(queries, keys, values, mask)

    def seen(self, valid_lens: Tensor, kv_len: int) -> Tensor:
        return (torch.arange(kv_len) < valid_lens[:, None])[:, None, None]

    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


@right(
    "Self-attention whose queries behind a sequence give zeros: it is left at None, since that is not said."
)
class CountedRowsAreZeros(Plain):
    def forward(self, x: Tensor, valid_lens: Tensor | None = None) -> Any:  # type: ignore[override]
        if valid_lens is None:
            return super().forward(x, x, x)
        real = torch.arange(x.shape[1]) < valid_lens[:, None]
        return super().forward(x, x, x, real[:, None, None]) * real[..., None]


@wrong("One key more than there are is seen.", breaks=("masks/padding-keys-is-leaving-them-out", ALONE))
class OneKeyMore(Counted):
    def seen(self, valid_lens: Tensor, kv_len: int) -> Tensor:
        return super().seen(valid_lens + 1, kv_len)


@wrong(
    "The mask of the last lengths is kept while the batch and the length are the same.",
    breaks="state/another-call-between-changes-nothing",
)
class LengthsAreKept(Counted):
    kept: tuple[tuple[int, int], Tensor] | None = None

    def seen(self, valid_lens: Tensor, kv_len: int) -> Tensor:
        sizes = (len(valid_lens), kv_len)
        if self.kept is None or self.kept[0] != sizes:
            self.kept = sizes, super().seen(valid_lens, kv_len)
        return self.kept[1]


@wrong(
    "What is hidden is written into a view of one mask for all sequences: each hides what the others hide.",
    breaks=ALONE,
)
class HiddenFromAll(Counted):
    def seen(self, valid_lens: Tensor, kv_len: int) -> Tensor:
        seen = torch.ones(1, 1, kv_len, dtype=torch.bool).expand(len(valid_lens), -1, -1)
        for row, count in enumerate(valid_lens.tolist()):
            seen[row, :, count:] = False
        return seen[:, None]
