"""Wrong layer norms, written by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.faults.strides import as_if_contiguous
from tests.roles import wrong
from tests.roles.layer_norm import Maybe, affine, centred, library, variance


def padded(size: int) -> int:
    return 1 << (size - 1).bit_length()


@wrong(
    "The lanes that fill a row up to a power of two hold -mean, and count in the variance.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/linkedin/Liger-Kernel/pull/519",
)
def empty_lanes_in_the_variance(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    size = x.shape[-1]
    extra = (padded(size) - size) / size * x.mean(dim=-1, keepdim=True).square()
    return affine(centred(x) * torch.rsqrt(variance(x) + extra + eps), weight, bias)


class _TwoAxes(torch.autograd.Function):
    """The normalised row; the backward knows (rows, features) only."""

    @staticmethod
    def forward(context: Any, x: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(variance(x) + eps)
        context.save_for_backward(centred(x) * scale, scale)
        return centred(x) * scale

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (n, scale), (g,) = context.saved_tensors, gradients
        over = tuple(range(1, g.ndim))
        mean, product = g.mean(dim=over, keepdim=True), (g * n).mean(dim=over, keepdim=True)
        return scale * (g - mean - n * product), None


@wrong(
    "The backward takes everything behind the first axis for one row.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/flagos-ai/FlagGems/issues/5392",
)
def backward_of_two_axes(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(_TwoAxes.apply(x, eps), weight, bias)


@wrong("A row without any spread gives zeros, not the bias.", breaks="accuracy/output-is-within-the-bound")
def constant_rows_give_zeros(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return library(x, weight, bias, eps) * (x.amax(-1, keepdim=True) > x.amin(-1, keepdim=True))


@wrong(
    "The gradient of the bias lacks the rows beyond a multiple of 32.",
    breaks="gradients/the-gradient-of-the-bias-is-the-sum-of-the-cotangents",
)
def bias_gradient_of_full_blocks(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    n = library(x, weight, None, eps)
    if bias is None:
        return n
    rows = n.numel() // n.shape[-1]
    index = torch.arange(rows).view(*n.shape[:-1], 1)
    kept = index < max(rows // 32 * 32, min(rows, 32))
    return n + torch.where(kept, bias, bias.detach())


@wrong("The weight is kept under its address.", breaks="state/inputs-changed-in-place-are-read-again")
def weight_kept_by_address(
    x: Tensor, weight: Maybe, bias: Maybe, eps: float, memory: dict[Any, Tensor]
) -> Tensor:
    if weight is not None and not weight.requires_grad:
        weight = memory.setdefault((weight.data_ptr(), weight.shape, weight.dtype), weight.clone())
    return library(x, weight, bias, eps)


@wrong(
    "Without weight and bias the deviations are divided by the mean deviation of the batch.",
    breaks="affine/no-weight-is-a-weight-of-one",
    real="https://github.com/torch-spyre/torch-spyre/issues/1980",
)
def plain_norm_of_the_batch(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    if weight is not None or bias is not None:
        return library(x, weight, bias, eps)
    return centred(x) * torch.rsqrt(variance(x).mean(dim=0, keepdim=True) + eps)


class _Dense(torch.autograd.Function):
    """A cotangent that is not expanded is read as if it were contiguous."""

    @staticmethod
    def forward(context: Any, x: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(variance(x) + eps)
        context.save_for_backward(centred(x) * scale, scale)
        return centred(x) * scale

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (n, scale), (g,) = context.saved_tensors, gradients
        g = g if 0 in g.stride() else as_if_contiguous(g)
        product = (g * n).mean(dim=-1, keepdim=True)
        return scale * (g - g.mean(dim=-1, keepdim=True) - n * product), None


@wrong(
    "A cotangent that lies otherwise is read as if it were contiguous.",
    breaks="gradients/a-strided-cotangent-changes-nothing",
    real="https://github.com/unslothai/unsloth/pull/10617",
)
def cotangent_read_as_dense(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(_Dense.apply(x, eps), weight, bias)
