"""Faults written by somebody who did not know the laws: state, side effects, memory, modes of torch."""

import random
from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import NEVER, Call
from tests.faults.strides import misread

HALF = (torch.float16, torch.bfloat16)


# Side effects


@fault(
    "The causal mask is written into the additive mask of the caller.",
    breaks="memory/a-mask-beside-is-causal-is-not-changed",
    naive="NO",
    when=("additive mask (.., q_len, kv_len)", "causal"),
)
def causal_written_into_the_bias(call: Call) -> Tensor:
    mask, hidden = call.bias, clean.causal(call)
    whole = mask is not None and mask.is_contiguous() and mask.shape[-2:] == (call.q_len, call.kv_len)
    if mask is not None and hidden is not None and whole and not mask.requires_grad:
        mask.masked_fill_(~hidden, NEVER)
    return clean.attention(call)


@fault(
    "Python's own generator is seeded in each call.",
    breaks="state/the-global-generator-is-untouched",
    naive="NO",
)
def python_generator_seeded(call: Call) -> Tensor:
    random.seed(0)
    return clean.attention(call)


@fault(
    "Gradients are switched on for the caller's key, so that it can be computed again.",
    breaks="memory/no-input-is-made-to-want-a-gradient",
    naive="NO",
    when=("no input wants a gradient", "gradients on"),
)
def key_made_to_want_gradients(call: Call) -> Tensor:
    if torch.is_grad_enabled() and not call.key.is_inference():
        call.key.requires_grad_()
    return clean.attention(call)


@fault(
    "NaN among the values of hidden keys is cleared in the caller's tensor.",
    breaks="memory/inputs-are-not-changed",
    naive="NO",
    when=("NaN in a value",),
)
def nan_cleared_in_place(call: Call) -> Tensor:
    apart = 0 not in call.value.stride() and not call.value.is_inference()
    if call.attn_mask is not None and apart:
        call.value.data.nan_to_num_(nan=0.0)
    return clean.attention(call)


# State


@fault(
    "The scale is kept as a tensor; one made in inference mode cannot be used for gradients later.",
    breaks="state/inference-mode-leaves-nothing-behind",
    naive="NO",
    when=("first call in inference mode", "later call with gradients"),
)
def scale_made_in_inference_mode(call: Call, memory: dict[Any, Tensor]) -> Tensor:
    def score(call: Call, key: Tensor, scale: float) -> Tensor:
        kept = memory.setdefault((scale, call.dtype), torch.tensor(scale, dtype=call.dtype))
        return (call.query * kept) @ key.mT

    return clean.attention(call, score=score)


@fault(
    "A race that one call in 64 loses: its last key is not there yet.",
    breaks="state/same-call-same-answer",
    naive="NO",
    when=("64 calls",),
)
def one_call_in_64(call: Call, memory: dict[str, int]) -> Tensor:
    memory["calls"] = memory.get("calls", 0) + 1
    late = memory["calls"] % 64 == 0 and call.kv_len > 1
    last = torch.arange(call.kv_len) == call.kv_len - 1

    def score(call: Call, key: Tensor, scale: float) -> Tensor:
        scores = clean.score(call, key, scale)
        return scores.masked_fill(last, NEVER) if late else scores

    return clean.attention(call, score=score)


@fault(
    "The window of the call before is kept where none is given.",
    breaks="accuracy/output-is-within-the-bound",
    naive="NO",
    when=("a call with a window", "a call without one"),
    features=("window",),
)
def window_remembered(call: Call, memory: dict[str, Any]) -> Tensor:
    memory["window"] = call.window or memory.get("window")
    return clean.attention(call.but(window=memory["window"]))


@fault(
    "Repeated key heads are kept for a query of one row, by the number of keys.",
    breaks="state/one-thing-changed-is-noticed",
    naive="NO",
    when=("grouped heads", "q_len = 1", "a call of the same shapes before"),
)
def repeated_heads_kept(call: Call, memory: dict[Any, Tensor]) -> Tensor:
    def group(inside: Call, x: Tensor) -> Tensor:
        if call.q_len != 1 or call.group == 1 or x is not inside.key:
            return clean.group(inside, x)
        return memory.setdefault((x.shape, x.dtype), clean.group(inside, x).detach())

    return clean.attention(call, group=group)


# Modes


@fault(
    "In inference mode, and there alone, a path is taken that does not know additive masks.",
    breaks="state/inference-mode-changes-nothing",
    naive="PATH",
    when=("torch.inference_mode", "additive mask"),
)
def bias_dropped_in_inference_mode(call: Call) -> Tensor:
    if torch.is_inference_mode_enabled() and call.bias is not None:
        call = call.but(attn_mask=None)
    return clean.attention(call)


@fault(
    "Where only the value wants a gradient, another path is taken, and it is not causal.",
    breaks="gradients/each-gradient-can-be-asked-for-alone",
    naive="PATH",
    when=("causal", "the value alone wants a gradient"),
)
def not_causal_for_the_value_alone(call: Call) -> Tensor:
    alone = call.value.requires_grad and not (call.query.requires_grad or call.key.requires_grad)
    return clean.attention(call.but(is_causal=call.is_causal and not alone))


# Memory


@fault(
    "In half precision the columns of the value are read one after the other.",
    breaks="memory/strided-equals-contiguous",
    naive="SH",
    when=("half precision", "value with another last stride"),
)
def half_values_read_with_stride_one(call: Call) -> Tensor:
    x = call.value
    if call.dtype in HALF and x.numel() and x.stride(-1) != 1:
        call = call.but(value=misread(x, (*x.stride()[:-1], 1), x.storage_offset()))
    return clean.attention(call)


@fault(
    "In half precision an address is rounded down to 16 bytes.",
    breaks="memory/strided-equals-contiguous",
    naive="SH",
    when=("half precision", "a query that begins inside of 16 bytes"),
)
def addresses_rounded_down(call: Call) -> Tensor:
    x = call.query
    if call.dtype in HALF and x.storage_offset() % 8:
        call = call.but(query=misread(x, x.stride(), x.storage_offset() // 8 * 8))
    return clean.attention(call)


@fault(
    "The next sequence of the value is sought where that of a dense one would lie.",
    breaks="memory/strided-equals-contiguous",
    naive="SH",
    when=("value sliced from a longer cache", "batch > 1"),
)
def value_batch_stride_taken_for_dense(call: Call) -> Tensor:
    x = call.value
    dense = x.shape[1] * x.stride(1)
    if x.shape[0] > 1 and x.stride(1) > x.stride(2) and x.stride(0) > dense:
        call = call.but(value=misread(x, (dense, *x.stride()[1:]), x.storage_offset()))
    return clean.attention(call)


@fault(
    "A scale of zero makes all rows alike: one row is computed and handed out for all, in the same memory.",
    breaks="memory/each-number-of-the-output-has-a-place-of-its-own",
    naive="NO",
    when=("scale = 0", "no mask", "q_len > 1"),
)
def rows_in_one_memory(call: Call) -> Tensor:
    if call.scale != 0 or call.attn_mask is not None or call.is_causal or call.dropout_p:
        return clean.attention(call)
    row = clean.attention(call.but(query=call.query[:, :, :1]))
    return row.expand(-1, -1, call.q_len, -1) if call.q_len else clean.attention(call)
