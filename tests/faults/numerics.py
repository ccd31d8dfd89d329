"""Softmax in floating point: the shift, the sums, the types, and what is left out for speed."""

import math

import torch
from torch import Tensor

from tests.faults import blocked, clean, fault
from tests.faults.calls import NEVER, Call

HALF = ("bfloat16", "float16")


@fault(
    "The scores are raised without a shift: they overflow, or all of them underflow.",
    breaks=("accuracy/large-logits-do-no-harm", "symmetry/a-common-score-shift-changes-nothing"),
    naive="SV",
    replaces=clean.top,
)
def no_shift(call: Call, scores: Tensor) -> Tensor:
    return scores.new_zeros(*scores.shape[:-1], 1)


@fault(
    "The shift is the highest score of the whole tensor: a row far below it has no weights left.",
    breaks=("accuracy/large-logits-do-no-harm", "symmetry/queries-do-not-hear-each-other"),
    naive="SV",
    when=("large scores", "a row far below another"),
    replaces=clean.top,
)
def shifted_by_the_tensor_maximum(call: Call, scores: Tensor) -> Tensor:
    return clean.top(call, scores).amax().expand(*scores.shape[:-1], 1)


@fault(
    "The shift is the highest score of the head: a row far below it has no weights left.",
    breaks=("accuracy/large-logits-do-no-harm", "symmetry/queries-do-not-hear-each-other"),
    naive="SV",
    when=("large scores", "a row far below another"),
    replaces=clean.top,
)
def shifted_by_the_head_maximum(call: Call, scores: Tensor) -> Tensor:
    return clean.top(call, scores).amax(dim=-2, keepdim=True).expand(*scores.shape[:-1], 1)


@fault(
    "The shift is the mean score, which the highest one may leave far below.",
    breaks="accuracy/large-logits-do-no-harm",
    naive="SV",
    replaces=clean.top,
)
def shifted_by_the_mean(call: Call, scores: Tensor) -> Tensor:
    visible = scores != NEVER
    total = scores.detach().masked_fill(~visible, 0.0).sum(dim=-1, keepdim=True)
    return total / visible.sum(dim=-1, keepdim=True).clamp(min=1)


@fault(
    "The shift is the bound |q||k|, which lies far above the scores of opposite vectors.",
    breaks="accuracy/large-logits-do-no-harm",
    naive="SV",
)
def shifted_by_a_loose_bound(call: Call) -> Tensor:
    def top(call: Call, scores: Tensor) -> Tensor:
        longest = clean.group(call, call.key).norm(dim=-1, keepdim=True).amax(dim=-2, keepdim=True)
        return (abs(clean.scale(call)) * call.query.norm(dim=-1, keepdim=True) * longest).detach()

    return clean.attention(call, top=top if call.attn_mask is None else clean.top)


@fault(
    "The shift is never below zero: scores that are all very negative lose their weights.",
    breaks=("accuracy/large-logits-do-no-harm", "symmetry/a-common-score-shift-changes-nothing"),
    naive="SV",
    replaces=clean.top,
)
def shift_never_below_zero(call: Call, scores: Tensor) -> Tensor:
    return clean.top(call, scores).clamp(min=0.0)


@fault(
    "Scores are clamped to 60, so that nothing overflows.",
    breaks=("accuracy/large-logits-do-no-harm", "accuracy/output-is-within-the-bound"),
    naive="SV",
    replaces=clean.cap,
)
def scores_clamped(call: Call, scores: Tensor) -> Tensor:
    return scores.clamp(-60.0, 60.0)


@fault(
    "1e-6 is added to the denominator, against a division by zero.",
    breaks=("distribution/weights-sum-to-one", "accuracy/output-is-within-the-bound"),
    naive="LP",
    dtypes=("float64", "float32"),
    replaces=clean.total,
)
def epsilon_in_the_denominator(call: Call, raised: Tensor, top: Tensor) -> Tensor:
    return clean.total(call, raised, top) + 1e-6


