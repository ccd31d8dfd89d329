"""Where a token stands: added to its embedding, turned into query and key, or told as a bias on the scores.

Sinusoidal and rotary positions share their angles: position x base^(-2i/dim), for i = 0 .. dim/2 - 1.
"""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from headcheck.reference.choices import require_choice
from headcheck.reference.masks import Alignment, query_positions

Layout = Literal["interleaved", "concatenated"]
"""interleaved: sin, cos, sin, cos, ... as in the paper. concatenated: all sines, then all cosines (tensor2tensor)."""
Pairing = Literal["interleaved", "half"]
"""interleaved: dims (0, 1), (2, 3), ... turn together, as in the paper. half: (0, dim/2), (1, dim/2 + 1), ..."""


def token_positions(is_real: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """The number of real tokens before each: left padding moves no token; padding itself stays within range."""
    return (is_real.long().cumsum(dim=-1) - 1).clamp(min=0)


def rotary_angles(
    positions: Num[Tensor, "*batch length"], dim: int, *, base: float = 10000.0
) -> Float[Tensor, "*batch length {dim//2}"]:
    """position x base^(-2i/dim) in radians, in float64: the fastest turns by 1, the slowest by about 1/base.

    ValueError where dim is odd. Su et al. 2021 (RoFormer), section 3.2.2; Vaswani et al. 2017, section 3.5.
    """
    if dim % 2:
        raise ValueError(f"positions turn dims in pairs: {dim} is odd")
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device) / dim
    return positions.to(torch.float64)[..., None] * base**-exponents


def sinusoidal_at(
    positions: Num[Tensor, "*batch length"],
    d_model: int,
    *,
    base: float = 10000.0,
    layout: Layout = "interleaved",
) -> Float[Tensor, "*batch length d_model"]:
    """PE(p, 2i) = sin(p / base^(2i/d_model)), PE(p, 2i+1) = cos of the same, in float64.

    ValueError where d_model is odd. Vaswani et al. 2017, section 3.5.
    """
    require_choice("layout", layout, Layout)
    angles = rotary_angles(positions, d_model, base=base)
    return torch.stack((angles.sin(), angles.cos()), dim=-1 if layout == "interleaved" else -2).flatten(-2)


def sinusoidal(
    length: int, d_model: int, *, base: float = 10000.0, layout: Layout = "interleaved"
) -> Float[Tensor, "length d_model"]:
    """The sinusoidal code of positions 0 .. length - 1, in float64; no length is too long."""
    return sinusoidal_at(torch.arange(length), d_model, base=base, layout=layout)


def rotary(
    x: Float[Tensor, "batch heads length dim"],
    positions: Num[Tensor, "#batch length"] | Num[Tensor, " length"],
    *,
    base: float = 10000.0,
    pairing: Pairing = "interleaved",
    rotary_dim: int | None = None,
) -> Float[Tensor, "batch heads length dim"]:
    """Each pair of dims, as a complex number, times e^(i angle); dims from `rotary_dim` on stay as they are.

    Computed in float64 and rounded once to the dtype of x. positions: integers or fractions, for all sequences
    or for each. ValueError where rotary_dim is odd or beyond dim. Su et al. 2021 (RoFormer), equation (34);
    half pairing: GPT-NeoX; partial: GPT-J.
    """
    require_choice("pairing", pairing, Pairing)
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    if rotary_dim > x.shape[-1]:
        raise ValueError(f"rotary_dim = {rotary_dim} is beyond dim = {x.shape[-1]}")
    angles = rotary_angles(positions.to(x.device), rotary_dim, base=base)[..., None, :, :]  # for every head
    cos, sin = angles.cos(), angles.sin()
    pairs, axis = ((rotary_dim // 2, 2), -1) if pairing == "interleaved" else ((2, rotary_dim // 2), -2)
    real, imaginary = x[..., :rotary_dim].to(torch.float64).reshape(*x.shape[:-1], *pairs).unbind(axis)
    turned = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=axis).flatten(-2)
    return torch.cat((turned.to(x.dtype), x[..., rotary_dim:]), dim=-1)


class LearnedPositions(nn.Module):
    """A table with a row for each position, trained.  Devlin et al. 2019 (BERT); document 003, line 515."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_len, d_model).normal_(std=0.02))

    def forward(self, positions: Int[Tensor, "*batch length"]) -> Float[Tensor, "*batch length d_model"]:
        """ValueError for a position that the table does not have: nothing learned reaches beyond it."""
        outside = positions[(positions < 0) | (positions >= len(self.weight))]
        if outside.numel():
            raise ValueError(f"position {int(outside[0])}, but only 0 to {len(self.weight) - 1} were learned")
        return self.weight[positions]


def alibi_slopes(heads: int) -> Float[Tensor, " heads"]:
    """The slope of each head: 2^(-8/n), 2^(-16/n), ..., for n = heads a power of two.

    Other counts take the slopes of the power of two below, then every second slope of the one above.
    Press et al. 2022 (ALiBi), section 3 and the authors' code.
    """

    def geometric(count: int) -> list[float]:
        return [2.0 ** (-8.0 * (h + 1) / count) for h in range(count)]

    below = 2 ** math.floor(math.log2(heads))
    slopes = geometric(below) + geometric(2 * below)[::2]
    return torch.tensor(slopes[:heads], dtype=torch.float64)


def alibi_bias(
    slopes: Float[Tensor, " heads"], q_len: int, kv_len: int, alignment: Alignment = "top-left"
) -> Float[Tensor, "heads q_len kv_len"]:
    """-slope x |i - j|: the further a key, the lower its score.  Press et al. 2022, section 3."""
    distance = (torch.arange(kv_len) - query_positions(q_len, kv_len, alignment)[:, None]).abs()
    return -slopes.to(torch.float64)[:, None, None] * distance.to(slopes.device)
