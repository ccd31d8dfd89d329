"""Nothing is remembered from call to call, and nothing outside the call is touched."""

from collections.abc import Iterator
from contextlib import suppress
from random import Random

import torch

from headcheck.attention import watching
from headcheck.attention.given import causal, hiding_blocks, hiding_keys, masked, rare_lengths
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import CAUSAL_SCALES, AttentionSubject
from headcheck.comparison import Comparison, LawBroken, NotApplicable, compared_gradients, none, within
from headcheck.forks import require_right_in_a_copy
from headcheck.given import alternately, at_least, one_in, one_of
from headcheck.laws import law
from headcheck.library import changed_by, generators_watched, region_left_by
from headcheck.reference.masks import additive

PURE = "the canonical call is a function of its arguments"
MODES = "torch.inference_mode: tensors without the records of autograd; the numbers are the same"


@law(
    source=PURE,
    formula="f(x) = f(x), bit for bit unless declared otherwise",
    guards="Uninitialised memory, a race, state that grows with each call (diffusers 8610).",
    unless=("deterministic=False",),
)
def same_call_same_answer(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The same call twice gives the same bits."""
    return attention.identical(x, x)


@law(
    source=PURE,
    formula="f(x), f(x'), f(x) again: each as if it were alone, x' differing in one argument",
    guards="A memo whose key lacks the scale, the mask, the causal flag or the lengths (flashinfer 4014, xformers 660).",
    share=1.5,
)
def one_thing_changed_is_noticed(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Two calls that differ in one argument do not answer for each other, in either order."""
    for other in _one_thing_changed(attention, x):
        first = attention(x)
        yield from _as_if_alone(attention, other, attention(other))
        again = attention(x)
        yield within(again, first, attention.apart(x, x), "output, the second time")
        yield from _as_if_alone(attention, x, again)


@law(
    source=PURE,
    formula="f(x), then f(x, mask), f(x, scale), ..., then f(x): the same bits as before",
    guards="A mask or a table that is kept for each pair of lengths, and written into by a call that adds to it.",
    given=(at_least(q_len=2, kv_len=2), alternately((causal,), ())),
    share=0.5,
)
def calls_in_between_leave_nothing_behind(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A call gives the same bits after other calls of the same shapes, with masks, flags and scales of their own."""
    plain = x.but(attn_mask=None)
    before = attention(plain)
    for other in _of_the_same_shapes(attention, plain):
        with suppress(LawBroken, NotApplicable):  # What is refused leaves nothing behind, either.
            attention(other)
    return attention.unchanged(attention(plain), before, plain, "output, after other calls")


def _of_the_same_shapes(attention: AttentionSubject, x: Inputs) -> Iterator[Inputs]:
    """Calls that ask for something else, one thing each."""
    sizes = {"qk": (x.q_len, x.kv_len), "bhqk": (x.batch, x.heads, x.q_len, x.kv_len)}
    for axes in sizes.keys() & set(attention.mask_forms) if attention.has("attn_mask") else ():
        keep = torch.rand(sizes[axes], generator=x.generator(axes)) < 0.5
        masks = [keep] * attention.has("boolean") + [additive(keep, x.dtype)] * attention.has("additive")
        yield from (x.but(attn_mask=mask, generic=False) for mask in masks)
    if attention.has("is_causal"):
        yield x.but(is_causal=not x.is_causal)
    if attention.has("scale"):
        yield x.but(scale=2 * x.resolved_scale)
    yield x.but(key=-x.key, value=-x.value, generic=False)


def _as_if_alone(attention: AttentionSubject, x: Inputs, answer: torch.Tensor) -> Iterator[Comparison]:
    """The answer against the oracle; nothing where the subject is wrong about `x` anyway: that is for other laws.

    It is asked again in disguise, with everything twice along the batch and along the heads, which finds
    no memory of the plain call.
    """
    expected, bound = attention.expected(x), attention.bound(x)
    found = within(answer, expected, bound)
    if found.broken:
        for axis in (0, 1):
            again = attention(x.twice(axis))[: x.batch, : x.heads]
            if within(again, expected, bound).broken:
                return
    yield found


def _one_thing_changed(attention: AttentionSubject, x: Inputs) -> list[Inputs]:
    """The inputs with one argument replaced, twice; which one is the case's own choice."""
    options: list[dict[str, object]] = [
        {"value": -x.value.roll(1, dims=-1), "generic": False},
        {"key": -x.key, "generic": False},
        {"key": _with_another_end(x.key), "value": _with_another_end(x.value), "generic": False},
    ]
    if x.dtype == torch.float16 and "bfloat16" in attention.dtypes:
        floating = {name: getattr(x, name) for name in ("query", "key", "value", "sinks", "attn_mask")}
        narrow = {n: each for n, each in floating.items() if each is not None and each.dtype == x.dtype}
        options.append({name: each.bfloat16() for name, each in narrow.items()})
    if attention.has("scale"):
        options.append({"scale": 2 * x.resolved_scale})
    if x.attn_mask is not None:
        options += [{"attn_mask": None}, {"attn_mask": x.attn_mask.roll(1, dims=-1)}]
    elif attention.has("is_causal") and (x.resolved_scale > 0 or CAUSAL_SCALES not in attention.avoids):
        options.append({"is_causal": not x.is_causal})
    options += _other_features(x)
    if x.strides != "contiguous":
        options.append({"strides": "contiguous"})
    if attention.has("rectangular"):
        mask = x.attn_mask[..., -1:, :] if x.attn_mask is not None else None
        last = {"query": x.query[:, :, -1:], "attn_mask": mask}
        options.append({**last, "is_causal": False, "window": None, "alibi_slopes": None})
    return [x.but(**changes) for changes in Random(x.case.seed).sample(options, 2)]


def _of_another_layer(attention: AttentionSubject, x: Inputs) -> Inputs:
    """A call of the same shapes with other numbers, scale, and mask or causal flag, as far as it takes them."""
    other = x.but(query=x.query.flip(-1), key=1 - x.key, value=-x.value, generic=False)
    if attention.has("scale"):
        other = other.but(scale=2 * x.resolved_scale)
    if x.attn_mask is not None:
        return other.but(attn_mask=x.attn_mask.roll(1, dims=-1))
    may_turn = x.resolved_scale > 0 or CAUSAL_SCALES not in attention.avoids
    turned = attention.has("is_causal") and may_turn
    return other.but(is_causal=not x.is_causal) if turned else other


def _other_features(x: Inputs) -> list[dict[str, object]]:
    """Other slopes, sinks, caps and windows, of those that are asked for."""
    options: list[dict[str, object]] = []
    if x.alibi_slopes is not None:
        options.append({"alibi_slopes": x.alibi_slopes.flip(0) * 0.75, "generic": False})
    if x.sinks is not None:
        options.append({"sinks": x.sinks + 1, "generic": False})
    if x.softcap is not None:
        options.append({"softcap": 2 * x.softcap})
    if x.window is not None:
        options.append({"window": None})
    return options


def _with_another_end(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with other numbers in its last row: a glance at the first ones does not tell them apart."""
    return torch.cat([tensor[:, :, :-1], 1 - tensor[:, :, -1:]], dim=2)


@law(
    source=PURE,
    formula="x changed in place between two calls: the second answers for what it is given",
    guards="Answers cached by address, by shape or by the first few numbers; so the blocks that a mask leaves open.",
    given=(one_in(2, hiding_blocks),),
    share=0.5,
)
def inputs_changed_in_place_are_read_again(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Numbers changed in place, in the same tensors, give the answer for the new numbers: those of a mask, too."""
    mask = x.attn_mask
    if mask is not None:
        mask = torch.ones_like(mask) if mask.dtype == torch.bool else torch.zeros_like(mask)
    new = x.but(
        attn_mask=mask,
        query=x.query.flip(2),
        key=-x.key.flip(2),
        value=(x.value.flip(2) + 1).to(x.dtype),
        strides="contiguous",
        mask_strides="contiguous",
        generic=False,
    )
    old = x.but(strides="contiguous", mask_strides="contiguous")
    second = watching.after_change_in_place(attention, old, new)
    return _as_if_alone(attention, new, second)


@law(
    source=PURE,
    formula="the state of torch's generator, of Python's and of NumPy's is the same before and after",
    guards="A kernel that seeds a global generator, be it once for each size, or draws from it without dropout.",
    given=(one_in(2, rare_lengths),),
    share=0.5,
)
def the_global_generator_is_untouched(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Without dropout, the call neither seeds nor uses a global random generator."""
    with generators_watched() as moved:
        attention(x)
    if moved:
        raise LawBroken(f"the call moved {', '.join(moved)}")
    return none("generators that were moved")


@law(
    source="C and torch.empty: fresh memory holds whatever was there",
    formula="f(x) with freed memory full of one junk or another: the same bits",
    guards="Rows that are never written, read back from torch.empty (flashinfer 1533).",
    given=(at_least(q_len=2),),
    share=0.5,
)
def stale_memory_does_not_matter(attention: AttentionSubject, x: Inputs) -> Comparison:
    """What was left in freed memory does not reach the output."""
    outputs = []
    for junk in (float("nan"), 3.0):
        _leave_behind(x, junk)
        outputs.append(attention(x))
    return attention.unchanged(outputs[0], outputs[1], x, "output")


@law(
    source="C and torch.empty: fresh memory holds whatever was there",
    formula="the gradients, with freed memory full of one junk or another: the same",
    guards="Gradients of keys that no query sees, never written (flash-attention bdcae547).",
    needs=("attn_mask",),
    given=(hiding_keys, at_least(kv_len=2)),
    share=0.5,
)
def stale_memory_does_not_reach_the_gradients(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """What was left in freed memory does not reach a gradient."""
    attention.require_specified_gradients(x)
    found = []
    for junk in (float("nan"), 3.0):
        _leave_behind(x, junk)
        found.append(attention.gradients(x)._asdict())
    yield from compared_gradients(found[0], found[1], attention.gradients_apart(x))


@law(
    source=MODES,
    formula="f(x) in torch.inference_mode = f(x) outside",
    guards="A path for inference that lacks the mask, the bias or the scale.",
    share=0.5,
)
def inference_mode_changes_nothing(attention: AttentionSubject, x: Inputs) -> Comparison:
    """In inference mode the output is what it is outside."""
    plain, limit = attention(x), attention.apart(x, x)

    def there() -> Comparison:
        return within(watching.in_inference_mode(attention, x), plain, limit)

    if attention.forward_only:
        require_right_in_a_copy(lambda: [there()], attention.device, "in torch.inference_mode")
        return none("outputs that are other in inference mode")
    return there()


@law(
    source=MODES,
    formula="f(x) in torch.inference_mode, then df(x): the gradients",
    guards="A mask or a constant that is made in inference mode and kept: autograd refuses it later.",
    given=(alternately((causal,), ()),),
    share=0.3,
)
def inference_mode_leaves_nothing_behind(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """After a call in inference mode the same call has its gradients."""
    if attention.forward_only:
        raise NotApplicable(attention.forward_only)
    attention.require_specified_gradients(x)
    if attention.has("scale"):
        x = x.but(scale=0.25 + x.case.seed / 4e6)  # A call that nobody made before.
    watching.in_inference_mode(attention, x)
    after = list(_gradients(attention, x, x.cotangent))
    if not any(each.broken for each in after) or not _wrong_anyway(attention, x):
        yield from after


def _wrong_anyway(attention: AttentionSubject, x: Inputs) -> bool:
    """Whether a call of another head_dim, batch and scale, which was never made in inference mode, is wrong too."""
    other = x.twice(0)
    wider = {name: torch.cat([getattr(other, name)] * 2, dim=-1) for name in ("query", "key")}
    other = other.but(**wider, generic=False)
    if attention.has("scale"):
        other = other.but(scale=0.3 + x.case.seed / 4e6)
    try:
        return any(each.broken for each in _gradients(attention, other, torch.cat([x.cotangent] * 2)))
    except LawBroken:  # It may not take that head_dim, which says nothing of the other.
        return False


def _gradients(attention: AttentionSubject, x: Inputs, cotangent: torch.Tensor) -> Iterator[Comparison]:
    found, exact = attention.gradients(x, cotangent), x.problem.gradients(cotangent.double())
    bounds = attention.gradient_bounds(x, cotangent).of()
    return compared_gradients(found._asdict(), exact._asdict(), bounds)


@law(
    source="recording gradients is no part of the function",
    formula="f(x) where x wants gradients = f(x) where it wants none; L = log sum exp(S) in both",
    guards="A forward for training of its own: without the mask, or with the log-sum-exp that backward keeps, in base 2.",
    share=0.5,
)
def recording_gradients_changes_nothing(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """The output, and the log-sum-exp where it is returned, are the same whether gradients are recorded or not."""
    also = attention.has("log_sum_exp")
    found, plain = watching.recorded(attention, x, log_sum_exp=also), attention.answer(x, log_sum_exp=also)
    yield within(found.output, plain.output, attention.apart(x, x), "output, gradients recorded")
    if found.log_sum_exp is not None and plain.log_sum_exp is not None:
        limit = 2 * attention.log_sum_exp_bound(x)
        yield within(found.log_sum_exp, plain.log_sum_exp, limit, "log-sum-exp, gradients recorded")


@law(
    source="torch.autograd: each graph keeps what its own backward needs",
    formula="f(x), f(x'), then df(x): as if f(x') had never been called",
    guards="A workspace for what backward needs, kept by shape, or a descriptor of the last call: the forward of the "
    "next layer, with a mask or a scale of its own, writes over it.",
    given=(one_in(2, masked),),
    share=0.5,
)
def the_next_call_leaves_the_graph_alone(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A call that is made before the backward of another one does not change its gradients."""
    attention.require_specified_gradients(x)
    found = watching.gradients_after_the_next_call(attention, x, _of_another_layer(attention, x))
    exact, bounds = x.problem.gradients(x.cotangent.double()), attention.gradient_bounds(x).of()
    yield from compared_gradients(found, exact._asdict(), bounds, ", after another call")


@law(
    source="torch.autograd.function: save_for_backward sees to it that what was changed in place is not read",
    formula="f(x), then x or f(x) changed in place: backward is refused, or gives df of what x was",
    guards="Tensors kept for backward as attributes: a cache that is written in between is read anew, and so is an "
    "output to which a residual was added in place.",
    given=(at_least(q_len=2, kv_len=2),),
    share=0.5,
)
def an_input_changed_before_backward_is_noticed(
    attention: AttentionSubject, x: Inputs
) -> Iterator[Comparison]:
    """After an input or the output was changed in place, backward is refused or gives the gradients of what it was."""
    attention.require_specified_gradients(x)
    x = x.but(strides="contiguous", mask_strides="contiguous")
    exact, bounds = x.problem.gradients(x.cotangent.double()), attention.gradient_bounds(x).of()
    yield none("changes that went unnoticed")
    for changed in ("output",) if watching.checkpointed(attention, x) else (*watching.INPUTS, "output"):
        found = watching.gradients_after_a_change(attention, x, changed, x.cotangent)
        if found is not None:
            after = f", {changed} having been changed in place"
            yield from compared_gradients(found, exact._asdict(), bounds, after)


@law(
    source=PURE,
    formula="f(q) with a q of one axis is refused; f(x) afterwards is what it is alone",
    guards="A lock, a workspace or a flag that a call which raises never gives back.",
    share=0.3,
)
def a_refusal_leaves_nothing_behind(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A call after one that was refused answers as if that had never been made."""
    return _as_if_alone(attention, x, watching.after_a_refusal(attention, x))


def _leave_behind(x: Inputs, junk: float) -> None:
    """Fill and free blocks of the sizes that results, their gradients, scores and accumulators would take."""
    sizes = {x.batch * x.heads * x.q_len * width for width in (1, x.value_dim, x.kv_len, x.head_dim)}
    sizes |= {x.key.numel(), x.value.numel()}
    for dtype in {x.dtype, torch.float32}:
        blocks = [torch.full((size,), junk, dtype=dtype) for size in sizes for _ in range(7)]
        del blocks


@law(
    source=PURE,
    formula="torch's functions and settings are the same objects before and after",
    guards="Generated kernels that patch the function they are compared with, or loosen a global setting; gradients that "
    "are switched off, and on again where the caller had them off; a setting that a refused call does not put back.",
    given=(one_in(2, at_least(head_dim=16), one_of("dtype", "float32")),),
    share=0.5,
)
def the_library_is_left_alone(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The call patches no function of torch and leaves its global settings as they were."""
    changed = changed_by(lambda: attention.run(x, attention.arguments_for(x)))
    changed += changed_by(lambda: watching.is_refused(attention, x))
    if attention.has("autocast"):
        arguments = attention.arguments_for(x)
        changed += region_left_by(lambda: attention.returned(x, arguments), attention.device)
    if changed:
        raise LawBroken(f"the call changed {', '.join(dict.fromkeys(changed))}")
    return none("changes of torch")
