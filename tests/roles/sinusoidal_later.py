"""Wrong tables of sinusoidal positions, the later ones by somebody who did not know the laws."""

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.sinusoidal import even, filled, frequencies, usual


@wrong(
    "Row 0 is left at zero, as the row of a padding token is in fairseq.",
    breaks="conventions/position-zero-is-zeros-and-ones",
)
def row_of_padding(length: int, d_model: int) -> Tensor:
    return usual(length, d_model) * (torch.arange(length) > 0)[:, None]


@wrong(
    "The exponent is divided as whole numbers are: every wave is the first.",
    breaks="waves/wavelengths-form-a-geometric-row",
)
def whole_exponent(length: int, d_model: int) -> Tensor:
    even(d_model)
    exponent = torch.arange(0, d_model, 2) // d_model
    return filled(torch.arange(length).float(), 10000.0 ** -exponent.float())


@wrong(
    "A kept table that is too short is continued one position too late.",
    breaks="waves/each-wave-turns-by-its-frequency",
)
def continued_too_late(length: int, d_model: int, memory: dict[int, Tensor]) -> Tensor:
    even(d_model)
    kept = memory.get(d_model, torch.empty(0, d_model))
    if len(kept) < length:
        start = len(kept) + 1 if len(kept) else 0
        new = torch.arange(start, start + length - len(kept)).float()
        memory[d_model] = kept = torch.cat((kept, filled(new, frequencies(d_model))))
    return kept[:length].clone()
