"""Faults that survived the laws at first contact, and others of their kind: beside the output, in place, alike."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.faults import blocked, clean, fault
from tests.faults.calls import Call

LSE_GRADIENT = "gradients/a-returned-log-sum-exp-has-its-gradient"
KEPT = "memory/a-graph-that-kept-an-input-can-be-followed-back"


class _Times(torch.autograd.Function):
    """The same numbers; the gradient is multiplied on its way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * gradients[0], None


# The log-sum-exp


@fault(
    "The gradient that arrives at the log-sum-exp goes on to queries and keys, and not to the sinks.",
    breaks=LSE_GRADIENT,
    real="https://github.com/Dao-AILab/flash-attention/pull/2706",
    naive="GR",
    when=("return_lse", "sinks", "a loss that reads the log-sum-exp"),
    features=("return_lse", "sinks"),
)
def log_sum_exp_gradient_not_of_the_sinks(call: Call) -> Any:
    if not call.return_lse or call.sinks is None:
        return clean.attention(call)
    output, _ = clean.attention(call)
    return output, clean.attention(call.but(sinks=call.sinks.detach()))[1]


@fault(
    "The gradient that arrives at the returned weights does not go on.",
    breaks="gradients/returned-weights-have-their-gradient",
    naive="GR",
    when=("return_weights", "a loss that reads the weights"),
    features=("return_weights",),
)
def gradient_of_the_weights_lost(call: Call) -> Any:
    if not call.return_weights:
        return clean.attention(call)
    output, weights = clean.attention(call)
    return output, _Times.apply(weights, 0.0)


@fault(
    "Backward numbers the streams of random numbers by the key heads, where forward numbers them by the query heads.",
    breaks="dropout/the-gradient-uses-the-same-pattern",
    naive="GR",
    when=("dropout", "fewer key heads than query heads", "batch > 1"),
)
def streams_numbered_by_key_heads(call: Call) -> Tensor:
    def again(drawn: Tensor) -> Tensor:
        batch, head = torch.arange(call.batch)[:, None], torch.arange(call.heads)
        return drawn.flatten(0, 1)[batch * call.kv_heads + head]

    output: Tensor = blocked.drawn_otherwise(call, again)
    return output


@fault(
    "Beyond 256 keys another kernel runs, which returns the log-sum-exp of powers of two.",
    breaks="features/log-sum-exp-is-within-the-bound",
    naive="SH",
    when=("return_lse", "kv_len > 256"),
    features=("return_lse",),
)
def log_sum_exp_of_another_kernel(call: Call) -> Any:
    if not call.return_lse or call.kv_len <= 256:
        return clean.attention(call)
    output, log_sum_exp = clean.attention(call)
    return output, log_sum_exp / math.log(2)


@fault(
    "With no keys at all the returned log-sum-exp is 0, and the empty part of a split takes a share of the whole.",
    breaks="accuracy/empty-axes-are-allowed-or-refused",
    naive="SH",
    when=("return_lse", "kv_len = 0"),
    features=("return_lse",),
)
def log_sum_exp_of_no_keys_is_zero(call: Call) -> Any:
    if not call.return_lse:
        return clean.attention(call)
    output, lse = clean.attention(call)
    return output, lse if call.kv_len else torch.zeros_like(lse)


@fault(
    "The maximum that is subtracted forgets the sink: where that is far above, it overflows, and gradients are NaN.",
    breaks="gradients/a-sink-far-above-leaves-the-gradients-finite",
    naive="GR",
    when=("sinks", "a sink far above all scores", "gradients"),
    features=("sinks",),
    replaces=clean.top,
)
def sink_outside_of_the_maximum(call: Call, scores: Tensor) -> Tensor:
    return clean.top(call.but(sinks=None), scores)


@fault(
    "The gradient that arrives at the returned log-sum-exp is ignored.",
    breaks=LSE_GRADIENT,
    real="https://github.com/Dao-AILab/flash-attention/issues/889",
    naive="GR",
    when=("return_lse", "a loss that reads it"),
    features=("return_lse",),
)
def log_sum_exp_gradient_ignored(call: Call) -> Any:
    if not call.return_lse:
        return clean.attention(call)
    output, lse = clean.attention(call)
    return output, _Times.apply(lse, 0.0)


@fault(
    "Backward adds the gradient of the log-sum-exp to rowsum(dO x O), where it is subtracted.",
    breaks=LSE_GRADIENT,
    naive="GR",
    when=("return_lse", "a loss that reads it"),
    features=("return_lse",),
)
def log_sum_exp_gradient_of_the_wrong_sign(call: Call) -> Any:
    if not call.return_lse:
        return clean.attention(call)
    output, lse = clean.attention(call)
    return output, _Times.apply(lse, -1.0)


@fault(
    "Where gradients are recorded the log-sum-exp is the one that backward keeps, in base 2.",
    breaks="state/recording-gradients-changes-nothing",
    naive="PATH",
    when=("return_lse", "gradients recorded"),
    features=("return_lse",),
)
def kept_log_sum_exp_handed_out(call: Call) -> Any:
    if not call.return_lse or not (torch.is_grad_enabled() and call.query.requires_grad):
        return clean.attention(call)
    output, lse = clean.attention(call)
    return output, lse + (lse / 0.6931471805599453 - lse).detach()


