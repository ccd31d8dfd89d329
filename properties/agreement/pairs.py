"""Two subjects on the same inputs: each may be off by its own bound, so they may be apart by the sum of both."""

from collections.abc import Iterator

import torch
from torch import Tensor

from headcheck.agreement.pair import PairSubject
from headcheck.attention.given import alike, blind_to_order, long_rows, masked, no_mask, unmasked, without
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import CAUSAL_SCALES
from headcheck.calling import SubjectRaised, refused_on_purpose
from headcheck.comparison import Comparison, NotApplicable, within
from headcheck.declarations import BROADCAST_SHAPES
from headcheck.given import at_least, having, one_in, one_of
from headcheck.laws import law

TRIANGLE = "triangle inequality: |a - b| <= |a - exact| + |b - exact|"
OUTPUTS = "|O_1 - O_2| <= bound_1 + bound_2"
OF_EQUAL_SIZES = (alike("batch", "q_len"), alike("batch", "heads"), alike("batch", "q_len"))
"""As many sequences as heads and as queries: an axis that is taken for another keeps the shapes."""


def _outputs(pair: PairSubject, x: Inputs, what: str = "output") -> Comparison:
    return within(pair.one(x), pair.other(x), pair.one.bound(x) + pair.other.bound(x), what)


@law(
    source=TRIANGLE,
    formula=OUTPUTS,
    guards="Backends of one function that part at the edges: masks, lengths, scales, dead rows (pytorch 110213).",
    given=(
        one_in(
            4,
            masked,
            one_of("mask_axes", *BROADCAST_SHAPES[1:]),
            at_least(batch=2, heads=2, q_len=2, kv_len=2),
            *OF_EQUAL_SIZES,
        ),
    ),
    share=1.5,
)
def outputs_agree(pair: PairSubject, x: Inputs) -> Comparison:
    """Both give the same output, as far as the arithmetic that each declares allows."""
    return _outputs(pair, x)


@law(
    source=f"{TRIANGLE}; torch.nn.functional.scaled_dot_product_attention, argument scale",
    formula=f"{OUTPUTS} for scale = 0, -1/2",
    guards="A scale of zero taken for none in one of two backends, a sign that is lost.",
    needs=("scale",),
    share=0.25,
)
def scales_of_zero_and_below_agree(pair: PairSubject, x: Inputs) -> Iterator[Comparison]:
    """Both give the same output by a scale of zero and by a negative one, where both take them."""
    if x.is_causal and CAUSAL_SCALES in pair.one.avoids:
        raise NotApplicable("with is_causal, one of them is for scales above zero only")
    refusals = []
    for scale in (0.0, -0.5):
        try:
            yield _outputs(pair, x.but(scale=scale), f"output, with scale = {scale}")
        except SubjectRaised as refusal:
            if not refused_on_purpose(refusal.problem):
                raise
            refusals.append(f"a scale of {scale} is refused: {refusal}")
    if len(refusals) == 2:
        raise NotApplicable("; ".join(refusals))


@law(
    source=f"{TRIANGLE}; an additive mask is added to the scores, whatever its size",
    formula=f"{OUTPUTS}, every B_ij near -2^15",
    guards="A running maximum that begins at -1e4 in one of two backends, biases that are clamped there.",
    needs=("additive",),
    given=(no_mask, blind_to_order, without("sinks"), at_least(kv_len=2)),
    share=0.25,
)
def low_biases_agree(pair: PairSubject, x: Inputs) -> Comparison:
    """Both give the same output beside biases that are all far below zero."""
    return _outputs(pair, x.with_low_biases())


@law(
    source=f"{TRIANGLE}; broadcasting: axes are matched from the last one",
    formula=f"{OUTPUTS}, M of (q_len, kv_len), q_len = batch = heads",
    guards="A mask (q_len, kv_len) that one of two backends reads as (batch, kv_len).",
    needs=("attn_mask",),
    given=(masked, having(mask_axes="qk"), at_least(batch=2, heads=2, q_len=2, kv_len=2), *OF_EQUAL_SIZES),
    share=0.25,
)
def masks_of_two_axes_agree(pair: PairSubject, x: Inputs) -> Comparison | None:
    """Both give the same output beside a mask of queries and keys, where batch and heads are as many as queries."""
    if x.attn_mask is None:
        return None
    if x.case.mask_axes != "qk":
        raise NotApplicable("one of them takes no mask of two axes")
    return _outputs(pair, x)


