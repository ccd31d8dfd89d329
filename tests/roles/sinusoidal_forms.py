"""A table of fixed length, which is cut, and not refused, where more is asked for."""

import torch
from torch import Tensor

from tests.roles import right
from tests.roles.sinusoidal_natural import interleaved


@right("A table of 2,500 rows is cut to the length that is asked for, or ends there.")
def table_that_ends(length: int, d_model: int) -> Tensor:
    steps = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = torch.arange(2500)[:, None] * 10000.0 ** (-steps / d_model)
    return interleaved(angles, angles[:, : d_model // 2])[:length]
