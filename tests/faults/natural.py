"""A natural sample: the bugs that people write into the steps of attention, as they come."""

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import NEVER, Call


@fault(
    "True in a boolean mask hides the key, as in a module's key_padding_mask.",
    breaks="masks/masked-keys-do-not-matter",
    naive="T",
    replaces=clean.mask,
)
def true_blocks(call: Call) -> Tensor | None:
    return None if call.mask is None else ~call.mask


@fault(
    "A boolean mask is added to the scores as zeros and ones.",
    breaks="masks/boolean-equals-additive",
    naive="T",
    real="https://github.com/huggingface/transformers/pull/41443",
)
def boolean_mask_added(call: Call) -> Tensor:
    return clean.attention(call if call.mask is None else call.but(attn_mask=call.mask.to(call.dtype)))


@fault(
    "An additive mask is cast to bool, and what is not zero is kept.",
    breaks="masks/boolean-equals-additive",
    naive="T",
    real="https://github.com/keras-team/keras/pull/20511",
)
def additive_mask_cast_to_bool(call: Call) -> Tensor:
    return clean.attention(call if call.bias is None else call.but(attn_mask=call.bias.bool()))


@fault(
    "The boolean mask multiplies the weights after the softmax, which is not made to sum to one again.",
    breaks="masks/masked-keys-do-not-matter",
    naive="T",
    real="https://github.com/autosome-ru/vigg_ribonanza/issues/1",
)
def mask_after_softmax(call: Call) -> Tensor:
    def drop(call: Call, weights: Tensor) -> Tensor:
        return clean.drop(call, weights if call.mask is None else weights * call.mask)

    return clean.attention(call, mask=lambda call: None, drop=drop)


@fault(
    "The masks of the samples are tiled over the heads instead of repeated: a head reads another sample's.",
    breaks="masks/the-masks-of-others-do-not-matter",
    naive="SH",
    real="https://github.com/line/lighthouse/pull/77",
)
def mask_of_another_sample(call: Call) -> Tensor:
    mask = call.attn_mask
    if mask is not None and mask.ndim == 4 and mask.shape[:2] == (call.batch, 1):
        mask = mask[:, 0].repeat(call.heads, 1, 1).unflatten(0, (call.batch, call.heads))
    return clean.attention(call.but(attn_mask=mask))


@fault(
    "A mask of three axes is taken for (batch, q_len, kv_len) where its first axis is as long as the batch.",
    breaks="masks/broadcast-equals-expanded",
    naive="SH",
    real="https://github.com/hyunwoongko/transformer/issues/32",
    when=("a mask of three axes", "as many heads as samples"),
)
def mask_of_heads_read_as_of_samples(call: Call) -> Tensor:
    mask = call.attn_mask
    if mask is not None and mask.ndim == 3 and mask.shape[0] == call.batch:
        mask = mask[:, None]
    return clean.attention(call.but(attn_mask=mask))


@fault(
    "The causal mask is written into the caller's additive mask.",
    breaks="memory/a-mask-beside-is-causal-is-not-changed",
    naive="NO",
    when=("is_causal", "an additive mask"),
    replaces=clean.bias,
)
def causal_written_into_mask(call: Call, scores: Tensor) -> Tensor:
    bias = call.bias
    full = bias is not None and bias.shape[-2:] == scores.shape[-2:] and not bias.requires_grad
    if full and call.is_causal:
        bias.masked_fill_(call.distance() > 0, NEVER)
    return clean.bias(call, scores)


@fault(
    "The causal mask starts below the diagonal: a query does not see its own key.",
    breaks="masks/causal-equals-its-mask",
    naive="T",
    replaces=clean.causal,
)
def causal_without_diagonal(call: Call) -> Tensor | None:
    return call.distance() < 0 if call.is_causal else None


@fault(
    "is_causal holds only where q_len equals kv_len; otherwise every key is seen.",
    breaks="masks/causal-equals-its-mask",
    naive="SH",
    real="https://github.com/mlx-node/mlx-node/pull/24",
    replaces=clean.causal,
)
def causal_only_when_square(call: Call) -> Tensor | None:
    return clean.causal(call) if call.q_len == call.kv_len else None


@fault(
    "is_causal is turned off where a mask is given.",
    breaks="masks/mask-and-causal-compose",
    naive="PATH",
    real="https://github.com/huggingface/transformers/issues/37807",
    replaces=clean.causal,
)
def causal_dropped_with_mask(call: Call) -> Tensor | None:
    return clean.causal(call) if call.attn_mask is None else None


@fault(
    "The default scale takes the width of all heads instead of one head's.",
    breaks="accuracy/default-scale-is-one-over-root-head-dim",
    naive="T",
    real="https://github.com/karpathy/ng-video-lecture/issues/28",
    replaces=clean.scale,
)
def scale_of_all_heads(call: Call) -> float:
    return (call.heads * call.head_dim) ** -0.5 if call.scale is None else call.scale


