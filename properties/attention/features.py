"""Features that a subject may have: window, softcap, sinks, ALiBi, returned weights and log-sum-exp."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from headcheck.attention.given import (
    live_rows,
    long_rows,
    masked,
    no_mask,
    unmasked,
    wide_heads,
    without_keys_for_some,
)
from headcheck.attention.inputs import Inputs, slopes
from headcheck.attention.readout import reading_the_weights
from headcheck.attention.subject import DEAD_ROWS, AttentionSubject
from headcheck.calling import SubjectRaised, refused_on_purpose
from headcheck.comparison import Comparison, LawBroken, NotApplicable, holds, none, same, within
from headcheck.given import at_least, at_most, having, one_in, one_of
from headcheck.laws import law
from headcheck.library import seeded
from headcheck.reference.positions import alibi_bias

BELTAGY = "Beltagy et al. 2020 (Longformer), section 3.1"
GEMMA = "Gemma Team 2024 (Gemma 2), section 2: logit soft-capping"
SINKS = "Xiao et al. 2023 (StreamingLLM), section 3"
PRESS = "Press et al. 2022 (ALiBi), section 3"

_FAR = at_least(q_len=290, kv_len=290), at_most(batch=1, q_len=300, kv_len=300, head_dim=4, value_dim=4)
"""Positions that bfloat16 does not have, of queries and keys."""
_WINDOWED = one_of("window", (2, 1), (1, 0), (0, 0), (None, 1), (3, None), (8, 8))


@law(
    source=BELTAGY,
    formula="V = I: O_ij = 0 unless i - left <= j <= i + right",
    guards="A window off by one: W keys against W + 1 (transformers 39408), ignored without a mask (jax 32300).",
    needs=("window",),
    given=(_WINDOWED, at_most(kv_len=33)),
)
def a_window_sees_exactly_its_keys(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Every key inside the window has a weight, and none outside."""
    y = reading_the_weights(attention, x.but(query=torch.zeros_like(x.query)))
    weights = attention(y)[..., : x.kv_len].cpu().double()
    inside = (weights > 0) | (y.problem.attended.weights < 2 * attention.bound(y)[..., : x.kv_len])
    right = torch.where(x.may_attend, inside, weights == 0)
    exact = y.problem.attended.weights[..., : x.kv_len]
    return holds(right | attention.special_rows(x)[..., None], weights, "weight", exact)


