"""The right attention, as a chain of small steps; a fault replaces one of them by keyword.

    clean.attention(call)                              # right
    clean.attention(call, scale=lambda call: 1.0)      # wrong in one step

A query that may attend to nothing gives zeros, forward and backward; half types are computed in float32 and
rounded once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.faults.calls import NEVER, Call

Step = Callable[..., Any]


def read(call: Call) -> Call:
    """Half types are widened to float32."""
    wide = torch.promote_types(call.dtype, torch.float32)
    return call.but(
        query=call.query.to(wide),
        key=call.key.to(wide),
        value=call.value.to(wide),
        attn_mask=call.attn_mask if call.bias is None else call.bias.to(wide),
    )


def scale(call: Call) -> float:
    return call.head_dim**-0.5 if call.scale is None else call.scale


def group(call: Call, x: Tensor) -> Tensor:
    """Interleaved: query heads g*h .. g*h + g-1 read key head h."""
    return x.repeat_interleave(call.group, dim=1)


def score(call: Call, key: Tensor, scale: float) -> Tensor:
    return call.query @ key.mT * scale


def cap(call: Call, scores: Tensor) -> Tensor:
    return scores if call.softcap is None else call.softcap * torch.tanh(scores / call.softcap)


def alibi(call: Call, scores: Tensor) -> Tensor:
    if call.alibi_slopes is None:
        return scores
    return scores - call.alibi_slopes.to(scores.dtype)[:, None, None] * call.distance().abs()


def bias(call: Call, scores: Tensor) -> Tensor:
    return scores if call.bias is None else scores + call.bias


def mask(call: Call) -> Tensor | None:
    return call.mask


def causal(call: Call) -> Tensor | None:
    """Top-left: query i sees the keys up to i."""
    return call.distance() <= 0 if call.is_causal else None


def window(call: Call) -> Tensor | None:
    """Keys i - left .. i + right; None is unbounded."""
    if call.window is None:
        return None
    left, right = (math.inf if side is None else side for side in call.window)
    return (call.distance() >= -left) & (call.distance() <= right)


def lengths(call: Call) -> Tensor | None:
    """The first keys of each sequence, as many as it has."""
    if call.key_lengths is None:
        return None
    return torch.arange(call.kv_len) < call.key_lengths[:, None, None, None]


def compose(call: Call, *planes: Tensor | None) -> Tensor | None:
    """A key is kept where every mask keeps it."""
    kept = None
    for plane in planes:
        if plane is not None:
            kept = plane if kept is None else kept & plane
    return kept


def hide(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return scores.masked_fill(~kept, NEVER)


def top(call: Call, scores: Tensor) -> Tensor:
    """The largest score of each row (or the sink), 0 where the row is dead: softmax shifts by it."""
    sinks = sink_column(call, scores)
    if sinks is not None:
        scores = torch.cat([scores, sinks], dim=-1)
    if scores.shape[-1] == 0:
        return scores.new_zeros(*scores.shape[:-1], 1)
    highest = scores.detach().amax(dim=-1, keepdim=True)
    return highest.masked_fill(highest == NEVER, 0.0)


def total(call: Call, raised: Tensor, top: Tensor) -> Tensor:
    """The denominator, sink included; 1 where the row is dead."""
    summed = raised.sum(dim=-1, keepdim=True)
    sinks = sink_column(call, raised)
    if sinks is not None:
        summed = summed + torch.exp(sinks - top)
    return summed.masked_fill(summed == 0, 1.0)


def exponential(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    return torch.exp(scores - top)


def softmax(call: Call, scores: Tensor, do: "Steps") -> Tensor:
    top = do.top(call, scores)
    raised = do.exponential(call, scores, top)
    return raised / do.total(call, raised, top)


def drop(call: Call, weights: Tensor) -> Tensor:
    return torch.nn.functional.dropout(weights, call.dropout_p) if call.dropout_p else weights


def combine(call: Call, weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value


def write(call: Call, output: Tensor) -> Tensor:
    """Round once, to the type of the query."""
    return output.to(call.dtype)


def lse(call: Call, scores: Tensor) -> Tensor:
    """log sum exp(scores), sink included; -inf where the row is dead."""
    shift = top(call, scores)
    summed = torch.exp(scores - shift).sum(dim=-1, keepdim=True)
    sinks = sink_column(call, scores)
    if sinks is not None:
        summed = summed + torch.exp(sinks - shift)
    dead = summed == 0
    return (shift + torch.log(summed.masked_fill(dead, 1.0))).masked_fill(dead, NEVER).squeeze(-1)


def sink_column(call: Call, scores: Tensor) -> Tensor | None:
    """The logit of each head's sink, as one more column of the scores."""
    if call.sinks is None:
        return None
    return call.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)


@dataclass(frozen=True)
class Steps:
    """The chain, in order."""

    read: Step = read
    scale: Step = scale
    group: Step = group
    score: Step = score
    cap: Step = cap
    alibi: Step = alibi
    bias: Step = bias
    mask: Step = mask
    causal: Step = causal
    window: Step = window
    lengths: Step = lengths
    compose: Step = compose
    hide: Step = hide
    softmax: Step = softmax
    top: Step = top
    exponential: Step = exponential
    total: Step = total
    drop: Step = drop
    combine: Step = combine
    write: Step = write
    lse: Step = lse


def attention(call: Call, **replaced: Step) -> Any:
    """softmax(scale Q K^T + bias, over the kept keys) V."""
    do = Steps(**replaced)
    given, call = call, do.read(call)
    key, value = do.group(call, call.key), do.group(call, call.value)
    scores = do.cap(call, do.score(call, key, do.scale(call)))
    scores = do.bias(call, do.alibi(call, scores))
    kept = do.compose(call, do.mask(call), do.causal(call), do.window(call))
    kept = compose(call, kept, do.lengths(call))
    if kept is not None:
        scores = do.hide(call, scores, kept)
    weights = do.drop(call, do.softmax(call, scores, do))
    output = do.write(given, do.combine(call, weights, value))
    return (output, do.lse(call, scores)) if call.return_lse else output
