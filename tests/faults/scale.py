"""The factor in front of the scores."""

import math

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import NEVER, Call


@fault(
    "The scores are divided by d, not by its root.",
    breaks="accuracy/default-scale-is-one-over-root-head-dim",
    naive="T",
    replaces=clean.scale,
)
def divided_by_d(call: Call) -> float:
    return 1.0 / call.head_dim if call.scale is None else call.scale


@fault(
    "The default scale is multiplied by the root of d instead of divided.",
    breaks="accuracy/default-scale-is-one-over-root-head-dim",
    real="https://github.com/esceptico/perceiver-io/issues/9",
    naive="T",
    replaces=clean.scale,
)
def multiplied_by_the_root(call: Call) -> float:
    return call.head_dim**0.5 if call.scale is None else call.scale


@fault(
    "The default scale comes from the width of all heads together.",
    breaks="accuracy/default-scale-is-one-over-root-head-dim",
    real="https://github.com/lucidrains/vit-pytorch/issues/65",
    naive="T",
    replaces=clean.scale,
)
def width_of_all_heads(call: Call) -> float:
    return (call.heads * call.head_dim) ** -0.5 if call.scale is None else call.scale


@fault(
    "The default scale comes from the width of the values.",
    breaks="accuracy/default-scale-is-one-over-root-head-dim",
    naive="SH",
    replaces=clean.scale,
)
def width_of_the_values(call: Call) -> float:
    return call.value.shape[-1] ** -0.5 if call.scale is None else call.scale


@fault(
    "The scores are not scaled by default.",
    breaks="accuracy/default-scale-is-one-over-root-head-dim",
    naive="T",
    replaces=clean.scale,
)
def no_default(call: Call) -> float:
    return 1.0 if call.scale is None else call.scale


@fault(
    "The default scale is cut to a whole root: right for 1, 4, 16 and 64.",
    breaks="accuracy/default-scale-is-one-over-root-head-dim",
    naive="SH",
    replaces=clean.scale,
)
def whole_root(call: Call) -> float:
    return 1.0 / math.isqrt(call.head_dim) if call.scale is None else call.scale


