"""Declared features: window, softcap, sinks, ALiBi, log-sum-exp."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import NEVER, Call

WINDOW_IS_A_MASK = "features/a-window-equals-its-band"
SOFTCAP_IS_RIGHT = "features/a-softcap-caps-the-scores"
SINKS_ARE_KEYS = "features/a-sink-takes-its-share"
ALIBI_IS_A_BIAS = "features/alibi-equals-its-bias"
LOG_SUM_EXP_IS_RIGHT = "features/log-sum-exp-is-within-the-bound"

WINDOW, SOFTCAP, SINKS = ("window",), ("softcap",), ("sinks",)
ALIBI, LOG_SUM_EXP = ("alibi_slopes",), ("return_lse",)


# Window


def between(call: Call, left: float, right: float) -> Tensor:
    return (call.distance() >= -left) & (call.distance() <= right)


def sides(call: Call) -> tuple[float, float]:
    left, right = (math.inf if side is None else side for side in call.window or (None, None))
    return left, right


@fault(
    "The window holds `left` keys, the query's own among them: one too few.",
    breaks=("features/a-window-sees-exactly-its-keys", WINDOW_IS_A_MASK),
    real="https://github.com/huggingface/transformers/issues/39408",
    naive="PATH",
    replaces=clean.window,
    features=WINDOW,
)
def window_counts_itself(call: Call) -> Tensor:
    left, right = sides(call)
    return between(call, left - 1, right)


@fault(
    "The window is one key too wide to the left.",
    breaks=("features/a-window-sees-exactly-its-keys", WINDOW_IS_A_MASK),
    real="https://github.com/huggingface/transformers/issues/29623",
    naive="PATH",
    replaces=clean.window,
    features=WINDOW,
)
def window_one_too_wide(call: Call) -> Tensor:
    left, right = sides(call)
    return between(call, left + 1, right)


@fault(
    "The window is ignored unless a mask is given.",
    breaks=WINDOW_IS_A_MASK,
    real="https://github.com/jax-ml/jax/issues/32300",
    naive="PATH",
    when=("window", "no mask"),
    replaces=clean.window,
    features=WINDOW,
)
def window_ignored_without_a_mask(call: Call) -> Tensor | None:
    return None if call.attn_mask is None else clean.window(call)


@fault(
    "The window is ignored when a mask is given.",
    breaks=(
        "features/a-window-sees-exactly-its-keys",
        "features/a-window-equals-its-band",
        "accuracy/output-is-within-the-bound",
    ),
    naive="PATH",
    when=("window", "mask"),
    replaces=clean.window,
    features=WINDOW,
)
def window_ignored_with_a_mask(call: Call) -> Tensor | None:
    return clean.window(call) if call.attn_mask is None else None


@fault(
    "A right side of zero is taken for no bound: the whole future is visible.",
    breaks=("features/a-window-sees-exactly-its-keys", WINDOW_IS_A_MASK),
    real="https://github.com/jax-ml/jax/issues/39576",
    naive="SV",
    replaces=clean.window,
    features=WINDOW,
)
def window_right_side_of_zero(call: Call) -> Tensor:
    left, right = sides(call)
    return between(call, left, right or math.inf)


@fault(
    "A left side of zero is taken for no bound.",
    breaks=("features/a-window-sees-exactly-its-keys", WINDOW_IS_A_MASK),
    real="https://github.com/unslothai/unsloth/issues/8253",
    naive="SV",
    replaces=clean.window,
    features=WINDOW,
)
def window_left_side_of_zero(call: Call) -> Tensor:
    left, right = sides(call)
    return between(call, left or math.inf, right)


@fault(
    "The sides of the window are swapped.",
    breaks=WINDOW_IS_A_MASK,
    naive="PATH",
    replaces=clean.window,
    features=WINDOW,
)
def window_sides_swapped(call: Call) -> Tensor:
    left, right = sides(call)
    return between(call, right, left)


@fault(
    "The window is symmetric: its right side is its left one.",
    breaks=WINDOW_IS_A_MASK,
    naive="PATH",
    replaces=clean.window,
    features=WINDOW,
)
def window_symmetric(call: Call) -> Tensor:
    left, _ = sides(call)
    return between(call, left, left)


@fault(
    "The window follows the bottom-right diagonal when the lengths differ.",
    breaks=WINDOW_IS_A_MASK,
    naive="SH",
    when=("window", "q_len != kv_len"),
    replaces=clean.window,
    features=WINDOW,
)
def window_bottom_right(call: Call) -> Tensor:
    left, right = sides(call)
    distance = call.distance() - (call.kv_len - call.q_len)
    return (distance >= -left) & (distance <= right)


@fault(
    "A window shorter than the keys is cut from their end, whatever the query.",
    breaks=WINDOW_IS_A_MASK,
    real="https://github.com/huggingface/transformers/issues/32522",
    naive="SH",
    when=("window", "kv_len > window"),
    replaces=clean.window,
    features=WINDOW,
)
def window_cut_from_the_end(call: Call) -> Tensor | None:
    left, right = sides(call)
    if call.window is None or left == math.inf:
        return clean.window(call)
    return (torch.arange(call.kv_len) >= call.kv_len - left - 1) & between(call, math.inf, right)


@fault(
    "With a single key head the heads become queries, and the window places them by their head.",
    breaks=(
        "features/a-window-sees-exactly-its-keys",
        "features/a-window-equals-its-band",
        "heads/grouped-heads-equal-repeated-heads",
    ),
    real="facebookresearch/xformers 1e13ad90",
    naive="PATH",
    when=("window", "one key head", "one query"),
    replaces=clean.window,
    features=WINDOW,
)
def window_places_heads(call: Call) -> Tensor | None:
    if call.window is None or call.q_len > 1 or call.group < 2 or call.key.shape[1] > 1:
        return clean.window(call)
    left, right = sides(call)
    distance = torch.arange(call.kv_len) - torch.arange(call.heads)[:, None, None]
    return (distance >= -left) & (distance <= right)


@fault(
    "A causal call does not look at the left side of its window.",
    breaks=WINDOW_IS_A_MASK,
    naive="PATH",
    when=("window", "causal"),
    replaces=clean.window,
    features=WINDOW,
)
def window_ignored_when_causal(call: Call) -> Tensor | None:
    return None if call.is_causal else clean.window(call)


# Softcap


@fault(
    "The cap comes after the mask: -inf becomes -cap, and masked keys leak.",
    breaks=("features/a-softcap-does-not-unmask", "masks/masked-keys-do-not-matter"),
    real="https://github.com/onnx/onnx/issues/7865",
    naive="SV",
    features=SOFTCAP,
)
def softcap_after_the_mask(call: Call) -> Tensor:
    def hide(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
        return clean.cap(call, clean.hide(call, scores, kept))

    return clean.attention(call, cap=lambda call, scores: scores, hide=hide)


@fault(
    "The cap comes after the bias.",
    breaks=SOFTCAP_IS_RIGHT,
    naive="PATH",
    when=("softcap", "a finite bias"),
    replaces=clean.bias,
    features=SOFTCAP,
)
def softcap_after_the_bias(call: Call, scores: Tensor) -> Tensor:
    if call.bias is None or call.softcap is None:
        return clean.bias(call, scores)
    uncapped = call.softcap * torch.atanh((scores / call.softcap).clamp(-1 + 1e-12, 1 - 1e-12))
    capped = clean.cap(call, uncapped + call.bias)
    return capped.masked_fill(call.bias == NEVER, NEVER)


@fault(
    "x tanh(x / c) in place of c tanh(x / c).",
    breaks=SOFTCAP_IS_RIGHT,
    real="https://github.com/unslothai/unsloth-zoo/issues/593",
    naive="PATH",
    replaces=clean.cap,
    features=SOFTCAP,
)
def softcap_multiplies_the_score(call: Call, scores: Tensor) -> Tensor:
    return scores if call.softcap is None else scores * torch.tanh(scores / call.softcap)


@fault(
    "The factor in front of tanh is missing.",
    breaks=SOFTCAP_IS_RIGHT,
    naive="PATH",
    replaces=clean.cap,
    features=SOFTCAP,
)
def softcap_without_its_factor(call: Call, scores: Tensor) -> Tensor:
    return scores if call.softcap is None else torch.tanh(scores / call.softcap)


@fault(
    "The cap is accepted and not applied.",
    breaks=SOFTCAP_IS_RIGHT,
    real="https://github.com/sgl-project/sglang/issues/33915",
    naive="PATH",
    replaces=clean.cap,
    features=SOFTCAP,
)
def softcap_ignored(call: Call, scores: Tensor) -> Tensor:
    return scores


@fault(
    "The cap comes before the scale.",
    breaks=SOFTCAP_IS_RIGHT,
    real="https://github.com/huggingface/trl/issues/5691",
    naive="PATH",
    features=SOFTCAP,
)
def softcap_before_the_scale(call: Call) -> Tensor:
    def score(call: Call, key: Tensor, scale: float) -> Tensor:
        return clean.cap(call, clean.score(call, key, 1.0)) * scale

    return clean.attention(call, score=score, cap=lambda call, scores: scores)


@fault(
    "Scores are cut at the cap, not bent.",
    breaks=SOFTCAP_IS_RIGHT,
    naive="PATH",
    replaces=clean.cap,
    features=SOFTCAP,
)
def softcap_cuts(call: Call, scores: Tensor) -> Tensor:
    return scores if call.softcap is None else scores.clamp(-call.softcap, call.softcap)


@fault(
    "The cap is applied, and its derivative is left out.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("softcap", "backward"),
    replaces=clean.cap,
    features=SOFTCAP,
)
def softcap_without_derivative(call: Call, scores: Tensor) -> Tensor:
    return scores + (clean.cap(call, scores) - scores).detach()


@fault(
    "A causal call does not apply the cap.",
    breaks=SOFTCAP_IS_RIGHT,
    naive="PATH",
    when=("softcap", "causal"),
    replaces=clean.cap,
    features=SOFTCAP,
)
def softcap_ignored_when_causal(call: Call, scores: Tensor) -> Tensor:
    return scores if call.is_causal else clean.cap(call, scores)


# Sinks


@fault(
    "The sink is added to the denominator without the shift.",
    breaks=SINKS_ARE_KEYS,
    naive="PATH",
    replaces=clean.total,
    features=SINKS,
)
def sink_not_shifted(call: Call, raised: Tensor, top: Tensor) -> Tensor:
    return clean.total(call, raised, torch.zeros_like(top))


@fault(
    "The sink is not part of the row maximum: one far above the scores overflows, a dead row is NaN.",
    breaks=(SINKS_ARE_KEYS, "masks/dead-rows-follow-the-convention"),
    real="https://github.com/PaddlePaddle/PaddleFleet/issues/1439",
    naive="SV",
    when=("sinks", "a sink far above the scores"),
    replaces=clean.top,
    features=SINKS,
)
def sink_not_in_the_maximum(call: Call, scores: Tensor) -> Tensor:
    return scores.detach().amax(dim=-1, keepdim=True)


@fault(
    "Every head has the sink of the first.",
    breaks=(SINKS_ARE_KEYS, "symmetry/permuting-heads-permutes-heads"),
    naive="PATH",
    features=SINKS,
)
def sink_of_the_first_head(call: Call) -> Tensor:
    if call.sinks is not None:
        call = call.but(sinks=call.sinks[:1].expand_as(call.sinks))
    return clean.attention(call)


@fault(
    "Sinks are ignored when a mask is given.",
    breaks=SINKS_ARE_KEYS,
    naive="PATH",
    when=("sinks", "mask"),
    features=SINKS,
)
def sink_ignored_with_a_mask(call: Call) -> Tensor:
    return clean.attention(call if call.attn_mask is None else call.but(sinks=None))


@fault(
    "The sink is scaled like a score.",
    breaks=SINKS_ARE_KEYS,
    naive="PATH",
    features=SINKS,
)
def sink_scaled(call: Call) -> Tensor:
    return clean.attention(call if call.sinks is None else call.but(sinks=call.sinks * clean.scale(call)))


@fault(
    "The sink is taken to be exp of the logit already.",
    breaks=SINKS_ARE_KEYS,
    naive="PATH",
    features=SINKS,
)
def sink_taken_for_a_weight(call: Call) -> Tensor:
    return clean.attention(call if call.sinks is None else call.but(sinks=call.sinks.abs().log()))


@fault(
    "What goes to the sink is given to the first key.",
    breaks=(SINKS_ARE_KEYS, "symmetry/permuting-keys-changes-nothing"),
    naive="PATH",
    replaces=clean.drop,
    features=SINKS,
)
def sink_gives_to_the_first_key(call: Call, weights: Tensor) -> Tensor:
    rest = 1.0 - weights.sum(dim=-1, keepdim=True)
    first = torch.arange(weights.shape[-1]) == 0
    return clean.drop(call, weights + rest * first if call.sinks is not None else weights)


@fault(
    "The sink gets no gradient.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("sinks", "backward"),
    features=SINKS,
)
def sink_without_gradient(call: Call) -> Tensor:
    return clean.attention(call if call.sinks is None else call.but(sinks=call.sinks.detach()))


# ALiBi


def with_slopes(call: Call, scores: Tensor, slopes: Tensor, distance: Tensor) -> Tensor:
    return scores - slopes.to(scores.dtype)[:, None, None] * distance


@fault(
    "The distance has a sign: the future is favoured.",
    breaks=ALIBI_IS_A_BIAS,
    real="lucidrains/x-transformers 4ed4d0a",
    naive="PATH",
    when=("alibi", "not causal"),
    replaces=clean.alibi,
    features=ALIBI,
)
def alibi_without_absolute_value(call: Call, scores: Tensor) -> Tensor:
    return (
        scores
        if call.alibi_slopes is None
        else with_slopes(call, scores, call.alibi_slopes, -call.distance())
    )


@fault(
    "Far keys are favoured: the sign of the slope is wrong.",
    breaks=("features/alibi-lowers-scores-by-distance", ALIBI_IS_A_BIAS),
    naive="PATH",
    replaces=clean.alibi,
    features=ALIBI,
)
def alibi_favours_far_keys(call: Call, scores: Tensor) -> Tensor:
    if call.alibi_slopes is None:
        return scores
    return with_slopes(call, scores, -call.alibi_slopes, call.distance().abs())


@fault(
    "Every head has the slope of the first.",
    breaks=(ALIBI_IS_A_BIAS, "symmetry/permuting-heads-permutes-heads"),
    naive="PATH",
    features=ALIBI,
)
def alibi_slope_of_the_first_head(call: Call) -> Tensor:
    if call.alibi_slopes is not None:
        call = call.but(alibi_slopes=call.alibi_slopes[:1].expand_as(call.alibi_slopes))
    return clean.attention(call)


@fault(
    "With grouped heads the slope is that of the key head.",
    breaks=(ALIBI_IS_A_BIAS, "heads/grouped-heads-equal-repeated-heads"),
    naive="PATH",
    when=("alibi", "grouped heads"),
    features=ALIBI,
)
def alibi_slope_of_the_key_head(call: Call) -> Tensor:
    if call.alibi_slopes is not None:
        call = call.but(alibi_slopes=call.alibi_slopes[torch.arange(call.heads) // call.group])
    return clean.attention(call)


@fault(
    "The distance is counted from the bottom-right diagonal when the lengths differ.",
    breaks=ALIBI_IS_A_BIAS,
    naive="SH",
    when=("alibi", "q_len != kv_len"),
    replaces=clean.alibi,
    features=ALIBI,
)
def alibi_bottom_right(call: Call, scores: Tensor) -> Tensor:
    if call.alibi_slopes is None:
        return scores
    return with_slopes(call, scores, call.alibi_slopes, (call.distance() - (call.kv_len - call.q_len)).abs())


@fault(
    "The bias of the slopes is scaled like a score.",
    breaks=ALIBI_IS_A_BIAS,
    naive="PATH",
    features=ALIBI,
)
def alibi_scaled(call: Call) -> Tensor:
    slopes = call.alibi_slopes
    return clean.attention(call if slopes is None else call.but(alibi_slopes=slopes * clean.scale(call)))


@fault(
    "The slopes are ignored when a mask is given.",
    breaks=(
        "features/alibi-lowers-scores-by-distance",
        "features/alibi-equals-its-bias",
        "accuracy/output-is-within-the-bound",
    ),
    naive="PATH",
    when=("alibi", "mask"),
    features=ALIBI,
)
def alibi_ignored_with_a_mask(call: Call) -> Tensor:
    return clean.attention(call if call.attn_mask is None else call.but(alibi_slopes=None))


# Log-sum-exp


@fault(
    "The log-sum-exp is in base 2.",
    breaks=LOG_SUM_EXP_IS_RIGHT,
    naive="PATH",
    replaces=clean.lse,
    features=LOG_SUM_EXP,
)
def log_sum_exp_in_base_two(call: Call, scores: Tensor) -> Tensor:
    return clean.lse(call, scores) * math.log2(math.e)


@fault(
    "The log-sum-exp is that of the shifted scores: the maximum is not added again.",
    breaks=LOG_SUM_EXP_IS_RIGHT,
    naive="PATH",
    replaces=clean.lse,
    features=LOG_SUM_EXP,
)
def log_sum_exp_without_the_maximum(call: Call, scores: Tensor) -> Tensor:
    return clean.lse(call, scores - clean.top(call, scores))


@fault(
    "The log-sum-exp of a dead row is zero.",
    breaks=LOG_SUM_EXP_IS_RIGHT,
    naive="SV",
    when=("log-sum-exp asked for", "dead row"),
    replaces=clean.lse,
    features=LOG_SUM_EXP,
)
def log_sum_exp_of_a_dead_row_zero(call: Call, scores: Tensor) -> Tensor:
    lse = clean.lse(call, scores)
    return lse.masked_fill(lse == NEVER, 0.0)


@fault(
    "The log-sum-exp of a dead row is +inf.",
    breaks=LOG_SUM_EXP_IS_RIGHT,
    naive="SV",
    when=("log-sum-exp asked for", "dead row"),
    replaces=clean.lse,
    features=LOG_SUM_EXP,
)
def log_sum_exp_of_a_dead_row_positive(call: Call, scores: Tensor) -> Tensor:
    lse = clean.lse(call, scores)
    return lse.masked_fill(lse == NEVER, math.inf)


@fault(
    "The log-sum-exp comes from the scores before the mask.",
    breaks=LOG_SUM_EXP_IS_RIGHT,
    naive="PATH",
    when=("log-sum-exp asked for", "mask"),
    features=LOG_SUM_EXP,
)
def log_sum_exp_before_the_mask(call: Call) -> Any:
    if not call.return_lse:
        return clean.attention(call)
    _, lse = clean.attention(call, hide=lambda call, scores, kept: scores)
    return clean.attention(call.but(return_lse=False)), lse


@fault(
    "The log-sum-exp does not know of the bias.",
    breaks=LOG_SUM_EXP_IS_RIGHT,
    naive="PATH",
    when=("log-sum-exp asked for", "a finite bias"),
    features=LOG_SUM_EXP,
)
def log_sum_exp_without_the_bias(call: Call) -> Any:
    if not call.return_lse or call.bias is None:
        return clean.attention(call)
    _, lse = clean.attention(call.but(attn_mask=call.bias != NEVER))
    return clean.attention(call.but(return_lse=False)), lse


@fault(
    "The log-sum-exp comes back as (batch, length, heads).",
    breaks=LOG_SUM_EXP_IS_RIGHT,
    naive="SH",
    replaces=clean.lse,
    features=LOG_SUM_EXP,
)
def log_sum_exp_by_length(call: Call, scores: Tensor) -> Tensor:
    return clean.lse(call, scores).transpose(1, 2)


@fault(
    "The log-sum-exp does not know of the sink.",
    breaks=LOG_SUM_EXP_IS_RIGHT,
    naive="PATH",
    when=("log-sum-exp asked for", "sinks"),
    replaces=clean.lse,
    features=SINKS + LOG_SUM_EXP,
)
def log_sum_exp_without_the_sink(call: Call, scores: Tensor) -> Tensor:
    return torch.logsumexp(scores, dim=-1)


@fault(
    "When the log-sum-exp is asked for, a path is taken on which a dead row is NaN.",
    breaks=("features/asking-for-more-changes-nothing", "masks/dead-rows-follow-the-convention"),
    real="https://github.com/pytorch/pytorch/issues/160064",
    naive="PATH",
    when=("log-sum-exp asked for", "dead row"),
    replaces=clean.softmax,
    features=LOG_SUM_EXP,
)
def dead_rows_nan_with_log_sum_exp(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return torch.softmax(scores, dim=-1) if call.return_lse else clean.softmax(call, scores, do)


@fault(
    "When the log-sum-exp is asked for, the causal mask is dropped.",
    breaks=("features/asking-for-more-changes-nothing", "masks/the-future-does-not-matter"),
    real="https://github.com/keras-team/keras/issues/23038",
    naive="PATH",
    when=("log-sum-exp asked for", "causal"),
    replaces=clean.causal,
    features=LOG_SUM_EXP,
)
def causal_dropped_with_log_sum_exp(call: Call) -> Tensor | None:
    return None if call.return_lse else clean.causal(call)
