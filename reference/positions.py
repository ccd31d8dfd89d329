"""Where a token stands, told to attention as a bias on the scores."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from headcheck.reference.masks import Alignment, query_positions


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
    return -slopes.to(torch.float64)[:, None, None] * distance
