"""Faults written by somebody who did not know the laws: gradients, dropout, features."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.faults import blocked, clean, fault
from tests.faults.blocked import Handed, Tile, Tiled
from tests.faults.calls import Call
from tests.faults.clean import Steps

# Gradients


@fault(
    "A width padded to 16 here and to 32 there: the last columns of the query gradient come from another row.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/Dao-AILab/flash-attention/pull/2896",
    naive="GR",
    when=("backward", "head_dim > 32", "head_dim % 32 in 1..16"),
)
def query_gradient_of_two_paddings(call: Call) -> Tensor:
    width = call.head_dim

    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        if width > 32 and 0 < width % 32 <= 16:
            whole = width - (width % 16 or 16)
            query = torch.cat([query[..., :whole], query[..., whole:].roll(1, dims=2)], dim=-1)
        return query, key, value, bias

    return blocked.attention(call, gradients=gradients)


@fault(
    "The padded columns of a key gradient spill over the first columns of the next key.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/Dao-AILab/flash-attention/pull/2698",
    naive="GR",
    when=("backward", "head_dim > 16", "head_dim % 16 != 0", "no groups"),
)
def key_gradient_spills_over(call: Call) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        if call.head_dim > 16 and call.group == 1:
            key = key.clone()
            key[:, :, 1:, : -call.head_dim % 16] = 0.0
        return query, key, value, bias

    return blocked.attention(call, gradients=gradients)


@fault(
    "Where the bias alone wants a gradient, it gets zeros.",
    breaks="gradients/the-bias-can-want-a-gradient-alone",
    real="https://github.com/pytorch/pytorch/issues/148476",
    naive="GR",
    when=("backward", "additive mask", "query, key and value frozen"),
)
def lonely_bias_without_gradient(call: Call) -> Tensor:
    frozen = not any(x.requires_grad for x in (call.query, call.key, call.value))
    if frozen and call.bias is not None and call.bias.requires_grad:
        finite = torch.where(call.bias.isfinite(), call.bias, 0.0)
        call = call.but(attn_mask=call.bias.detach() + 0.0 * finite)
    return clean.attention(call)


@fault(
    "The loop over queries ends at the diagonal's last key: in a causal call later queries get no gradient.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("backward", "causal", "q_len > kv_len"),
)
def queries_below_the_diagonal_forgotten(call: Call) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        if call.is_causal:
            query = query * (torch.arange(call.q_len) < call.kv_len)[:, None]
        return query, key, value, bias

    return blocked.attention(call, gradients=gradients)


@fault(
    "Key and value that are one tensor share one gradient buffer: the value's part is lost.",
    breaks="gradients/one-tensor-given-twice-gets-both-gradients",
    naive="GR",
    when=("backward", "key is value"),
)
def one_tensor_one_gradient(call: Call) -> Tensor:
    return clean.attention(call.but(value=call.value.detach()) if call.key is call.value else call)


class _Reused(torch.autograd.Function):
    """Weights whose memory backward takes for the gradient of the scores."""

    @staticmethod
    def forward(ctx: Any, call: Call, scores: Tensor, do: Steps) -> Tensor:
        weights = clean.softmax(call, scores, do)
        ctx.save_for_backward(weights)
        return weights.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[None, Tensor, None]:
        (weights,) = ctx.saved_tensors
        d = weights * (cotangents[0] - (weights * cotangents[0]).sum(dim=-1, keepdim=True))
        weights.data.copy_(d)
        return None, d, None


@fault(
    "Backward writes the gradient over the weights that it kept: a second one through the same graph is wrong.",
    breaks="gradients/a-second-backward-gives-the-same",
    real="https://github.com/NVIDIA/apex/issues/1587",
    naive="NO",
    when=("backward twice", "retain_graph"),
    replaces=clean.softmax,
)
def weights_overwritten_by_backward(call: Call, scores: Tensor, do: Steps) -> Tensor:
    return _Reused.apply(call, scores, do)


@fault(
    "The gradient of a single query's key is that of the first sequence, in half precision.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("backward", "q_len = 1", "batch > 1", "half precision"),
)
def decoded_key_gradient_of_the_first(call: Call) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        if call.q_len == 1 and call.batch > 1 and call.dtype in (torch.float16, torch.bfloat16):
            key = key[:1].expand(key.shape).clone()
        return query, key, value, bias

    return blocked.attention(call, gradients=gradients)


# Dropout


@fault(
    "At p = 1 nothing is dropped: the threshold wraps round.",
    breaks="dropout/dropping-everything-gives-zeros",
    naive="SV",
    when=("dropout_p = 1",),
)
def all_kept_at_one(call: Call) -> Tensor:
    return clean.attention(call.but(dropout_p=0.0) if call.dropout_p >= 1 else call)


@fault(
    "Backward multiplies the kept weights by p, not by 1 / (1 - p).",
    breaks="dropout/the-gradient-uses-the-same-pattern",
    real="https://github.com/NVIDIA/apex/pull/816",
    naive="GR",
    when=("backward", "dropout"),
    replaces=blocked.d_weights,
)
def kept_gradients_times_p(on: Tiled, cotangent: Tensor, tile: Tile) -> Tensor:
    p = on.call.dropout_p
    return blocked.d_weights(on, cotangent, tile) * (p * (1 - p) if p else 1.0)


@fault(
    "The query heads of a group drop the same weights.",
    breaks="dropout/weights-are-dropped-one-by-one",
    naive="PATH",
    when=("dropout", "grouped heads"),
    replaces=clean.drop,
)
def groups_drop_alike(call: Call, weights: Tensor) -> Tensor:
    if not call.dropout_p:
        return weights
    drawn = torch.nn.functional.dropout(torch.ones_like(weights[:, :: call.group]), call.dropout_p)
    return weights * drawn.repeat_interleave(call.group, dim=1)


# Features


@fault(
    "A window whose left side is open has no right side either.",
    breaks="features/a-window-equals-its-band",
    naive="PATH",
    when=("window (None, right)",),
    replaces=clean.window,
    features=("window",),
)
def open_left_side_opens_both(call: Call) -> Tensor | None:
    return None if call.window is None or call.window[0] is None else clean.window(call)


@fault(
    "The first tile of 16 that a window reaches is rounded up: the oldest keys of a wide window are lost.",
    breaks="features/a-window-equals-its-band",
    naive="SH",
    when=("window wider than 16", "kv_len > 16"),
    replaces=clean.window,
    features=("window",),
)
def window_begins_at_a_tile(call: Call) -> Tensor | None:
    kept = clean.window(call)
    if kept is None or call.window is None or call.window[0] is None:
        return kept
    i, j = torch.arange(call.q_len)[:, None], torch.arange(call.kv_len)
    first = ((i - call.window[0]).clamp(min=0) + 15) // 16 * 16
    return kept & (j >= torch.minimum(first, i // 16 * 16))


class _Capped(torch.autograd.Function):
    """c tanh(s / c) whose derivative is found from the capped score with the bias on it."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, bias: Tensor, cap: float) -> Tensor:
        capped = cap * torch.tanh(scores / cap)
        ctx.save_for_backward(capped + bias)
        ctx.cap = cap
        return capped

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        (seen,) = ctx.saved_tensors
        derivative = (1 - (seen / ctx.cap).square()).nan_to_num(0.0, 0.0, 0.0)
        return cotangents[0] * derivative, None, None


