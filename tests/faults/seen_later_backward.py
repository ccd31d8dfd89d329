"""More faults by somebody who did not know the laws: gradients, dropout, features."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.faults import blocked, clean, fault
from tests.faults.blocked import Handed, Tile, Tiled
from tests.faults.calls import NEVER, Call


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
    "One thread for each column, 64 at most: gradients of query and key are zero beyond.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/mni-ml/framework/pull/39",
    naive="GR",
    when=("backward", "head_dim > 64"),
)
def gradient_columns_beyond_64_zero(call: Call) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        beyond = torch.arange(call.head_dim) >= 64
        return query.masked_fill(beyond, 0.0), key.masked_fill(beyond, 0.0), value, bias

    return blocked.attention(call, gradients=gradients)


@fault(
    "In backward the rows of values and cotangents end at head_dim: further columns are not in dP.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27",
    naive="GR",
    when=("backward", "value_dim > head_dim"),
    replaces=blocked.d_weights,
)
def products_with_values_cut(on: Tiled, cotangent: Tensor, tile: Tile) -> Tensor:
    width = on.call.head_dim
    product = cotangent[..., :width] @ on.value[:, :, tile, :width].mT
    return blocked.dropped(on, product, tile)


@fault(
    "In backward a tile of 32 keys is skipped when its number times 64, the height of a query tile, is too far.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/Dao-AILab/flash-attention/pull/1233",
    naive="GR",
    when=("backward", "kv_len > 32"),
)
def later_key_tiles_skipped(call: Call) -> Tensor:
    def tiles_backward(call: Call, block: int) -> list[Tile]:
        return [tile for n, tile in enumerate(blocked.tiles(call, block)) if n * 64 < call.kv_len]

    return blocked.attention(call, block=32, tiles_backward=tiles_backward)


@fault(
    "rowsum(dO x O) is not waited for: backward reads what the one before left for that shape.",
    breaks="gradients/a-second-backward-gives-the-same",
    real="https://github.com/Dao-AILab/flash-attention/pull/2481",
    naive="NO",
    when=("a second backward of the same shapes",),
)
def delta_of_the_backward_before(call: Call, memory: dict[Any, Tensor]) -> Tensor:
    def delta(cotangent: Tensor, output: Tensor) -> Tensor:
        now = blocked.delta(cotangent, output)
        before, memory[now.shape] = memory.get(now.shape, now), now
        return before

    return blocked.attention(call, delta=delta)


@fault(
    "The bias's gradient lies in rows padded to 8, and is handed out as if they were not.",
    breaks="gradients/the-bias-gets-its-gradient",
    naive="GR",
    when=("backward", "additive mask", "kv_len % 8 != 0"),
)
def bias_gradient_skewed(call: Call) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        if bias is not None and bias.ndim > 1 and bias.shape[-1] > 1:
            rows, width = bias.shape[-2:]
            padded = functional.pad(bias, (0, -width % 8)).flatten(-2)
            bias = padded[..., : rows * width].unflatten(-1, (rows, width))
        return query, key, value, bias

    return blocked.attention(call, gradients=gradients)


@fault(
    "Backward is launched for each key head: query heads beyond their number get no gradient.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/aws-neuron/nki-samples/pull/109",
    naive="GR",
    when=("backward", "grouped heads"),
)
def query_heads_beyond_the_key_heads(call: Call) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        beyond = torch.arange(call.heads)[:, None, None] >= call.heads // call.group
        return query.masked_fill(beyond, 0.0), key, value, bias

    return blocked.attention(call, gradients=gradients)


@fault(
    "Where the value is frozen its gradient needs a place all the same: that of the key is overwritten.",
    breaks="gradients/each-gradient-can-be-asked-for-alone",
    real="https://github.com/PaddlePaddle/Paddle/pull/58345",
    naive="GR",
    when=("backward", "value frozen", "value_dim = head_dim"),
)
def frozen_value_takes_the_keys_place(call: Call) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        shared = not call.value.requires_grad and key.shape == value.shape
        return query, value if shared else key, value, bias

    return blocked.attention(call, gradients=gradients)


@fault(
    "In backward a tile of 16 queries is skipped when the cotangent of its first is zero.",
    breaks="gradients/a-loss-may-read-some-rows-only",
    naive="GR",
    when=("backward", "zeros in the cotangent", "q_len > 1"),
    replaces=blocked.read_cotangent,
)
def skipped_by_the_first_cotangent(cotangent: Tensor) -> Tensor:
    first = cotangent[:, :, torch.arange(cotangent.shape[2]) // 16 * 16]
    return torch.where((first != 0).any(dim=-1, keepdim=True), cotangent, 0.0)


@fault(
    "The query gradient is summed by eight programs of 64 keys: it does not hear of keys beyond 512.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("backward", "kv_len > 512"),
    replaces=blocked.d_query,
)
def query_gradient_of_512_keys(on: Tiled, d_scores: Tensor, tile: Tile) -> Tensor:
    return blocked.d_query(on, d_scores, tile) * (tile.start < 512)


@fault(
    "The log-sum-exp is kept for backward in the half type of the inputs: recomputed weights do not sum to one.",
    breaks=("distribution/the-values-get-the-whole-cotangent", "gradients/gradients-are-within-the-bound"),
    naive="GR",
    dtypes=("bfloat16", "float16"),
    when=("backward", "half precision", "large scores"),
)
def kept_log_sum_exp_in_half(call: Call) -> Tensor:
    def weights(on: Tiled, scores: Tensor, lse: Tensor) -> Tensor:
        return blocked.weights(on, scores, lse.to(call.dtype).to(lse.dtype))

    return blocked.attention(call, weights=weights)


@fault(
    "Backward adds the key's gradient into key.grad itself, and hands it out as well.",
    breaks="gradients/backward-adds-each-gradient-once",
    naive="NO",
    when=("backward()", "a key that is a leaf"),
)
def key_gradient_written_twice(call: Call) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        if call.key.is_leaf and call.key.requires_grad:
            call.key.grad = key.clone() if call.key.grad is None else call.key.grad + key
        return query, key, value, bias

    return blocked.attention(call, gradients=gradients)


# Dropout


@fault(
    "Backward computes the scores transposed, and draws what it drops by (key, query).",
    breaks="dropout/the-gradient-uses-the-same-pattern",
    real="https://github.com/Dao-AILab/flash-attention/pull/2439",
    naive="GR",
    when=("backward", "dropout", "q_len = kv_len"),
)
def dropped_transposed_in_backward(call: Call) -> Tensor:
    return blocked.drawn_otherwise(call, lambda kept: kept.mT if call.q_len == call.kv_len else kept)


@fault(
    "In a causal call forward numbers the tiles of 16 from the first and backward from the second, and draws so.",
    breaks="dropout/the-gradient-uses-the-same-pattern",
    naive="GR",
    when=("backward", "dropout", "causal", "kv_len > 16"),
)
def tiles_drawn_one_on_in_backward(call: Call) -> Tensor:
    return blocked.drawn_otherwise(call, lambda kept: kept.roll(16, dims=-1) if call.is_causal else kept)


# Features


@fault(
    "The cap's tanh is (e^2x - 1) / (e^2x + 1), which is NaN where e^2x overflows.",
    breaks="features/a-softcap-caps-the-scores",
    real="https://github.com/vllm-project/vllm/issues/56578",
    naive="SV",
    when=("softcap", "scores 44 times as large"),
    replaces=clean.cap,
    features=("softcap",),
)
def tanh_from_exponentials(call: Call, scores: Tensor) -> Tensor:
    if call.softcap is None:
        return scores
    raised = torch.exp(2 * scores / call.softcap)
    return call.softcap * (raised - 1) / (raised + 1)


class _Capped(torch.autograd.Function):
    """c tanh(s / c) whose derivative is found from the capped score after the mask."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, hidden: Tensor, cap: float) -> Tensor:
        capped = cap * torch.tanh(scores / cap)
        ctx.save_for_backward(capped.masked_fill(hidden, NEVER))
        ctx.cap = cap
        return capped

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        (seen,) = ctx.saved_tensors
        return cotangents[0] * (1 - (seen / ctx.cap).square()), None, None


