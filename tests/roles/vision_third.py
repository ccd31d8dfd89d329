"""Wrong vision transformers, the third ones by somebody who did not know the laws, and a right one beside them."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.roles import right, wrong
from tests.roles.vision import SIZES, Small, patches_of


@wrong(
    "The positions are a tensor like any other: the state of the model does not hold them.",
    breaks="state/the-state-holds-all-that-was-drawn",
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
    breaks="gradients/gradients-of-the-input-are-slopes",
    **SIZES,
)
def gradient_averaged_over_the_batch() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        mean = images.mean(dim=0, keepdim=True)
        return Small.cut(self, images.detach() + (mean - mean.detach()))

    return Small(cut=cut)


@wrong(
    "The adapter of the head is merged into its weight by each call of eval, be it merged already or not.",
    breaks="state/a-mode-that-is-set-again-changes-nothing",
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
    breaks="batch/an-outlier-stays-in-its-own-sequence",
    **SIZES,
)
def faint_patches_left_out() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        size = patches_of(images).norm(dim=-1, keepdim=True)
        return Small.cut(self, images) * (size >= size.mean() / 2)

    return Small(cut=cut)


@wrong(
    "The head is called by a function that holds the model: a deep copy goes on reading its original's weights.",
    breaks="state/a-copy-is-a-module-of-its-own",
    **SIZES,
)
def copy_reads_the_original() -> nn.Module:
    model = Small()
    model.logits = lambda x: model.head(x.mean(dim=1))
    return model


@right("An adapter is merged into the head where it is not merged yet, and taken out for training.", **SIZES)
def merged_once() -> nn.Module:
    class Adapted(Small):
        merged = False

        def __init__(self) -> None:
            super().__init__()
            self.low = nn.Parameter(torch.randn(5, 8) / 4)

        def train(self, mode: bool = True) -> Any:
            with torch.no_grad():
                if self.merged == mode:
                    self.head.weight += -self.low if mode else self.low
            self.merged = not mode
            return super().train(mode)

        def logits(self, x: Tensor) -> Tensor:
            weight = self.head.weight if self.merged else self.head.weight + self.low
            return nn.functional.linear(x.mean(dim=1), weight, self.head.bias)

    return Adapted()
