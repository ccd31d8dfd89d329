"""Wrong rotary positions, written by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.rotary import by_halves, frequencies, half, table


@wrong(
    "A call beyond position 2048 makes the base larger for good: later short calls are turned by it.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/huggingface/transformers/issues/25306",
)
def base_grown_for_good(x: Tensor, positions: Tensor, memory: dict[str, float]) -> Tensor:
    base = memory.get("base", 10000.0)
    if positions.numel() and positions.max() > 2048:
        memory["base"] = 20000.0
    return by_halves(x, *table(positions, x.shape[-1], base))


@wrong(
    "Positions are looked up in a table of 8192 rows, and begin again behind it.",
    breaks="accuracy/output-is-within-the-bound",
)
def begins_again_at_8192(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions % 8192)


@wrong(
    "Positions of as many sequences as tokens are read down the columns.",
    breaks="accuracy/output-is-within-the-bound",
)
def square_positions_transposed(x: Tensor, positions: Tensor) -> Tensor:
    square = positions.ndim == 2 and positions.shape[0] == positions.shape[1]
    return half(x, positions.mT if square else positions)


@wrong(
    "The halves are rounded to an even number of dims: a dim of 6, 10 or 14 is split beside its middle.",
    breaks="accuracy/output-is-within-the-bound",
)
def halves_of_even_size(x: Tensor, positions: Tensor) -> Tensor:
    width = x.shape[-1] // 4 * 4 or x.shape[-1]
    return torch.cat((half(x[..., :width], positions), x[..., width:]), dim=-1)


class _FromZero(torch.autograd.Function):
    """The backward counts the positions from zero."""

    @staticmethod
    def forward(context: Any, x: Tensor, positions: Tensor) -> Tensor:
        context.length = x.shape[2]
        return half(x, positions)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (g,) = gradients
        cos, sin = table(torch.arange(context.length), g.shape[-1])
        return by_halves(g, cos, -sin), None


@wrong("The backward counts positions from zero.", breaks="gradients/gradients-are-within-the-bound")
def backward_from_zero(x: Tensor, positions: Tensor) -> Tensor:
    return _FromZero.apply(x, positions)


@wrong(
    "Single tokens, as in decoding, all have the position of the first sequence's.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/rasbt/reasoning-from-scratch/issues/33",
)
def decoded_at_one_position(x: Tensor, positions: Tensor) -> Tensor:
    alone = positions.ndim == 2 and x.shape[2] == 1
    return half(x, positions[:1].expand(positions.shape) if alone else positions)


@wrong(
    "The slowest quarter of the waves is taken to stand still.", breaks="accuracy/output-is-within-the-bound"
)
def slow_waves_stand_still(x: Tensor, positions: Tensor) -> Tensor:
    pairs = x.shape[-1] // 2
    moving = frequencies(x.shape[-1]) * (torch.arange(pairs) < max(pairs - pairs // 4, 1))
    angles = positions[..., None].float() * moving
    angles = angles[:, None] if positions.ndim == 2 else angles
    return by_halves(x, angles.cos(), angles.sin())
