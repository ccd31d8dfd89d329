"""Each vector brought to one scale, by itself: no other token and no other sequence has a say.

bfloat16 and float16 are computed in float32 and rounded once.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def layer_norm(
    x: Float[Tensor, "*rows dim"],
    weight: Float[Tensor, " dim"] | None = None,
    bias: Float[Tensor, " dim"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*rows dim"]:
    """(x - mean) / sqrt(variance + eps) x weight + bias, the variance over dim and not dim - 1.

    The mean is taken out before squaring, so that a large mean costs no digits. Ba et al. 2016, section 3.
    """
    wide = _wide(x)
    centred = wide - wide.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return _affine(centred / torch.sqrt(variance + eps), weight, bias).to(x.dtype)


def rms_norm(
    x: Float[Tensor, "*rows dim"], weight: Float[Tensor, " dim"] | None = None, eps: float = 1e-6
) -> Float[Tensor, "*rows dim"]:
    """x / sqrt(mean of x^2 + eps) x weight.  Zhang and Sennrich 2019 (RMSNorm), equation (4)."""
    wide = _wide(x)
    mean_square = wide.square().mean(dim=-1, keepdim=True)
    return _affine(wide / torch.sqrt(mean_square + eps), weight, None).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    """Once for each x: two copies would each round their part of its gradient."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


class LayerNorm(nn.Module):
    """`layer_norm` with its weight, and its bias where asked for."""

    def __init__(self, d_model: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """`rms_norm` with its weight."""

    def __init__(self, d_model: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        return rms_norm(x, self.weight, self.eps)