@fault(
    "The cap's derivative is found after the mask was laid: the square of -inf is infinite.",
    breaks="gradients/no-gradient-through-masked-slots",
    real="https://github.com/openxla/tokamax/pull/1121",
    naive="GR",
    when=("backward", "softcap", "hidden keys"),
    replaces=clean.cap,
    features=("softcap",),
)
def cap_derivative_of_hidden_scores(call: Call, scores: Tensor) -> Tensor:
    kept = clean.compose(call, clean.mask(call), clean.causal(call))
    if call.softcap is None or kept is None:
        return clean.cap(call, scores)
    return _Capped.apply(scores, ~kept, call.softcap)


@fault(
    "Where there is a cap, the sink is capped like a score.",
    breaks="features/a-sink-takes-its-share",
    real="https://github.com/ROCm/rocm-libraries/pull/12229",
    naive="PATH",
    when=("softcap", "sinks not small beside it"),
    features=("softcap", "sinks"),
)
def sink_capped(call: Call) -> Tensor:
    if call.softcap is not None and call.sinks is not None:
        call = call.but(sinks=call.softcap * torch.tanh(call.sinks / call.softcap))
    return clean.attention(call)


@fault(
    "The first split seeds the sink, and the second does when the first sees no key: then it counts twice.",
    breaks="features/a-sink-takes-its-share",
    real="https://github.com/ROCm/rocm-libraries/issues/12227",
    naive="SV",
    when=("sinks", "the first 32 keys hidden", "kv_len > 32"),
    replaces=clean.total,
    features=("sinks",),
)
def sink_counted_twice(call: Call, raised: Tensor, top: Tensor) -> Tensor:
    summed, sinks = clean.total(call, raised, top), clean.sink_column(call, raised)
    if sinks is None or call.kv_len <= 32:
        return summed
    empty = (raised[..., :32] == 0).all(dim=-1, keepdim=True)
    return summed + torch.exp(sinks - top) * empty


