"""Wrong RMS norms, the later ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.rms_norm import Maybe, library, mean_square, weighted, wide


class _Weighted(torch.autograd.Function):
    """The norm and its weight in one; the gradient of the weight is added up in the dtype of x, row by row."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(mean_square(wide(x)) + eps)
        context.save_for_backward(wide(x) * scale, scale, weight)
        return (wide(x) * scale * weight).to(x.dtype)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (n, scale, weight), (g,) = context.saved_tensors, gradients
        h, total = wide(g) * weight, torch.zeros_like(weight)
        for row in (wide(g) * n).to(g.dtype).reshape(-1, n.shape[-1]):
            total = total + row
        return (scale * (h - n * (h * n).mean(dim=-1, keepdim=True))).to(g.dtype), total, None


@wrong(
    "In 16 bits the gradient of the weight is added up in 16 bits, row by row.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/linkedin/Liger-Kernel/pull/950",
    arithmetic="flash",
)
def weight_gradient_in_sixteen_bits(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Weighted.apply(x, weight, eps)


@wrong(
    "A block has 256 threads of four features each: the squares behind the 1024th do not count.",
    breaks="statistics/the-mean-is-over-all-features",
)
def squares_beyond_the_block(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    square = wide(x)[..., :1024].square().sum(dim=-1, keepdim=True) / x.shape[-1]
    return weighted((wide(x) * torch.rsqrt(square + eps)).to(x.dtype), weight)


class _WithoutEps(torch.autograd.Function):
    """The normalised row; the backward takes its root again, of the squares alone."""

    @staticmethod
    def forward(context: Any, x: Tensor, eps: float) -> Tensor:
        context.save_for_backward(x)
        return x * torch.rsqrt(mean_square(x) + eps)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (x,), (g,) = context.saved_tensors, gradients
        scale = torch.rsqrt(mean_square(x).clamp(min=torch.finfo(x.dtype).tiny))
        n = x * scale
        return scale * (g - n * (g * n).mean(dim=-1, keepdim=True)), None


@wrong(
    "The backward takes the root again, and forgets eps.",
    breaks="gradients/along-the-row-the-gradient-is-what-eps-leaves",
)
def backward_without_eps(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(_WithoutEps.apply(x, eps), weight)


@wrong(
    "The weight multiplies x before the root divides it: in float16 the product overflows.",
    breaks="accuracy/output-is-within-the-bound",
    arithmetic="wide",
    dtypes=("float16",),
)
def product_overflows(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return (weighted(x, weight).float() * torch.rsqrt(mean_square(x.float()) + eps)).to(x.dtype)


@wrong(
    "A single row, as in decoding, has an eps of 1e-6, whatever is asked for.",
    breaks="symmetry/a-row-does-not-see-the-others",
)
def eps_of_a_single_row(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return library(x, weight, 1e-6 if x[..., 0].numel() == 1 else eps)


@wrong(
    "In 16 bits features are taken two by two: an odd last one is copied as it came, though it is counted.",
    breaks="symmetry/permuting-features-permutes-the-output",
)
def odd_last_feature_copied(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    found = library(x, weight, eps)
    if x.dtype not in (torch.float16, torch.bfloat16) or x.shape[-1] % 2 == 0:
        return found
    return torch.cat((found[..., :-1], x[..., -1:]), dim=-1)
