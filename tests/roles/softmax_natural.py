"""Wrong softmax functions, as they come in ports, kernels and exercises."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong


@wrong(
    "The last axis is normalised, whatever dim says.",
    breaks="symmetry/every-dim-is-the-last-one-turned",
)
def rows_only_kernel(x: Tensor, dim: int) -> Tensor:
    raised = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return raised / raised.sum(dim=-1, keepdim=True)


@wrong(
    "Exponentials are taken of the scores as they are, and overflow.",
    breaks="symmetry/a-common-shift-changes-nothing",
    real="https://github.com/deeplearning4j/deeplearning4j/issues/6039",
)
def exponentials_as_they_come(x: Tensor, dim: int) -> Tensor:
    raised = torch.exp(x)
    return raised / raised.sum(dim=dim, keepdim=True)


@wrong(
    "A view is read as if it were contiguous: a transposed matrix gives the softmax of another one.",
    breaks="memory/strided-equals-contiguous",
    real="https://github.com/tracel-ai/burn/issues/4815",
)
def storage_read_in_order(x: Tensor, dim: int) -> Tensor:
    packed = torch.empty(x.shape, device="meta").stride()
    return torch.softmax(x.as_strided(x.shape, packed, x.storage_offset()), dim)


class _Diagonal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        weights = torch.softmax(x, dim)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return grad * weights * (1 - weights), None


@wrong(
    "The backward pass has the diagonal of the Jacobian only, as of a sigmoid.",
    breaks="gradients/the-gradient-of-a-row-sums-to-zero",
)
def derivative_of_a_sigmoid(x: Tensor, dim: int) -> Tensor:
    weights: Tensor = _Diagonal.apply(x, dim)
    return weights


class _SavedOutput(_Diagonal):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        sent = grad * weights
        return sent.sub_(weights.mul_(sent.sum(-1, keepdim=True))), None


@wrong(
    "The backward pass multiplies in place what it saved, which is the output that the caller holds.",
    breaks="memory/backward-leaves-the-output-and-its-gradient-alone",
)
def backward_into_the_output(x: Tensor, dim: int) -> Tensor:
    weights: Tensor = _SavedOutput.apply(x.movedim(dim, -1), -1)
    return weights.movedim(-1, dim)
