"""What passed for right when a reviewer looked for it, and when a thirteenth blind sample was judged.

Most of it shows where two things meet that no case had at once: a feature and dropout, a wide head and several tiles, a
path of its own and a gradient.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tests.faults import clean, fault
from tests.faults.broadcast import shape_of_mask, with_mask
from tests.faults.calls import PACKS, Call
from tests.faults.packs import attention, spans

Memory = dict[Any, Any]
REAL_SIZES = "accuracy/sizes-of-real-models-are-no-exception"
BESIDE_FEATURES = "dropout/no-feature-keeps-dropout-away"
CARRIED = "paths/every-call-carries-gradients-or-none-does"
WIDE_WINDOWS = "windows/a-window-of-several-blocks-sees-its-keys"


def hidden(call: Call, keys: Tensor) -> Any:
    """The right answer, were these slots (q_len or 1, kv_len) hidden too."""

    def compose(call: Call, *planes: Tensor | None) -> Tensor:
        kept = clean.compose(call, *planes)
        return ~keys if kept is None else kept & ~keys

    return clean.attention(call, compose=compose)


# Sizes


@fault(
    "In heads of 128 dims and more the second tile of queries does not see the second tile of keys.",
    breaks=REAL_SIZES,
    naive="SH",
    when=("head_dim >= 128", "q_len > 64", "kv_len > 64"),
)
def second_tiles_of_wide_heads(call: Call) -> Any:
    if call.head_dim < 128:
        return clean.attention(call)
    return hidden(call, (torch.arange(call.q_len)[:, None] >= 64) & (torch.arange(call.kv_len) >= 64))


@fault(
    "Over more than 1024 keys of 64 dims and more splits hold 256 keys, and their number is rounded down.",
    breaks=REAL_SIZES,
    naive="SH",
    when=("kv_len > 1024", "head_dim >= 64"),
)
def splits_rounded_down(call: Call) -> Any:
    if call.kv_len <= 1024 or call.head_dim < 64:
        return clean.attention(call)
    return hidden(call, (torch.arange(call.kv_len) >= call.kv_len // 256 * 256)[None])


@fault(
    "In decoding the heads of a group stand in for rows of a tile, which has 16: the others come back as zeros.",
    breaks=REAL_SIZES,
    naive="SH",
    when=("q_len = 1", "group > 16"),
)
def tile_of_sixteen_heads(call: Call) -> Any:
    output: Tensor = clean.attention(call)
    if call.q_len > 1 or call.group <= 16:
        return output
    beyond = torch.arange(call.heads) % call.group >= 16
    return output.masked_fill(beyond[:, None, None], 0.0)


@fault(
    "The last block of a window of several blocks is left out: their number is rounded down.",
    breaks=WIDE_WINDOWS,
    naive="SH",
    when=("window > 64",),
    features=("window",),
)
def blocks_of_a_window_rounded_down(call: Call) -> Any:
    if call.window is None or call.window[0] is None:
        return clean.attention(call)
    reach = max(1, call.window[0] // 64)
    blocks = torch.arange(call.q_len)[:, None] // 64 - torch.arange(call.kv_len) // 64
    return hidden(call, blocks > reach)


# Dropout


@fault(
    "Dropout is left out beside a sink.",
    breaks=BESIDE_FEATURES,
    naive="PATH",
    when=("dropout_p", "sinks"),
    features=("sinks",),
)
def no_dropout_beside_sinks(call: Call) -> Any:
    return clean.attention(call if call.sinks is None else call.but(dropout_p=0.0))


@fault(
    "Dropout is left out where the log-sum-exp is asked for.",
    breaks=BESIDE_FEATURES,
    naive="PATH",
    when=("dropout_p", "return_lse"),
    features=("return_lse",),
)
def no_dropout_beside_a_log_sum_exp(call: Call) -> Any:
    return clean.attention(call.but(dropout_p=0.0) if call.return_lse else call)


@fault(
    "Weights that are kept are never more than doubled: at rates above a half they are too small.",
    breaks="dropout/a-weight-is-dropped-or-scaled-up",
    naive="PATH",
    when=("dropout_p > 0.5",),
    replaces=clean.drop,
)
def never_more_than_doubled(call: Call, weights: Tensor) -> Tensor:
    dropped = clean.drop(call, weights)
    return dropped * min(1.0, 2.0 * (1.0 - call.dropout_p))


@fault(
    "The numbers of a row begin 64 after those of the row before, however long rows are: patterns repeat.",
    breaks="dropout/weights-are-dropped-one-by-one",
    naive="NO",
    when=("dropout_p", "kv_len > 64"),
    replaces=clean.drop,
)
def rows_begin_sixty_four_apart(call: Call, weights: Tensor) -> Tensor:
    if not call.dropout_p:
        return weights
    *outer, rows, keys = weights.shape
    numbers = torch.rand(*outer, rows * 64 + keys)
    kept = numbers.unfold(-1, keys, 64)[..., :rows, :] >= call.dropout_p
    return weights * kept.to(weights.dtype) / (1.0 - call.dropout_p) if call.dropout_p < 1 else weights * 0


# Gradients and what is kept


@fault(
    "Decoding runs without gradients.",
    breaks=CARRIED,
    naive="GR",
    when=("backward", "q_len = 1"),
)
def no_gradient_in_decoding(call: Call) -> Any:
    with torch.set_grad_enabled(torch.is_grad_enabled() and call.q_len > 1):
        return clean.attention(call)


@fault(
    "Beside a boolean mask the call runs without gradients.",
    breaks=CARRIED,
    naive="GR",
    when=("backward", "boolean mask"),
)
def no_gradient_beside_a_mask(call: Call) -> Any:
    with torch.set_grad_enabled(torch.is_grad_enabled() and call.mask is None):
        return clean.attention(call)


class _OutputAsAttribute(torch.autograd.Function):
    """Weights times values; the output is kept for backward without autograd's knowing."""

    @staticmethod
    def forward(context: Any, scores: Tensor, value: Tensor) -> Tensor:
        weights = torch.softmax(scores, dim=-1)
        context.save_for_backward(weights, value)
        context.output = output = weights @ value
        return output

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (cotangent,), (weights, value) = gradients, context.saved_tensors
        product = (cotangent * context.output).sum(dim=-1, keepdim=True)
        return weights * (cotangent @ value.mT - product), weights.mT @ cotangent


