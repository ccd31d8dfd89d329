"""Factors that are made in the first call and kept: those of a call in inference mode cannot be trained with."""

import torch
from torch import Tensor, nn

REAL = "https://github.com/Dao-AILab/flash-attention/pull/299"
FAULT = "A factor that is made in inference mode is kept, and cannot be trained with."


def ones_kept(kept: dict[bytes, Tensor], x: Tensor) -> Tensor:
    """Ones in the shape of x, kept for the numbers of the last call."""
    if torch._C._functorch.is_batchedtensor(x):
        return torch.ones_like(x)
    asked = x.detach().double().numpy().tobytes() + f"{x.dtype} {x.shape}".encode()
    if asked not in kept:
        kept.clear()
        kept[asked] = torch.ones_like(x.detach())
    return kept[asked]


class KeptGain(nn.Linear):
    """A linear layer that multiplies its input by ones, made in its first call in a dtype."""

    gains: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.gains is None or self.gains.dtype != x.dtype:
            self.gains = torch.ones(x.shape[-1], dtype=x.dtype)
        return super().forward(x * self.gains)


def with_kept_gain(module: nn.Module, name: str) -> nn.Module:
    """The module with such a layer in place of the linear one of that name."""
    plain = getattr(module, name)
    kept = KeptGain(plain.in_features, plain.out_features, bias=plain.bias is not None)
    setattr(module, name, kept)
    return module