@fault(
    "With as many sequences as heads the sinks are laid along the batch.",
    breaks="features/a-sink-takes-its-share",
    naive="SH",
    when=("sinks", "batch = heads"),
    features=("sinks",),
)
def sinks_along_the_batch(call: Call) -> Tensor:
    if call.sinks is not None and call.batch == call.heads:
        call = call.but(sinks=call.sinks[:, None])
    return clean.attention(call)


@fault(
    "ALiBi's distances are kept in bfloat16: from 257 on neighbours share one.",
    breaks="features/alibi-lowers-scores-by-distance",
    naive="LP",
    dtypes=("float64", "float32"),
    when=("ALiBi", "more than 256 apart"),
    replaces=clean.alibi,
    features=("alibi_slopes",),
)
def distances_in_bfloat16(call: Call, scores: Tensor) -> Tensor:
    if call.alibi_slopes is None:
        return scores
    distance = call.distance().abs().bfloat16().to(scores.dtype)
    return scores - call.alibi_slopes.to(scores.dtype)[:, None, None] * distance


@fault(
    "A window is laid in place of the causal mask: a right side of its own is not cut at the diagonal.",
    breaks="windows/a-causal-window-has-no-right-side",
    naive="PATH",
    when=("window with a right side other than 0", "causal"),
    features=("window",),
)
def window_replaces_the_causal_mask(call: Call) -> Tensor:
    return clean.attention(call.but(is_causal=call.is_causal and call.window is None))


@fault(
    "A window whose left side reaches over all keys is taken for none: its right side is lost.",
    breaks="features/a-window-equals-its-band",
    naive="SV",
    when=("window", "left side >= kv_len"),
    features=("window",),
)
def wide_window_taken_for_none(call: Call) -> Tensor:
    wide = call.window is not None and call.window[0] is not None and call.window[0] >= call.kv_len
    return clean.attention(call.but(window=None) if wide else call)


@fault(
    "Backward knows the left side of the window only.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("backward", "window with a right side"),
    features=("window",),
)
def right_side_open_in_backward(call: Call) -> Tensor:
    output = clean.attention(call)
    if call.window is None or call.dropout_p:
        return output
    return _Backward.apply(output, clean.attention(call.but(window=(call.window[0], None))))