@law(
    source=f"{TRIANGLE}; the canonical call: a mask and is_causal both restrict",
    formula=f"{OUTPUTS}, B + triangle",
    guards="The causal flag dropped in one of two backends beside a mask of one shape or kind (keras 23040).",
    needs=("is_causal", "additive"),
    given=(
        masked,
        one_of("mask_form", "additive", "bias"),
        one_of("mask_axes", "b11k", "bh1k", "bhqk"),
        having(is_causal=True),
        at_least(q_len=2, kv_len=2),
    ),
    share=0.5,
)
def biases_beside_the_causal_flag_agree(pair: PairSubject, x: Inputs) -> Comparison | None:
    """Both give the same output where an additive mask comes together with is_causal, where both take that."""
    return _outputs(pair, x) if x.is_causal and x.attn_mask is not None else None


@law(
    source=f"{TRIANGLE}; kernels split the keys by their number",
    formula=f"{OUTPUTS}, kv_len > 1024",
    guards="Long rows by another path in one of two backends, which loses their last key.",
    given=(unmasked, long_rows, having(dtype="float32")),
    share=0.25,
)
def long_rows_agree(pair: PairSubject, x: Inputs) -> Comparison:
    """Both give the same output of more than a thousand keys."""
    return _outputs(pair, x)


@law(
    source=TRIANGLE,
    formula="|dQ_1 - dQ_2|, |dK_1 - dK_2|, |dV_1 - dV_2| <= the sum of both bounds",
    guards="A model that trains with one backend and not with another (pytorch 133671).",
)
def gradients_agree(pair: PairSubject, x: Inputs) -> Iterator[Comparison]:
    """Both give the same gradients of query, key and value."""
    for side in pair.sides:
        side.require_specified_gradients(x)
    found = [side.gradients(x) for side in pair.sides]
    bounds = [side.gradient_bounds(x) for side in pair.sides]
    for name in ("query", "key", "value"):
        one, other = (_given(getattr(each, name), getattr(x, name)) for each in found)
        limit = getattr(bounds[0], name) + getattr(bounds[1], name)
        yield within(one, other, limit, f"gradient of {name}")


def _given(gradient: Tensor | None, of: Tensor) -> Tensor:
    """A gradient that autograd leaves out stands for zero."""
    return torch.zeros_like(of) if gradient is None else gradient


@law(
    source=f"{TRIANGLE}; Dao et al. 2022 (FlashAttention), algorithm 1: L = m + log l",
    formula="|L_1 - L_2| <= bound_1 + bound_2",
    guards="Base 2 in one backend and base e in another, of which parts are merged (vllm 26042).",
    needs=("log_sum_exp",),
)
def log_sum_exps_agree(pair: PairSubject, x: Inputs) -> Comparison:
    """Both return the same log-sum-exp."""
    limits = [side.log_sum_exp_bound(x) for side in pair.sides]
    return within(pair.one.log_sum_exp(x), pair.other.log_sum_exp(x), limits[0] + limits[1], "log-sum-exp")


@law(
    source=TRIANGLE,
    formula="|W_1 - W_2| <= bound_1 + bound_2",
    guards="Weights of another path than the output's (pytorch 42929).",
    needs=("weights",),
)
def weights_agree(pair: PairSubject, x: Inputs) -> Comparison:
    """Both return the same weights."""
    limits = [side.forward_bounds(x).weights for side in pair.sides]
    dead = (pair.one.special_rows(x) | pair.other.special_rows(x))[..., None]
    limit = torch.where(dead, torch.inf, limits[0] + limits[1])
    return within(pair.one.weights(x), pair.other.weights(x), limit, "weights")


@law(
    source="the canonical call: a query that may attend to nothing gives what is declared",
    formula="no key for query i, and one convention: O_1i = O_2i",
    guards="Zeros in one backend, NaN or the mean of all values in another (pytorch 103749, 110213).",
    needs=("attn_mask",),
    share=0.5,
)
def dead_rows_agree(pair: PairSubject, x: Inputs) -> Comparison | None:
    """Both give the same for a query whose keys are all masked, where they declare one convention."""
    pair.require_one_convention_for_dead_rows()
    if x.attn_mask is None or x.case.mask_form == "lowest":
        return None
    y = x.with_a_dead_row()
    limit = pair.one.strict_bound(y) + pair.other.strict_bound(y)
    one, other = (torch.where(y.dead_rows[..., None], side(y).cpu(), 0.0) for side in pair.sides)
    return within(one, other, limit, "output of a query without keys")