@fault(
    "The default scale comes from the width padded to a multiple of 8.",
    breaks="accuracy/default-scale-is-one-over-root-head-dim",
    naive="SH",
    replaces=clean.scale,
)
def padded_width(call: Call) -> float:
    return (-(-call.head_dim // 8) * 8) ** -0.5 if call.scale is None else call.scale


@fault(
    "The default scale is rounded to bfloat16: right for powers of four.",
    breaks="accuracy/default-scale-is-one-over-root-head-dim",
    naive="LP",
    replaces=clean.scale,
)
def default_in_bfloat16(call: Call) -> float:
    scale = clean.scale(call)
    return torch.tensor(scale).bfloat16().item() if call.scale is None else scale


@fault(
    "The default scale is 1/8, the one for width 64.",
    breaks="accuracy/default-scale-is-one-over-root-head-dim",
    naive="SH",
    replaces=clean.scale,
)
def fixed_at_an_eighth(call: Call) -> float:
    return 0.125 if call.scale is None else call.scale


@fault(
    "An explicit scale is ignored.",
    breaks="accuracy/explicit-scale-is-used",
    naive="PATH",
    replaces=clean.scale,
)
def explicit_ignored(call: Call) -> float:
    return call.head_dim**-0.5


@fault(
    "An explicit scale multiplies the default one.",
    breaks="accuracy/explicit-scale-is-used",
    naive="PATH",
    replaces=clean.scale,
)
def explicit_on_top_of_the_default(call: Call) -> float:
    return call.head_dim**-0.5 * (1.0 if call.scale is None else call.scale)


@fault(
    "An explicit scale divides instead of multiplying.",
    breaks="accuracy/explicit-scale-is-used",
    naive="PATH",
    replaces=clean.scale,
)
def explicit_divides(call: Call) -> float:
    return clean.scale(call) if not call.scale else 1.0 / call.scale


@fault(
    "The scale is applied to the query and to the scores.",
    breaks=("accuracy/explicit-scale-is-used", "accuracy/output-is-within-the-bound"),
    naive="T",
)
def applied_twice(call: Call) -> Tensor:
    return clean.attention(call, score=lambda call, key, scale: clean.score(call, key, scale * scale))


@fault(
    "A scale of zero is taken for none: `scale or default`.",
    breaks="accuracy/explicit-scale-is-used",
    naive="SV",
    replaces=clean.scale,
)
def zero_taken_for_none(call: Call) -> float:
    return call.scale or call.head_dim**-0.5


@fault(
    "The root of the scale stands on both factors: a negative scale is NaN.",
    breaks="accuracy/explicit-scale-is-used",
    naive="SV",
)
def root_of_a_negative_scale(call: Call) -> Tensor:
    def score(call: Call, key: Tensor, scale: float) -> Tensor:
        root = torch.tensor(scale, dtype=key.dtype).sqrt()
        return (call.query * root) @ (key * root).mT

    return clean.attention(call, score=score)


@fault(
    "The size of an explicit scale is used and its sign is lost.",
    breaks="accuracy/explicit-scale-is-used",
    naive="SV",
    replaces=clean.scale,
)
def sign_lost(call: Call) -> float:
    return abs(clean.scale(call))


@fault(
    "An explicit scale is ignored in a causal call.",
    breaks=("accuracy/explicit-scale-is-used", "masks/causal-equals-its-mask"),
    naive="PATH",
    when=("causal", "explicit scale"),
    replaces=clean.scale,
)
def explicit_ignored_when_causal(call: Call) -> float:
    return call.head_dim**-0.5 if call.is_causal else clean.scale(call)


@fault(
    "An explicit scale is ignored with grouped heads.",
    breaks=("accuracy/explicit-scale-is-used", "heads/grouped-heads-equal-repeated-heads"),
    naive="PATH",
    when=("grouped heads", "explicit scale"),
    replaces=clean.scale,
)
def explicit_ignored_with_grouped_heads(call: Call) -> float:
    return call.head_dim**-0.5 if call.group > 1 else clean.scale(call)


@fault(
    "The bias is scaled too: it is added before the scale is applied.",
    breaks=("accuracy/the-mask-is-not-scaled", "masks/a-bias-of-log-two-counts-a-key-twice"),
    naive="PATH",
    replaces=clean.bias,
)
def bias_scaled_too(call: Call, scores: Tensor) -> Tensor:
    return scores if call.bias is None else scores + call.bias * abs(clean.scale(call))


@fault(
    "An additive mask is divided by the scale.",
    breaks=("accuracy/the-mask-is-not-scaled", "masks/a-bias-of-log-two-counts-a-key-twice"),
    naive="PATH",
    when=("finite bias", "explicit scale"),
    replaces=clean.bias,
)
def bias_divided_by_an_explicit_scale(call: Call, scores: Tensor) -> Tensor:
    if call.bias is None or not call.scale:
        return clean.bias(call, scores)
    return scores + (call.bias / abs(call.scale)).masked_fill(call.bias == NEVER, NEVER)


@fault(
    "The scale grows with the logarithm of the number of keys.",
    breaks=("accuracy/default-scale-is-one-over-root-head-dim", "masks/padding-equals-truncation"),
    naive="T",
)
def grows_with_the_length(call: Call) -> Tensor:
    longer = math.log(call.kv_len + 1) / math.log(8)
    return clean.attention(call, scale=lambda call: clean.scale(call) * longer)


@fault(
    "The scale is off by one part in ten thousand.",
    breaks=(
        "accuracy/every-rung-of-a-ladder-has-its-weight",
        "accuracy/default-scale-is-one-over-root-head-dim",
    ),
    naive="LP",
    dtypes=("float64", "float32"),
    replaces=clean.scale,
)
def slightly_off(call: Call) -> float:
    return clean.scale(call) * (1.0 + 1e-4)


@fault(
    "The output is off by one part in ten thousand.",
    breaks=("distribution/constant-values-come-back", "accuracy/output-is-within-the-bound"),
    naive="LP",
    dtypes=("float64", "float32"),
    replaces=clean.combine,
)
def output_slightly_off(call: Call, weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value * (1.0 + 1e-4)


@fault(
    "The query is rounded to bfloat16 once it is scaled.",
    breaks="accuracy/output-is-within-the-bound",
    naive="LP",
    dtypes=("float64", "float32"),
    replaces=clean.score,
)
def scaled_query_in_bfloat16(call: Call, key: Tensor, scale: float) -> Tensor:
    return (call.query * scale).bfloat16().to(key.dtype) @ key.mT
