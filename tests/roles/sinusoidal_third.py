"""Wrong tables of sinusoidal positions, the third ones by somebody who did not know the laws."""

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.sinusoidal import even, filled, frequencies, usual


@wrong(
    "The waves are spaced by dividing by their number less one: a width of two is NaN.",
    breaks="not/yet-known",
    real="https://github.com/ml-explore/mlx/pull/3614",
    last_wave="base",
)
def single_wave_divided_by_nothing(length: int, d_model: int) -> Tensor:
    even(d_model)
    waves = d_model // 2
    angles = torch.arange(length).float()[:, None] * 10000.0 ** -(torch.arange(waves) / (waves - 1))
    return torch.cat((angles.sin(), angles.cos()), dim=1)


@wrong(
    "An odd width is cut from the table of the next even one, whose waves are others.",
    breaks="not/yet-known",
    odd="handled",
)
def odd_cut_from_the_next_even(length: int, d_model: int) -> Tensor:
    return usual(length, d_model + d_model % 2)[:, :d_model]


@wrong(
    "A block has 256 threads, one for each wave: the columns behind them are left at zero.",
    breaks="not/yet-known",
)
def waves_beyond_the_block(length: int, d_model: int) -> Tensor:
    return usual(length, d_model) * (torch.arange(d_model) < 512)


@wrong(
    "Positions and waves are made in torch's default dtype: where that is bfloat16, neighbours far out share a row.",
    breaks="not/yet-known",
)
def in_the_default_dtype(length: int, d_model: int) -> Tensor:
    even(d_model)
    dtype = torch.get_default_dtype()
    return filled(torch.arange(length, dtype=dtype), frequencies(d_model).to(dtype))
