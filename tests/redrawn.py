"""Layers with dropout whose way back is another: computed again with another draw, or without what was dropped."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

FAULT = "A layer is computed again on the way back, with another draw than that of the forward pass."
LAW = "gradients/the-gradient-is-of-what-was-drawn"
REAL = "https://pytorch.org/docs/stable/checkpoint.html: preserve_rng_state"


class Again(nn.Linear):
    """Dropout and a linear layer, of which in training nothing is kept."""

    drop, same = 0.1, False

    def dropped(self, x: Tensor) -> Tensor:
        return super().forward(dropout(x, self.drop, self.training))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.dropped(x)
        found: Tensor = checkpoint(self.dropped, x, use_reentrant=False, preserve_rng_state=self.same)
        return found


def with_another_draw(module: nn.Module, name: str, *, same: bool = False) -> nn.Module:
    """The module with such a layer in place of the linear one of that name."""
    plain = getattr(module, name)
    again = Again(plain.in_features, plain.out_features, bias=plain.bias is not None)
    again.drop, again.same = 0.1, same
    setattr(module, name, again)
    return module


UNDROPPED = (
    "Behind dropout the gradient of a layer's weight is made of what it was given, as it was before dropout."
)
OF_A_DRAW = "gradients/gradients-of-a-draw-are-slopes"


class _Undropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, kept)
        return (x * kept) @ weight.mT

    @staticmethod
    def backward(ctx: Any, *sent: Tensor) -> Any:
        x, weight, kept = ctx.saved_tensors
        (grad,) = sent
        return (grad @ weight) * kept, grad.flatten(0, -2).mT @ x.flatten(0, -2), None


class Undropped(nn.Linear):
    """Dropout and a linear layer with a backward of its own."""

    drop = 0.1

    def forward(self, x: Tensor) -> Tensor:
        kept = dropout(torch.ones_like(x), self.drop, self.training)
        found: Tensor = _Undropped.apply(x, self.weight, kept)
        return found if self.bias is None else found + self.bias


def with_an_undropped_gradient(module: nn.Module, name: str) -> nn.Module:
    """The module with such a layer in place of the linear one of that name."""
    plain = getattr(module, name)
    own = Undropped(plain.in_features, plain.out_features, bias=plain.bias is not None)
    own.drop = 0.1
    setattr(module, name, own)
    return module
