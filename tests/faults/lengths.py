"""Sequences of several lengths side by side, each said by a number."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault, variant
from tests.faults.calls import Call

LENGTHS = ("key_lengths",)
AS_MANY = "lengths/a-sequence-has-as-many-keys-as-is-said"


@fault(
    "The key behind the last one of a sequence is seen too.",
    breaks=AS_MANY,
    naive="PATH",
    features=LENGTHS,
    replaces=clean.lengths,
)
def one_key_behind_the_length(call: Call) -> Tensor | None:
    return None if call.key_lengths is None else clean.lengths(call.but(key_lengths=call.key_lengths + 1))


@fault(
    "Every sequence has as many keys as the longest.",
    breaks=AS_MANY,
    naive="PATH",
    features=LENGTHS,
    replaces=clean.lengths,
)
def the_longest_for_all(call: Call) -> Tensor | None:
    longest = None if call.key_lengths is None else call.key_lengths.amax().expand(call.batch)
    return clean.lengths(call.but(key_lengths=longest))


@fault(
    "The lengths are taken and not read.",
    breaks=AS_MANY,
    naive="PATH",
    real="https://github.com/jax-ml/jax/issues/23349",
    features=LENGTHS,
)
def lengths_not_read(call: Call) -> Any:
    return clean.attention(call.but(key_lengths=None))


@fault(
    "The last block of 16 keys is seen whole.",
    breaks=AS_MANY,
    naive="SH",
    when=("key_lengths", "a length that is no multiple of 16"),
    features=LENGTHS,
    replaces=clean.lengths,
)
def whole_blocks_of_keys(call: Call) -> Tensor | None:
    if call.key_lengths is None:
        return None
    return clean.lengths(call.but(key_lengths=(call.key_lengths + 15) // 16 * 16))


@fault(
    "The log-sum-exp is that of all keys.",
    breaks=AS_MANY,
    naive="PATH",
    when=("key_lengths", "return_lse"),
    features=(*LENGTHS, "return_lse"),
)
def log_sum_exp_of_all_keys(call: Call) -> Any:
    if not call.return_lse:
        return clean.attention(call)
    output, _ = clean.attention(call)
    return output, clean.attention(call.but(key_lengths=None))[1]


@fault(
    "Keys behind a length have 30 taken off their scores.",
    breaks="lengths/what-stands-behind-a-length-does-not-matter",
    naive="SV",
    features=LENGTHS,
)
def behind_the_length_a_penalty(call: Call) -> Any:
    def bias(call: Call, scores: Tensor) -> Tensor:
        kept, scores = clean.lengths(call), clean.bias(call, scores)
        return scores if kept is None else scores - 30.0 * ~kept

    return clean.attention(call, lengths=lambda call: None, bias=bias)


@fault(
    "Lengths beside a mask are dropped.",
    breaks="lengths/key-lengths-beside-a-mask-hide-what-either-hides",
    naive="PATH",
    when=("key_lengths", "attn_mask"),
    features=LENGTHS,
    replaces=clean.lengths,
)
def dropped_beside_a_mask(call: Call) -> Tensor | None:
    return clean.lengths(call) if call.attn_mask is None else None


@fault(
    "Aligned at the last key, the diagonal is counted from the end of the buffer.",
    breaks="lengths/key-lengths-with-is-causal-end-at-the-last-key",
    naive="PATH",
    when=("key_lengths", "is_causal"),
    real="https://github.com/sgl-project/sgl-kernel-xpu/issues/196",
    features=LENGTHS,
    declares={"causal": "bottom-right"},
    replaces=clean.causal,
)
def diagonal_from_the_end_of_the_buffer(call: Call) -> Tensor | None:
    return call.distance() <= call.kv_len - call.q_len if call.is_causal else None


@fault(
    "The place of the first query is counted from the end of the keys, and never below zero.",
    breaks="lengths/key-lengths-with-is-causal-end-at-the-last-key",
    naive="PATH",
    when=("key_lengths", "is_causal", "fewer keys than queries"),
    features=LENGTHS,
    declares={"causal": "bottom-right"},
    replaces=clean.causal,
)
def first_place_not_below_zero(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    if call.key_lengths is None:
        return call.distance() <= call.kv_len - call.q_len
    return call.distance() <= (call.key_lengths - call.q_len).clamp(min=0)[:, None, None, None]


@fault(
    "Aligned at the last key, the window is counted from the end of the buffer.",
    breaks="lengths/key-lengths-with-a-window-end-at-the-last-key",
    naive="PATH",
    when=("key_lengths", "window"),
    features=(*LENGTHS, "window"),
    declares={"causal": "bottom-right"},
)
def window_from_the_end_of_the_buffer(call: Call) -> Any:
    def window(call: Call) -> Tensor | None:
        return _window(call, torch.full((call.batch, 1, 1, 1), call.kv_len - call.q_len))

    return clean.attention(call, causal=_causal, window=window)


@fault(
    "ALiBi is counted from the end of the buffer: under the diagonal the log-sum-exp alone shows it.",
    breaks="lengths/key-lengths-with-slopes-end-at-the-last-key",
    naive="PATH",
    when=("key_lengths", "alibi_slopes", "return_lse"),
    features=(*LENGTHS, "alibi_slopes", "return_lse"),
    declares={"causal": "bottom-right", "always": {"is_causal": True}, "rectangular": "only-one-query"},
)
def slopes_from_the_end_of_the_buffer(call: Call) -> Any:
    def alibi(call: Call, scores: Tensor) -> Tensor:
        return _lowered(call, scores, torch.full((call.batch, 1, 1, 1), call.kv_len - call.q_len))

    return clean.attention(call.but(is_causal=True), causal=_causal, alibi=alibi)


@fault(
    "The backward pass takes the keys of all slots.",
    breaks="lengths/gradients-end-at-the-length",
    naive="GR",
    when=("key_lengths", "backward"),
    features=LENGTHS,
)
def backward_without_lengths(call: Call) -> Any:
    right, whole = clean.attention(call), clean.attention(call.but(key_lengths=None))
    return whole + (right - whole).detach()


def _first(call: Call) -> Tensor:
    """At which key the first query stands (batch, 1, 1, 1), aligned at the last key of each sequence."""
    lengths = torch.full((call.batch,), call.kv_len) if call.key_lengths is None else call.key_lengths
    return (lengths - call.q_len)[:, None, None, None]


def _causal(call: Call) -> Tensor | None:
    return call.distance() <= _first(call) if call.is_causal else None


def _window(call: Call, first: Tensor) -> Tensor | None:
    if call.window is None:
        return None
    left, right = (math.inf if side is None else side for side in call.window)
    distance = call.distance() - first
    return (distance >= -left) & (distance <= right)


def _lowered(call: Call, scores: Tensor, first: Tensor) -> Tensor:
    if call.alibi_slopes is None:
        return scores
    slopes = call.alibi_slopes.to(scores.dtype)[:, None, None]
    return scores - slopes * (call.distance() - first).abs()


@variant(
    "Aligned at the last key of each sequence, windows and slopes too.",
    features=(*LENGTHS, "window", "alibi_slopes", "return_lse"),
    declares={"causal": "bottom-right"},
)
def aligned_at_each_last_key(call: Call) -> Any:
    return clean.attention(
        call,
        causal=_causal,
        window=lambda call: _window(call, _first(call)),
        alibi=lambda call, scores: _lowered(call, scores, _first(call)),
    )
