"""A natural sample: bugs of tiled kernels, of backward passes by hand, of windows, sinks, state and packs."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import Call

TILE_Q, TILE_K = 64, 32


def running_top(scores: Tensor) -> Tensor:
    """The largest score of each row up to the end of each key's tile."""
    tiles = scores.detach().split(TILE_K, dim=-1)
    tops = torch.stack([tile.amax(dim=-1) for tile in tiles], dim=-1).cummax(dim=-1).values
    return tops.repeat_interleave(TILE_K, dim=-1)[..., : scores.shape[-1]]


class Bent(torch.autograd.Function):
    """The identity, with a backward pass of one's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, backward: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.bent = backward
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.bent(gradient), None


def memory_in_order(x: Tensor) -> Tensor:
    """What a kernel reads that takes a tensor for contiguous; an expanded one has not the memory for it."""
    if 0 in x.stride():
        return x
    return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride(), x.storage_offset())


@fault(
    "The online softmax does not rescale what it has accumulated when a later tile has a larger score.",
    breaks="accuracy/a-moving-maximum-rescales-all",
    naive="SH",
    replaces=clean.softmax,
)
def accumulator_not_rescaled(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    if scores.shape[-1] == 0:
        return clean.softmax(call, scores, do)
    top, running = clean.top(call, scores), running_top(scores)
    total = clean.total(call, torch.exp(scores - top), top)
    return torch.exp(scores - running.clamp(min=-1e30)) / total


@fault(
    "A first tile without a visible key gives exp(-inf + inf), NaN, also where later tiles have one.",
    breaks="masks/padding-equals-truncation",
    naive="SH",
    when=("more keys than a tile", "the first tile is hidden"),
    replaces=clean.softmax,
)
def first_tile_hidden(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    if scores.shape[-1] == 0:
        return clean.softmax(call, scores, do)
    dead = scores.isneginf().all(dim=-1, keepdim=True)
    running = running_top(scores).masked_fill(dead, 0.0)
    raised = torch.exp(scores - running) * torch.exp(running - clean.top(call, scores))
    return raised / raised.sum(dim=-1, keepdim=True).masked_fill(dead, 1.0)


@fault(
    "Keys are padded with zeros to whole tiles, and the padding is not hidden: each adds exp(0).",
    breaks="accuracy/output-is-within-the-bound",
    naive="SH",
    real="https://github.com/flashinfer-ai/flashinfer/pull/5090",
    replaces=clean.total,
)
def padded_keys_counted(call: Call, raised: Tensor, top: Tensor) -> Tensor:
    total = clean.total(call, raised, top)
    if call.is_causal or call.attn_mask is not None:
        return total
    return total + -call.kv_len % TILE_K * torch.exp(-top)


@fault(
    "The causal loop over keys ends at the first row of a query tile instead of the last: keys are missed.",
    breaks="masks/causal-equals-its-mask",
    naive="SH",
    real="https://github.com/ROCm/rocMLIR/pull/2165",
    when=("is_causal", "more keys than a tile"),
    replaces=clean.causal,
)
def causal_loop_ends_early(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    first_row = torch.arange(call.q_len)[:, None] // TILE_Q * TILE_Q
    return clean.causal(call) & (torch.arange(call.kv_len) < first_row + TILE_K)


@fault(
    "Keys and values are read as contiguous, whatever their strides.",
    breaks="memory/strided-equals-contiguous",
    naive="PATH",
    real="https://github.com/pytorch/pytorch/issues/112577",
)
def strides_not_read(call: Call) -> Tensor:
    return clean.attention(call.but(key=memory_in_order(call.key), value=memory_in_order(call.value)))


@fault(
    "The backward pass reads the gradient of the output as contiguous, whatever its strides.",
    breaks="gradients/cotangent-layout-changes-nothing",
    naive="GR",
    real="https://github.com/pytorch/pytorch/issues/133671",
    when=("gradients", "a transposed gradient of the output"),
    replaces=clean.write,
)
def strides_of_gradient_not_read(call: Call, output: Tensor) -> Tensor:
    return Bent.apply(clean.write(call, output), memory_in_order)


class WithoutDelta(torch.autograd.Function):
    """Weights whose backward pass is P dP."""

    @staticmethod
    def forward(ctx: Any, _scores: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return weights.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.saved_tensors[0], None


@fault(
    "The backward pass of the softmax is P dP: the sum over the row is not taken away.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    real="https://github.com/wkcn/mobula/issues/3",
    replaces=clean.softmax,
)
def backward_without_delta(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return WithoutDelta.apply(scores, clean.softmax(call, scores.detach(), do))


@fault(
    "Gradients of keys and values are those of the last query head of a group, not the group's sum.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    real="https://github.com/marin-community/levanter/pull/449",
    replaces=clean.group,
)
def gradient_of_last_head_of_group(call: Call, x: Tensor) -> Tensor:
    last = torch.arange(call.heads) % call.group == call.group - 1
    return Bent.apply(clean.group(call, x), lambda gradient: gradient * last[:, None, None])


@fault(
    "Each tile of keys overwrites the gradient of the query instead of adding to it.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("gradients", "more keys than a tile"),
    replaces=clean.score,
)
def gradient_of_query_overwritten(call: Call, key: Tensor, scale: float) -> Tensor:
    last = max(call.kv_len - 1, 0) // TILE_K * TILE_K
    earlier = call.query.detach() @ key[:, :, :last].mT
    return torch.cat([earlier, call.query @ key[:, :, last:].mT], dim=-1) * scale


@fault(
    "The backward pass draws its dropout anew instead of that of the forward pass.",
    breaks="dropout/the-gradient-uses-the-same-pattern",
    naive="GR",
    real="https://github.com/Dao-AILab/flash-attention/issues/1251",
    when=("gradients", "dropout"),
    replaces=clean.drop,
)
def backward_draws_dropout_anew(call: Call, weights: Tensor) -> Tensor:
    if not (call.dropout_p and weights.requires_grad):
        return clean.drop(call, weights)
    forward, backward = clean.drop(call, weights).detach(), clean.drop(call, weights)
    return forward + (backward - backward.detach())


@fault(
    "A window of so many keys is handed on as so many to the left: one key too many.",
    breaks="windows/a-key-one-step-outside-does-not-matter",
    naive="T",
    real="https://github.com/huggingface/transformers/issues/39408",
    features=("window",),
    replaces=clean.window,
)
def window_one_wider(call: Call) -> Tensor | None:
    if call.window is None or call.window[0] is None:
        return clean.window(call)
    left, right = call.window
    return clean.window(call.but(window=(left + 1, right)))


@fault(
    "A side of the window that is 0 counts as not given: unbounded.",
    breaks="windows/a-key-one-step-outside-does-not-matter",
    naive="SV",
    features=("window",),
    replaces=clean.window,
)
def window_of_zero_unbounded(call: Call) -> Tensor | None:
    if call.window is None:
        return None
    return clean.window(call.but(window=tuple(side or None for side in call.window)))


@fault(
    "The scale multiplies the sinks too.",
    breaks="features/a-sink-takes-its-share",
    naive="T",
    real="https://github.com/ROCm/rocm-libraries/pull/12229",
    features=("sinks",),
)
def sinks_scaled(call: Call) -> Tensor:
    return clean.attention(call if call.sinks is None else call.but(sinks=call.sinks * clean.scale(call)))


@fault(
    "The log-sum-exp shifts by the largest score of the keys only: a far larger sink overflows.",
    breaks="features/log-sum-exp-is-within-the-bound",
    naive="SV",
    real="https://github.com/Dao-AILab/flash-attention/pull/2752",
    when=("a sink far above the scores", "return_lse"),
    features=("sinks", "return_lse"),
    replaces=clean.lse,
)
def lse_overflows_on_sink(call: Call, scores: Tensor) -> Tensor:
    if call.sinks is None:
        return clean.lse(call, scores)
    shift = clean.top(call.but(sinks=None), scores)
    summed = torch.exp(scores - shift).sum(dim=-1, keepdim=True)
    return (shift + torch.log(summed + torch.exp(clean.sink_column(call, scores) - shift))).squeeze(-1)


@fault(
    "The log-sum-exp adds log2 of the sum to the natural maximum.",
    breaks="features/log-sum-exp-is-within-the-bound",
    naive="T",
    real="https://github.com/intel/auto-round/pull/1991",
    features=("return_lse",),
    replaces=clean.lse,
)
def lse_of_two_bases(call: Call, scores: Tensor) -> Tensor:
    top = clean.top(call, scores).squeeze(-1)
    return top + (clean.lse(call, scores) - top) / math.log(2)


@fault(
    "After one call without dropout, no call drops anything.",
    breaks="dropout/the-rate-is-kept",
    naive="NO",
    real="https://github.com/NVIDIA/Megatron-LM/pull/411",
)
def dropout_off_for_good(call: Call, memory: dict[str, bool]) -> Tensor:
    memory["off"] = memory.get("off", False) or call.dropout_p == 0
    return clean.attention(call.but(dropout_p=0.0) if memory["off"] else call)


@fault(
    "The plane of the window is kept by the lengths alone: another window gets the first one's.",
    breaks="windows/a-key-one-step-outside-does-not-matter",
    naive="NO",
    features=("window",),
    replaces=clean.window,
)
def window_kept_by_lengths(call: Call, memory: dict[tuple[int, int], Tensor]) -> Tensor | None:
    if call.window is None:
        return None
    return memory.setdefault((call.q_len, call.kv_len), clean.window(call))


def each_alone(call: Call, bounds: Iterable[tuple[slice, slice]]) -> Tensor:
    """Attention of tokens (total, heads, dim), for each slice of queries over its slice of keys."""
    output = call.value.new_zeros(*call.query.shape[:2], call.value.shape[2])
    for queries, keys in bounds:
        parts = {"query": call.query[queries], "key": call.key[keys], "value": call.value[keys]}
        one = call.but(**{name: x.transpose(0, 1)[None] for name, x in parts.items()}, enable_gqa=True)
        output[queries] = clean.attention(one)[0].transpose(0, 1)
    return output


@fault(
    "cu_seqlens are not looked at: tokens of all sequences see each other.",
    breaks="ragged/neighbours-in-a-pack-do-not-matter",
    naive="T",
    real="https://github.com/Tencent-Hunyuan/HunyuanVideo/pull/310",
    declares={"layout": "thd"},
    features=("cu_seqlens_q", "cu_seqlens_k"),
    without=("attn_mask", "dropout_p"),
)
def sequences_see_each_other(call: Call) -> Tensor:
    return each_alone(call, [(slice(None), slice(None))])


@fault(
    "Keys are cut where cu_seqlens_q says instead of cu_seqlens_k.",
    breaks="ragged/each-sequence-of-a-pack-is-what-it-is-alone",
    naive="SH",
    declares={"layout": "thd"},
    features=("cu_seqlens_q", "cu_seqlens_k"),
    without=("attn_mask", "dropout_p"),
)
def keys_cut_like_queries(call: Call) -> Tensor:
    starts = call.cu_seqlens_q.tolist()
    cuts = [slice(start, end) for start, end in itertools.pairwise(starts)]
    return each_alone(call, zip(cuts, cuts, strict=True))
