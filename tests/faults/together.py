"""What shows only where two arguments meet, or in one dtype, and what is no refusal though it raises: undeclared."""

from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import NEVER, Call
from tests.faults.dead_rows import plain_softmax

Memory = dict[Any, Any]


def both(call: Call) -> bool:
    return call.attn_mask is not None and call.is_causal


# A mask beside is_causal


@fault(
    "Beside a mask and is_causal the keys are taken out of the graph.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("backward", "attn_mask", "is_causal"),
)
def keys_detached_beside_both(call: Call) -> Tensor:
    return clean.attention(call.but(key=call.key.detach()) if both(call) else call)


@fault(
    "Decoding has a path of its own, which drops is_causal beside a mask.",
    breaks="masks/mask-and-causal-compose",
    naive="PATH",
    when=("q_len = 1", "attn_mask", "is_causal"),
)
def triangle_dropped_in_decoding(call: Call) -> Tensor:
    return clean.attention(call.but(is_causal=False) if both(call) and call.q_len == 1 else call)


@fault(
    "Beside a mask the triangle has a row and a column for each query: other lengths raise.",
    breaks="masks/mask-and-causal-compose",
    naive="SH",
    when=("attn_mask", "is_causal", "q_len != kv_len"),
    replaces=clean.compose,
)
def triangle_of_a_square(call: Call, *planes: Tensor | None) -> Tensor | None:
    kept = clean.compose(call, *planes)
    if not both(call) or kept is None:
        return kept
    return kept & torch.ones(call.q_len, call.q_len, dtype=torch.bool).tril()


@fault(
    "A mask is dropped beside a window; rows without keys give NaN, as is declared.",
    breaks="windows/a-window-and-a-mask-compose",
    real="https://github.com/Dao-AILab/flash-attention/issues/1035",
    naive="PATH",
    when=("attn_mask", "window"),
    declares={"empty_rows": "nan"},
    features=("window",),
)
def mask_dropped_beside_a_window(call: Call) -> Tensor:
    seen = call if call.window is None else call.but(attn_mask=None)
    return clean.attention(seen, softmax=plain_softmax)


@fault(
    "Aligned at the last key, queries before the first key are NaN; those that a mask leaves without keys are not.",
    breaks="caches/queries-before-the-first-key-follow-the-convention",
    naive="SH",
    when=("is_causal", "q_len > kv_len"),
    declares={"causal": "bottom-right"},
)
def nan_before_the_first_key(call: Call) -> Tensor:
    def causal(call: Call) -> Tensor | None:
        return call.distance() <= call.kv_len - call.q_len if call.is_causal else None

    softmax = plain_softmax if call.is_causal and call.attn_mask is None else clean.softmax
    return clean.attention(call, causal=causal, softmax=softmax)


# In one dtype, or no refusal


@fault(
    "In bfloat16 the output has the length before the heads.",
    breaks="memory/output-has-the-right-form",
    naive="LP",
    when=("bfloat16",),
)
def length_first_in_bfloat16(call: Call) -> Tensor:
    output: Tensor = clean.attention(call)
    return output.transpose(1, 2) if call.dtype == torch.bfloat16 else output


@fault(
    "The triangle is made by a call with a keyword that torch does not know: is_causal raises TypeError.",
    breaks="masks/causal-equals-its-mask",
    naive="PATH",
    replaces=clean.causal,
)
def triangle_with_a_slip(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    whole = torch.ones(call.q_len, call.kv_len, dtype=torch.bool)
    return torch.tril(whole, diag=0)  # type: ignore[call-overload, no-any-return]  # the slip is the point


# Masks


@fault(
    "The bias of the last boolean mask is kept for as long as the same tensor comes.",
    breaks="state/inputs-changed-in-place-are-read-again",
    naive="NO",
    when=("boolean mask", "changed in place between two calls"),
)
def bias_of_the_same_mask(call: Call, memory: Memory) -> Tensor:
    if call.attn_mask is None or call.attn_mask.dtype != torch.bool:
        return clean.attention(call)
    if memory.get("mask") is not call.attn_mask:
        memory["mask"] = call.attn_mask
        memory["bias"] = torch.zeros(call.attn_mask.shape).masked_fill(~call.attn_mask, NEVER)
    return clean.attention(call.but(attn_mask=memory["bias"].to(call.dtype)))


class _OfTheLast(torch.autograd.Function):
    """A bias (1, ...) for each sequence (batch, ...); back goes what the last sequence gives."""

    @staticmethod
    def forward(_: Any, bias: Tensor, batch: int) -> Tensor:
        return bias.expand(batch, *bias.shape[1:]).clone()

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][-1:], None


@fault(
    "Each sequence stores its gradient of a bias that all share, and the last one stays.",
    breaks="gradients/the-bias-gets-its-gradient",
    naive="GR",
    when=("backward", "additive mask of one sequence", "batch > 1"),
)
def bias_gradient_of_the_last_sequence(call: Call) -> Tensor:
    bias = call.attn_mask
    if bias is None or bias.dtype == torch.bool or bias.ndim != 4 or bias.shape[0] != 1:
        return clean.attention(call)
    return clean.attention(call.but(attn_mask=_OfTheLast.apply(bias, call.batch)))


# Dropout beside training


@fault(
    "training is not handed on: weights are dropped in evaluation too.",
    breaks="dropout/nothing-is-dropped-out-of-training",
    naive="PATH",
    when=("dropout_p", "training is off"),
    features=("training",),
)
def training_not_handed_on(call: Call) -> Tensor:
    return clean.attention(call)
