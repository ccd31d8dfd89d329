"""The right attention as a flash kernel computes it, as small steps that a fault may replace.

Forward: keys in tiles, a running maximum, a running total, one division at the end. Backward: the weights
again, tile by tile, from the log-sum-exp. Milakov & Gimelshein 2018; Dao et al. 2022, algorithms 1 and 4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tests.faults import clean
from tests.faults.calls import NEVER, Call

Step = Callable[..., Any]
Tile = slice
"""Keys lo..hi."""
Handed = tuple[Tensor | None, ...]
"""The gradients that backward hands out, in the order of the inputs."""


@dataclass(frozen=True)
class Tiled:
    """What every tile reads: the call, one key and value for each query head, and the constants."""

    call: Call
    key: Tensor
    value: Tensor
    scale: float
    kept: Tensor | None
    drawn: Tensor | None
    """Dropout: 0 or 1 / (1 - p) for each weight; None: no dropout."""


# Forward


def tiles(call: Call, block: int) -> list[Tile]:
    return [slice(lo, min(lo + block, call.kv_len)) for lo in range(0, call.kv_len, block)]


def draw(call: Call) -> Tensor | None:
    if not call.dropout_p:
        return None
    ones = call.query.new_ones(call.batch, call.heads, call.q_len, call.kv_len)
    return torch.nn.functional.dropout(ones, call.dropout_p)


def score(on: Tiled, tile: Tile) -> Tensor:
    scores = on.call.query @ on.key[:, :, tile].mT * on.scale
    if on.call.bias is not None:
        scores = scores + columns(on.call.bias, tile)
    return scores


def hide(on: Tiled, scores: Tensor, tile: Tile) -> Tensor:
    return scores if on.kept is None else scores.masked_fill(~columns(on.kept, tile), NEVER)


def start(call: Call) -> Tensor:
    """The running maximum before the first tile."""
    return call.query.new_full((call.batch, call.heads, call.q_len, 1), NEVER)


def raise_top(top: Tensor, scores: Tensor) -> Tensor:
    return torch.maximum(top, scores.amax(dim=-1, keepdim=True))


def shift(top: Tensor) -> Tensor:
    """What is subtracted from the scores: the maximum, 0 while nothing was seen."""
    return top.masked_fill(top == NEVER, 0.0)


def rescale(before: Tensor, top: Tensor) -> Tensor:
    """The factor that brings what was summed under the old maximum under the new one."""
    return torch.exp(before - shift(top))


def exponential(scores: Tensor, top: Tensor) -> Tensor:
    return torch.exp(scores - shift(top))


def finish(output: Tensor, total: Tensor) -> Tensor:
    return output / total.masked_fill(total == 0, 1.0)


def forward(on: Tiled, do: "Steps") -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp."""
    top = do.start(on.call)
    total = torch.zeros_like(top)
    output = on.value.new_zeros(*top.shape[:-1], on.value.shape[-1])
    for tile in do.tiles(on.call, do.block):
        scores = do.hide(on, do.score(on, tile), tile)
        before, top = top, do.raise_top(top, scores)
        raised = do.exponential(scores, top)
        factor = do.rescale(before, top)
        total = do.add_total(total, factor, raised)
        output = do.add_output(output, factor, dropped(on, raised, tile) @ on.value[:, :, tile])
    return do.finish(output, total), shift(top) + torch.log(total)


def add_total(total: Tensor, factor: Tensor, raised: Tensor) -> Tensor:
    return total * factor + raised.sum(dim=-1, keepdim=True)


def add_output(output: Tensor, factor: Tensor, tile_output: Tensor) -> Tensor:
    return output * factor + tile_output


# Backward


def read_cotangent(cotangent: Tensor) -> Tensor:
    return cotangent


def delta(cotangent: Tensor, output: Tensor) -> Tensor:
    """rowsum(dO x O), which is rowsum(P x dP)."""
    return (cotangent * output).sum(dim=-1, keepdim=True)


def weights(on: Tiled, scores: Tensor, lse: Tensor) -> Tensor:
    """P again; a dead row has none."""
    return torch.exp(scores - lse.masked_fill(lse == NEVER, 0.0))


def d_value(on: Tiled, weights: Tensor, cotangent: Tensor, tile: Tile) -> Tensor:
    return dropped(on, weights, tile).mT @ cotangent


def d_weights(on: Tiled, cotangent: Tensor, tile: Tile) -> Tensor:
    return dropped(on, cotangent @ on.value[:, :, tile].mT, tile)


def d_scores(weights: Tensor, d_weights: Tensor, delta: Tensor) -> Tensor:
    return weights * (d_weights - delta)


def d_query(on: Tiled, d_scores: Tensor, tile: Tile) -> Tensor:
    return on.scale * d_scores @ on.key[:, :, tile]


def d_key(on: Tiled, d_scores: Tensor) -> Tensor:
    return on.scale * d_scores.mT @ on.call.query


