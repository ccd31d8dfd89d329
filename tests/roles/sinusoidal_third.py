"""Wrong tables of sinusoidal positions, the third ones by somebody who did not know the laws."""

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.sinusoidal import even, usual


@wrong(
    "The waves are spaced by dividing by their number less one: a width of two is NaN.",
    breaks="conventions/a-single-wave-is-refused-or-right",
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
    breaks=(
        "conventions/odd-widths-are-refused-or-right",
        "conventions/columns-stand-in-the-declared-layout",
    ),
    odd="handled",
)
def odd_cut_from_the_next_even(length: int, d_model: int) -> Tensor:
    return usual(length, d_model + d_model % 2)[:, :d_model]


@wrong(
    "Doubles are the default for the time of the call, and from then on where an odd width is refused.",
    breaks="conventions/a-refused-width-touches-nothing-global",
)
def doubles_after_a_refusal(length: int, d_model: int) -> Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    even(d_model)
    table = usual(length, d_model)
    torch.set_default_dtype(before)
    return table


@wrong(
    "A block has 256 threads, one for each wave: the columns behind them are left at zero.",
    breaks=("waves/each-wave-turns-by-its-frequency", "accuracy/output-is-within-the-bound"),
)
def waves_beyond_the_block(length: int, d_model: int) -> Tensor:
    return usual(length, d_model) * (torch.arange(d_model) < 512)
