"""Wrong RMS norms, the third ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.rms_norm import Maybe, library, mean_square, weighted, wide


class _WeightTwice(torch.autograd.Function):
    """The weight stands in the sum of the backward, and once more before it."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(mean_square(x) + eps)
        context.save_for_backward(x * scale, scale, weight)
        return x * scale * weight

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (n, scale, weight), (g,) = context.saved_tensors, gradients
        h, rows = g * weight, tuple(range(g.ndim - 1))
        return scale * (h - weight * n * (h * n).mean(dim=-1, keepdim=True)), (g * n).sum(dim=rows), None


@wrong(
    "In the gradient of x the term of the root is multiplied by the weight twice.",
    breaks="not/yet-known",
    real="https://github.com/NVIDIA/Megatron-LM/pull/6859",
)
def weight_twice_in_the_gradient(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _WeightTwice.apply(x, weight, eps)


@wrong(
    "Rows of all sequences are counted through with the stride of a token: one cut along the length goes wrong.",
    breaks="not/yet-known",
    real="https://github.com/vllm-project/vllm-xpu-kernels/pull/397",
)
def rows_by_the_stride_of_a_token(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    size, step, offset = x.shape[-1], x.stride(max(x.ndim - 2, 0)), x.storage_offset()
    rows = x.numel() // size
    held = x.untyped_storage().nbytes() // x.element_size()
    if x.stride(-1) != 1 or offset + (rows - 1) * step + size > held:
        return library(x, weight, eps)
    return library(x.as_strided((rows, size), (step, 1), offset), weight, eps).view(x.shape)


@wrong(
    "The root is taken, and squared again beside eps: the gradient of a row of zeros is NaN.",
    breaks="not/yet-known",
)
def root_of_a_row_of_zeros(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    root = mean_square(wide(x)).sqrt()
    return weighted((wide(x) * torch.rsqrt(root * root + eps)).to(x.dtype), weight)


@wrong(
    "Two rows of up to four features fill one register of eight, and have one root.",
    breaks="not/yet-known",
)
def short_rows_share_a_root(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    square = mean_square(wide(x))
    if x.shape[-1] <= 4:
        flat = square.flatten()
        pairs = flat[: len(flat) // 2 * 2].view(-1, 2).mean(dim=1).repeat_interleave(2)
        square = torch.cat((pairs, flat[len(pairs) :])).view(square.shape)
    return weighted((wide(x) * torch.rsqrt(square + eps)).to(x.dtype), weight)


@wrong(
    "The ones for a call without a weight are kept by size, in the dtype of the first: 16 bits come back wide.",
    breaks="not/yet-known",
)
def ones_of_the_first_dtype(
    x: Tensor, weight: Maybe, eps: float, memory: dict[int, Tensor] | None = None
) -> Tensor:
    memory = {} if memory is None else memory
    if weight is None:
        weight = memory.setdefault(x.shape[-1], torch.ones(x.shape[-1], dtype=x.dtype))
    return (wide(x) * torch.rsqrt(mean_square(wide(x)) + eps)).to(x.dtype) * weight