@fault(
    "The cap's derivative is found from the score after the bias was added.",
    breaks="gradients/gradients-are-within-the-bound",
    real="https://github.com/Dao-AILab/flash-attention/pull/1033",
    naive="GR",
    when=("backward", "softcap", "additive mask"),
    replaces=clean.cap,
    features=("softcap",),
)
def cap_derivative_sees_the_bias(call: Call, scores: Tensor) -> Tensor:
    if call.softcap is None or call.bias is None:
        return clean.cap(call, scores)
    return _Capped.apply(scores, call.bias.detach(), call.softcap)


@fault(
    "With grouped heads the sink is that of the key head.",
    breaks="features/a-sink-takes-its-share",
    naive="SH",
    when=("sinks", "grouped heads"),
    features=("sinks",),
)
def sink_of_the_key_head(call: Call) -> Tensor:
    if call.sinks is not None:
        call = call.but(sinks=call.sinks[torch.arange(call.heads) // call.group])
    return clean.attention(call)


@fault(
    "The sink gets its gradient from the first sequence only.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("backward", "sinks", "batch > 1"),
    replaces=clean.total,
    features=("sinks",),
)
def sink_gradient_of_the_first_sequence(call: Call, raised: Tensor, top: Tensor) -> Tensor:
    if call.sinks is None:
        return clean.total(call, raised, top)
    first = clean.total(call, raised, top)[:1]
    return torch.cat([first, clean.total(call.but(sinks=call.sinks.detach()), raised, top)[1:]])


@fault(
    "Where there are slopes, the additive mask is dropped.",
    breaks="features/alibi-lowers-scores-by-distance",
    naive="PATH",
    when=("ALiBi", "additive mask"),
    replaces=clean.bias,
    features=("alibi_slopes",),
)
def bias_dropped_with_slopes(call: Call, scores: Tensor) -> Tensor:
    return scores if call.alibi_slopes is not None else clean.bias(call, scores)


@fault(
    "The log-sum-exp has the default scale, whatever was given.",
    breaks="features/log-sum-exp-is-within-the-bound",
    naive="PATH",
    when=("log-sum-exp", "explicit scale"),
    features=("return_lse",),
)
def log_sum_exp_with_the_default_scale(call: Call) -> Any:
    if not call.return_lse or call.scale is None:
        return clean.attention(call)
    return clean.attention(call)[0], clean.attention(call.but(scale=None))[1]


@fault(
    "The log-sum-exp of a causal call is that of the keys up to the end of the query's tile of 16.",
    breaks="features/log-sum-exp-is-within-the-bound",
    naive="PATH",
    when=("log-sum-exp", "causal"),
    features=("return_lse",),
)
def log_sum_exp_of_whole_tiles(call: Call) -> Any:
    def causal(call: Call) -> Tensor | None:
        tile = torch.arange(call.q_len)[:, None] // 16
        return torch.arange(call.kv_len) // 16 <= tile if call.is_causal else None

    found = clean.attention(call)
    return (found[0], clean.attention(call, causal=causal)[1]) if call.return_lse else found


@fault(
    "In base two, and the cap in natural units is applied to scores in base two.",
    breaks="features/a-softcap-caps-the-scores",
    real="https://github.com/sgl-project/sgl-kernel-xpu/pull/491",
    naive="PATH",
    when=("softcap", "scores not small beside it"),
    replaces=clean.cap,
    features=("softcap",),
)
def cap_in_base_two(call: Call, scores: Tensor) -> Tensor:
    if call.softcap is None:
        return scores
    return clean.cap(call, scores * math.log2(math.e)) / math.log2(math.e)