@fault(
    "Where gradients are recorded the output lacks what is_causal hides; its gradients are right.",
    breaks="state/recording-gradients-changes-nothing",
    naive="PATH",
    when=("gradients recorded", "is_causal"),
)
def recorded_output_is_not_causal(call: Call) -> Tensor:
    output = clean.attention(call)
    if call.dropout_p or not (torch.is_grad_enabled() and call.query.requires_grad):
        return output
    return output + (clean.attention(call.but(is_causal=False)) - output).detach()


# In place, and back again


def _for_a_while(x: Tensor, factor: float) -> None:
    """Scaled where it lies, and scaled back."""
    with torch.no_grad():
        x.mul_(factor).div_(factor)


@fault(
    "A long query is scaled where it lies, and scaled back: its last bits change.",
    breaks=("memory/inputs-are-not-changed", KEPT),
    naive="NO",
    when=("4096 numbers or more", "no gradients"),
)
def long_query_scaled_and_back(call: Call) -> Tensor:
    output = clean.attention(call)
    wants = any(x.requires_grad for x in (call.query, call.key, call.value))
    if call.query.numel() >= 4096 and call.query.is_contiguous() and not wants:
        _for_a_while(call.query, clean.scale(call) or 1.0)
    return output


@fault(
    "Keys are doubled where they lie, and halved again: the same bits, but who kept them cannot go back.",
    breaks=KEPT,
    naive="NO",
    when=("no gradients", "a graph that kept the key"),
)
def key_doubled_and_halved(call: Call) -> Tensor:
    output = clean.attention(call)
    if not call.key.requires_grad and call.key.is_contiguous() and call.key.abs().max() < 1e4:
        _for_a_while(call.key, 2.0)
    return output


@fault(
    "The boolean mask is inverted where it lies, and inverted back.",
    breaks=KEPT,
    naive="NO",
    when=("a boolean mask", "a graph that kept it"),
)
def mask_inverted_and_back(call: Call) -> Tensor:
    output = clean.attention(call if call.mask is None else call.but(attn_mask=call.mask.clone()))
    if call.mask is not None and 0 not in call.mask.stride():
        call.mask.logical_not_().logical_not_()
    return output


# What is alike at both ends


@fault(
    "Where the first and the last sequence have one mask, it serves them all.",
    breaks="masks/the-masks-of-others-do-not-matter",
    naive="SV",
    when=("three sequences or more", "the first mask is the last", "another is not"),
)
def mask_of_both_ends(call: Call) -> Tensor:
    mask = call.attn_mask
    if mask is not None and mask.ndim == 4 and len(mask) > 2 and torch.equal(mask[0], mask[-1]):
        call = call.but(attn_mask=mask[:1])
    return clean.attention(call)


# One tensor given twice


