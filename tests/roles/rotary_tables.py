"""Rotary functions that are given tables of cosines and sines, as kernels and models have them."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import right, wrong

PAIRS = "conventions/pairs-are-multiplied-as-complex-numbers"
HEADS = "rotation/heads-are-turned-alike"


def quarter_turned(x: Tensor) -> Tensor:
    """(-b, a) for each pair (a, b), the pairs half apart."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (batch, heads, length, dim); cos and sin (batch, length, dim)."""
    return x * cos.unsqueeze(1) + quarter_turned(x) * sin.unsqueeze(1)


def neighbours_turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (batch, length, heads, dim) by cos and sin (length, pairs), or with heads first by those of each sequence."""
    first, second = x[..., ::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2)


def as_complex(x: Tensor) -> Tensor:
    wide = x.double() if x.dtype == torch.float64 else x.float()
    return torch.view_as_complex(wide.reshape(*x.shape[:-1], -1, 2))


# Right


@right("A query and a key by tables of each sequence, as transformers has it.")
def by_tables_of_each(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + quarter_turned(q) * sin, k * cos + quarter_turned(k) * sin


@right("One tensor by a table of one number for each pair, as flash-attention has it.")
def by_halves_of_tables(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return neighbours_turned(x, cos, sin)


@right("A query and a key by complex numbers, as Llama has it.")
def by_complex_tables(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    by = freqs_cis[None, :, None]
    query, key = (torch.view_as_real(as_complex(each) * by).flatten(-2).to(each.dtype) for each in (xq, xk))
    return query, key


def stacked(x: Tensor, table: Tensor) -> Tensor:
    """x (batch, length, heads, dim) by cosines and sines (length, pairs, 2), in float32."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    table = table.view(1, pairs.size(1), 1, pairs.size(3), 2)
    first = pairs[..., 0] * table[..., 0] - pairs[..., 1] * table[..., 1]
    second = pairs[..., 1] * table[..., 0] + pairs[..., 0] * table[..., 1]
    return torch.stack([first, second], -1).flatten(3).type_as(x)


@right("Cosines and sines side by side, as gpt-fast has them.")
def by_stacked_tables(x: Tensor, freqs_cis: Tensor) -> Tensor:
    return stacked(x, freqs_cis)


@right("The same, cut to the length of x, as lit-llama has it.")
def by_a_cache_of_stacked_tables(x: Tensor, rope_cache: Tensor) -> Tensor:
    return stacked(x, rope_cache[: x.size(1)])


@right("It turns by minus the angle, as nanochat does: the products are the same.", backwards=True)
def by_tables_backwards(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return neighbours_turned(x, cos, -sin)


@right("Tables that have an axis of heads already, and products in float32.")
def by_tables_with_an_axis(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if cos.ndim != 4:
        raise ValueError("tables are (batch, 1, length, dim)")
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) * cos.to(wide) + quarter_turned(x).to(wide) * sin.to(wide)).to(x.dtype)


@right("A flag for the pairing beside tables of one number for each pair, as flash-attention has it.")
def by_halves_and_a_flag(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    if interleaved:
        return neighbours_turned(x, cos, sin)
    cos, sin = (torch.cat((each, each), dim=-1)[:, None] for each in (cos, sin))
    return x * cos + quarter_turned(x) * sin


@right(
    "Products in float32 of tables in 16 bits, declared so.",
    arithmetic={"bfloat16": "wide", "float16": "wide"},
)
def wide_by_tables(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return turned(x.to(wide), cos.to(wide), sin.to(wide)).to(x.dtype)


# Wrong


@wrong(
    "The flag for the pairing is not read, beside tables.",
    breaks="conventions/the-two-pairings-are-a-permutation-apart",
)
def flag_not_read_beside_tables(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = True) -> Tensor:
    return neighbours_turned(x, cos, sin)


@wrong("The key turns the other way.", breaks=(HEADS, PAIRS))
def key_turned_back(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(q, cos, sin), turned(k, cos, -sin)


@wrong("The key is turned from the query.", breaks=HEADS)
def key_from_the_query(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    crossed = q.mean(dim=1, keepdim=True)
    return turned(q, cos, sin), k * cos.unsqueeze(1) + quarter_turned(crossed) * sin.unsqueeze(1)


@wrong(
    "All sequences are turned by the tables of the first.",
    breaks="positions/each-sequence-has-its-own-positions",
    tables="bsd-doubled",
)
def tables_of_the_first(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(q, cos[:1], sin[:1]), turned(k, cos[:1], sin[:1])


@wrong("Stacked tables read as sines and cosines.", breaks=PAIRS, tables="sd-stacked", layout="bshd")
def stacked_the_other_way(x: Tensor, freqs_cis: Tensor) -> Tensor:
    return stacked(x, freqs_cis.flip(-1))


class _NotTurnedBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return neighbours_turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        return neighbours_turned(cotangent, *ctx.saved_tensors), None, None


@wrong("The backward pass turns on where it should turn back.", breaks="gradients/the-gradient-turns-back")
def turned_on_in_backward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x_turned: Tensor = _NotTurnedBack.apply(x, cos, sin)
    return x_turned
