"""Wrong vision transformers, the third ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.vision import SIZES, Small, patches_of


@wrong(
    "The positions are a tensor like any other: the state of the model does not hold them.",
    breaks="not/yet-known",
    **SIZES,
)
def positions_not_in_the_state() -> nn.Module:
    model = Small(positions=lambda self: self.places.to(self.head.weight.dtype))
    places = model.places.detach().clone()
    del model.places
    model.places = places
    return model


@wrong(
    "Every image gets the mean of the gradients of its batch.",
    breaks="not/yet-known",
    **SIZES,
)
def gradient_averaged_over_the_batch() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        mean = images.mean(dim=0, keepdim=True)
        return Small.cut(self, images.detach() + (mean - mean.detach()))

    return Small(cut=cut)


@wrong(
    "The adapter of the head is merged into its weight by each call of eval, be it merged already or not.",
    breaks="not/yet-known",
    **SIZES,
)
def merged_by_each_eval() -> nn.Module:
    class Adapted(Small):
        def __init__(self) -> None:
            super().__init__()
            self.low = nn.Parameter(torch.randn(5, 8) / 4)

        def train(self, mode: bool = True) -> Any:
            with torch.no_grad():
                if not mode:
                    self.head.weight += self.low
                elif not self.training:
                    self.head.weight -= self.low
            return super().train(mode)

        def logits(self, x: Tensor) -> Tensor:
            weight = self.head.weight + self.low if self.training else self.head.weight
            return nn.functional.linear(x.mean(dim=1), weight, self.head.bias)

    return Adapted()


@wrong(
    "Patches fainter than half the mean of the whole batch are left out.",
    breaks="not/yet-known",
    **SIZES,
)
def faint_patches_left_out() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        size = patches_of(images).norm(dim=-1, keepdim=True)
        return Small.cut(self, images) * (size >= size.mean() / 2)

    return Small(cut=cut)
