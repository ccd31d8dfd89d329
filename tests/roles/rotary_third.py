"""Wrong rotary positions, the third ones by somebody who did not know the laws."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.rotary import at_least_float, by_halves, half, llama_3_1, table


@wrong(
    "The sine of a row (cosines, sines) is looked for behind the half of the dim that is padded to a power of two.",
    breaks=("frequencies/each-pair-turns-by-its-frequency", "accuracy/output-is-within-the-bound"),
    real="https://github.com/vllm-project/vllm-ascend/issues/12723",
)
def sine_behind_the_padded_half(x: Tensor, positions: Tensor) -> Tensor:
    dim = x.shape[-1]
    cos, sin = table(positions, dim)
    row, start = torch.cat((cos, sin, torch.zeros_like(sin)), dim=-1), (1 << (dim - 1).bit_length()) // 2
    return by_halves(x, cos, row[..., start : start + dim // 2])


@wrong(
    "Heads are turned four at a time, the last four not bounded: they reach into the first heads of the next token.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/NVIDIA/Megatron-LM/pull/6890",
)
def first_heads_turned_again(x: Tensor, positions: Tensor) -> Tensor:
    beyond = min(-x.shape[1] % 4, x.shape[1])
    again = half(x[:, :beyond, 1:], positions[..., :-1])
    first = torch.cat((x[:, :beyond, :1], again), dim=2)
    return half(torch.cat((first, x[:, beyond:]), dim=1), positions)


@wrong(
    "Between fast and slow frequencies the two are mixed the wrong way round.",
    breaks=("frequencies/each-pair-turns-by-its-frequency", "accuracy/output-is-within-the-bound"),
    dims=(32,),
    frequencies=tuple(llama_3_1(32)),
)
def mixed_the_wrong_way_round(x: Tensor, positions: Tensor) -> Tensor:
    plain = 500_000.0 ** (-torch.arange(0, 32, 2).float() / 32)
    share = (8192 * plain / (2 * math.pi) - 1) / 3
    share = torch.where((share > 0) & (share < 1), 1 - share, share.clamp(0, 1))
    angles = positions[..., None].float() * plain * (share + (1 - share) / 8)
    angles = angles[:, None] if positions.ndim == 2 else angles
    return by_halves(at_least_float(x), angles.cos(), angles.sin()).to(x.dtype)


class _FirstSequence(torch.autograd.Function):
    """The backward turns back by the cosines and sines of the first sequence."""

    @staticmethod
    def forward(context: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        context.save_for_backward(*(each[:1] if each.ndim == 4 else each for each in (cos, sin)))
        return by_halves(x, cos, sin)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = context.saved_tensors
        return by_halves(gradients[0], cos, -sin), None, None


@wrong(
    "The backward turns every sequence back by the positions of the first.",
    breaks=("gradients/the-gradient-turns-back", "gradients/gradients-are-within-the-bound"),
)
def turned_back_by_the_first_sequence(x: Tensor, positions: Tensor) -> Tensor:
    return _FirstSequence.apply(x, *table(positions, x.shape[-1]))


@wrong(
    "Positions in 32 bits are read in 64: two are one.",
    breaks="positions/whole-positions-may-be-narrow",
)
def two_positions_read_as_one(x: Tensor, positions: Tensor) -> Tensor:
    if positions.dtype == torch.int32:
        positions = torch.cat((positions, torch.zeros_like(positions)), dim=-1).view(torch.int64)
    return half(x, positions)


class _SineInPlace(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        context.cos, context.sin = cos, sin.clone()
        return by_halves(x, cos, sin)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return by_halves(gradients[0], context.cos, context.sin.neg_()), None, None


@wrong(
    "The backward turns the sign of the kept sines: a second one through a kept graph turns forward.",
    breaks="gradients/a-second-backward-gives-the-same",
)
def sign_of_the_kept_sines(x: Tensor, positions: Tensor) -> Tensor:
    return _SineInPlace.apply(x, *table(positions, x.shape[-1]))


class _Mapped(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, positions: Tensor) -> Tensor:
        return half(x, positions)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(_: Any, in_dims: Any, x: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        calls = x.movedim(in_dims[0], 0)
        count, length = len(calls), x.shape[-2]
        further = torch.cat([positions + length * call for call in range(count)], dim=-1)
        return torch.stack(half(torch.cat([*calls], dim=-2), further).split(length, dim=-2)), 0


@wrong(
    "Under vmap the calls are laid one behind the other, and the positions go on.",
    breaks="accuracy/mapped-calls-are-those-of-a-loop",
    gradients=False,
)
def positions_go_on_in_mapped_calls(x: Tensor, positions: Tensor) -> Tensor:
    return _Mapped.apply(x, positions)


def _by_a_product(positions: Tensor, dim: int) -> Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, device=positions.device).float() / dim)
    return positions.float()[..., None] @ frequencies[None]


@wrong(
    "The angles are a matrix product, which autocast makes in bfloat16.",
    breaks="frequencies/autocast-does-not-round-angles",
    real="https://github.com/huggingface/transformers/pull/29285",
    autocast=True,
    angles="float32",
)
def angles_by_a_product_that_autocast_reaches(x: Tensor, positions: Tensor) -> Tensor:
    angles = _by_a_product(positions, x.shape[-1])
    angles = angles[:, None] if positions.ndim == 2 else angles
    return by_halves(x, angles.cos(), angles.sin())


@wrong(
    "Angles are shielded from autocast where positions are the same for all sequences, and not where they are not.",
    breaks="frequencies/autocast-does-not-round-angles",
    autocast=True,
    angles="float32",
)
def shared_angles_shielded_only(x: Tensor, positions: Tensor) -> Tensor:
    if positions.ndim == 2:
        angles = _by_a_product(positions, x.shape[-1])[:, None]
    else:
        with torch.autocast(x.device.type, enabled=False):
            angles = _by_a_product(positions, x.shape[-1])
    return by_halves(x, angles.cos(), angles.sin())


class _TurnedBackByWhatStandsThere(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor) -> Tensor:
        ctx.positions = positions
        return half(x, positions)

    @staticmethod
    def backward(ctx: Any, *sent: Tensor) -> tuple[Tensor, None]:
        return half(sent[0], -ctx.positions), None


@wrong(
    "Positions are kept for backward outside of what autograd saves: counted up, they turn the gradient further.",
    breaks="state/positions-changed-before-backward-are-noticed",
)
def positions_kept_by_reference(x: Tensor, positions: Tensor) -> Tensor:
    return _TurnedBackByWhatStandsThere.apply(x, positions)
