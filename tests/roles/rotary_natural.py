"""Wrong rotary positions, as they come in ports, kernels and exercises."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong


def angles_of(positions: Tensor, dim: int, base: float = 10000.0) -> Tensor:
    """(length, dim / 2), or (batch, 1, length, dim / 2) where positions are of each sequence."""
    frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = positions.double()[..., None] * frequencies
    return angles if positions.ndim == 1 else angles[:, None]


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """The right rotation of halves."""
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    a, b = x.to(wide).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


@wrong(
    "The table is cut to the length from its start, whatever the positions are.",
    breaks="positions/a-slice-is-turned-as-in-the-whole",
    real="https://github.com/pytorch/executorch/pull/2010",
)
def table_cut_from_the_start(x: Tensor, positions: Tensor) -> Tensor:
    return turned(x, angles_of(torch.arange(x.shape[2]), x.shape[3]))


@wrong(
    "Every sequence turns by the positions of the first one.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/linkedin/Liger-Kernel/pull/477",
)
def table_of_the_first_sequence(x: Tensor, positions: Tensor) -> Tensor:
    return turned(x, angles_of(positions if positions.ndim == 1 else positions[0], x.shape[3]))


@wrong(
    "Half of the dims turn, but their frequencies are spread over the whole head.",
    breaks="frequencies/each-pair-turns-by-its-frequency",
    real="https://github.com/pie-project/pie/issues/602",
)
def partial_by_the_width_of_the_head(x: Tensor, positions: Tensor, theta: float = 10000.0) -> Tensor:
    dim = x.shape[-1]
    if dim % 4:
        raise ValueError("the head's dim must be a multiple of 4")
    angles = angles_of(positions, dim, theta)[..., : dim // 4]
    return torch.cat([turned(x[..., : dim // 2], angles), x[..., dim // 2 :]], dim=-1)


@wrong(
    "Halves are paired, but cosines and sines are laid out for neighbours.", breaks="rotation/norms-are-kept"
)
def two_layouts_in_one(x: Tensor, positions: Tensor) -> Tensor:
    angles = angles_of(positions, x.shape[-1]).repeat_interleave(2, dim=-1)
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    a, b = x.to(wide).chunk(2, dim=-1)
    return (x.to(wide) * cos + torch.cat([-b, a], dim=-1) * sin).to(x.dtype)


@wrong(
    "The angles are kept by shape, without the positions: a second call turns as the first did.",
    breaks="state/other-positions-are-answered-for-themselves",
    real="https://github.com/lucidrains/rotary-embedding-torch/issues/11",
)
def cache_key_without_offset(x: Tensor, positions: Tensor, memory: dict[Any, Tensor]) -> Tensor:
    key = (*positions.shape, x.shape[-1])
    if key not in memory:
        memory[key] = angles_of(positions, x.shape[-1])
    return turned(x, memory[key])


@wrong(
    "Positions are cast to the dtype of x: in bfloat16, 257 becomes 256.",
    breaks="frequencies/sixteen-bits-do-not-round-positions",
    real="https://github.com/EleutherAI/gpt-neox/issues/1003",
)
def narrow_positions(x: Tensor, positions: Tensor) -> Tensor:
    return turned(x, angles_of(positions.to(x.dtype), x.shape[-1]))


@wrong(
    "The first half is written in place before the second half reads it.", breaks="rotation/norms-are-kept"
)
def second_half_reads_the_new_first(x: Tensor, positions: Tensor) -> Tensor:
    angles, half = angles_of(positions, x.shape[-1]), x.shape[-1] // 2
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    out = x.to(wide, copy=True)
    out[..., :half] = out[..., :half] * cos - out[..., half:] * sin
    out[..., half:] = out[..., :half] * sin + out[..., half:] * cos
    return out.to(x.dtype)


class _TurnedWhereItLies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, angles: Tensor) -> Tensor:
        ctx.save_for_backward(angles)
        return turned(x, angles)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (angles,) = ctx.saved_tensors
        return grad.copy_(turned(grad, -angles)), None


@wrong(
    "The backward pass turns what is sent back where it lies, and a branch beside it reads it turned.",
    breaks="memory/backward-leaves-the-output-and-its-gradient-alone",
)
def turned_back_in_place(x: Tensor, positions: Tensor) -> Tensor:
    output: Tensor = _TurnedWhereItLies.apply(x, angles_of(positions, x.shape[-1]))
    return output


@wrong(
    "The table of a dim is kept in the dtype of the first call, and its numbers are those of 16 bits ever after.",
    breaks="state/each-dtype-has-its-own-table",
    max_position=4095,
)
def table_of_a_dim_in_its_first_dtype(x: Tensor, positions: Tensor, memory: dict[int, Tensor]) -> Tensor:
    dim = x.shape[-1]
    if dim not in memory:
        angles = angles_of(torch.arange(4096), dim)
        memory[dim] = torch.stack([angles.cos(), angles.sin()]).to(x.dtype)
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (memory[dim] if positions.ndim == 1 else memory[dim][:, None])[..., positions, :].to(wide)
    a, b = x.to(wide).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


@wrong(
    "The table grows only for a position behind the one that follows its end, which gets the last row.",
    breaks="state/each-step-past-a-length-is-answered",
)
def table_grows_one_position_late(x: Tensor, positions: Tensor, memory: dict[int, int]) -> Tensor:
    rows, furthest = memory.setdefault(x.shape[-1], 64), int(positions.max())
    if furthest > rows:
        rows = memory[x.shape[-1]] = 1 << furthest.bit_length()
    return turned(x, angles_of(positions.clamp(max=rows - 1), x.shape[-1]))
