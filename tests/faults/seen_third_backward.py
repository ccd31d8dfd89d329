"""Faults by a third one who did not know the laws: gradients, dropout, features."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.faults import blocked, clean, fault
from tests.faults.blocked import Handed, Tile, Tiled
from tests.faults.calls import NEVER, Call
from tests.faults.clean import Steps
from tests.faults.packs import OPTIONS, attention, spans


class _Backward(torch.autograd.Function):
    """One output, and the gradients of another."""

    @staticmethod
    def forward(_ctx: Any, output: Tensor, _other: Tensor) -> Tensor:
        return output.clone()

    @staticmethod
    def backward(_ctx: Any, *cotangents: Tensor) -> tuple[None, Tensor]:
        return None, cotangents[0]


# Gradients


@fault(
    "Backward takes values by 64 columns, and subtracts the whole of rowsum(dO x O) for each part.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/fla-org/flash-linear-attention/pull/1042",
    naive="GR",
    when=("backward", "value_dim > 64"),
    replaces=blocked.delta,
)
def delta_for_each_part_of_the_values(cotangent: Tensor, output: Tensor) -> Tensor:
    return blocked.delta(cotangent, output) * max(-(-cotangent.shape[-1] // 64), 1)


@fault(
    "Where keys and values differ in width, backward does not fold the sink into the denominator.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/NVIDIA/cudnn-frontend/pull/421",
    naive="GR",
    when=("backward", "sinks", "value_dim != head_dim"),
    features=("sinks",),
)
def sink_not_in_the_backward_of_two_widths(call: Call) -> Tensor:
    output = clean.attention(call)
    if call.sinks is None or call.dropout_p or call.value.shape[-1] == call.head_dim:
        return output
    nothing = torch.zeros_like(call.sinks) * call.sinks.nan_to_num()
    other = clean.attention(call.but(sinks=None)) + nothing.sum().to(output.dtype)
    return _Backward.apply(output, other)


@fault(
    "Backward writes whole tiles of 16 keys: the last of a sequence lies over the beginning of the next.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/tile-ai/tilelang/pull/2010",
    naive="GR",
    when=("backward", "several sequences", "lengths that are no multiple of 16"),
    **OPTIONS,
)
def last_tile_written_over_the_next(call: Call) -> Tensor:
    spilled = torch.zeros(len(call.key), 1, 1, dtype=torch.bool)
    for a, b in spans(call.cu_seqlens_k):
        spilled[b : a - (a - b) // 16 * 16] = True
    key, value = call.key.clone(), call.value.clone()
    for x in (key, value):
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient.masked_fill(spilled, 0.0))
    return attention(call.but(key=key, value=value))


class _Unsaved(torch.autograd.Function):
    """Weights times values, kept where autograd does not watch over them."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor) -> Tensor:
        ctx.weights, ctx.value = weights.detach(), value.detach()
        return weights @ value

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor]:
        return cotangents[0] @ ctx.value.mT, ctx.weights.mT @ cotangents[0]


@fault(
    "The value is kept for backward as an attribute: changed in place in between, as a cache is, it is read anew.",
    breaks="state/an-input-changed-before-backward-is-noticed",
    naive="GR",
    when=("backward", "no groups, float32", "a value changed in place after the call"),
)
def value_changed_before_backward(call: Call) -> Tensor:
    def group(call: Call, x: Tensor) -> Tensor:
        return x if call.group == 1 else clean.group(call, x)

    def combine(call: Call, weights: Tensor, value: Tensor) -> Tensor:
        return _Unsaved.apply(weights, value)

    return clean.attention(call, group=group, combine=combine)


@fault(
    "In half precision the query's gradient is added up over tiles of 16 keys in the type of the inputs.",
    breaks="gradients/what-all-keys-share-pulls-at-no-query",
    naive="LP",
    dtypes=("bfloat16", "float16"),
    declares={"arithmetic": "wide"},
    when=("backward", "half precision", "many keys"),
)
def query_gradient_added_up_in_half(call: Call) -> Tensor:
    def add_d_query(so_far: Tensor, of_tile: Tensor) -> Tensor:
        return (so_far + of_tile).to(call.dtype).to(so_far.dtype)

    return blocked.attention(call, add_d_query=add_d_query)


