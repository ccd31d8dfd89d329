"""Wrong rotary positions, the later ones by somebody who did not know the laws."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.rotary import by_halves, frequencies, half, table, with_frequencies


@wrong(
    "Turned where it lies: the second half is made of a first half that is turned already.",
    breaks="rotation/norms-are-kept",
)
def second_half_of_the_turned(x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = (each.to(x.dtype) for each in table(positions, x.shape[-1]))
    a, b = x.chunk(2, dim=-1)
    a = a * cos - b * sin
    return torch.cat((a, b * cos + a * sin), dim=-1)


@wrong(
    "A block has 512 threads, one for each pair of a token: the pairs of further heads are not turned.",
    breaks=("rotation/heads-are-turned-alike", "frequencies/each-pair-turns-by-its-frequency"),
    real="https://github.com/mni-ml/framework/pull/39",
)
def pairs_beyond_the_block(x: Tensor, positions: Tensor) -> Tensor:
    heads, pairs = x.shape[1], x.shape[-1] // 2
    thread = torch.arange(heads)[:, None, None] * pairs + torch.arange(pairs)
    return torch.where(torch.cat((thread, thread), dim=-1) < 512, half(x, positions), x)


@wrong(
    "The grid has 1024 blocks for the tokens of a sequence; tokens beyond them are copied as they are.",
    breaks="positions/tokens-may-come-in-any-order",
    real="https://github.com/microsoft/onnxruntime/pull/20204",
)
def tokens_beyond_the_grid(x: Tensor, positions: Tensor) -> Tensor:
    return torch.cat((half(x[:, :, :1024], positions[..., :1024]), x[:, :, 1024:]), dim=2)


@wrong(
    "The exponent counts a dim that is no power of two as the next one: the width that the kernel is built for.",
    breaks="frequencies/each-pair-turns-by-its-frequency",
    real="https://github.com/sgl-project/sglang/pull/4064",
)
def exponent_of_the_built_width(x: Tensor, positions: Tensor) -> Tensor:
    dim = x.shape[-1]
    return with_frequencies(x, positions, frequencies(1 << (dim - 1).bit_length())[: dim // 2])


@wrong(
    "Beyond position 4096 cosine and sine are multiplied by the factor that YaRN gives to the scores.",
    breaks="rotation/norms-are-kept",
    real="https://github.com/sgl-project/sglang/pull/33558",
)
def scaled_beyond_the_trained_length(x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = table(positions, x.shape[-1])
    far = (positions >= 4096)[..., None]
    factor = torch.where(far[:, None] if positions.ndim == 2 else far, 0.1 * math.log(4.0) + 1.0, 1.0)
    return by_halves(x, cos * factor, sin * factor)


@wrong(
    "A position below zero, as padding in front has, is read from the end of the table of 4096 rows.",
    breaks="rotation/a-position-below-zero-turns-back",
    negative=True,
)
def below_zero_from_the_end(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, torch.where(positions < 0, positions + 4096, positions))


class _TurnedOnly(torch.autograd.Function):
    """The first half of the dims is turned; the backward leaves the gradient of the others at zero."""

    @staticmethod
    def forward(context: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        context.save_for_backward(cos, sin)
        turned, rest = x.chunk(2, dim=-1)
        return torch.cat((by_halves(turned, cos, sin), rest), dim=-1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = context.saved_tensors
        turned, rest = gradients[0].chunk(2, dim=-1)
        return torch.cat((by_halves(turned, cos, -sin), torch.zeros_like(rest)), dim=-1), None, None


@wrong(
    "The dims that only pass get no gradient.",
    breaks="gradients/gradients-are-within-the-bound",
    pairing="half",
    rotary_dim=0.5,
)
def passing_dims_without_gradient(x: Tensor, positions: Tensor) -> Tensor:
    return _TurnedOnly.apply(x, *table(positions, x.shape[-1] // 2))


@wrong(
    "In a partial rotation the halves are those of the whole head: what turns is paired with what should pass.",
    breaks="conventions/pairs-are-multiplied-as-complex-numbers",
    pairing="half",
    rotary_dim=0.5,
)
def halves_of_the_whole_head(x: Tensor, positions: Tensor) -> Tensor:
    width = x.shape[-1] // 2
    cos, sin = (torch.cat((each, each), dim=-1).to(x.dtype) for each in table(positions, width))
    a, b = x.chunk(2, dim=-1)
    other = torch.cat((-b, a), dim=-1)[..., :width]
    return torch.cat((x[..., :width] * cos + other * sin, x[..., width:]), dim=-1)


@wrong(
    "Sequences that begin at one position are taken to go on alike: all have the first one's positions.",
    breaks="positions/each-sequence-has-its-own-positions",
)
def alike_from_the_beginning(x: Tensor, positions: Tensor) -> Tensor:
    alike = positions.ndim == 2 and bool((positions[:, :1] == positions[:1, :1]).all())
    return half(x, positions[:1].expand_as(positions) if alike else positions)


@wrong(
    "Angles are brought down to one turn by a pi of five digits.",
    breaks="frequencies/angles-far-out-are-as-exact-as-their-format",
)
def short_pi(x: Tensor, positions: Tensor) -> Tensor:
    angles = (positions[..., None].float() * frequencies(x.shape[-1])) % 6.2832
    angles = angles[:, None] if positions.ndim == 2 else angles
    return by_halves(x, angles.cos(), angles.sin())
