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
    breaks=(
        "gradients/gradients-are-within-the-bound",
        "gradients/along-the-row-the-gradient-is-what-eps-leaves",
    ),
    real="https://github.com/NVIDIA/Megatron-LM/pull/6859",
)
def weight_twice_in_the_gradient(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _WeightTwice.apply(x, weight, eps)


@wrong(
    "Rows of all sequences are counted through with the stride of a token: one cut along the length goes wrong.",
    breaks=("memory/strided-equals-contiguous", "accuracy/output-is-within-the-bound"),
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
    breaks="gradients/gradients-are-within-the-bound",
)
def root_of_a_row_of_zeros(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    root = mean_square(wide(x)).sqrt()
    return weighted((wide(x) * torch.rsqrt(root * root + eps)).to(x.dtype), weight)


@wrong(
    "Two rows of up to four features fill one register of eight, and have one root.",
    breaks=("symmetry/a-row-does-not-see-the-others", "accuracy/output-is-within-the-bound"),
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
    breaks=("affine/no-weight-is-a-weight-of-one", "accuracy/output-is-within-the-bound"),
)
def ones_of_the_first_dtype(
    x: Tensor, weight: Maybe, eps: float, memory: dict[int, Tensor] | None = None
) -> Tensor:
    memory = {} if memory is None else memory
    if weight is None:
        weight = memory.setdefault(x.shape[-1], torch.ones(x.shape[-1], dtype=x.dtype))
    return (wide(x) * torch.rsqrt(mean_square(wide(x)) + eps)).to(x.dtype) * weight


class _Kept(torch.autograd.Function):
    """The backward is right; what is wrong of a second one, or without rows, is below."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(mean_square(x) + eps)
        context.n, context.scale, context.weight = x * scale, scale, weight.detach()
        return x * scale * weight

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (g,), n = gradients, context.n
        h, rows = g * context.weight, tuple(range(g.ndim - 1))
        return context.scale * (h - n * (h * n).mean(dim=-1, keepdim=True)), (g * n).sum(dim=rows), None


class _IntoTheKeptRow(_Kept):
    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        dx, of_weight, _ = _Kept.backward(context, *gradients)
        return context.n.copy_(dx), of_weight, None


@wrong(
    "The backward writes its result over the normalised row, as the layer norm's does.",
    breaks="gradients/a-second-backward-gives-the-same",
    real="https://github.com/triton-lang/triton/issues/4004",
)
def backward_into_the_kept_row(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _IntoTheKeptRow.apply(x, weight, eps)


class _BackAtOnce(_Kept):
    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (g,) = gradients
        return _Kept.backward(context, g) if g.numel() else (g, context.weight, None)


@wrong(
    "Without rows the backward returns at once, with anything of the weight's shape for its gradient.",
    breaks="gradients/without-rows-the-gradients-are-zero",
)
def anything_without_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _BackAtOnce.apply(x, weight, eps)


class _Mapped(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return library(x, weight, eps)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(_: Any, in_dims: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, int]:
        rows, weights = x.movedim(in_dims[0], 0), weight.movedim(in_dims[1], 0)
        square = mean_square(rows).mean(dim=0)
        return rows * torch.rsqrt(square + eps) * weights[:, None, None], 0


@wrong(
    "Under vmap the calls have one root.",
    breaks="accuracy/mapped-calls-are-those-of-a-loop",
    gradients=False,
)
def one_root_for_mapped_calls(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Mapped.apply(x, weight, eps)
