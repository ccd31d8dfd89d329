"""Wrong RMS norms, as they come in ports, kernels and exercises."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


@wrong(
    "The squares are summed, not averaged: rows have length one.",
    breaks="statistics/a-constant-row-has-size-one",
)
def unit_length(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    squares = wide(x).square().sum(dim=-1, keepdim=True)
    return (wide(x) * torch.rsqrt(squares + eps) * weight).to(x.dtype)


@wrong(
    "The squares are averaged along axis 1, which is the last one of a matrix only.",
    breaks="symmetry/a-row-does-not-see-the-others",
)
def axis_one(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    squares = wide(x).square().mean(dim=1, keepdim=True)
    return (wide(x) * torch.rsqrt(squares + eps) * weight).to(x.dtype)


@wrong(
    "Rows are divided by their largest number first, and eps is added after: it grows with that number.",
    breaks="epsilon/eps-scales-with-the-square-of-the-row",
    real="https://github.com/apple/coremltools/issues/2821",
)
def eps_after_the_rescale(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    small = wide(x) / wide(x).abs().amax(dim=-1, keepdim=True)
    normed = small * torch.rsqrt(small.square().mean(dim=-1, keepdim=True) + eps)
    return (normed * weight).to(x.dtype)


@wrong(
    "The squares are taken in the dtype of x: in float16 those of 256 overflow, and the row becomes zero.",
    breaks="statistics/squares-do-not-overflow-before-they-are-widened",
    real="https://github.com/xlite-dev/LeetCUDA/pull/335",
)
def squares_in_half(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    squares = wide(x * x).mean(dim=-1, keepdim=True)
    return (wide(x) * torch.rsqrt(squares + eps) * weight).to(x.dtype)


class _IntoWhatIsSent(torch.autograd.Function):
    """The whole norm; on the way back the gradient of x is written over what is sent, to save memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rstd = torch.rsqrt(wide(x).square().mean(dim=-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return (wide(x) * rstd * weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, rstd = ctx.saved_tensors
        normed, scaled = wide(x) * rstd, wide(grad) * weight
        of_weight = (wide(grad) * normed).flatten(0, -2).sum(dim=0).to(weight.dtype)
        mean = (scaled * normed).mean(dim=-1, keepdim=True)
        return grad.copy_(rstd * (scaled - normed * mean)), of_weight, None


@wrong(
    "The backward pass writes the gradient of x over what is sent back.",
    breaks="memory/backward-leaves-the-output-and-its-gradient-alone",
)
def gradient_into_what_is_sent(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    output: Tensor = _IntoWhatIsSent.apply(x, weight, eps)
    return output
