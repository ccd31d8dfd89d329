"""Wrong layer norms, the third ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.layer_norm import Maybe, affine, centred, library, variance, wide


@wrong(
    "The means of blocks of 64 features are averaged, however short the last block is.",
    breaks=("gradients/the-jacobian-is-symmetric", "accuracy/output-is-within-the-bound"),
)
def means_of_blocks_averaged(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    blocks = [block.mean(dim=-1, keepdim=True) for block in wide(x).split(64, dim=-1)]
    apart = wide(x) - torch.cat(blocks, dim=-1).mean(dim=-1, keepdim=True)
    n = apart * torch.rsqrt(apart.square().mean(dim=-1, keepdim=True) + eps)
    return affine(n.to(x.dtype), weight, bias)


@wrong(
    "One pass about a pivot, which is the first feature of the tensor, not of the row: rows far from it lose digits.",
    breaks=("statistics/the-mean-square-is-what-eps-leaves", "accuracy/output-is-within-the-bound"),
)
def pivot_of_the_tensor(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    apart = wide(x) - wide(x).detach().flatten()[:1].sum()
    mean = apart.mean(dim=-1, keepdim=True)
    square = (apart.square().mean(dim=-1, keepdim=True) - mean.square()).clamp(min=0.0)
    return affine(((apart - mean) * torch.rsqrt(square + eps)).to(x.dtype), weight, bias)


class _Whole(torch.autograd.Function):
    """Norm, weight and bias in one, with a backward of its own; what is wrong is below."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(variance(x) + eps)
        context.n, context.scale, context.weight = centred(x) * scale, scale, weight.detach()
        return context.n * weight + bias

    @staticmethod
    def of_x(context: Any, g: Tensor) -> Tensor:
        n, h = context.n, g * context.weight
        return context.scale * (h - h.mean(dim=-1, keepdim=True) - n * (h * n).mean(dim=-1, keepdim=True))


class _BiasWithTheWeight(_Whole):
    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (g,), dx = gradients, _Whole.of_x(context, gradients[0])
        if not context.needs_input_grad[1]:
            return dx, None, None, None
        rows = tuple(range(g.ndim - 1))
        return dx, (g * context.n).sum(dim=rows), g.sum(dim=rows), None


@wrong(
    "Where the weight is frozen, the bias gets no gradient either.",
    breaks="gradients/each-gradient-can-be-asked-for-alone",
)
def bias_frozen_with_the_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _BiasWithTheWeight.apply(x, weight, bias, eps)


class _IntoTheKeptRow(_Whole):
    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (g,) = gradients
        rows = tuple(range(g.ndim - 1))
        of_weight, dx = (g * context.n).sum(dim=rows), _Whole.of_x(context, g)
        return context.n.copy_(dx), of_weight, g.sum(dim=rows), None


@wrong(
    "The backward writes its result over the normalised row: a second one through a kept graph reads that.",
    breaks="gradients/a-second-backward-gives-the-same",
    real="https://github.com/triton-lang/triton/issues/4004",
)
def backward_into_the_kept_row(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _IntoTheKeptRow.apply(x, weight, bias, eps)


class _ByTheMean(_Whole):
    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (g,) = gradients
        rows, count = tuple(range(g.ndim - 1)), g[..., 0].numel()
        of_weight, of_bias = ((each * 1.0).mean(dim=rows) * count for each in (g * context.n, g))
        return _Whole.of_x(context, g), of_weight, of_bias, None


@wrong(
    "The gradients of weight and bias are a mean over the rows, times their number: without rows they are NaN.",
    breaks="gradients/without-rows-the-gradients-are-zero",
)
def gradient_of_no_rows(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _ByTheMean.apply(x, weight, bias, eps)


class _Mapped(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return library(x, weight, bias, eps)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(_: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, int]:
        of_x, of_weight, of_bias, _ = in_dims
        return library(x.movedim(of_x, 0), weight.select(of_weight, 0), bias.select(of_bias, 0), eps), 0


@wrong(
    "Under vmap all calls have the weight and the bias of the first.",
    breaks="accuracy/mapped-calls-are-those-of-a-loop",
    gradients=False,
)
def mapped_with_the_first_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _Mapped.apply(x, weight, bias, eps)
