"""Wrong layer norms, the later ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.layer_norm import Maybe, affine, centred, library, variance, wide


@wrong(
    "A tensor whose rows do not lie one after the other is refused: it cannot be viewed as rows.",
    breaks="memory/strided-equals-contiguous",
    real="https://github.com/unslothai/unsloth/pull/10675",
)
def unviewable_refused(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return library(x.view(-1, x.shape[-1]), weight, bias, eps).view(x.shape)


class _MeanKept(torch.autograd.Function):
    """The normalised row; the backward makes it again, of a mean that was kept in bfloat16."""

    @staticmethod
    def forward(context: Any, x: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(variance(x) + eps)
        context.save_for_backward(x, x.mean(dim=-1, keepdim=True).bfloat16(), scale)
        return centred(x) * scale

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (x, mean, scale), (g,) = context.saved_tensors, gradients
        n = (x - mean.to(x.dtype)) * scale
        return scale * (g - g.mean(dim=-1, keepdim=True) - n * (g * n).mean(dim=-1, keepdim=True)), None


@wrong(
    "The mean is kept in bfloat16 for the backward: rows far from zero get other gradients.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/pytorch/pytorch/pull/140259",
)
def mean_kept_in_bfloat16(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(_MeanKept.apply(x, eps), weight, bias)


@wrong(
    "Of rows beyond 256 features the variances of blocks of 256 are averaged; their means may lie apart.",
    breaks="statistics/the-mean-square-is-what-eps-leaves",
)
def variances_of_blocks(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    blocks = wide(x).split(256, dim=-1)
    total = torch.cat([variance(block) * block.shape[-1] for block in blocks], dim=-1).sum(-1, keepdim=True)
    n = centred(wide(x)) * torch.rsqrt(total / x.shape[-1] + eps)
    return affine(n.to(x.dtype), weight, bias)


@wrong(
    "Rows are loaded four features at a time: where the size is no multiple, a row begins up to three too early.",
    breaks="symmetry/a-row-does-not-see-the-others",
    real="https://github.com/pytorch/pytorch/issues/184826",
)
def rows_begin_aligned(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    size = x.shape[-1]
    starts = torch.arange(x.numel() // size) * size // 4 * 4
    read = x.reshape(-1)[starts[:, None] + torch.arange(size)]
    return library(read.view(x.shape), weight, bias, eps)


class _FromTheOutput(torch.autograd.Function):
    """To save memory the output is kept, and the normalised row is made of it again."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(variance(x) + eps)
        output = centred(x) * scale * weight + bias
        context.save_for_backward(output, scale, weight, bias)
        return output

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (output, scale, weight, bias), (g,) = context.saved_tensors, gradients
        n, h, rows = (output - bias) / weight, g * weight, tuple(range(g.ndim - 1))
        dx = scale * (h - h.mean(dim=-1, keepdim=True) - n * (h * n).mean(dim=-1, keepdim=True))
        return dx, (g * n).sum(dim=rows), g.sum(dim=rows), None


@wrong(
    "The backward makes the normalised row of the output, (y - bias) / weight: a weight of zero is NaN.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/NVIDIA/apex/pull/1715",
)
def backward_from_the_output(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _FromTheOutput.apply(x, weight, bias, eps)


@wrong(
    "The reciprocal root is the fast one, by its bits and one step of Newton's.",
    breaks="accuracy/output-is-within-the-bound",
)
def fast_reciprocal_root(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    square = variance(wide(x)) + eps
    guess = (0x5F3759DF - (square.detach().float().view(torch.int32) >> 1)).view(torch.float32).to(square)
    n = centred(wide(x)) * (guess * (1.5 - 0.5 * square * guess * guess))
    return affine(n.to(x.dtype), weight, bias)
