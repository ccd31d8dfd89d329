"""Wrong layer norms, as they come in ports, kernels and exercises."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.roles import wrong


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


@wrong(
    "The sample's standard deviation plus eps, in place of the root of the variance.",
    breaks="epsilon/eps-stands-inside-the-root",
)
def deviation_plus_eps(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    mean, deviation = wide(x).mean(dim=-1, keepdim=True), wide(x).std(dim=-1, keepdim=True)
    return (weight * (wide(x) - mean) / (deviation + eps) + bias).to(x.dtype)


@wrong(
    "Rows are padded to a power of two, and the zeros of the padding count in the variance.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/triton-lang/triton/issues/9838",
)
def variance_of_the_whole_block(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    columns = x.shape[-1]
    block = functional.pad(wide(x), (0, (1 << (columns - 1).bit_length()) - columns))
    centred = block - block.sum(dim=-1, keepdim=True) / columns
    variance = centred.square().sum(dim=-1, keepdim=True) / columns
    normed = centred[..., :columns] * torch.rsqrt(variance + eps)
    return (weight * normed + bias).to(x.dtype)


@wrong(
    "The variance is the mean of the squares less the square of the mean: nothing is left far from zero.",
    breaks="statistics/a-large-mean-takes-no-digits",
)
def sums_in_one_pass(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    mean, squares = wide(x).mean(dim=-1, keepdim=True), wide(x).square().mean(dim=-1, keepdim=True)
    normed = (wide(x) - mean) * torch.rsqrt(squares - mean.square() + eps)
    return (weight * normed + bias).to(x.dtype)


@wrong(
    "Mean and variance are taken without gradients, as if they were constants.",
    breaks="gradients/the-gradient-of-a-row-sums-to-zero",
)
def constant_statistics(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    with torch.no_grad():
        variance, mean = torch.var_mean(wide(x), dim=-1, keepdim=True, correction=0)
    return (weight * (wide(x) - mean) * torch.rsqrt(variance + eps) + bias).to(x.dtype)


class _ScaledWhereItLies(torch.autograd.Function):
    """The normed rows times the weight; on the way back what is sent is scaled where it lies."""

    @staticmethod
    def forward(ctx: Any, normed: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(normed, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        normed, weight = ctx.saved_tensors
        of_weight = (grad * normed).flatten(0, -2).sum(dim=0)
        return grad.mul_(weight), of_weight


@wrong(
    "The backward pass scales what is sent back where it lies: a residual beside reads it scaled.",
    breaks="memory/backward-leaves-the-output-and-its-gradient-alone",
)
def sent_back_and_scaled(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    normed = functional.layer_norm(wide(x), x.shape[-1:], eps=eps).to(x.dtype)
    scaled: Tensor = _ScaledWhereItLies.apply(normed, weight)
    return scaled + bias
