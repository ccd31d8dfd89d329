"""Wrong tables of sinusoidal positions, as they come in ports and exercises."""

import torch
from torch import Tensor

from tests.roles import wrong


def interleaved(sines: Tensor, cosines: Tensor) -> Tensor:
    """Sine, cosine, sine, cosine, ... of the angles that are given: (length, d_model)."""
    table = torch.empty(sines.shape[0], sines.shape[1] + cosines.shape[1])
    table[:, 0::2], table[:, 1::2] = sines.sin(), cosines.cos()
    return table


@wrong(
    "A cosine has the exponent of its own column, not that of the sine beside it.",
    breaks="shifts/one-rotation-for-each-offset",
)
def exponent_of_the_odd_column(length: int, d_model: int) -> Tensor:
    frequencies = 10000.0 ** (-torch.arange(d_model, dtype=torch.float64) / d_model)
    angles = torch.arange(length)[:, None] * frequencies
    return interleaved(angles[:, 0::2], angles[:, 1::2])


@wrong(
    "The exponent of wave i is i / d_model, not 2i / d_model.",
    breaks="waves/each-wave-turns-by-its-frequency",
)
def exponent_without_two(length: int, d_model: int) -> Tensor:
    waves = torch.arange((d_model + 1) // 2, dtype=torch.float64)
    angles = torch.arange(length)[:, None] * 10000.0 ** (-waves / d_model)
    return interleaved(angles, angles[:, : d_model // 2])


@wrong(
    "Waves by whole pairs fill the columns of a width of 3 by broadcasting; other odd widths raise.",
    breaks="conventions/odd-widths-are-refused-or-right",
)
def one_wave_fills_two_columns(length: int, d_model: int) -> Tensor:
    angles = torch.arange(length)[:, None] * 10000 ** (-2.0 * torch.arange(d_model // 2) / d_model)
    table = torch.zeros(length, d_model)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


@wrong(
    "For an odd d_model the first wave's cosine is left out, not the last one's: the others move up.",
    breaks="conventions/odd-widths-are-refused-or-right",
)
def odd_width_cut_at_the_front(length: int, d_model: int) -> Tensor:
    steps = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = torch.arange(length)[:, None] * 10000.0 ** (-steps / d_model)
    return interleaved(angles, angles[:, d_model % 2 :])


@wrong(
    "Tables are kept by their sizes alone: a second model of another base gets those of the first.",
    breaks="tables/each-call-has-its-own-base",
)
def kept_without_the_base(
    length: int, d_model: int, base: float = 10000.0, *, memory: dict[tuple[int, int], Tensor]
) -> Tensor:
    if (length, d_model) not in memory:
        exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        angles = torch.arange(length)[:, None] * base**-exponents
        memory[length, d_model] = interleaved(angles, angles[:, : d_model // 2])
    return memory[length, d_model].clone()
