"""Wrong tables of sinusoidal positions, written by somebody who did not know the laws."""

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.sinusoidal import even, filled, frequencies, usual


@wrong("Made in pieces of 1000 rows, each counted from zero.", breaks="shifts/one-rotation-for-each-offset")
def pieces_counted_from_zero(length: int, d_model: int) -> Tensor:
    even(d_model)
    return filled((torch.arange(length) % 1000).float(), frequencies(d_model))


@wrong("Kept by the number of its elements.", breaks="accuracy/output-is-within-the-bound")
def kept_by_elements(length: int, d_model: int, memory: dict[int, Tensor]) -> Tensor:
    if length * d_model not in memory:
        memory[length * d_model] = usual(length, d_model)
    return memory[length * d_model].clone().reshape(length, d_model)


@wrong("Positions in eight bits: row 256 is row 0.", breaks="accuracy/output-is-within-the-bound")
def positions_in_eight_bits(length: int, d_model: int) -> Tensor:
    even(d_model)
    return filled(torch.arange(length).to(torch.uint8).float(), frequencies(d_model))


@wrong(
    "Widths that are no multiple of four have one wave too few, the last columns a copy.",
    breaks="accuracy/output-is-within-the-bound",
)
def last_wave_copied(length: int, d_model: int) -> Tensor:
    found = usual(length, d_model)
    if d_model % 4 and d_model > 4:
        found[:, -2:] = found[:, -4:-2].clone()
    return found