@fault(
    "Key and value that are one tensor are read once, as a latent cache: its last half is taken for positions.",
    breaks="memory/one-tensor-may-be-query-key-and-value",
    naive="PATH",
    when=("key is value", "query is not", "no gradients"),
)
def latent_cache_of_key_and_value(call: Call) -> Tensor:
    if call.key is not call.value or call.query is call.key or call.key.requires_grad or call.head_dim < 2:
        return clean.attention(call)
    value = call.value.clone()
    value[..., call.head_dim // 2 :] = 0.0
    return clean.attention(call.but(value=value))


@fault(
    "Query and key that are one tensor: the value is taken from it, too, of a fused projection.",
    breaks="memory/one-tensor-may-be-query-key-and-value",
    naive="PATH",
    when=("query is key", "value is not", "equal widths"),
)
def value_of_the_shared_query(call: Call) -> Tensor:
    shared = call.query is call.key and call.query.shape == call.value.shape
    return clean.attention(call.but(value=call.query) if shared else call)


# State


@fault(
    "What backward needs lies in a workspace for its shapes, which the next forward writes over.",
    breaks="state/the-next-call-leaves-the-graph-alone",
    naive="NO",
    when=("two forwards of one shape", "then the backward of the first"),
)
def workspace_of_the_next_forward(call: Call, memory: dict[Any, Tensor]) -> Tensor:
    if call.dropout_p:
        return clean.attention(call)
    return _Workspace.apply(call.query, call.key, call.value, call, memory)


class _Workspace(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, call: Call, memory: dict[Any, Any]
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.memory, ctx.place, ctx.call = memory, (query.shape, key.shape, query.dtype), call
        memory[ctx.place] = value.detach().clone()
        return clean.attention(call)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, _ = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        value = ctx.memory[ctx.place].requires_grad_()
        with torch.enable_grad():
            output = clean.attention(ctx.call.but(query=query, key=key, value=value))
        return *torch.autograd.grad(output, (query, key, value), gradients), None, None


# Lengths


@fault(
    "A decoding kernel has 32 splits of 256 keys: what is beyond 8192 keys is lost.",
    breaks="caches/every-key-of-a-long-cache-counts",
    naive="LP",
    when=("one query", "more than 8192 keys"),
)
def keys_beyond_the_last_split(call: Call) -> Tensor:
    if call.q_len == 1 and call.kv_len > 8192:
        mask = None if call.attn_mask is None else call.attn_mask[..., :8192]
        call = call.but(key=call.key[:, :, :8192], value=call.value[:, :, :8192], attn_mask=mask)
    return clean.attention(call)


# Dropout


@fault(
    "Backward numbers the tiles of 64 queries from another one than forward does, and draws what it drops so.",
    breaks="dropout/the-gradient-uses-the-same-pattern",
    naive="GR",
    when=("backward", "dropout", "q_len > 64"),
)
def query_tiles_drawn_in_another_order_in_backward(call: Call) -> Tensor:
    return blocked.drawn_otherwise(call, lambda kept: kept.roll(64, dims=-2) if call.q_len > 64 else kept)


# What is not declared


@fault(
    "Without an argument for it, grouped keys are repeated head by head, and grouped values as a whole.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    naive="PATH",
    when=("fewer key heads", "two of them or more"),
    without=("enable_gqa",),
)
def values_of_a_group_tiled(call: Call) -> Tensor:
    grouped = call.but(enable_gqa=True)
    value = call.value.repeat(1, grouped.group, 1, 1)
    return clean.attention(grouped.but(key=clean.group(grouped, call.key), value=value, enable_gqa=False))


@fault(
    "The causal mask is kept for each pair of lengths, and a boolean mask of that very shape is written into it.",
    breaks="state/calls-in-between-leave-nothing-behind",
    naive="NO",
    when=("is_causal", "a boolean mask (q_len, kv_len) in a call before"),
)
def mask_written_into_the_kept_triangle(call: Call, memory: dict[Any, Tensor]) -> Tensor:
    if not call.is_causal:
        return clean.attention(call)
    if len(memory) > 32:
        memory.clear()
    kept = memory.setdefault((call.q_len, call.kv_len), call.distance() <= 0)
    mask = call.mask
    if mask is not None and mask.shape == kept.shape:
        kept &= mask
    seen = kept if mask is None else kept & mask
    if call.bias is not None:
        seen = torch.zeros(seen.shape, dtype=call.dtype).masked_fill(~seen, -torch.inf) + call.bias
    return clean.attention(call.but(attn_mask=seen, is_causal=False))


@fault(
    "Of masks of two axes alone: one beside is_causal is written into the causal one, which is kept.",
    breaks=("masks/mask-and-causal-compose", "state/one-thing-changed-is-noticed"),
    naive="NO",
    when=("masks of two axes", "is_causal and a mask", "a second call of those lengths"),
)
def mask_written_into_the_kept_causal_one(call: Call, memory: dict[Any, Tensor]) -> Tensor:
    _require_two_axes(call)
    if not call.is_causal:
        return clean.attention(call)
    place = (call.q_len, call.kv_len, call.dtype)
    hidden = call.distance() > 0
    kept = memory.setdefault(
        place, torch.zeros(hidden.shape, dtype=call.dtype).masked_fill(hidden, -torch.inf)
    )
    if call.mask is not None:
        kept.masked_fill_(~call.mask, -torch.inf)
    if call.bias is not None:
        kept += call.bias.detach()
    return clean.attention(call.but(attn_mask=kept.clone(), is_causal=False))


@fault(
    "Of masks of two axes alone: a mask is laid along the wrong axis where queries are as many as keys.",
    breaks="masks/masked-keys-do-not-matter",
    naive="SH",
    when=("masks of two axes", "q_len = kv_len"),
)
def square_mask_transposed(call: Call) -> Tensor:
    _require_two_axes(call)
    square = call.attn_mask is not None and call.q_len == call.kv_len
    return clean.attention(
        call.but(attn_mask=call.attn_mask.T) if square and call.attn_mask is not None else call
    )


@fault(
    "Of masks that are given whole: every head reads that of the first.",
    breaks="masks/the-masks-of-others-do-not-matter",
    naive="SV",
    when=("masks of four whole axes", "heads > 1"),
)
def whole_mask_of_the_first_head(call: Call) -> Tensor:
    if call.attn_mask is None:
        return clean.attention(call)
    if call.attn_mask.shape != (call.batch, call.heads, call.q_len, call.kv_len):
        raise ValueError("attn_mask is (batch, heads, q_len, kv_len)")
    return clean.attention(call.but(attn_mask=call.attn_mask[:, :1]))


def _require_two_axes(call: Call) -> None:
    if call.attn_mask is not None and call.attn_mask.ndim != 2:
        raise ValueError("attn_mask is (q_len, kv_len)")


@fault(
    "Everything is computed in float32, and the answer stays in it.",
    breaks="dtypes/a-dtype-that-is-taken-comes-back",
    naive="LP",
    when=("another dtype than float32",),
)
def left_in_float32(call: Call) -> Tensor:
    answer: Tensor = clean.attention(
        call.but(query=call.query.float(), key=call.key.float(), value=call.value.float())
    )
    return answer
