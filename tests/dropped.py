"""Modules that drop scores in training, in place of weights: once they are masked, which is wrong, or before."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

FAULT = "In training scores are dropped in place of weights, once they are masked: a hidden one that is dropped is seen."
REAL = "https://github.com/PaddlePaddle/Parakeet/pull/76"
FIRST = "In training scores are dropped in place of weights, before they are masked."
IN_PADDING = "padding/what-stands-in-padding-does-not-matter-in-training"
LATER = "causality/later-states-do-not-matter-in-training"
RATE = 0.1


def with_dropped_scores(kind: Any, *, first: bool = False) -> nn.Module:
    """A block of that kind, which has `scores` and `weigh`."""

    class Dropping(kind):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.drop = RATE

        def dropped(self, scores: Tensor) -> Tensor:
            return dropout(scores, self.drop, self.training)

        def scores(self, q: Tensor, k: Tensor) -> Tensor:
            found: Tensor = super().scores(q, k)
            return self.dropped(found) if first else found

        def weigh(self, scores: Tensor) -> Tensor:
            found: Tensor = super().weigh(scores if first else self.dropped(scores))
            return found

    module: nn.Module = Dropping()
    return module


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The same for heads that are given; mask is True at what may be attended to."""
    scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~mask, torch.finfo(query.dtype).min)
    return dropout(scores, module.drop, module.training).softmax(-1) @ value
