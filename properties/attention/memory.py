"""How tensors lie in memory, what comes back, and what must be left as it was."""

from collections.abc import Iterator

import torch

from headcheck.attention import expanded, watching
from headcheck.attention.given import (
    beside_a_block,
    boolean_mask,
    causal,
    equal_heads,
    equal_widths,
    masked,
    of_one_projection,
    thousands_of_numbers,
    unmasked,
)
from headcheck.attention.inputs import Inputs
from headcheck.attention.strides import MASK_STRIDES, MIXED, STRIDES
from headcheck.attention.subject import SCALES, AttentionSubject
from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, LawBroken, NotApplicable, compared_gradients, none, same, within
from headcheck.given import alternately, at_least, at_most, having, one_in, one_of
from headcheck.laws import law

STRIDED = tuple(name for name in (*STRIDES, *MIXED) if name != "contiguous")
STRIDED_MASKS = tuple(name for name in MASK_STRIDES if name != "contiguous")
TENSOR = "the torch tensor: sizes, strides, offset"


@law(
    source=TENSOR,
    formula="O(strided views) = O(contiguous copies)",
    guards="A kernel that assumes contiguous rows (pytorch 181133, flash-attention a0f9f418).",
    given=(
        one_of("strides", *STRIDED, "expanded", "expanded-heads", "stacked"),
        one_in(2, at_least(batch=2, heads=2, kv_heads=2), beside_a_block),
        one_in(4, having(q_len=64)),
        one_in(5, of_one_projection),
    ),
    share=1.5,
)
def strided_equals_contiguous(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Transposed, sliced, packed, offset and expanded inputs give what their contiguous copies give."""
    plain = x.but(strides="contiguous")
    dense = attention(plain)  # First, for a kernel that is compiled for dense tensors to be there.
    return within(attention(x), dense, attention.apart(x, plain))


@law(
    source=TENSOR,
    formula="O(strided mask) = O(contiguous mask)",
    guards="A mask read with the strides of its broadcast or its dense form (pytorch 191937, xformers 471569b4).",
    needs=("attn_mask",),
    given=(masked, one_of("mask_strides", *STRIDED_MASKS), at_least(q_len=2, kv_len=2)),
)
def a_strided_mask_equals_a_contiguous_one(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """An expanded, transposed or sliced mask does what its contiguous copy does."""
    return attention.agree(x, x.but(mask_strides="contiguous")) if x.attn_mask is not None else None


@law(
    source=TENSOR,
    formula="O(sinks or slopes, a column of a table) = O(their contiguous copies)",
    guards="Numbers of the heads that are read side by side, whatever their stride.",
    given=(alternately((having(sinks=True),), (having(alibi=True),)), at_least(heads=2)),
    share=0.25,
)
def sinks_and_slopes_may_be_columns(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Sinks and slopes of ALiBi that are a column of a table do what their contiguous copies do."""
    names = [name for name in ("sinks", "alibi_slopes") if getattr(x, name) is not None]
    if not names:
        raise NotApplicable("takes neither sinks nor slopes of ALiBi")
    return within(watching.of_columns(attention, x, *names), attention(x), attention.apart(x, x))


@law(
    source=TENSOR,
    formula="gradients of strided views = gradients of contiguous copies",
    guards="A backward that allocates its results with the strides of another input (flash-attention 2423cca3).",
    given=(one_of("strides", *STRIDED),),
    share=0.5,
)
def strided_gradients_equal_contiguous(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """The gradients do not depend on how query, key and value lie in memory; of what is expanded they are sums."""
    attention.require_specified_gradients(x)
    if x.strides.startswith("expanded") and not attention.is_packed:
        bounds = expanded.summed_over_readers(attention, x, attention.gradient_bounds(x).of(times=2))
        found, copied = (
            expanded.gradients_of_places(attention, x, written_out=each) for each in (False, True)
        )
        yield from compared_gradients(found, copied, bounds)
        return
    strided, plain = attention.gradients(x), attention.gradients(x.but(strides="contiguous"))
    yield from compared_gradients(strided._asdict(), plain._asdict(), attention.gradients_apart(x))


@law(
    source="Vaswani et al. 2017, section 3.2.3: in self-attention query, key and value come from one place",
    formula="f(X, X, X) = f(X, X', X''), f(X, X, V) = f(X, X', V), f(Q, X, X) = f(Q, X, X'), X' a copy of X",
    guards="One tensor taken for the sign of another attention: keys shared with queries, which do not see themselves; "
    "a latent cache; one projection for all.",
    given=(equal_heads, equal_widths, at_least(q_len=2)),
    share=0.3,
)
def one_tensor_may_be_query_key_and_value(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A tensor that is query, key and value at once, or two of them, gives what copies of it give."""
    length = min(x.q_len, x.kv_len)
    cut = {name: getattr(x, name)[:, :, :length] for name in ("query", "key", "value")}
    mask = None if x.attn_mask is None else x.attn_mask[..., -length:, -length:]
    x = x.but(**cut, attn_mask=mask, strides="contiguous", generic=False)
    for shared in ({"key": "query", "value": "query"}, {"key": "query"}, {"value": "key"}):
        y = x.but(**{name: cut[other] for name, other in shared.items()})
        yield within(watching.given_twice(attention, y, shared), attention(y), attention.apart(y, y))


@law(
    source="the canonical call: (batch, heads, q_len, value_dim), in the dtype and on the device of query",
    formula="shape(O) = (batch, heads, q_len, value_dim)",
    guards="An output sized by the wrong tensor when Lq, Lk, D and Dv differ; a dtype that is silently promoted.",
)
def output_has_the_right_form(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The output is a plain tensor of the right shape, dtype and device."""
    attention(x)
    return none("outputs of another form")


@law(
    source="the canonical call changes nothing that it is given",
    formula="Q, K, V, mask after the call = before",
    guards="Scaling the query in place, writing -inf into the caller's mask, transposing buffers for good; a backward "
    "pass that puts gradients where the inputs are.",
    given=(alternately((thousands_of_numbers,), (boolean_mask,), (boolean_mask,), ()),),
)
def inputs_are_not_changed(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Query, key, value and mask hold after the call, and after the backward pass, what they held before it.

    NaN in a hidden value included.
    """
    gradients = x.case.seed % 2 == 0 and attention.declaration.gradients is not False
    if x.case.seed // 2 % 3 == 0:
        x = x.but(value=torch.where(x.hidden_keys[..., None], torch.nan, x.value), generic=False)
    for name, before, after in watching.before_and_after(attention, x, gradients=gradients):
        yield same(after, before, name)


@law(
    source="torch.autograd: an output and its gradient are the caller's, and other branches of a graph read them too",
    formula="O and dO after the backward pass = before, NaN included",
    guards="Rows without keys zeroed in the gradient of the output itself, which a residual shares; a saved output "
    "that is multiplied in place.",
    given=(alternately((masked,), (causal,), ()),),
    share=0.5,
)
def backward_leaves_the_output_and_its_gradient_alone(
    attention: AttentionSubject, x: Inputs
) -> Iterator[Comparison]:
    """The output and its gradient hold after the backward pass what they held before, in rows without keys too."""
    if x.attn_mask is not None and attention.empty_rows != "undefined":
        x = x.with_a_dead_row()
    for name, before, after in watching.around_backward(attention, x):
        yield same(after, before, f"{name}, after the backward pass")


@law(
    source="torch.autograd: what a graph has kept must not be written to before it is followed back",
    formula="L = sum(Q w), then f(Q, K, V), then dL / dw = sum(Q); and so of K, V and the mask",
    guards="A scale or a fill put on the caller's tensor and taken off it again: who kept it cannot go back.",
    given=(one_in(2, thousands_of_numbers),),
    share=0.3,
)
def a_graph_that_kept_an_input_can_be_followed_back(attention: AttentionSubject, x: Inputs) -> Comparison:
    """What was computed from an input before the call has its gradients after it: nothing was written there."""
    written = watching.kept_and_written_to(attention, x)
    if written:
        raise LawBroken(f"the call wrote to {', '.join(written)}: a graph that kept it is cut")
    return none("inputs that were written to")


@law(
    source="the canonical call changes nothing that it is given",
    formula="mask after f(x, mask, is_causal) = before",
    guards="The causal triangle written into the additive mask that the caller hands to every layer.",
    needs=("attn_mask", "is_causal"),
    given=(masked, at_least(q_len=2, kv_len=2)),
    share=0.5,
)
def a_mask_beside_is_causal_is_not_changed(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A mask that is given together with is_causal holds after the call what it held before, or is refused."""
    both = x.but(is_causal=True, scale=None, generic=False)
    try:
        yield from (
            same(after, before, name)
            for name, before, after in watching.before_and_after(attention, both, gradients=False)
        )
    except SubjectRaised as refusal:
        raise NotApplicable(f"attn_mask with is_causal is refused: {refusal}") from refusal


@law(
    source="the canonical call changes nothing that it is given",
    formula="no argument wants a gradient before the call: none does after it",
    guards="requires_grad_() on the caller's tensor, for a backward that computes it again.",
    share=0.3,
)
def no_input_is_made_to_want_a_gradient(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Tensors that wanted no gradient want none after the call, and have none."""
    wanting = watching.wanting_gradients(attention, x)
    if wanting:
        raise LawBroken(f"after the call {', '.join(wanting)} wants a gradient")
    return none("inputs that want a gradient")


@law(
    source="the canonical call gives a tensor of its own",
    formula="O shares no memory with Q, K, V",
    guards="A value returned as the output where there is one key; a change of the result that changes the input.",
    given=(one_in(2, unmasked, at_most(kv_len=1)),),
    share=0.5,
)
def output_does_not_alias_an_input(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Writing into the output leaves the inputs as they were."""
    shared = watching.shared_memory(attention, x)
    if shared:
        raise LawBroken(f"the output shares memory with {shared}")
    return none("inputs that share memory with the output")


@law(
    source="the canonical call gives a tensor of its own",
    formula="no two numbers of O share a place in memory",
    guards="Rows that are equal handed out as one, expanded: what is added to one is added to all.",
    given=(one_in(2, unmasked),),
    share=0.5,
)
def each_number_of_the_output_has_a_place_of_its_own(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Writing into one number of the output changes no other, not even where all rows are equal."""
    if attention.has("scale") and not x.is_causal and SCALES not in attention.avoids:
        x = x.but(scale=0.0, generic=False)
    if watching.numbers_in_one_place(attention, x):
        raise LawBroken("the output is expanded: several of its numbers lie in one place")
    return none("places that hold several numbers")


@law(
    source="the canonical call gives a tensor of its own",
    formula="O1, and what is returned beside it, is the same before and after O2 is computed",
    guards="A kept buffer for the output, the weights or the log-sum-exp, or two that take turns: a later call writes "
    "over the first result.",
    given=(one_in(3, at_most(q_len=1)),),
    share=0.5,
)
def results_outlive_the_next_call(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A result, and what is returned beside it, is not overwritten by the next call, nor by those after it."""
    other = x.but(value=-x.value, query=x.query.flip(-1), generic=False)
    extras = [{}, *({name: True} for name in ("log_sum_exp", "weights") if attention.has(name))]
    for asked in extras:
        for name, kept, now in watching.kept_over_the_next_call(attention, x, other, **asked):
            yield same(now, kept, f"the first {name.replace('_', '-')}, after the next calls")