def sum_group(call: Call, gradient: Tensor) -> Tensor:
    """A key head hears from every query head that read it."""
    return gradient.unflatten(1, (gradient.shape[1] // call.group, call.group)).sum(dim=2)


def sum_broadcast(gradient: Tensor, bias: Tensor) -> Tensor:
    """An element of the bias hears from every score that it was added to."""
    return gradient.sum_to_size(bias.shape)


def backward(
    on: Tiled, do: "Steps", output: Tensor, lse: Tensor, cotangent: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value and of the scores."""
    cotangent = do.read_cotangent(cotangent).to(on.value.dtype)
    mean = do.delta(cotangent, output)
    dq = torch.zeros_like(on.call.query)
    dk, dv = torch.zeros_like(on.key), torch.zeros_like(on.value)
    ds = on.key.new_zeros(*lse.shape[:-1], on.call.kv_len)
    for tile in do.tiles_backward(on.call, do.block):
        scores = do.hide_backward(on, do.score(on, tile), tile)
        p = do.weights(on, scores, lse)
        ds[..., tile] = do.d_scores(p, do.d_weights(on, cotangent, tile), mean)
        dq = do.add_d_query(dq, do.d_query(on, ds[..., tile], tile))
        dk[:, :, tile] = do.d_key(on, ds[..., tile])
        dv[:, :, tile] = do.d_value(on, p, cotangent, tile)
    return dq, do.sum_group(on.call, dk), do.sum_group(on.call, dv), ds


def add_d_query(so_far: Tensor, of_tile: Tensor) -> Tensor:
    return so_far + of_tile


# Around both


def columns(x: Tensor, tile: Tile) -> Tensor:
    """The tile's keys of a mask that may have one column for all keys."""
    return x if x.shape[-1] == 1 else x[..., tile]


def dropped(on: Tiled, x: Tensor, tile: Tile) -> Tensor:
    return x if on.drawn is None else x * on.drawn[..., tile]


def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
    return query, key, value, bias


@dataclass(frozen=True)
class Steps:
    """The kernel's constants and its steps, in order."""

    block: int = 16
    read: Step = clean.read
    scale: Step = clean.scale
    group: Step = clean.group
    mask: Step = clean.mask
    causal: Step = clean.causal
    compose: Step = clean.compose
    draw: Step = draw
    tiles: Step = tiles
    score: Step = score
    hide: Step = hide
    start: Step = start
    raise_top: Step = raise_top
    exponential: Step = exponential
    rescale: Step = rescale
    add_total: Step = add_total
    add_output: Step = add_output
    finish: Step = finish
    draw_backward: Step | None = None
    """None: what forward drew."""
    read_cotangent: Step = read_cotangent
    delta: Step = delta
    tiles_backward: Step = tiles
    hide_backward: Step = hide
    weights: Step = weights
    d_value: Step = d_value
    d_weights: Step = d_weights
    d_scores: Step = d_scores
    d_query: Step = d_query
    add_d_query: Step = add_d_query
    d_key: Step = d_key
    sum_group: Step = sum_group
    sum_broadcast: Step = sum_broadcast
    gradients: Step = gradients


def prepare(call: Call, do: Steps, draw: Step) -> Tiled:
    call = do.read(call)
    return Tiled(
        call=call,
        key=do.group(call, call.key),
        value=do.group(call, call.value),
        scale=do.scale(call),
        kept=do.compose(call, do.mask(call), do.causal(call)),
        drawn=draw(call),
    )


class Kernel(torch.autograd.Function):
    """One call; its tensors come one by one as well, for autograd to see them."""

    @staticmethod
    def forward(ctx: Any, call: Call, do: Steps, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        on = prepare(call, do, do.draw)
        output, lse = forward(on, do)
        ctx.call, ctx.do = call, do
        ctx.save_for_backward(output, lse, on.drawn, *tensors)
        lse = lse.squeeze(-1)
        ctx.mark_non_differentiable(lse)
        return output.to(call.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> Handed:
        do = ctx.do
        output, lse, drawn, query, key, value, bias = ctx.saved_tensors
        on = prepare(ctx.call, do, do.draw_backward or (lambda call: drawn))
        dq, dk, dv, ds = backward(on, do, output, lse, cotangent)
        db = None if bias is None else do.sum_broadcast(ds, bias).to(bias.dtype)
        return None, None, *do.gradients(dq.to(query.dtype), dk.to(key.dtype), dv.to(value.dtype), db)


def attention(call: Call, **replaced: Any) -> Any:
    """softmax(scale Q K^T + bias, over the kept keys) V, tile by tile."""
    tensors = (call.query, call.key, call.value, call.bias)
    output, lse = Kernel.apply(call, Steps(**replaced), *tensors)
    return (output, lse) if call.return_lse else output


def drawn_otherwise(call: Call, backward: Callable[[Tensor], Tensor]) -> Any:
    """The same, but what backward drops is made by `backward` of what forward dropped."""
    drawn: list[Tensor | None] = []

    def in_forward(call: Call) -> Tensor | None:
        drawn.append(draw(call))
        return drawn[-1]

    def in_backward(call: Call) -> Tensor | None:
        return None if drawn[-1] is None else backward(drawn[-1])

    return attention(call, draw=in_forward, draw_backward=in_backward)