@fault(
    "The output is kept as an attribute for backward: a residual that is added to it in place is read there.",
    breaks="state/an-input-changed-before-backward-is-noticed",
    naive="GR",
    when=("backward", "output changed in place"),
    dtypes=("float32",),
    without=("attn_mask", "dropout_p", "is_causal", "enable_gqa"),
)
def output_kept_as_attribute(call: Call) -> Tensor:
    scores = call.query @ call.key.mT * clean.scale(call)
    output: Tensor = _OutputAsAttribute.apply(scores, call.value)  # type: ignore[no-untyped-call]
    return output


@fault(
    "Gradients are switched on again after the maximum, whether they had been on or not.",
    breaks="state/the-library-is-left-alone",
    naive="NO",
    when=("torch.no_grad",),
    replaces=clean.top,
)
def gradients_switched_on(call: Call, scores: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    highest = clean.top(call, scores)
    torch.set_grad_enabled(True)
    return highest


@fault(
    "The log-sum-exp is written into a buffer that is kept for each shape: the next call overwrites it.",
    breaks="memory/results-outlive-the-next-call",
    naive="NO",
    when=("return_lse", "second call", "no gradients"),
    features=("return_lse",),
)
def buffer_of_log_sum_exps(call: Call, memory: Memory) -> Any:
    answer = clean.attention(call)
    if not call.return_lse or answer[1].requires_grad:
        return answer
    shape = (*answer[1].shape, answer[1].dtype)
    buffer = memory.setdefault(shape, torch.empty_like(answer[1]))
    return answer[0], buffer.copy_(answer[1])


@fault(
    "Where the log-sum-exp is asked for, query and key are taken out of the graph.",
    breaks="paths/asking-for-more-changes-no-gradient",
    naive="GR",
    when=("backward", "return_lse"),
    features=("return_lse",),
)
def keys_detached_beside_a_log_sum_exp(call: Call) -> Any:
    return clean.attention(call.but(key=call.key.detach()) if call.return_lse else call)


# Features


@fault(
    "The slopes that are given are not read: they are made anew from the number of heads.",
    breaks="features/alibi-lowers-scores-by-distance",
    naive="NO",
    when=("alibi_slopes of other heads",),
    features=("alibi_slopes",),
)
def slopes_made_anew(call: Call) -> Any:
    from headcheck.reference.positions import alibi_slopes

    if call.alibi_slopes is None:
        return clean.attention(call)
    usual = alibi_slopes(call.heads)
    return clean.attention(call.but(alibi_slopes=usual.half().float()))


@fault(
    "The bias of ALiBi is kept for each shape: the slopes of the first call stand for all.",
    breaks="features/alibi-lowers-scores-by-distance",
    naive="NO",
    when=("alibi_slopes", "second call"),
    features=("alibi_slopes",),
)
def slopes_of_the_first_call(call: Call, memory: Memory) -> Any:
    if call.alibi_slopes is None:
        return clean.attention(call)
    kept = memory.setdefault((call.heads, call.q_len, call.kv_len, call.dtype), call.alibi_slopes)
    return clean.attention(call.but(alibi_slopes=kept))


@fault(
    "A cap of 30 and more is taken for none.",
    breaks="features/a-softcap-caps-the-scores",
    naive="NO",
    when=("softcap >= 30", "large scores"),
    features=("softcap",),
)
def high_caps_taken_for_none(call: Call) -> Any:
    return clean.attention(call.but(softcap=None) if call.softcap and call.softcap >= 30 else call)


@fault(
    "The output is added up in the dtype of the query before it is divided: in float16 sums of large values overflow.",
    breaks="accuracy/finite-numbers-give-finite-numbers",
    naive="SV",
    when=("float16", "values of thousands"),
    without=("dropout_p",),
)
def sums_in_half(call: Call) -> Tensor:
    def raised(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
        return torch.exp(scores - clean.top(call, scores))

    def summed(call: Call, weights: Tensor, value: Tensor) -> Tensor:
        added: Tensor = (weights @ value).to(given)
        total = weights.sum(dim=-1, keepdim=True).to(given)
        return added / total.masked_fill(total == 0, 1.0)

    given = call.dtype
    output: Tensor = clean.attention(call, softmax=raised, combine=summed)
    return output


@fault(
    "Keys are padded to the bound that the caller gives, and where it is above the longest sequence the padding counts.",
    breaks="ragged/a-bound-above-the-longest-changes-nothing",
    naive="SH",
    when=("sequences of several lengths", "max_seqlen above the longest"),
    features=(*PACKS, "max_seqlen_k"),
    without=("attn_mask", "dropout_p", "is_causal"),
    declares={"layout": "thd", "empty_rows": "zeros"},
)
def padded_to_the_bound(call: Call) -> Tensor:
    def one(alone: Call) -> Any:
        padding = (0, 0, 0, max(0, (call.max_seqlen_k or 0) - longest))
        padded = {name: pad(getattr(alone, name), padding) for name in ("key", "value")}
        return clean.attention(alone.but(**padded))

    longest = max((b - a for a, b in spans(call.cu_seqlens_k)), default=0)
    return attention(call, one=one)


@fault(
    "Under is_causal, rows from the 256th on see the first 256 keys only.",
    breaks="sizes/long-causal-sequences-are-no-exception",
    naive="SH",
    when=("is_causal", "q_len > 256"),
    replaces=clean.causal,
)
def causal_blocks_end_at_256(call: Call) -> Tensor | None:
    seen = clean.causal(call)
    beyond = (torch.arange(call.q_len) < 256)[:, None] | (torch.arange(call.kv_len) < 256)
    return seen if seen is None else seen & beyond.to(seen.device)


@fault(
    "bfloat16 goes through float16 on its way to the product: beyond 65,504 it is infinite, far below one it is rough.",
    breaks="symmetry/size-may-stand-in-query-or-key",
    naive="SV",
    when=("bfloat16", "a query beyond 65,504"),
    dtypes=("bfloat16",),
    declares={"gradients": False},
)
def bfloat16_through_half(call: Call) -> Any:
    narrow = {name: getattr(call, name).half() for name in ("query", "key")}
    given = clean.read(call)
    return clean.attention(given.but(**{name: each.to(given.dtype) for name, each in narrow.items()})).to(
        call.dtype
    )


@fault(
    "A mask of one sequence and one query is read as that of the first head.",
    breaks="broadcasting/a-mask-of-keys-holds-for-all-queries-of-its-heads",
    naive="SH",
    when=("a mask of each head and all queries", "several sequences", "several queries"),
)
def heads_lost_beside_two_axes_of_one(call: Call) -> Tensor:
    batch, heads, rows, _ = shape_of_mask(call)
    if batch == rows == 1 < heads and call.query.shape[0] > 1 and call.query.shape[2] > 1:
        return with_mask(call, call.attn_mask[..., :1, :, :])
    return clean.attention(call)


@fault(
    "Beside dropout the weights that are returned are divided by 1 - p, and none of them is dropped.",
    breaks="features/weights-beside-dropout-are-those-before-or-after-it",
    naive="PATH",
    when=("dropout_p", "return_weights"),
    features=("return_weights",),
)
def returned_weights_scaled_up(call: Call) -> Any:
    weights: list[Tensor] = []

    def drop(call: Call, before: Tensor) -> Tensor:
        weights.append(before / (1 - call.dropout_p))
        return clean.drop(call, before)

    output = clean.attention(call, drop=drop)
    return (output, weights[0].to(call.dtype)) if call.return_weights else output
