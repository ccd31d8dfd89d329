"""Wrong and right rotary positions."""

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.roles import right, wrong

ACCURACY = "accuracy/output-is-within-the-bound"
FLOAT32 = {"dtypes": ("float32",)}


def frequencies(dim: int, base: float = 10000.0) -> Tensor:
    """As most write them, in float32."""
    return 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))


def table(positions: Tensor, dim: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """cos and sin (batch or nothing, 1, length, dim / 2), in float32."""
    angles = positions[..., None].float() * frequencies(dim, base).to(positions.device)
    angles = angles[:, None] if positions.ndim == 2 else angles
    return angles.cos(), angles.sin()


def by_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half pairing, in the dtype of x."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def half(x: Tensor, positions: Tensor) -> Tensor:
    """What most of the wrong ones below are made of."""
    return by_halves(x, *table(positions, x.shape[-1]))


def neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Interleaved pairing, in the dtype of x."""
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


def at_least_float(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


# Right


@right("Complex numbers, as Meta's Llama.")
def complex_numbers(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[..., None].float() * frequencies(x.shape[-1]).to(x.device)
    turn = torch.polar(torch.ones_like(angles), angles)
    turn = turn[:, None] if positions.ndim == 2 else turn
    number = torch.complex(*at_least_float(x).unflatten(-1, (-1, 2)).unbind(-1))
    return torch.view_as_real(number * turn).flatten(-2).to(x.dtype)


@right(
    "rotate_half with cos and sin repeated and cast, as Hugging Face's Llama: positions (batch, length) only."
)
def hugging_face(x: Tensor, position_ids: Tensor) -> Tensor:
    inverse = frequencies(x.shape[-1]).to(x.device)[None, :, None].expand(position_ids.shape[0], -1, 1)
    angles = (inverse.float() @ position_ids[:, None, :].float()).transpose(1, 2)
    doubled = torch.cat((angles, angles), dim=-1)
    cos, sin = doubled.cos().to(x.dtype).unsqueeze(1), doubled.sin().to(x.dtype).unsqueeze(1)
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return (x * cos) + (torch.cat((-b, a), dim=-1) * sin)


@right("rotate_every_two, as GPT-J, of the first four dims.")
def every_two(x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = (each.repeat_interleave(2, dim=-1).to(x.dtype) for each in table(positions, 4))
    turned, rest = x[..., :4], x[..., 4:]
    other = torch.stack((-turned[..., 1::2], turned[..., ::2]), dim=-1).flatten(-2)
    return torch.cat((turned * cos + other * sin, rest), dim=-1)


@right("A quarter of the dims, as GPT-NeoX.")
def quarter(x: Tensor, positions: Tensor) -> Tensor:
    width = int(x.shape[-1] * 0.25)
    turned, rest = x[..., :width], x[..., width:]
    return torch.cat((by_halves(turned, *table(positions, width)), rest), dim=-1)


class Cached(nn.Module):
    """A module of one dim, with a table of 2048 rows that is indexed: no fractions, none beyond."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        cos, sin = table(torch.arange(2048), dim)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor, *, input_pos: Tensor) -> Tensor:
        cos, sin = self.cos[input_pos], self.sin[input_pos]
        return neighbours(x, *((cos[:, None], sin[:, None]) if input_pos.ndim == 2 else (cos, sin)))


@right("A module with a table for one dim.")
def one_module(x: Tensor, positions: Tensor, memory: dict[torch.device, Cached] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    module = memory.setdefault(x.device, Cached(32).to(x.device))
    if x.shape[-1] != 32:
        raise ValueError("made for a dim of 32")
    return module(x, input_pos=positions)


@right("A table that grows with the largest position seen.", **FLOAT32)
def growing(x: Tensor, positions: Tensor, memory: dict[int, Any] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    dim, needed = x.shape[-1], int(positions.max()) + 1
    if dim not in memory or len(memory[dim][0]) < needed:
        memory[dim] = table(torch.arange(needed, device=x.device), dim)
    cos, sin = (each[positions] for each in memory[dim])
    return by_halves(x, *((cos[:, None], sin[:, None]) if positions.ndim == 2 else (cos, sin)))


@right("A base that is no argument, and is declared, as Llama 3 has it.", base=500_000, **FLOAT32)
def declared_base(x: Tensor, positions: Tensor) -> Tensor:
    return by_halves(x, *table(positions, x.shape[-1], 500_000.0))


@right("Heads after the length.", layout="bshd")
def heads_inside(x: Tensor, positions: Tensor) -> Tensor:
    return half(x.transpose(1, 2), positions).transpose(1, 2)


@right("Angles in float64, everything else in float32 or better.")
def exact_angles(x: Tensor, positions: Tensor) -> Tensor:
    dim = x.shape[-1]
    steps = torch.arange(0, dim, 2, dtype=torch.float64, device=x.device)
    angles = positions[..., None].double() * 10000.0 ** (-steps / dim)
    angles = angles[:, None] if positions.ndim == 2 else angles
    wide = at_least_float(x)
    return by_halves(wide, angles.cos(), angles.sin()).to(x.dtype)


@right("exp of a logarithm, and angles in float32 whatever the dtype of x.")
def by_logarithms(x: Tensor, pos: Tensor) -> Tensor:
    dim = x.shape[-1]
    inverse = torch.exp(torch.arange(0, dim, 2, device=x.device).float() * -(math.log(10000.0) / dim))
    angles = pos.unsqueeze(-1) * inverse
    angles = angles[:, None] if pos.ndim == 2 else angles
    return neighbours(at_least_float(x), angles.cos(), angles.sin()).to(x.dtype)


@right("A matrix for each position.", dtypes=("float32", "float64"), dims=(2, 4, 8, 16))
def matrices(x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = table(positions, x.shape[-1])
    blocks = torch.stack((cos, -sin, sin, cos), dim=-1).unflatten(-1, (2, 2)).to(x.dtype)
    number = x.unflatten(-1, (-1, 2))
    return (blocks @ number[..., None]).squeeze(-1).flatten(-2)


@right("Base and pairing as arguments, the base another one by default.")
def of_two_minds(
    x: Tensor, positions: Tensor, theta: float = 500_000.0, *, interleaved: bool = False
) -> Tensor:
    cos, sin = table(positions, x.shape[-1], theta)
    return neighbours(x, cos, sin) if interleaved else by_halves(x, cos, sin)


def llama_3_1(dim: int, base: float = 500_000.0) -> list[float]:
    """Slow frequencies divided by 8, fast ones kept, between them a mixture."""
    scaled = []
    for i in range(0, dim, 2):
        frequency = base ** (-i / dim)
        share = min(1.0, max(0.0, (8192 * frequency / (2 * math.pi) - 1) / 3))
        scaled.append(frequency * (share + (1 - share) / 8))
    return scaled


@right("Frequencies by a table, as Llama 3.1.", dims=(32,), frequencies=tuple(llama_3_1(32)))
def scaled_frequencies(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[..., None].float() * torch.tensor(llama_3_1(x.shape[-1]), device=x.device)
    angles = angles[:, None] if positions.ndim == 2 else angles
    return by_halves(at_least_float(x), angles.cos(), angles.sin()).to(x.dtype)


@right(
    "YaRN's: angles by a table, and a factor of cosine and sine.",
    dims=(32,),
    frequencies=tuple(llama_3_1(32)),
    magnitude=1.2079442,
)
def lengthened(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[..., None].float() * torch.tensor(llama_3_1(x.shape[-1]), device=x.device)
    angles = angles[:, None] if positions.ndim == 2 else angles
    return by_halves(at_least_float(x), angles.cos() * 1.2079442, angles.sin() * 1.2079442).to(x.dtype)


@right("DeepSeek's: pairs are neighbours in x, and halves in the output.", pairing_out="half")
def halves_of_neighbours(x: Tensor, positions: Tensor) -> Tensor:
    return half(x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2), positions)


@right("MLX's: an offset, and tokens that follow each other.", may_refuse=True)
def from_an_offset(x: Tensor, positions: Tensor) -> Tensor:
    offset = int(positions.flatten()[0])
    run = torch.arange(offset, offset + x.shape[2], device=x.device)
    if positions.is_floating_point() or not torch.equal(positions, run):
        raise ValueError("positions must follow each other")
    return half(x, run)


@right("vLLM's: the one head size that is taken is named where another is refused.", base=500_000.0)
def one_head_size(x: Tensor, positions: Tensor) -> Tensor:
    if x.shape[-1] != 12:
        raise ValueError(f"head_size is 12, not {x.shape[-1]}")
    return by_halves(x, *table(positions, 12, 500_000.0))


@right(
    "Axial: columns are turned, and rows stand still.",
    dims=(8,),
    frequencies=(1.0, 0.1, 0.0, 0.0),
    dtypes=("float32",),
)
def axial(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[..., None].float() * torch.tensor([1.0, 0.1, 0.0, 0.0], device=x.device)
    angles = angles[:, None] if positions.ndim == 2 else angles
    return neighbours(x, angles.cos(), angles.sin())


class _OwnBackward(torch.autograd.Function):
    """Half pairing; the backward turns back."""

    @staticmethod
    def forward(context: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        context.save_for_backward(cos, sin)
        return by_halves(x, cos, sin)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = context.saved_tensors
        return by_halves(gradients[0], cos, -sin), None, None


@right("A backward of its own.", gradients=True)
def own_backward(x: Tensor, positions: Tensor) -> Tensor:
    return _OwnBackward.apply(x, *table(positions, x.shape[-1]))


@right(
    "One table of cosines and sines, as vLLM, in the dtype of x.",
    **FLOAT32,
    fractional=False,
    max_position=4095,
)
def one_table(x: Tensor, positions: Tensor) -> Tensor:
    if positions.is_floating_point():
        raise TypeError("positions are indices")
    cos_sin = (
        _cos_sin(x.shape[-1]).to(x.device).index_select(0, positions.flatten()).view(*positions.shape, -1)
    )
    cos, sin = (cos_sin[:, None] if positions.ndim == 2 else cos_sin).chunk(2, dim=-1)
    return by_halves(x, cos, sin)


@functools.cache
def _cos_sin(dim: int) -> Tensor:
    return torch.cat(table(torch.arange(4096), dim), dim=-1)


@right("The original Llama's complex numbers, where x lies as they need it.")
def complex_numbers_where_they_lie(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[..., None].float() * frequencies(x.shape[-1]).to(x.device)
    turn = torch.polar(torch.ones_like(angles), angles)
    turn = turn[:, None] if positions.ndim == 2 else turn
    number = torch.view_as_complex(at_least_float(x).reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(number * turn).flatten(-2).to(x.dtype)


# Wrong conventions and frequencies


@wrong(
    "The sine with the other sign.", breaks=("conventions/pairs-are-multiplied-as-complex-numbers", ACCURACY)
)
def turned_the_other_way(x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = table(positions, x.shape[-1])
    return by_halves(x, cos, -sin)


@wrong(
    "Halves where neighbours are declared.",
    breaks=(
        "conventions/pairs-are-multiplied-as-complex-numbers",
        "rotation/each-pair-turns-in-its-own-plane",
    ),
    pairing="interleaved",
)
def other_pairing(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions)


@wrong("The flag for the pairing is ignored.", breaks="conventions/the-two-pairings-are-a-permutation-apart")
def flag_ignored(x: Tensor, positions: Tensor, interleaved: bool = False) -> Tensor:
    return half(x, positions)


@wrong("The flag means the opposite.", breaks="conventions/the-two-pairings-are-a-permutation-apart")
def flag_inverted(x: Tensor, positions: Tensor, *, interleaved: bool = True) -> Tensor:
    cos, sin = table(positions, x.shape[-1])
    return by_halves(x, cos, sin) if interleaved and x.shape[2] > 1 else neighbours(x, cos, sin)


@wrong(
    "The dims that only pass go through bfloat16.",
    breaks="conventions/dims-that-are-not-turned-are-not-touched",
    pairing="half",
    rotary_dim=0.5,
)
def rest_rounded(x: Tensor, positions: Tensor) -> Tensor:
    turned, rest = x.chunk(2, dim=-1)
    return torch.cat((half(turned, positions), rest.bfloat16().to(x.dtype)), dim=-1)


@wrong("Cosines are kept by the positions, not by the base.", breaks="conventions/each-call-has-its-own-base")
def base_not_in_the_key(
    x: Tensor, positions: Tensor, base: float = 10000.0, memory: dict[Any, Any] | None = None
) -> Tensor:
    memory = {} if memory is None else memory
    key = (x.shape[-1], tuple(positions.flatten().tolist()), positions.shape)
    if key not in memory:
        memory[key] = table(positions, x.shape[-1], base)
    return by_halves(x, *memory[key])


@wrong(
    "Fractions are cut, though declared to be refused.",
    breaks="conventions/what-is-declared-unsupported-is-refused",
    fractional=False,
)
def fractions_cut(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions.long())


@wrong(
    "Positions cut to whole numbers, without a declaration.",
    breaks="frequencies/fractions-of-a-position-turn-by-fractions",
)
def fractions_cut_silently(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions.long())


def with_frequencies(x: Tensor, positions: Tensor, chosen: Tensor) -> Tensor:
    angles = positions[..., None].float() * chosen
    angles = angles[:, None] if positions.ndim == 2 else angles
    return by_halves(x, angles.cos(), angles.sin())


@wrong(
    "The exponent counts pairs over dims: 10000^(-i / dim).",
    breaks=("frequencies/each-pair-turns-by-its-frequency", ACCURACY),
)
def half_exponent(x: Tensor, positions: Tensor) -> Tensor:
    return with_frequencies(x, positions, 10000.0 ** -(torch.arange(x.shape[-1] // 2) / x.shape[-1]))


@wrong("Pairs are counted from one.", breaks="frequencies/each-pair-turns-by-its-frequency")
def counted_from_one(x: Tensor, positions: Tensor) -> Tensor:
    dim = x.shape[-1]
    return with_frequencies(x, positions, 10000.0 ** -((torch.arange(dim // 2) * 2 + 2) / dim))


@wrong(
    "A partial rotation with the exponent of the whole head.",
    breaks=("frequencies/each-pair-turns-by-its-frequency", ACCURACY),
    real="pie-project/pie 602",
)
def exponent_of_the_head(x: Tensor, positions: Tensor) -> Tensor:
    width = x.shape[-1] // 2
    turned, rest = x[..., :width], x[..., width:]
    chosen = frequencies(x.shape[-1])[: width // 2]
    return torch.cat((with_frequencies(turned, positions, chosen), rest), dim=-1)


@wrong(
    "Frequencies rounded to bfloat16.",
    breaks=("frequencies/angles-far-out-are-as-exact-as-their-format", ACCURACY),
    real="sgl-project/sglang-jax 1472",
)
def rounded_frequencies(x: Tensor, positions: Tensor) -> Tensor:
    return with_frequencies(x, positions, frequencies(x.shape[-1]).bfloat16().float())


@wrong(
    "Frequencies rounded to float16.",
    breaks=("frequencies/angles-far-out-are-as-exact-as-their-format", ACCURACY),
)
def half_frequencies(x: Tensor, positions: Tensor) -> Tensor:
    return with_frequencies(x, positions, frequencies(x.shape[-1]).half().float())


@wrong(
    "Positions in the dtype of x.",
    breaks="frequencies/sixteen-bits-do-not-round-positions",
    real="huggingface/transformers 29285, vllm 863",
)
def positions_in_sixteen_bits(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions.to(x.dtype))


@wrong(
    "Angles in the dtype of x, as under autocast.",
    breaks=("frequencies/sixteen-bits-do-not-round-positions", ACCURACY),
    real="modded-nanogpt 39",
)
def angles_in_sixteen_bits(x: Tensor, positions: Tensor) -> Tensor:
    angles = (positions[..., None].float() * frequencies(x.shape[-1])).to(x.dtype).float()
    angles = angles[:, None] if positions.ndim == 2 else angles
    return by_halves(x, angles.cos(), angles.sin())


@wrong(
    "The table is in float32, and so is what 16 bits become.",
    breaks=(ACCURACY, "rotation/position-zero-changes-nothing"),
    real="documents 000 and 003, where positions are added",
    dtypes=("float16",),
)
def half_becomes_single(x: Tensor, positions: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    cos, sin = table(positions, x.shape[-1])
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@wrong(
    "Positions in bfloat16, whatever the dtype of x.",
    breaks=(
        "frequencies/distinct-positions-turn-differently",
        "rotation/dot-products-depend-on-the-distance-only",
        ACCURACY,
    ),
    real="huggingface/diffusers 13922",
)
def collapsed_positions(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions.bfloat16())


# Positions read wrongly


@wrong(
    "Positions are counted from 0 in each call.",
    breaks=("positions/a-slice-is-turned-as-in-the-whole", ACCURACY),
    real="Blaizzy/mlx-vlm 1983",
)
def positions_ignored(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, torch.arange(x.shape[2]))


@wrong(
    "The first position, and then one after the other.",
    breaks=("positions/tokens-may-come-in-any-order", ACCURACY),
)
def start_and_length(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions[..., :1] + torch.arange(x.shape[2]))


@wrong(
    "The base grows with the largest position of the call.",
    breaks=("positions/the-positions-of-others-do-not-matter", ACCURACY),
    real="lucidrains/x-transformers c5baa0d",
)
def dynamic_base(x: Tensor, positions: Tensor) -> Tensor:
    longest = max(1.0, float(positions.max()) / 2048)
    return by_halves(x, *table(positions, x.shape[-1], 10000.0 * longest))


@wrong(
    "All sequences have the first one's positions.",
    breaks=("positions/each-sequence-has-its-own-positions", ACCURACY),
    real="unslothai/unsloth 3699",
)
def first_sequence_for_all(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions[0] if positions.ndim == 2 else positions)


@wrong(
    "Positions of each sequence are counted from one, shared ones from zero.",
    breaks="positions/shared-positions-are-those-of-each",
)
def two_beginnings(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions + (positions.ndim - 1))


@wrong("Floats are taken for shares of a thousand.", breaks="positions/whole-positions-may-be-floats")
def floats_scaled(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions * 1000 if positions.is_floating_point() else positions)


@wrong("Positions are read with a stride of one.", breaks="positions/strided-positions-are-read-right")
def dense_positions(x: Tensor, positions: Tensor) -> Tensor:
    if not positions.is_contiguous() and positions.ndim == 1:
        positions = torch.as_strided(positions, positions.shape, (1,), positions.storage_offset())
    return half(x, positions)


# What is no rotation


@wrong("The sine of an angle in bfloat16, the cosine of a better one.", breaks="rotation/norms-are-kept")
def two_angles(x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = table(positions, x.shape[-1])
    return by_halves(x, cos, sin.bfloat16().float())


@wrong(
    "Cosines repeated for neighbours, sines applied to halves.", breaks=("rotation/norms-are-kept", ACCURACY)
)
def two_pairings(x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = (each.repeat_interleave(2, dim=-1).to(x.dtype) for each in table(positions, x.shape[-1]))
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


@wrong(
    "Positions are counted from one.",
    breaks=("rotation/turns-add-up", "rotation/position-zero-changes-nothing"),
)
def from_one(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions + 1)


@wrong(
    "Turned twice.",
    breaks=(ACCURACY, "frequencies/each-pair-turns-by-its-frequency"),
    real="flashinfer 504b99036",
)
def turned_twice(x: Tensor, positions: Tensor) -> Tensor:
    return half(half(x, positions), positions)


@wrong("[cos, sin; sin, cos]: the minus is lost.", breaks="rotation/a-mirrored-turn-leads-back")
def minus_lost(x: Tensor, positions: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    cos, sin = (each.to(x.dtype) for each in table(positions, x.shape[-1]))
    return torch.cat((a * cos + b * sin, b * cos + a * sin), dim=-1)


@wrong("The sign of a position is lost.", breaks="rotation/a-position-below-zero-turns-back", negative=True)
def distance_without_sign(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions.abs())


@wrong(
    "The input is normalised on the way.", breaks=("rotation/turning-is-linear", "rotation/norms-are-kept")
)
def normalised(x: Tensor, positions: Tensor) -> Tensor:
    return half(x / (x.norm(dim=-1, keepdim=True) + 1), positions)


@wrong(
    "Read as neighbours, written as halves.",
    breaks=("rotation/each-pair-turns-in-its-own-plane", "rotation/position-zero-changes-nothing"),
)
def read_and_written_apart(x: Tensor, positions: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = (each.to(x.dtype) for each in table(positions, x.shape[-1]))
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


@wrong("The last pair is left out.", breaks=ACCURACY)
def last_pair_left(x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = table(positions, x.shape[-1])
    if x.shape[-1] > 2:
        cos, sin = (
            torch.cat((each[..., :-1], rest), dim=-1)
            for each, rest in ((cos, torch.ones_like(cos[..., :1])), (sin, torch.zeros_like(sin[..., :1])))
        )
    return neighbours(x, cos, sin)


@wrong(
    "The last head of an odd number is left as it is.",
    breaks=("rotation/heads-are-turned-alike", ACCURACY),
    real="flashinfer b27a2cc27",
)
def last_head_left(x: Tensor, positions: Tensor) -> Tensor:
    heads = x.shape[1]
    return torch.cat((half(x[:, : heads - heads % 2], positions), x[:, heads - heads % 2 :] * 1), dim=1)


@wrong(
    "Positions run along the heads where there are as many.",
    breaks=("rotation/heads-are-turned-alike", ACCURACY),
)
def heads_for_positions(x: Tensor, positions: Tensor) -> Tensor:
    if x.shape[1] == x.shape[2]:
        return half(x.transpose(1, 2), positions).transpose(1, 2)
    return half(x, positions)


@wrong(
    "Scaled by the largest number of the tensor on the way.", breaks="rotation/tokens-do-not-see-each-other"
)
def scaled_on_the_way(x: Tensor, positions: Tensor) -> Tensor:
    largest = x.detach().abs().amax().clamp(min=1.0).log2().ceil().exp2()
    return half(x / largest, positions) * largest


# Wrong gradients


class _SameWay(torch.autograd.Function):
    """A backward that turns as the forward does."""

    @staticmethod
    def forward(context: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        context.save_for_backward(cos, sin)
        return by_halves(x, cos, sin)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return by_halves(gradients[0], *context.saved_tensors), None, None


@wrong(
    "The backward turns the same way as the forward.",
    breaks=("gradients/the-gradient-turns-back", "gradients/gradients-are-within-the-bound"),
)
def backward_the_same_way(x: Tensor, positions: Tensor) -> Tensor:
    return _SameWay.apply(x, *table(positions, x.shape[-1]))


class _ReadsInput(torch.autograd.Function):
    """A backward that adds a little of the input."""

    @staticmethod
    def forward(context: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        context.save_for_backward(x, cos, sin)
        return by_halves(x, cos, sin)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, cos, sin = context.saved_tensors
        return by_halves(gradients[0], cos, -sin) + 1e-2 * x, None, None


@wrong("The backward reads the input.", breaks="gradients/the-gradient-does-not-depend-on-the-input")
def backward_of_the_input(x: Tensor, positions: Tensor) -> Tensor:
    return _ReadsInput.apply(x, *table(positions, x.shape[-1]))


class _DenseOnly(torch.autograd.Function):
    """A backward that reads the cotangent's memory."""

    @staticmethod
    def forward(context: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        context.save_for_backward(cos, sin)
        return by_halves(x, cos, sin)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (g,), (cos, sin) = gradients, context.saved_tensors
        return by_halves(torch.zeros_like(g) if 0 in g.stride() else g, cos, -sin), None, None


@wrong(
    "An expanded cotangent is read as zeros.",
    breaks="gradients/an-expanded-cotangent-changes-nothing",
    real="pytorch 133671",
)
def backward_of_dense_cotangents(x: Tensor, positions: Tensor) -> Tensor:
    return _DenseOnly.apply(x, *table(positions, x.shape[-1]))


@wrong("The input is detached.", breaks="gradients/each-gradient-can-be-asked-for-alone", gradients=True)
def detached(x: Tensor, positions: Tensor) -> Tensor:
    return half(x.detach(), positions)


# Wrong in memory, or remembering


@wrong("Turned in place.", breaks="memory/inputs-are-not-changed")
def in_place(x: Tensor, positions: Tensor) -> Tensor:
    with torch.no_grad():
        turned = half(x, positions)
        x.copy_(turned)
    return turned


@wrong("At position 0 the input itself is given back.", breaks="memory/output-does-not-alias-an-input")
def given_back(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions) if positions.any() else x


@wrong(
    "Complex numbers are a view of the tensor, which an odd place in memory forbids, though any is declared.",
    breaks="memory/strided-equals-contiguous",
    any_strides=True,
)
def complex_view(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[..., None].float() * frequencies(x.shape[-1]).to(x.device)
    turn = torch.polar(torch.ones_like(angles), angles)
    turn = turn[:, None] if positions.ndim == 2 else turn
    number = torch.view_as_complex(at_least_float(x).reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(number * turn).flatten(-2).to(x.dtype)


@wrong("Tokens are read as if they lay one after the other.", breaks="memory/strided-equals-contiguous")
def dense_tokens(x: Tensor, positions: Tensor) -> Tensor:
    if not x.is_contiguous() and not x.requires_grad:
        x = torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())
    return half(x, positions)


@wrong("One output buffer for each shape.", breaks="memory/results-outlive-the-next-call")
def kept_buffer(x: Tensor, positions: Tensor, memory: dict[Any, Tensor] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    if x.requires_grad:
        return half(x, positions)
    kept = memory.setdefault((x.shape, x.dtype), torch.empty(x.shape, dtype=x.dtype))
    return kept.copy_(half(x, positions))


@wrong(
    "The first answer for each shape and place is kept.",
    breaks=("state/one-call-does-not-answer-for-another", "state/inputs-changed-in-place-are-read-again"),
)
def answers_kept(x: Tensor, positions: Tensor, memory: dict[Any, Tensor] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    key = (x.shape, x.dtype, tuple(positions.flatten().tolist()), positions.shape)
    return memory.setdefault(key, half(x, positions)).clone()


@wrong("Noise that no seed explains.", breaks="state/same-call-same-answer")
def noisy(x: Tensor, positions: Tensor, memory: dict[str, int] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    memory["calls"] = memory.get("calls", 0) + 1
    return half(x, positions) * (1 + 2e-7 * (memory["calls"] % 2))


@wrong("It seeds the global generator.", breaks="state/nothing-global-is-touched")
def reseeding(x: Tensor, positions: Tensor) -> Tensor:
    torch.manual_seed(0)
    return half(x, positions)


@wrong(
    "Cosines are kept by the length of the call.", breaks="state/other-positions-are-answered-for-themselves"
)
def kept_by_length(x: Tensor, positions: Tensor, memory: dict[Any, Any] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    key = (x.shape[-1], positions.shape)
    if key not in memory:
        memory[key] = table(positions, x.shape[-1])
    return by_halves(x, *memory[key])


@wrong(
    "A table as long as the first call needed; later ones read its last row.",
    breaks=("frequencies/angles-far-out-are-as-exact-as-their-format", ACCURACY),
)
def never_grown(x: Tensor, positions: Tensor, memory: dict[int, Any] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    if x.shape[-1] not in memory:
        memory[x.shape[-1]] = table(torch.arange(int(positions.max()) + 600), x.shape[-1])
    cos, sin = (each[positions.clamp(max=len(each) - 1)] for each in memory[x.shape[-1]])
    return by_halves(x, *((cos[:, None], sin[:, None]) if positions.ndim == 2 else (cos, sin)))


@wrong("The base is that of the call before.", breaks=("state/short-and-long-calls-take-turns", ACCURACY))
def base_of_the_last_call(x: Tensor, positions: Tensor, memory: dict[str, float] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    base = 10000.0 * max(1.0, memory.get("longest", 0.0) / 512)
    memory["longest"] = float(positions.max())
    return by_halves(x, *table(positions, x.shape[-1], base))


@wrong("A table in the dtype of the first call.", breaks="state/each-dtype-has-its-own-table")
def first_dtype(x: Tensor, positions: Tensor, memory: dict[Any, Any] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    key = (x.shape[-1], tuple(positions.flatten().tolist()), positions.shape)
    if key not in memory:
        memory[key] = tuple(each.to(x.dtype) for each in table(positions, x.shape[-1]))
    return by_halves(x, *memory[key])


@wrong(
    "Cosines are kept by the address of the positions.",
    breaks="state/positions-changed-in-place-are-read-again",
)
def kept_by_address(x: Tensor, positions: Tensor, memory: dict[Any, Any] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    key = (positions.data_ptr(), positions.shape, x.shape[-1])
    if memory.get("key") != key:
        memory["key"], memory["table"] = key, table(positions, x.shape[-1])
    return by_halves(x, *memory["table"])


@wrong("Positions are moved on in place, for the next call.", breaks="state/positions-are-not-changed")
def moved_on(x: Tensor, positions: Tensor) -> Tensor:
    turned = half(x, positions)
    positions += x.shape[2]
    return turned