@fault(
    "The scale that the caller gives is not handed on.",
    breaks="accuracy/explicit-scale-is-used",
    naive="PATH",
    real="https://github.com/pytorch/torchtitan/pull/2173",
    replaces=clean.scale,
)
def scale_not_handed_on(call: Call) -> float:
    return call.head_dim**-0.5


@fault(
    "The query is scaled in place where it wants no gradient: the caller's query changes.",
    breaks="memory/inputs-are-not-changed",
    naive="NO",
    real="https://github.com/pytorch/pytorch/pull/73249",
    replaces=clean.score,
)
def query_scaled_in_place(call: Call, key: Tensor, scale: float) -> Tensor:
    query = call.query * scale if call.query.requires_grad else call.query.mul_(scale)
    return query @ key.mT


@fault(
    "Keys are repeated interleaved, but values are tiled.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    naive="T",
    replaces=clean.group,
)
def values_tiled(call: Call, x: Tensor) -> Tensor:
    return clean.group(call, x) if x is call.key else x.repeat(1, call.group, 1, 1)


@fault(
    "The key head is found by dividing by the number of key heads instead of the size of a group.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    naive="SH",
    real="https://github.com/HazyResearch/HipKittens/pull/22",
    replaces=clean.group,
)
def key_head_by_wrong_divisor(call: Call, x: Tensor) -> Tensor:
    if call.group == 1:
        return x
    kv_heads = x.shape[1]
    return x[:, torch.arange(call.heads) // kv_heads % kv_heads]


@fault(
    "The softmax runs over the queries instead of the keys.",
    breaks="accuracy/output-is-within-the-bound",
    naive="T",
    real="https://github.com/nerdai/llms-from-scratch-rs/pull/30",
    replaces=clean.softmax,
)
def softmax_over_queries(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return torch.softmax(scores, dim=-2)


@fault(
    "exp2 takes the place of exp, and the scores are not multiplied by log2(e).",
    breaks="accuracy/output-is-within-the-bound",
    naive="T",
    replaces=clean.exponential,
)
def exp2_of_plain_scores(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    return torch.exp2(scores - top)


@fault(
    "The softmax does not shift by the largest score: large scores overflow.",
    breaks=("accuracy/finite-numbers-give-finite-numbers", "accuracy/large-logits-do-no-harm"),
    naive="SV",
    real="https://github.com/prescient-design/e3tools/pull/3",
    replaces=clean.top,
)
def softmax_unshifted(call: Call, scores: Tensor) -> Tensor:
    return scores.new_zeros(*scores.shape[:-1], 1)


@fault(
    "The weights are summed key by key in the half type, where the sum stands still once it is large.",
    breaks="accuracy/light-keys-add-up",
    naive="LP",
    real="https://github.com/huggingface/candle/issues/3727",
    when=("a half type", "hundreds of keys"),
    dtypes=("bfloat16", "float16"),
)
def weights_summed_in_half(call: Call) -> Tensor:
    def total(_: Call, raised: Tensor, top: Tensor) -> Tensor:
        summed = torch.zeros_like(top, dtype=call.dtype)
        for column in raised.to(call.dtype).unbind(-1):
            summed = summed + column[..., None]
        return summed.to(raised.dtype).masked_fill(summed == 0, 1.0)

    return clean.attention(call, total=total)


@fault(
    "The products of query and key are stored in float16 before they are scaled, and overflow.",
    breaks="accuracy/large-logits-do-no-harm",
    naive="LP",
    real="https://github.com/EricLBuehler/mistral.rs/pull/2076",
    dtypes=("float16",),
    declares={"arithmetic": {"float16": "flash"}},
)
def products_overflow_float16(call: Call) -> Tensor:
    def score(wide: Call, key: Tensor, scale: float) -> Tensor:
        return (wide.query @ key.mT).to(call.dtype).to(key.dtype) * scale

    return clean.attention(call, score=score)


@fault(
    "Weights and values are rounded to bfloat16 before they are multiplied, also for wider inputs.",
    breaks="accuracy/output-is-within-the-bound",
    naive="LP",
    dtypes=("float32", "float64"),
    replaces=clean.combine,
)
def combined_in_bfloat16(call: Call, weights: Tensor, value: Tensor) -> Tensor:
    return (weights.bfloat16() @ value.bfloat16()).to(value.dtype)


@fault(
    "Half inputs are widened, and the output is not brought back to their type.",
    breaks="memory/output-has-the-right-form",
    naive="LP",
    dtypes=("bfloat16", "float16"),
    replaces=clean.write,
)
def output_left_wide(call: Call, output: Tensor) -> Tensor:
    return output


@fault(
    "The output is as wide as the query where the value is of another width.",
    breaks="memory/output-has-the-right-form",
    naive="SH",
    real="https://github.com/pytorch/pytorch/issues/176767",
    replaces=clean.write,
)
def output_of_query_width(call: Call, output: Tensor) -> Tensor:
    return torch.nn.functional.pad(clean.write(call, output), (0, call.head_dim - output.shape[-1]))


@fault(
    "Heads and positions of the output are mixed: it is transposed for the merge and reshaped back.",
    breaks="accuracy/output-is-within-the-bound",
    naive="T",
    replaces=clean.write,
)
def heads_and_positions_mixed(call: Call, output: Tensor) -> Tensor:
    return clean.write(call, output.transpose(1, 2).reshape(output.shape))


@fault(
    "Dropout does not divide what it keeps by 1 - p.",
    breaks="dropout/a-weight-is-dropped-or-scaled-up",
    naive="PATH",
    replaces=clean.drop,
)
def dropout_unscaled(call: Call, weights: Tensor) -> Tensor:
    return clean.drop(call, weights) * (1 - call.dropout_p)


@fault(
    "dropout_p is taken and has no effect.",
    breaks="dropout/the-rate-is-kept",
    naive="PATH",
    real="https://github.com/pytorch/executorch/pull/10285",
    replaces=clean.drop,
)
def dropout_without_effect(call: Call, weights: Tensor) -> Tensor:
    return weights


@fault(
    "The soft cap comes after the mask: a hidden key gets the score -cap and is seen.",
    breaks="features/a-softcap-does-not-unmask",
    naive="PATH",
    real="https://github.com/onnx/onnx/issues/7865",
    features=("softcap",),
)
def softcap_after_mask(call: Call) -> Tensor:
    def softmax(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
        return clean.softmax(call, clean.cap(call, scores), do)

    return clean.attention(call, cap=lambda call, scores: scores, softmax=softmax)


@fault(
    "The scores, instead of the cap, multiply the tanh.",
    breaks="features/a-softcap-caps-the-scores",
    naive="T",
    real="https://github.com/unslothai/unsloth-zoo/pull/593",
    features=("softcap",),
    replaces=clean.cap,
)
def softcap_multiplies_scores(call: Call, scores: Tensor) -> Tensor:
    return scores if call.softcap is None else scores * torch.tanh(scores / call.softcap)


@fault(
    "The ALiBi distance is i - j: keys far back are favoured.",
    breaks="features/alibi-lowers-scores-by-distance",
    naive="T",
    real="https://github.com/meta-pytorch/attention-gym/pull/86",
    features=("alibi_slopes",),
    replaces=clean.alibi,
)
def alibi_favours_the_past(call: Call, scores: Tensor) -> Tensor:
    if call.alibi_slopes is None:
        return scores
    return scores - call.alibi_slopes.to(scores.dtype)[:, None, None] * call.distance()


@fault(
    "The ALiBi bias is slope times j - i, without the absolute value: later keys are favoured.",
    breaks="features/alibi-equals-its-bias",
    naive="PATH",
    features=("alibi_slopes",),
    replaces=clean.alibi,
)
def alibi_signed(call: Call, scores: Tensor) -> Tensor:
    if call.alibi_slopes is None:
        return scores
    return scores + call.alibi_slopes.to(scores.dtype)[:, None, None] * call.distance()


@fault(
    "The positions of ALiBi are held in the type of the query, where those beyond 256 fall together.",
    breaks="features/alibi-lowers-scores-by-distance",
    naive="LP",
    when=("alibi_slopes", "bfloat16", "hundreds of keys"),
    dtypes=("bfloat16",),
    features=("alibi_slopes",),
)
def alibi_positions_in_half(call: Call) -> Tensor:
    def alibi(wide: Call, scores: Tensor) -> Tensor:
        if call.alibi_slopes is None:
            return scores
        i, j = (torch.arange(length).to(call.dtype).float() for length in (call.q_len, call.kv_len))
        return scores - call.alibi_slopes.to(scores.dtype)[:, None, None] * (j - i[:, None]).abs()

    return clean.attention(call, alibi=alibi)


@fault(
    "With one query a group stands in for rows, and the log-sum-exp is written in the order (group, key head).",
    breaks="features/log-sum-exp-is-within-the-bound",
    real="https://github.com/HKUSTDial/flash-sparse-attention/pull/190",
    naive="PATH",
    when=("return_lse", "one query", "1 < kv_heads < heads"),
    replaces=clean.lse,
    features=("return_lse",),
)
def log_sum_exp_by_group_of_one_query(call: Call, scores: Tensor) -> Tensor:
    found = clean.lse(call, scores)
    if call.q_len != 1 or call.group == 1:
        return found
    return found.unflatten(1, (-1, call.group)).transpose(1, 2).flatten(1, 2)