@fault(
    "With grouped heads the gradient of a bias for each head comes in the order of the packed heads.",
    breaks="gradients/the-bias-gets-its-gradient",
    naive="GR",
    when=("backward", "additive mask that differs by head", "grouped heads, several key heads"),
)
def bias_gradient_of_packed_heads(call: Call) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        if bias is not None and bias.ndim > 2 and bias.shape[-3] > 1 and call.group > 1:
            bias = bias.unflatten(-3, (-1, call.group)).transpose(-4, -3).flatten(-4, -3)
        return query, key, value, bias

    return blocked.attention(call, gradients=gradients)


@fault(
    "Forward is top-left; backward, taken from another kernel, is bottom-right.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("backward", "causal", "q_len != kv_len"),
)
def backward_bottom_right(call: Call) -> Tensor:
    def hide_backward(on: Tiled, scores: Tensor, tile: Tile) -> Tensor:
        if not call.is_causal:
            return blocked.hide(on, scores, tile)
        kept = clean.compose(call, clean.mask(call), call.distance() <= call.kv_len - call.q_len)
        return scores.masked_fill(~blocked.columns(kept, tile), NEVER)

    return blocked.attention(call, hide_backward=hide_backward)


@fault(
    "The query is kept scaled, and divided by the scale for the key's gradient: 0 / 0 where that is zero.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("backward", "scale = 0"),
    replaces=blocked.d_key,
)
def kept_query_divided_by_the_scale(on: Tiled, d_scores: Tensor) -> Tensor:
    return on.scale * d_scores.mT @ (on.call.query * on.scale / on.scale)