@fault(
    "Weights below 1e-4 are cut off: many light keys together are lost.",
    breaks=("accuracy/light-keys-add-up", "accuracy/every-rung-of-a-ladder-has-its-weight"),
    naive="SV",
    replaces=clean.drop,
)
def light_weights_cut_off(call: Call, weights: Tensor) -> Tensor:
    return clean.drop(call, weights.masked_fill(weights < 1e-4, 0.0))


@fault(
    "Keys that score 12 below the best are skipped.",
    breaks=("accuracy/every-rung-of-a-ladder-has-its-weight", "accuracy/light-keys-add-up"),
    naive="SV",
    replaces=clean.exponential,
)
def far_keys_skipped(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    return clean.exponential(call, scores, top).masked_fill(scores < top - 12.0, 0.0)


@fault(
    "Only the 64 best keys of a row are kept.",
    breaks=(
        "accuracy/equal-scores-count-every-key",
        "masks/padding-equals-truncation",
        "accuracy/output-is-within-the-bound",
    ),
    naive="SH",
    when=("kv_len > 64",),
    replaces=clean.hide,
)
def best_keys_only(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    scores = clean.hide(call, scores, kept)
    if scores.shape[-1] <= 64:
        return scores
    return scores.masked_fill(scores < scores.topk(64, dim=-1).values[..., -1:], NEVER)


@fault(
    "Keys beyond the hundredth are cut off.",
    breaks=("accuracy/equal-scores-count-every-key", "distribution/equal-scores-give-the-mean"),
    naive="SH",
)
def keys_beyond_a_hundred_cut_off(call: Call) -> Tensor:
    return clean.attention(call, causal=lambda call: near(call, clean.causal(call)))


def near(call: Call, kept: Tensor | None) -> Tensor:
    first = torch.arange(call.kv_len) < 100
    return first if kept is None else first & kept


@fault(
    "Base 2 without log2(e) in the scale: the softmax is too flat.",
    breaks=("accuracy/output-is-within-the-bound", "accuracy/every-rung-of-a-ladder-has-its-weight"),
    real="flashinfer 23413e00a (#787)",
    naive="T",
    replaces=clean.exponential,
)
def base_two(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    return torch.exp2(scores - top)


@fault(
    "Base 2, and log2(e) multiplies the scores but not the bias.",
    breaks="masks/a-bias-of-log-two-counts-a-key-twice",
    naive="PATH",
    when=("a finite bias",),
)
def base_two_forgets_the_bias(call: Call) -> Tensor:
    return clean.attention(
        call,
        score=lambda call, key, scale: clean.score(call, key, scale * math.log2(math.e)),
        exponential=lambda call, scores, top: torch.exp2(scores - top),
    )


@fault(
    "The exponential is (1 + x/256)^256: good for normal inputs, 1 % off at x = -2.",
    breaks=("accuracy/every-rung-of-a-ladder-has-its-weight", "accuracy/output-is-within-the-bound"),
    naive="SV",
    replaces=clean.exponential,
)
def power_of_a_small_step(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    return (1.0 + (scores - top) / 256.0).clamp(min=0.0) ** 256


@fault(
    "The exponential is drawn in straight lines between powers of two.",
    breaks=("accuracy/every-rung-of-a-ladder-has-its-weight", "accuracy/output-is-within-the-bound"),
    naive="T",
    replaces=clean.exponential,
)
def straight_lines(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    x = (scores - top).clamp(min=-1e4) * math.log2(math.e)
    whole = torch.floor(x).detach()
    return torch.exp2(whole) * (1.0 + x - whole)


@fault(
    "The exponential is off by one part in ten thousand below -1.",
    breaks="accuracy/every-rung-of-a-ladder-has-its-weight",
    naive="LP",
    dtypes=("float64", "float32"),
    replaces=clean.exponential,
)
def exponential_slightly_off(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    raised = clean.exponential(call, scores, top)
    return torch.where(scores < top - 1.0, raised * (1.0 + 1e-4), raised)


@fault(
    "Doubles are computed in single precision.",
    breaks="dtypes/doubles-are-computed-as-doubles",
    naive="LP",
    dtypes=("float64",),
    replaces=clean.read,
)
def doubles_in_single_precision(call: Call) -> Call:
    bias = call.attn_mask if call.bias is None else call.bias.float()
    return call.but(query=call.query.float(), key=call.key.float(), value=call.value.float(), attn_mask=bias)


@fault(
    "The weights of float32 inputs are rounded to bfloat16.",
    breaks="accuracy/output-is-within-the-bound",
    naive="LP",
    dtypes=("float64", "float32"),
)
def weights_in_bfloat16(call: Call) -> Tensor:
    def drop(call: Call, weights: Tensor) -> Tensor:
        return clean.drop(call, weights.bfloat16().to(weights.dtype))

    return clean.attention(call, drop=drop)


@fault(
    "The scores of float32 inputs pass through float16: they overflow beyond 65504.",
    breaks=("accuracy/output-is-within-the-bound", "accuracy/large-logits-do-no-harm"),
    naive="LP",
    dtypes=("float64", "float32"),
    replaces=clean.score,
)
def scores_through_float16(call: Call, key: Tensor, scale: float) -> Tensor:
    return clean.score(call, key, scale).half().to(key.dtype)


@fault(
    "In half precision q.k is stored in float16 before it is scaled: it overflows where the score would not.",
    breaks=("accuracy/large-logits-do-no-harm", "accuracy/output-is-within-the-bound"),
    real="https://github.com/philipturner/metal-flash-attention/issues/8",
    naive="SV",
    dtypes=HALF,
    when=("half precision", "q.k > 65504"),
    replaces=clean.score,
)
def unscaled_products_in_float16(call: Call, key: Tensor, scale: float) -> Tensor:
    products = call.query @ key.mT
    return (products if call.dtype == torch.float64 else products.half().to(key.dtype)) * scale


@fault(
    "The bias of float32 inputs is rounded to bfloat16.",
    breaks="masks/a-bias-of-log-two-counts-a-key-twice",
    real="https://github.com/allenai/OLMo/issues/323",
    naive="LP",
    dtypes=("float64", "float32"),
    replaces=clean.bias,
)
def bias_in_bfloat16(call: Call, scores: Tensor) -> Tensor:
    return scores if call.bias is None else scores + call.bias.bfloat16().to(scores.dtype)


@fault(
    "In half precision the denominator is summed in the type of the inputs: light keys are lost.",
    breaks="accuracy/light-keys-add-up",
    naive="LP",
    dtypes=HALF,
    when=("half precision", "many light keys"),
)
def denominator_summed_in_half_precision(call: Call) -> Tensor:
    def add_total(total: Tensor, factor: Tensor, raised: Tensor) -> Tensor:
        return blocked.add_total(total, factor, raised).to(call.dtype).to(total.dtype)

    return blocked.attention(call, block=4, add_total=add_total)


@fault(
    "In half precision the output is summed in the type of the inputs: light keys are lost.",
    breaks="accuracy/light-keys-add-up",
    real="https://github.com/ikawrakow/ik_llama.cpp/issues/1196",
    naive="LP",
    dtypes=HALF,
    when=("half precision", "many light keys"),
)
def output_summed_in_half_precision(call: Call) -> Tensor:
    def add_output(output: Tensor, factor: Tensor, tile_output: Tensor) -> Tensor:
        return blocked.add_output(output, factor, tile_output).to(call.dtype).to(output.dtype)

    return blocked.attention(call, block=4, add_output=add_output)


@fault(
    "The maximum is raised only when it grows by more than 12, and the weights are stored in float16, which "
    "e^12 overflows.",
    breaks=("accuracy/every-rung-of-a-ladder-has-its-weight", "accuracy/output-is-within-the-bound"),
    real="flash-attention 2409214a (#2717)",
    naive="SV",
    when=("half precision", "scores that rise by 11 to 12 from tile to tile"),
    dtypes=HALF,
)
def lazy_maximum_overflows(call: Call) -> Tensor:
    def raise_top(top: Tensor, scores: Tensor) -> Tensor:
        highest = blocked.raise_top(top, scores)
        return torch.where(highest > top + 12.0, highest, top)

    def exponential(scores: Tensor, top: Tensor) -> Tensor:
        raised = blocked.exponential(scores, top)
        return raised.half().to(raised.dtype) if call.dtype.itemsize == 2 else raised

    return blocked.attention(call, raise_top=raise_top, exponential=exponential)


@fault(
    "NaN among the weights is replaced by zero, dead rows apart: what went wrong before stays hidden.",
    breaks="accuracy/nan-in-a-query-does-not-vanish",
    naive="SV",
    replaces=clean.drop,
)
def nan_swallowed(call: Call, weights: Tensor) -> Tensor:
    return clean.drop(call, weights.nan_to_num(0.0))


@fault(
    "NaN in the output is replaced by zero.",
    breaks=("accuracy/nan-in-a-visible-value-does-not-vanish", "accuracy/nan-in-a-query-does-not-vanish"),
    naive="SV",
    replaces=clean.combine,
)
def nan_in_the_output_swallowed(call: Call, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ value).nan_to_num(0.0)


@fault(
    "The mean key is subtracted from the keys, masked ones included: a huge masked key drowns the others.",
    breaks="masks/masked-keys-do-not-matter",
    naive="SV",
    when=("mask", "a huge masked key"),
    replaces=clean.score,
)
def centred_on_masked_keys(call: Call, key: Tensor, scale: float) -> Tensor:
    mean = key.mean(dim=-2, keepdim=True) if call.kv_len else 0.0
    return clean.score(call, key - mean, scale)


@fault(
    "The mean value is subtracted from the values and not added again.",
    breaks=("distribution/constant-values-come-back", "accuracy/output-is-within-the-bound"),
    naive="T",
    replaces=clean.combine,
)
def mean_value_lost(call: Call, weights: Tensor, value: Tensor) -> Tensor:
    return weights @ (value - value.mean(dim=-2, keepdim=True))


@fault(
    "Keys are stored in eight bits.",
    breaks="accuracy/output-is-within-the-bound",
    naive="T",
    replaces=clean.score,
)
def keys_in_eight_bits(call: Call, key: Tensor, scale: float) -> Tensor:
    step = key.detach().abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 127.0
    rounded = key + ((key / step).round() * step - key).detach()
    return clean.score(call, rounded, scale)


@fault(
    "A sigmoid of each score, normalised over the row, in place of the softmax.",
    breaks=("symmetry/a-common-score-shift-changes-nothing", "accuracy/output-is-within-the-bound"),
    naive="T",
    replaces=clean.exponential,
)
def sigmoid(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    return torch.sigmoid(scores)


@fault(
    "The weights are rounded to whole multiples of 2^-10.",
    breaks=("accuracy/light-keys-add-up", "distribution/weights-sum-to-one"),
    naive="LP",
    replaces=clean.drop,
)
def weights_in_steps(call: Call, weights: Tensor) -> Tensor:
    return clean.drop(call, weights + ((weights * 1024).round() / 1024 - weights).detach())


@fault(
    "Weights that tie for the maximum are all given to the first of them.",
    breaks="distribution/equal-scores-give-the-mean",
    naive="SV",
    replaces=clean.exponential,
)
def ties_go_to_the_first(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    tied = (scores == top) & ((scores == top).cumsum(dim=-1) > 1)
    return clean.exponential(call, scores, top).masked_fill(tied, 0.0)


@fault(
    "Beyond 1024 keys the weights are summed in halves that share the maximum of the first.",
    breaks="accuracy/a-moving-maximum-rescales-all",
    naive="LP",
    when=("kv_len > 1024", "scores that rise by more than 88"),
    replaces=clean.top,
)
def long_rows_share_the_first_maximum(call: Call, scores: Tensor) -> Tensor:
    return clean.top(call, scores[..., :512] if call.kv_len > 1024 else scores)
