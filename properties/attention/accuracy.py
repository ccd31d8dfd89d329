"""The output is the exact one, as far as the declared arithmetic allows: element by element."""

import torch

from headcheck.attention.given import (
    blind_to_order,
    causal,
    causal_across_blocks,
    default_scale,
    long_rows,
    no_mask,
    real_sizes,
    unmasked,
    wide_heads,
    without,
)
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import CAUSAL_SCALES, AttentionSubject
from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, holds, within
from headcheck.given import alternately, at_least, at_most, having, one_in, one_of
from headcheck.laws import law

VASWANI = "Vaswani et al. 2017, section 3.2.1, equation (1)"
FEW_KEYS = 8
"""A row of so many is short for every kernel."""
BOUND = "the elementwise bound of docs/bounds.md"


@law(
    source=VASWANI,
    formula="scale = 1 / sqrt(head_dim)",
    guards="1/d, 1/sqrt(d_model) (vit-pytorch 65), 1/sqrt(value_dim), no scale, the scale twice.",
    given=(default_scale, unmasked, at_least(head_dim=2), one_in(4, wide_heads)),
)
def default_scale_is_one_over_root_head_dim(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Without a scale, scores are divided by the root of head_dim, not of another size.

    Where a scale can be given, the call with that one is what is expected: whatever else is wrong breaks other laws. So
    does what is wrong of long rows alone: where none can be given, eight keys are.
    """
    if not attention.has("scale"):
        few = {name: getattr(x, name)[:, :, :FEW_KEYS] for name in ("key", "value")}
        return attention.against_the_oracle(
            x.but(**few, strides="contiguous") if attention.has("rectangular") else x
        )
    return attention.agree(x, x.but(scale=x.default_scale))


@law(
    source="torch.nn.functional.scaled_dot_product_attention, argument scale",
    formula="|O(scale = s) - softmax(s Q K^T + bias) V| <= bound for s in 1, 2, 1/2, 1/4, 0, -1/2",
    guards="An explicit scale that is ignored, applied on top of the default, or taken as None when it is 0.",
    needs=("scale",),
)
def explicit_scale_is_used(attention: AttentionSubject, x: Inputs) -> list[Comparison]:
    """A given scale takes the place of the default: one, more, a fraction, zero, a negative one."""
    scales = [1.0, 2.0, 0.5, 0.25, 0.0, -0.5]
    if x.is_causal and CAUSAL_SCALES in attention.avoids:
        scales = [scale for scale in scales if scale > 0]
    return [
        attention.against_the_oracle(x.but(scale=scale), f"output, with scale = {scale}") for scale in scales
    ]


@law(
    source="Milakov & Gimelshein 2018, algorithm 3: online normaliser calculation",
    formula="scores rising or falling by steps: the maximum moves at each block, or stays in the first",
    guards="A rescale left out or applied once only, a stale maximum (flash-attention 2717).",
    given=(
        one_of("values", "rising", "falling"),
        unmasked,
        at_least(kv_len=33),
        alternately((long_rows,), (causal_across_blocks,), (), ()),
    ),
)
def a_moving_maximum_rescales_all(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Scores that rise or fall from key to key lose nothing of the others."""
    return attention.against_the_oracle(x)


@law(
    source="Blanchard, Higham & Higham 2021, on the softmax of widely spread scores",
    formula="scores 0, -g, ..., -60; V = I: O = p",
    guards="A wrong scale, an approximate exp, a cheap exp2: the depth of the ladder amplifies the slip.",
    given=(one_of("values", "ladder"), without("softcap", "alibi"), at_least(kv_len=3)),
)
def every_rung_of_a_ladder_has_its_weight(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Scores spread from 0 to -60 give each key its exact share."""
    return attention.against_the_oracle(x)


@law(
    source=VASWANI,
    formula="Q = 0, V_j lit in one dim: each key counts 1/n",
    guards="One key of hundreds missing or doubled, one padding lane in the sum (flashinfer 3717).",
    given=(one_of("values", "equal"), at_least(kv_len=7)),
)
def equal_scores_count_every_key(attention: AttentionSubject, x: Inputs) -> Comparison:
    """When all keys count the same, none is missing and none counts twice."""
    return attention.against_the_oracle(x)


@law(
    source="cancellation: sum of the values about zero",
    formula="|O| << |V|, the error in terms of V",
    guards="Errors that hide under the rounding of a large output.",
    given=(one_of("values", "cancelling"), at_least(kv_len=3)),
    share=0.5,
)
def cancelling_values_hide_nothing(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Values that cancel leave the error of the weights in view."""
    return attention.against_the_oracle(x)


@law(
    source="stagnation of narrow accumulators: Higham 2002, section 4.2",
    formula="a heavy block, then many light keys, or the other way round",
    guards="Sums kept in float16 or bfloat16 stop growing (ik_llama.cpp 1196).",
    given=(
        one_of("values", "stagnating"),
        unmasked,
        at_least(kv_len=1025),
        at_most(q_len=2, head_dim=4, value_dim=4),
    ),
    share=0.4,
)
def light_keys_add_up(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Many light keys after a heavy one are not lost in the sum."""
    return attention.against_the_oracle(x)


@law(
    source="Milakov & Gimelshein 2018: the maximum is subtracted before exp",
    formula="scores of +-100 to +-1000",
    guards="exp without its maximum, a running maximum that begins at 0, half precision overflow (flash-attention 8).",
    given=(one_of("values", "very-negative", "very-positive"),),
)
def large_logits_do_no_harm(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Scores far above or far below zero give finite, exact outputs."""
    return attention.against_the_oracle(x)


NEAR_THE_LARGEST = {torch.float16: 3e4, torch.float64: 1e280}
"""Of values. In the other formats a sum of thousands has to stay within float32, too."""


@law(
    source=VASWANI,
    formula="Q, K, V finite, V up to near the largest number of its format: O finite",
    guards="exp without its maximum, 0 / 0 where all weights vanish, sums of values in float16 that overflow before"
    " they are divided.",
    given=(one_in(3, having(dtype="float16"), at_least(kv_len=17)),),
)
def finite_numbers_give_finite_numbers(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The output of finite inputs is finite, wherever rounding cannot overflow."""
    if x.dtype == torch.float16 or x.case.seed % 2:
        size = NEAR_THE_LARGEST.get(x.dtype, 1e30)
        x = x.but(value=(size * x.value.double().clamp(-1, 1)).to(x.dtype), generic=False)
    output, bound = attention(x).cpu(), attention.bound(x)
    finite = output.isfinite() | bound.isinf() | attention.special_rows(x)[..., None]
    return holds(finite, output, "output", attention.expected(x))


@law(
    source="PEP 484: where a float is expected, an int will do",
    formula="O(scale = 2) = O(scale = 2.0)",
    guards="A scale that is no float taken for none.",
    needs=("scale",),
    share=0.3,
)
def a_whole_scale_is_a_scale(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A scale given as an int is the float of that value, or is refused."""
    whole = 1 + x.case.seed % 3
    y = x.but(scale=float(whole), generic=False)
    try:
        observed = attention(x.but(scale=whole, generic=False))
    except SubjectRaised as refusal:
        raise NotApplicable(f"a scale of type int is refused: {refusal}") from refusal
    return within(observed, attention(y), attention.apart(y, y))


@law(
    source="torch.nn.functional.scaled_dot_product_attention, arguments scale and is_causal",
    formula="O(is_causal, scale = s) for s in 0, -1/2",
    guards="A mask of -inf that is multiplied by the scale: 0 x -inf is NaN, and a negative scale turns it round.",
    needs=("scale", "is_causal"),
    given=(causal,),
    share=0.5,
    unless=("scale_with_causal=positive",),
)
def the_mask_is_not_scaled(attention: AttentionSubject, x: Inputs) -> list[Comparison]:
    """Under is_causal, a scale of zero or below does not reach the mask."""
    if attention.declaration.scale_with_causal == "positive":
        raise NotApplicable("scale_with_causal='positive': is_causal is declared for scales above zero only")
    return [attention.against_the_oracle(x.but(scale=s), f"output, with scale = {s}") for s in (0.0, -0.5)]


LOW = "an additive mask is added to the scores, whatever its size"


@law(
    source=LOW,
    formula="every B_ij near -2^15: O = softmax(scale Q K^T + B) V",
    guards="Biases clamped at -1e4, where the mask of another library ends; a running maximum that is not below zero.",
    needs=("additive",),
    given=(no_mask, blind_to_order, without("sinks"), at_least(kv_len=2)),
    share=0.5,
)
def low_biases_keep_their_differences(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Biases that are all far below zero weigh the keys by how far they are apart, be the first keys hidden or not."""
    return attention.against_the_oracle(x.with_low_biases())


@law(
    source=LOW,
    formula="every B_ij = 0.6 of the lowest number, V = 1: O = 1",
    guards="A finite bias taken for -inf, so that a row of nothing else is dead.",
    needs=("additive",),
    given=(no_mask, blind_to_order, without("sinks")),
    share=0.5,
)
def rows_of_low_biases_are_not_dead(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A query whose biases are all finite, however low, has weights that sum to one."""
    ones = x.but(value=torch.ones_like(x.value), strides="contiguous", generic=False)
    arithmetic = attention.arithmetic_for(x)
    rounding = arithmetic.rounding(x.dtype)
    largest = min(rounding.inputs.largest, rounding.softmax.largest, torch.finfo(x.dtype).max)
    # Where weights are exp(score - log-sum-exp), a log-sum-exp of 1e38 has no digit left to say how many keys there are.
    lowest = -3e4 if x.dtype == torch.float16 or arithmetic.log_sum_exps else -0.6 * largest
    low = ones.but(attn_mask=torch.full((x.q_len, x.kv_len), lowest, dtype=x.dtype))
    limit = attention.bound(low) if arithmetic.log_sum_exps else attention.bound(ones)
    return within(attention(low), attention.expected(ones), 2 * limit, "sum of the weights")


NAN = "IEEE 754: NaN propagates"


@law(
    source=NAN,
    formula="V_j = NaN, W_ij no rounding: O_i is NaN",
    guards="nan_to_num over the result: broken training goes unseen.",
    given=(unmasked,),
    share=0.5,
)
def nan_in_a_visible_value_does_not_vanish(attention: AttentionSubject, x: Inputs) -> Comparison:
    """NaN in a value that is attended to, with a weight above rounding, shows in the output."""
    batch, key = x.case.seed % x.batch, x.case.seed % x.kv_len
    value = x.value.clone()
    value[batch, 0, key] = torch.nan
    seen = attention(x.but(value=value, strides="contiguous"))[batch, : x.group].cpu()
    counts = x.problem.attended.weights[batch, : x.group, :, key, None] > torch.finfo(x.dtype).eps
    return holds(seen.isnan() | ~counts, seen, "output, with NaN in a value", torch.nan)


@law(
    source=NAN,
    formula="Q_i = NaN: O_i is NaN",
    guards="A running maximum that drops NaN, so that the row passes for one without keys.",
    given=(unmasked,),
    share=0.5,
    unless=("nan_scores=may-vanish",),
)
def nan_in_a_query_does_not_vanish(attention: AttentionSubject, x: Inputs) -> Comparison:
    """NaN in a query shows in its output."""
    if attention.declaration.nan_scores == "may-vanish":
        raise NotApplicable("nan_scores='may-vanish': a query of NaN may give zeros")
    batch, query = x.case.seed % x.batch, x.query.clone()
    query[batch, 0, x.case.seed % x.q_len] = torch.nan
    seen = attention(x.but(query=query, strides="contiguous"))[batch, 0, x.case.seed % x.q_len]
    return holds(seen.isnan(), seen, "output, with NaN in the query", torch.nan)


@law(
    source="design of the canonical call: an axis of length 0 is an empty list",
    formula="kv_len = 0: O = 0 (as declared), L = -inf; q_len = 0 or batch = 0: O is empty",
    guards="Uninitialised output, NaN or a crash on empty sequences (xformers 1042, pytorch 81077); a log-sum-exp of 0, "
    "with which the empty part of a split outweighs the others.",
    given=(unmasked, without("sinks", "alibi")),
    share=0.3,
    unless=("empty_rows=nan",),
)
def empty_axes_are_allowed_or_refused(attention: AttentionSubject, x: Inputs) -> list[Comparison]:
    """No keys give what dead rows give, no queries give nothing; or the call is refused by an exception."""
    whole = x.but(strides="contiguous")
    empty = {"batch": whole.but(query=x.query[:0], key=x.key[:0], value=x.value[:0])}
    if attention.has("rectangular"):
        empty["q_len"] = whole.but(query=x.query[:, :, :0])
        empty["kv_len"] = whole.but(key=x.key[:, :, :0], value=x.value[:, :, :0])
    found, refused = [], ""
    for axis, y in empty.items():
        if axis == "kv_len" and attention.declaration.empty_rows not in ("zeros", None):
            refused = "what no keys give is not declared"
            continue
        try:
            output = attention(y)
        except SubjectRaised as refusal:
            if isinstance(refusal.__cause__, ArithmeticError):
                raise  # Nobody refuses by dividing by zero.
            refused = f"an axis of length 0 is refused: {refusal}"
            continue
        found.append(within(output, torch.zeros_like(output), 0.0, f"output where {axis} is 0"))
        if axis == "kv_len" and attention.has("log_sum_exp"):
            observed, limit = attention.log_sum_exp(y), attention.log_sum_exp_bound(y)
            found.append(
                within(observed, torch.full_like(observed, -torch.inf), limit, "log-sum-exp of no keys")
            )
    if not found:
        raise NotApplicable(refused)
    return found


@law(
    source=f"{VASWANI}; kernels choose their tiles by the head dim, and their splits by the number of keys",
    formula="head_dim of 64 and more over several tiles, 32 heads and more to a key head: |O - exact| <= bound",
    guards="A tile, a split or a row of a group that only the sizes of real models have: not rescaled, left out.",
    given=(real_sizes,),
)
def sizes_of_real_models_are_no_exception(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Wide heads over many positions, and many heads that read one key head, give the oracle's output."""
    return attention.against_the_oracle(x)


@law(
    source=f"{VASWANI}; {BOUND}",
    formula="|O - softmax(scale Q K^T + bias) V| <= bound",
    guards="Anything that changes the number that comes out.",
    share=2.0,
)
def output_is_within_the_bound(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The output is the float64 oracle's, within the rounding that the declared arithmetic explains."""
    return attention.against_the_oracle(x)