@law(
    source=BELTAGY,
    formula="window = (the band as attn_mask)",
    guards="Alignment of the band when lengths differ, the right side never sent (jax 39576), left 0 taken for none.",
    needs=("window", "attn_mask"),
    given=(no_mask, _WINDOWED),
)
def a_window_equals_its_band(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A window does what the same band does as an explicit mask."""
    band = attention.mask_of(x.may_attend, x.dtype)
    return attention.agree(x, x.but(window=None, is_causal=False, attn_mask=band))


@law(
    source=GEMMA,
    formula="scores = c tanh(s / c) for a small c and large s",
    guards="A cap that is accepted and never applied (sglang 33915), x tanh(x / c) (unsloth-zoo 593), cap before scale.",
    needs=("softcap",),
    given=(
        one_of("softcap", 0.5, 2.0, 30.0, 50.0),
        one_of("values", "large", "normal"),
        one_in(6, wide_heads),
    ),
)
def a_softcap_caps_the_scores(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Scores are capped after the scale and before bias and mask."""
    return attention.against_the_oracle(x)


@law(
    source=GEMMA,
    formula="mask after cap: a masked score is -inf, not -c",
    guards="A cap applied after the mask gives masked keys the score -c (onnx 7867, flashinfer 350).",
    needs=("softcap", "attn_mask"),
    given=(masked, live_rows, one_of("softcap", 0.5, 2.0), at_least(kv_len=2), at_most(kv_len=33)),
)
def a_softcap_does_not_unmask(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """Under a small cap, masked keys still have no weight."""
    if x.case.mask_form == "lowest":
        return None
    weights = attention(reading_the_weights(attention, x))[..., : x.kv_len].cpu().double()
    hidden = ~x.may_attend & ~attention.special_rows(x)[..., None]
    return same(torch.where(hidden, weights, 0.0), torch.zeros_like(weights), "weight of a masked key")


@law(
    source=SINKS,
    formula="V = 1: O = sum_j exp(s_j) / (sum_j exp(s_j) + exp(sink))",
    guards="A sink that is ignored, in the wrong domain, not part of the maximum (PaddleFleet 1439), shared by heads.",
    needs=("sinks",),
    given=(one_of("sinks", True),),
)
def a_sink_takes_its_share(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A sink adds to the denominator alone: the weights of the keys sum to what it leaves."""
    ones = x.but(value=torch.ones_like(x.value))
    return attention.against_the_oracle(ones, "sum of the weights")


@law(
    source=SINKS,
    formula="sink < min score - 200: O(sink) = O",
    guards="A sink added to the values, or to the scores of a key.",
    needs=("sinks",),
    given=(one_of("sinks", True), live_rows, unmasked),
    share=0.5,
)
def a_sink_far_below_takes_nothing(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A sink far below all scores changes nothing."""
    alone = x.but(sinks=None)
    lowest = alone.problem.attended.log_sum_exp.min()
    sink = (lowest - lowest.abs() / 64 - 200).to(x.dtype)  # In 16 bits it is rounded by up to a 256th.
    if not sink.isfinite():
        raise NotApplicable(f"no number of {x.case.dtype} is far below these scores")
    return attention.agree(x.but(sinks=sink.expand(x.heads).clone()), alone)


@law(
    source=PRESS,
    formula="ALiBi = (bias -slope |i - j|)",
    guards="The sign, |i - j| missing, slopes of the wrong head (mlx 343, x-transformers 4ed4d0a); positions in 16 bits; "
    "slopes made anew from the number of heads.",
    needs=("alibi",),
    given=(one_of("alibi", True), one_in(6, *_FAR)),
)
def alibi_lowers_scores_by_distance(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """ALiBi lowers each score by the head's slope times the distance, whatever slopes are given."""
    assert x.alibi_slopes is not None
    yield attention.against_the_oracle(x)
    # Far from the start a steep slope, near a half, tells whether the nearest keys are at their distance. A power of two
    # leaves slopes as few bits as they have.
    far = x.kv_len > 256
    if far or x.case.seed % 2:  # Of heads in another order, as of a part of a model, and of other models.
        factor = 2.0 ** -math.ceil(math.log2(2 * float(x.alibi_slopes.max()))) if far else 0.75
        y = x.but(alibi_slopes=x.alibi_slopes.flip(0) * factor, generic=False)
        yield attention.against_the_oracle(y, "output, with other slopes")


@law(
    source=PRESS,
    formula="ALiBi = (its bias as attn_mask)",
    guards="An offset between query and key positions when lengths differ.",
    needs=("alibi", "additive"),
    given=(no_mask, having(is_causal=False), one_of("alibi", True)),
    share=0.5,
)
def alibi_equals_its_bias(attention: AttentionSubject, x: Inputs) -> Comparison:
    """ALiBi does what its bias does as an additive mask."""
    exact = alibi_bias(slopes(x.heads, x.dtype), x.q_len, x.kv_len, x.alignment)[None]
    explicit = x.but(alibi_slopes=None, attn_mask=exact.to(x.dtype), generic=False)
    # The bias was rounded to the dtype of the query: what that changes is known exactly.
    rounding = (explicit.problem.attended.output - x.problem.attended.output).abs()
    limit = attention.bound(x) + attention.bound(explicit) + rounding
    return within(attention(x), attention(explicit), limit)


@law(
    source="Dao et al. 2022 (FlashAttention), algorithm 1: L = m + log l",
    formula="L_i = log sum_j exp(s_ij)",
    guards="Base 2, a maximum left out, the last split's value only (flashinfer 5dadb243c), a scale left out; heads in "
    "another order where a group stands in for rows (flash-sparse-attention 190).",
    needs=("log_sum_exp",),
    given=(
        one_in(3, having(sinks=True), one_of("values", "very-negative")),
        one_in(4, having(q_len=1, heads=4, kv_heads=2)),
        one_in(3, long_rows),
        one_in(4, without_keys_for_some),
    ),
)
def log_sum_exp_is_within_the_bound(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The returned log-sum-exp is the natural logarithm of the softmax's denominator; of no keys -inf, or as declared."""
    exact, bound = x.problem.attended.log_sum_exp, attention.log_sum_exp_bound(x)
    return within(attention.log_sum_exp(x), exact, bound, "log-sum-exp")


@law(
    source="Dao et al. 2022 (FlashAttention), algorithm 2: dropout comes after the softmax",
    formula="L with dropout = L without",
    guards="The logarithm of the sum of what dropout has kept: parts then merge with wrong weights.",
    needs=("log_sum_exp", "dropout"),
    share=0.3,
)
def dropout_is_not_in_the_log_sum_exp(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The log-sum-exp that is returned beside dropped weights is that of all weights."""
    with seeded(x.case.seed):
        observed = attention.log_sum_exp(x.but(dropout_p=0.5))
    exact, bound = x.problem.attended.log_sum_exp, attention.log_sum_exp_bound(x)
    return within(observed, exact, bound, "log-sum-exp, with dropout")


@law(
    source="torch.nn.MultiheadAttention returns the weights that were dropped; others return them as they were before",
    formula="W with dropout = W without, or O = W V",
    guards="Weights that are dropped apart from those that meet the values, or divided by 1 - p and not dropped.",
    needs=("weights", "dropout"),
    given=(one_of("dtype", "float32", "float64"),),
    share=0.3,
)
def weights_beside_dropout_are_those_before_or_after_it(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The weights that are returned beside dropout are all weights, or those that met the values."""
    with seeded(x.case.seed):
        answer = attention.answer(x.but(dropout_p=0.5), weights=True)
    if answer.weights is None:
        raise LawBroken("return_weights=True returned no weights")
    limit = _limit_of_weights(attention, x)
    before = within(answer.weights, x.problem.attended.weights, limit, "weights, with dropout")
    value = x.problem.grouped_value
    off = limit.clamp(max=1) @ value.abs() + attention.bound(x)  # Each divided by 1 - 0.5.
    after = within(answer.output, answer.weights.double() @ value, 2 * off, "output, with dropout")
    return after if before.broken and not after.broken else before


@law(
    source="the output is the returned weights times the values",
    formula="W >= 0, W = softmax(S)",
    guards="Weights after dropout (pytorch 42929), averaged over heads (fairseq 3365), of another path.",
    needs=("weights",),
)
def returned_weights_are_within_the_bound(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The returned weights are the softmax of the scores."""
    exact, limit = x.problem.attended.weights, _limit_of_weights(attention, x)
    return within(attention.weights(x), exact, limit, "weights")


def _limit_of_weights(attention: AttentionSubject, x: Inputs) -> torch.Tensor:
    """How far each may be off; any far where rows without keys do not give zeros."""
    limit = attention.forward_bounds(x).weights
    if attention.empty_rows == "zeros" and DEAD_ROWS not in attention.avoids:
        return limit
    return torch.where(attention.special_rows(x)[..., None], torch.inf, limit)


@law(
    source="a capability declared absent is refused, never answered wrongly",
    formula="declared without F: f(x, F) raises",
    guards="An option that is accepted and ignored: the caller believes that a cap or a window is in force.",
    share=0.3,
)
def what_is_declared_unsupported_is_refused(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A feature that the subject declares not to have raises when it is asked for."""
    always = attention.declaration.always
    none_of_them: dict[str, Any] = {"attn_mask": None, "sinks": None, "alibi_slopes": None}
    none_of_them |= {"is_causal": False, "window": None, "softcap": None}
    plain = x.but(**{**none_of_them, **always})
    asked = {
        "scale": plain.but(scale=0.5),
        "is_causal": plain.but(is_causal=True),
        "attn_mask": plain.but(attn_mask=torch.ones((x.q_len, x.kv_len), dtype=torch.bool)),
        "dropout": plain.but(dropout_p=0.5),
        "window": plain.but(window=(1, 1)),
        "softcap": plain.but(softcap=1.0),
        "sinks": plain.but(sinks=torch.zeros(x.heads, dtype=x.dtype)),
        "alibi": plain.but(alibi_slopes=slopes(x.heads, x.dtype)),
    }
    denied = [feature for feature in asked if attention.denies(feature) and feature not in always]
    if not denied:
        raise NotApplicable("declares no feature absent")
    answered = [feature for feature in denied if not _is_refused(attention, asked[feature])]
    if answered:
        raise LawBroken(f"{', '.join(answered)}: declared absent, and answered")
    return none("features that are declared absent and answered")


def _is_refused(attention: AttentionSubject, x: Inputs) -> bool:
    try:
        attention(x)
    except (SubjectRaised, NotApplicable):
        return True
    return False


@law(
    source="an auxiliary output is no other computation",
    formula="O(with extras) = O(without)",
    guards="need_weights takes another path that treats dead rows or masks otherwise (pytorch 160064, keras 23038).",
)
def asking_for_more_changes_nothing(attention: AttentionSubject, x: Inputs) -> list[Comparison]:
    """Returning weights or log-sum-exp does not change the output."""
    extras = [name for name in ("log_sum_exp", "weights") if attention.has(name)]
    if not extras:
        raise NotApplicable("returns neither weights nor log-sum-exp")
    plain, limit = attention(x), attention.apart(x, x)
    compared = [within(attention.answer(x, **{name: True}).output, plain, limit) for name in extras]
    if len(extras) > 1 and attention.declaration.returns is None:
        try:
            compared.append(within(attention.answer(x, log_sum_exp=True, weights=True).output, plain, limit))
        except SubjectRaised as refusal:
            if not refused_on_purpose(refusal.problem):  # One of them at a time may be all that is asked for.
                raise
    return compared
