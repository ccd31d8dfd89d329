"""Wrong softmaxes, written by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.faults.strides import as_if_contiguous
from tests.roles import wrong


def shifted(x: Tensor, top: Tensor, dim: int) -> Tensor:
    raised = torch.exp(x - top)
    return raised / raised.sum(dim=dim, keepdim=True)


@wrong(
    "Rows shorter than a warp of 32: the idle lanes put a zero into the maximum.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/m0at/rvllm/pull/1",
)
def idle_lanes_in_the_maximum(x: Tensor, dim: int) -> Tensor:
    top = x.amax(dim=dim, keepdim=True)
    return shifted(x, top.clamp(min=0.0) if x.shape[dim] < 32 else top, dim)


@wrong(
    "In a row of more than one tile of 32, the last tile adds exp(x) to the sum: the maximum is not taken out.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/tenstorrent/tt-metal/issues/51278",
)
def last_tile_not_shifted(x: Tensor, dim: int) -> Tensor:
    size = x.shape[dim]
    if size <= 32:
        return torch.softmax(x, dim)
    rows = x.movedim(dim, -1)
    top, last = rows.amax(dim=-1, keepdim=True), (size - 1) // 32 * 32
    raised = torch.exp(rows - top)
    total = raised[..., :last].sum(-1, keepdim=True) + torch.exp(rows[..., last:]).sum(-1, keepdim=True)
    return (raised / total).movedim(-1, dim)


@wrong(
    "The maximum is sought among the first 128 entries.",
    breaks="limits/the-cold-limit-picks-the-largest",
    real="https://github.com/baidu-research/warp-ctc/pull/30",
)
def maximum_of_the_first_128(x: Tensor, dim: int) -> Tensor:
    return shifted(x, x.narrow(dim, 0, min(x.shape[dim], 128)).amax(dim=dim, keepdim=True), dim)


@wrong(
    "Along any axis but the last, a strided tensor is read as if it were contiguous.",
    breaks="memory/strided-equals-contiguous",
)
def other_axes_read_as_dense(x: Tensor, dim: int) -> Tensor:
    if dim % x.ndim == x.ndim - 1 or x.is_contiguous() or 0 in x.stride():
        return torch.softmax(x, dim)
    return torch.softmax(as_if_contiguous(x), dim)


@wrong(
    "In half precision, rows longer than 512 come back in float32.",
    breaks="accuracy/output-is-within-the-bound",
)
def long_half_rows_come_back_wide(x: Tensor, dim: int) -> Tensor:
    found = torch.softmax(x, dim)
    return found.float() if x.dtype in (torch.float16, torch.bfloat16) and x.shape[dim] > 512 else found


class _FromLogarithms(torch.autograd.Function):
    """The backward goes through the logarithm of the weights."""

    @staticmethod
    def forward(context: Any, x: Tensor, dim: int) -> Tensor:
        weights = torch.softmax(x, dim)
        context.save_for_backward(weights)
        context.dim = dim
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,), (g,) = context.saved_tensors, gradients
        logarithms = weights.log()
        mean = (weights * (g + logarithms)).sum(context.dim, keepdim=True)
        mean = mean - (weights * logarithms).sum(context.dim, keepdim=True)
        return weights * (g - mean), None


@wrong(
    "The backward needs the logarithm of the weights: NaN where one of them is zero.",
    breaks="gradients/gradients-are-within-the-bound",
)
def backward_by_logarithms(x: Tensor, dim: int) -> Tensor:
    return _FromLogarithms.apply(x, dim)


class _Dense(torch.autograd.Function):
    """A cotangent that is not expanded is read as if it were contiguous."""

    @staticmethod
    def forward(context: Any, x: Tensor, dim: int) -> Tensor:
        weights = torch.softmax(x, dim)
        context.save_for_backward(weights)
        context.dim = dim
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,), (g,) = context.saved_tensors, gradients
        g = g if 0 in g.stride() else as_if_contiguous(g)
        return weights * (g - (weights * g).sum(context.dim, keepdim=True)), None


@wrong(
    "A cotangent that lies otherwise is read as if it were contiguous.",
    breaks="gradients/a-strided-cotangent-changes-nothing",
    real="https://github.com/unslothai/unsloth/pull/10617",
)
def cotangent_read_as_dense(x: Tensor, dim: int) -> Tensor:
    return _Dense.apply(x, dim)
