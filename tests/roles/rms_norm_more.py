"""Wrong RMS norms, written by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.faults.strides import as_if_contiguous
from tests.roles import wrong
from tests.roles.rms_norm import Maybe, library, mean_square, weighted, wide


class _RootKept(torch.autograd.Function):
    """The normalised row, its scale rounded on the way back."""

    @staticmethod
    def forward(context: Any, x: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(mean_square(x) + eps)
        context.save_for_backward(x * scale, scale)
        return x * scale

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (n, scale), (g,) = context.saved_tensors, gradients
        scale = scale.bfloat16().to(scale.dtype)
        return scale * (g - n * (g * n).mean(dim=-1, keepdim=True)), None


@wrong(
    "The reciprocal root is kept in bfloat16 for the backward.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/pytorch/helion/pull/2273",
)
def root_kept_in_bfloat16(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(_RootKept.apply(x, eps), weight)


class _Weighted(torch.autograd.Function):
    """The norm and its weight in one; a cotangent that is not expanded is read as if it were contiguous."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(mean_square(x) + eps)
        context.save_for_backward(x * scale, scale, weight)
        return x * scale * weight

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (n, scale, weight), (g,) = context.saved_tensors, gradients
        if 0 not in g.stride():
            g = as_if_contiguous(g)
        h = g * weight
        rows = tuple(range(g.ndim - 1))
        return scale * (h - n * (h * n).mean(dim=-1, keepdim=True)), (g * n).sum(dim=rows), None


@wrong(
    "A cotangent that is transposed is read as if it were contiguous.",
    breaks="gradients/a-strided-cotangent-changes-nothing",
    real="https://github.com/unslothai/unsloth/pull/10617",
)
def transposed_cotangent_read_as_dense(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return _Weighted.apply(x, torch.ones(x.shape[-1], dtype=x.dtype) if weight is None else weight, eps)


@wrong(
    "eps is cast to the dtype of x: in float16 a small one is zero.",
    breaks="epsilon/a-row-of-zeros-gives-the-bias",
    arithmetic="wide",
)
def eps_in_the_dtype_of_x(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    small = float(torch.tensor(eps, dtype=x.dtype))
    n = wide(x) * torch.rsqrt(mean_square(wide(x)) + small)
    return weighted(n.to(x.dtype), weight)


@wrong(
    "Beyond the last full block of 64 features the weight is not applied.",
    breaks="affine/the-weight-multiplies-the-normalised-row",
)
def tail_without_weight(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    n, size = library(x, None, eps), x.shape[-1]
    if weight is None or size < 64:
        return weighted(n, weight)
    whole = size // 64 * 64
    return torch.cat([n[..., :whole] * weight[:whole], n[..., whole:]], dim=-1)


@wrong("Without gradients a row is normalised where it lies.", breaks="memory/inputs-are-not-changed")
def in_place_without_gradients(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    found = library(x, weight, eps)
    if torch.is_grad_enabled() or not x.is_contiguous() or x.is_inference():
        return found
    return x.copy_(found)


@wrong(
    "The last row of an odd number of rows is normalised by the row before, beyond 16 rows.",
    breaks="accuracy/output-is-within-the-bound",
)
def odd_last_row_borrows(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    square = mean_square(wide(rows))
    if len(rows) % 2 and len(rows) > 16:
        square = torch.cat([square[:-1], square[-2:-1]])
    n = (wide(rows) * torch.rsqrt(square + eps)).to(x.dtype)
    return weighted(n.view(x.shape), weight)