class _Scaled(torch.autograd.Function):
    """x times scale, whose gradient is not scaled."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, scale: float) -> Tensor:
        return x * scale

    @staticmethod
    def backward(_ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        return cotangents[0], None


@fault(
    "The query's gradient is scaled by a hook on the caller's tensor, whatever else the tensor is used for.",
    breaks="gradients/a-query-used-elsewhere-gets-both-gradients",
    naive="GR",
    when=("backward", "a query that is used elsewhere too"),
)
def scaled_by_a_hook(call: Call) -> Tensor:
    wide, scale = clean.read(call), clean.scale(call)
    if call.query.requires_grad:
        call.query.register_hook(lambda gradient: gradient * scale)
        wide = wide.but(query=_Scaled.apply(wide.query, scale), scale=1.0)
    return clean.attention(wide).to(call.dtype)


# Dropout


@fault(
    "The probability is rounded to a sixteenth, as a library wants it; what is left is rescaled by what was given.",
    breaks="dropout/the-rate-is-kept",
    real="https://github.com/Dao-AILab/flash-attention/pull/2597",
    naive="PATH",
    when=("dropout", "p that is no multiple of 1/16"),
    replaces=clean.drop,
)
def probability_in_sixteenths(call: Call, weights: Tensor) -> Tensor:
    if not 0 < call.dropout_p < 1:
        return clean.drop(call, weights)
    p = round(call.dropout_p * 16) / 16
    return functional.dropout(weights, p) * ((1 - p) / (1 - call.dropout_p))


@fault(
    "A random number of 32 bits serves four neighbouring keys, which are dropped together.",
    breaks="dropout/weights-are-dropped-one-by-one",
    naive="PATH",
    when=("dropout",),
    replaces=clean.drop,
)
def four_neighbours_dropped_together(call: Call, weights: Tensor) -> Tensor:
    if not call.dropout_p:
        return weights
    width = weights.shape[-1]
    drawn = functional.dropout(weights.new_ones(*weights.shape[:-1], -(-width // 4)), call.dropout_p)
    return weights * drawn.repeat_interleave(4, dim=-1)[..., :width]


# Features


@fault(
    "A head wider than 128 takes another path, which does not cap.",
    breaks="features/a-softcap-caps-the-scores",
    real="https://github.com/kekzl/imp/pull/688",
    naive="SH",
    when=("softcap", "head_dim > 128"),
    features=("softcap",),
)
def wide_heads_not_capped(call: Call) -> Tensor:
    return clean.attention(call.but(softcap=None) if call.head_dim > 128 else call)


@fault(
    "A single query is handed to a path that knows no window.",
    breaks="windows/a-window-and-a-mask-compose",
    real="https://github.com/karpathy/nanochat/issues/452",
    naive="SH",
    when=("window", "q_len = 1"),
    features=("window",),
)
def window_lost_in_decoding(call: Call) -> Tensor:
    return clean.attention(call.but(window=None) if call.q_len == 1 else call)


@fault(
    "In bfloat16 a few queries decoded at once all have the window of the last.",
    breaks="windows/a-key-one-step-outside-does-not-matter",
    real="https://github.com/flashinfer-ai/flashinfer/issues/3864",
    naive="LP",
    when=("window", "bfloat16", "1 < q_len <= 8"),
    features=("window",),
)
def few_queries_share_a_window(call: Call) -> Tensor:
    def window(inside: Call) -> Tensor | None:
        kept = clean.window(inside)
        few = call.dtype == torch.bfloat16 and 1 < call.q_len <= 8
        return kept[-1:] if kept is not None and few else kept

    return clean.attention(call, window=window)


@fault(
    "The first tile of 16 keys for 64 queries is that of the last one's window: earlier queries lose old keys.",
    breaks="windows/the-outermost-key-of-a-window-counts",
    naive="SH",
    when=("window with a left side", "q_len > 16"),
    replaces=clean.window,
    features=("window",),
)
def window_begins_with_the_last_query(call: Call) -> Tensor | None:
    kept = clean.window(call)
    if kept is None or call.window is None or call.window[0] is None:
        return kept
    last = (torch.arange(call.q_len) // 64 * 64 + 63).clamp(max=call.q_len - 1)
    return kept & (torch.arange(call.kv_len) >= ((last - call.window[0]) // 16 * 16)[:, None])


@fault(
    "In half precision the slopes behind the largest power of two of heads are sought twice as far on.",
    breaks="features/alibi-lowers-scores-by-distance",
    real="https://github.com/ggml-org/llama.cpp/pull/20031",
    naive="LP",
    when=("ALiBi", "half precision", "heads no power of two"),
    features=("alibi_slopes",),
)
def later_slopes_sought_too_far(call: Call) -> Tensor:
    if call.alibi_slopes is not None and call.heads and call.dtype.itemsize == 2:
        first, h = 1 << (call.heads.bit_length() - 1), torch.arange(call.heads)
        index = torch.where(h < first, h, (h + first) % call.heads)
        call = call.but(alibi_slopes=call.alibi_slopes[index])
    return clean.attention(call)


@fault(
    "Where there is a cap, ALiBi goes through it with the score.",
    breaks="features/alibi-equals-its-bias",
    naive="PATH",
    when=("softcap", "ALiBi"),
    features=("softcap", "alibi_slopes"),
)
def slopes_capped(call: Call) -> Tensor:
    def cap(call: Call, scores: Tensor) -> Tensor:
        return clean.cap(call, clean.alibi(call, scores))

    return clean.attention(call, cap=cap, alibi=lambda call, scores: scores)


@fault(
    "In decoding the sinks of grouped heads are read in the order of the packed heads.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/vllm-project/vllm-xpu-kernels/pull/556",
    naive="SH",
    when=("sinks", "q_len = 1", "grouped heads, several key heads"),
    features=("sinks",),
)
def sinks_of_packed_heads(call: Call) -> Tensor:
    if call.sinks is not None and call.q_len == 1 and call.group > 1:
        call = call.but(sinks=call.sinks.unflatten(0, (-1, call.group)).T.flatten())
    return clean.attention(call)


@fault(
    "A row with a single visible key is that key's value, without a look at the sink.",
    breaks="accuracy/output-is-within-the-bound",
    naive="PATH",
    when=("sinks", "a row with one visible key"),
    replaces=clean.softmax,
    features=("sinks",),
)
def single_key_without_a_sink(call: Call, scores: Tensor, do: Steps) -> Tensor:
    visible = scores != NEVER
    alone = visible.sum(dim=-1, keepdim=True) == 1
    return torch.where(alone, visible.to(scores.dtype), clean.softmax(call, scores, do))
