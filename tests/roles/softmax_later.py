"""Wrong softmaxes, the later ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong


class _IntoTheCotangent(torch.autograd.Function):
    """The backward writes its result where the cotangent lies."""

    @staticmethod
    def forward(context: Any, x: Tensor, dim: int) -> Tensor:
        weights = torch.softmax(x, dim)
        context.save_for_backward(weights)
        context.dim = dim
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,), (g,) = context.saved_tensors, gradients
        found = weights * (g - (weights * g).sum(context.dim, keepdim=True))
        return (found if 0 in g.stride() else g.copy_(found)), None


@wrong(
    "The backward writes its result into the cotangent, which another branch may still read.",
    breaks="memory/backward-leaves-the-output-and-its-gradient-alone",
    real="https://github.com/NVIDIA/apex/issues/1430",
)
def backward_into_the_cotangent(x: Tensor, dim: int) -> Tensor:
    return _IntoTheCotangent.apply(x, dim)


@wrong(
    "Where a row begins is counted in sixteen bits: behind 65536 elements the first rows are read again.",
    breaks=("symmetry/a-row-does-not-see-the-others", "accuracy/output-is-within-the-bound"),
    real="https://github.com/PaddlePaddle/Paddle/pull/71935",
)
def offsets_in_sixteen_bits(x: Tensor, dim: int) -> Tensor:
    rows = x.movedim(dim, -1)
    starts = torch.arange(rows[..., 0].numel()) * rows.shape[-1] % 65536
    read = rows.reshape(-1)[starts[:, None] + torch.arange(rows.shape[-1])]
    return torch.softmax(read, -1).view(rows.shape).movedim(-1, dim)


@wrong(
    "The axis and all behind it are one row, as in ONNX before opset 13.",
    breaks="symmetry/every-dim-is-the-last-one-turned",
    real="https://github.com/openvinotoolkit/openvino/issues/26519",
)
def axes_behind_are_one(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x.flatten(dim % x.ndim), -1).reshape(x.shape)


@wrong(
    "`dim or -1`: the first axis is taken for the last.", breaks="symmetry/every-dim-is-the-last-one-turned"
)
def first_axis_taken_for_none(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim or -1)


@wrong(
    "A block has 1024 threads, one for an entry: what stands behind counts in the sum, and is not written.",
    breaks="distribution/weights-sum-to-one",
)
def entries_beyond_the_block(x: Tensor, dim: int) -> Tensor:
    weights = torch.softmax(x, dim).movedim(dim, -1)
    return (weights * (torch.arange(weights.shape[-1]) < 1024)).movedim(-1, dim)


class _LastAxis(torch.autograd.Function):
    """The backward knows the last axis only."""

    @staticmethod
    def forward(context: Any, x: Tensor, dim: int) -> Tensor:
        weights = torch.softmax(x, dim)
        context.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,), (g,) = context.saved_tensors, gradients
        return weights * (g - (weights * g).sum(-1, keepdim=True)), None


@wrong(
    "The backward sums along the last axis, whatever the axis was.",
    breaks="gradients/the-gradient-of-a-row-sums-to-zero",
    real="https://github.com/tenstorrent/tt-metal/pull/31580",
)
def backward_along_the_last_axis(x: Tensor, dim: int) -> Tensor:
    return _LastAxis.apply(x, dim)
