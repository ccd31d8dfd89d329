"""Multi-head modules whose form is easily mistaken, right and wrong."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import right, wrong
from tests.roles.multi_head_attention import AlwaysCausal, Plain


@right("Causal unless is_causal=False is said.")
class CausalUnlessTold(AlwaysCausal):
    def forward(  # type: ignore[override]
        self, x: Tensor, mask: Tensor | None = None, is_causal: bool = True
    ) -> Any:
        return super().forward(x, mask) if is_causal else Plain.forward(self, x, x, x, mask)


@wrong("is_causal=False is not heard: every call is causal.", breaks="accuracy/output-is-the-references")
class CausalWhateverIsTold(AlwaysCausal):
    def forward(  # type: ignore[override]
        self, x: Tensor, mask: Tensor | None = None, is_causal: bool = True
    ) -> Any:
        return super().forward(x, mask)


@wrong(
    "Masks are added, and of one with an axis for the batch every sequence has that of the first.",
    breaks=("batch/a-sequence-in-a-batch-is-itself-alone", "masks/numbers-in-a-mask-are-added-to-the-scores"),
)
class MaskOfTheFirstIsAdded(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores
        if not mask.is_floating_point():
            raise TypeError("a mask is of numbers")
        return scores + (mask[:1] if mask.ndim == 4 else mask)


@right("A mask of two axes is taken where it is of numbers; one of booleans has four.")
class NumbersOfAnyShape(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores
        if mask.is_floating_point():
            return scores + mask
        batch, _, q_len, kv_len = mask.shape
        return scores.masked_fill(~mask.expand(batch, -1, q_len, kv_len), -torch.inf)


@right("A flag for the causal mask, and no mask beside it.")
class CausalFlag(Plain):
    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False
    ) -> Any:
        kept = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril()
        return super().forward(query, key, value, kept[None, None] if is_causal else None)
