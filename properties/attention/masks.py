"""Who may attend to whom: what is masked cannot matter, and the forms of a mask say the same."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from headcheck.attention.given import (
    alike,
    blind_to_order,
    boolean_mask,
    causal,
    causal_beyond_whole_halves,
    equal_heads,
    grouped,
    hiding_keys,
    live_rows,
    many_queries,
    masked,
    more_slots_than_sixteen_bits,
    no_mask,
    no_negative_scale,
    without,
)
from headcheck.attention.inputs import Inputs
from headcheck.attention.loud import loudest_key, loudest_value, poisoned, with_loud_slots
from headcheck.attention.subject import MASK_WITH_CAUSAL, AttentionSubject
from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, LawBroken, NotApplicable, holds, within
from headcheck.declarations import BROADCAST_SHAPES
from headcheck.given import alternately, at_least, at_most, having, one_in, one_of
from headcheck.laws import law
from headcheck.reference import masks

MASKED = "Vaswani et al. 2017, section 3.2.3: masked connections are set to minus infinity before the softmax"
TOLD_APART = 256
"""The last position that bfloat16 tells from the next: of positions in it the next one counts as this."""


@law(
    source=MASKED,
    formula="O(K, V) = O(K', V') if they differ in masked slots only, bit for bit",
    guards="Mask dropped, inverted, of the wrong batch or head; a fill value that leaks; padding that counts.",
    needs=("attn_mask",),
    given=(hiding_keys, at_least(kv_len=2)),
)
def masked_keys_do_not_matter(attention: AttentionSubject, x: Inputs) -> list[Comparison] | None:
    """What stands in a masked key and its value cannot change the output, however large it is."""
    slots = x.hidden_keys
    if not slots.any() or (attention.empty_rows == "mean" and x.dead_rows.any()):
        return None
    x = x.written_out()
    what = "output, when masked keys and values are huge"
    return [attention.identical(loud, x, what) for loud in with_loud_slots(x, slots)]


@law(
    source=MASKED,
    formula="O_i depends on K_j, V_j only where (i, j) may attend",
    guards="A mask broadcast over the wrong axis: transposed, one row or one head used for all (keras 21483).",
    needs=("attn_mask",),
    given=(
        masked,
        equal_heads,
        at_least(kv_len=2, q_len=2),
        alternately((many_queries,), (more_slots_than_sixteen_bits,), (), (), ()),
    ),
)
def each_query_is_blind_to_its_own_masked_keys(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """A query does not see a key that is masked for it, though others see that key."""
    chosen = x.case.seed % x.kv_len
    blind = ~x.may_attend[..., chosen] & ~attention.special_rows(x)
    if not blind.any():
        return None
    slots = torch.zeros((x.batch, x.kv_heads, x.kv_len), dtype=torch.bool)
    slots[..., chosen] = True
    x = x.written_out()
    other = poisoned(x, slots, loudest_key(x) / 8, 1e3)
    clean, touched = attention(x).cpu(), attention(other).cpu()
    seen = torch.where(blind[..., None], touched, clean)
    what = f"output of a query for which key {chosen} is masked, when that key is huge"
    return attention.unchanged(seen, clean, x, what)


@law(
    source="the canonical call: element (b, h) of the mask belongs to sequence b and head h",
    formula="O[b, h] depends on mask[b, h] alone",
    guards="A mask repeated in the wrong order (attention-is-all-you-need-keras 28), the first head's for all.",
    needs=("attn_mask",),
    given=(
        masked,
        one_of("mask_axes", "bhqk", "b1qk", "1hqk", "hqk", "b11k"),
        at_least(batch=2, heads=2, kv_len=2),
        alternately((alike("batch", "heads"),), (grouped, at_most(q_len=1)), (), (at_least(batch=3),)),
    ),
)
def the_masks_of_others_do_not_matter(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """A sequence and a head follow their own mask, whatever the masks of the others are, all one mask even."""
    if x.attn_mask is None:
        return None
    mask = x.attn_mask
    own = torch.zeros((x.batch, x.heads), dtype=torch.bool)
    batch, head = x.case.seed % x.batch, x.case.seed // 7 % x.heads
    one_mask = x.case.seed // 44 % 3 == 0
    if one_mask:
        batch, head = x.batch // 2, x.heads // 2
    own[batch if _has_axis(mask, -4) else slice(None), head if _has_axis(mask, -3) else slice(None)] = True
    if own.all():
        return None
    here = own[:, :, None, None]
    here = here[: mask.shape[0]] if mask.ndim == 4 else here[0]
    here = here[..., : mask.shape[-3], :, :]
    other = mask.roll(1, dims=-1).flip(-2)
    if one_mask:
        for axis in range(2 - mask.ndim, 0) if mask.ndim > 2 else ():
            other = other.narrow(axis - 2, 0, 1).expand_as(other)
    others = torch.where(here, mask, other)
    changed = x.but(attn_mask=others)
    limit = attention.apart(changed, x)
    seen = torch.where(own[:, :, None, None], attention(changed).cpu(), attention(x).cpu())
    return within(seen, attention(x), limit, f"output of sequence {batch}, head {head}")


def _has_axis(mask: Tensor, axis: int) -> bool:
    return mask.ndim >= -axis and mask.shape[axis] > 1


@law(
    source="IEEE 754: 0 x NaN is NaN; a kernel that never reads masked slots is free of it",
    formula="O(K, V) = O(K', V') if K', V' hold NaN in masked slots",
    guards="Garbage in unused slots of a cache or a tile that is multiplied by zero (pytorch 101967, flashinfer 942).",
    needs=("attn_mask",),
    given=(hiding_keys, at_least(kv_len=2)),
    share=0.5,
)
def masked_nan_does_not_leak(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """NaN in a masked key or value does not reach the output."""
    if attention.declaration.masked_nan == "leaks":
        raise NotApplicable(
            "masked_nan='leaks': 0 x NaN may reach the output (declare 'stopped' to be held to it)"
        )
    x, slots = x.written_out(), x.hidden_keys
    return attention.identical(poisoned(x, slots, math.nan, math.nan), x) if slots.any() else None


@law(
    source="Vaswani et al. 2017, section 3.2.3: leftward information flow is prevented",
    formula="O_i depends on K_j, V_j only where j <= i (+ kv_len - q_len, if bottom-right)",
    guards="is_causal dropped beside another option (keras 23038), off by one, the wrong alignment (onnxruntime 29020).",
    needs=("is_causal",),
    given=(causal, at_least(kv_len=2), one_in(5, causal_beyond_whole_halves)),
)
def the_future_does_not_matter(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Under is_causal, what stands in later keys changes no earlier query, bit for bit."""
    first_hidden = {
        1 + x.case.seed % (x.kv_len - 1),
        *([TOLD_APART + 1] if x.kv_len > TOLD_APART + 1 else []),
    }
    for key in sorted(first_hidden):
        yield from _blind_to_what_is_behind(attention, x, key)


def _blind_to_what_is_behind(
    attention: AttentionSubject, x: Inputs, first_hidden: int
) -> Iterator[Comparison]:
    blind = masks.query_positions(x.q_len, x.kv_len, x.alignment) < first_hidden
    if not blind.any() or (attention.empty_rows == "mean" and x.dead_rows.any()):
        return
    slots = (torch.arange(x.kv_len) >= first_hidden).expand(x.batch, x.kv_heads, x.kv_len)
    x = x.written_out()
    other = poisoned(x, slots, loudest_key(x), loudest_value(x))
    blind = blind[:, None] & ~attention.special_rows(x)[..., None]
    clean = attention(x).cpu()
    seen = torch.where(blind, attention(other).cpu(), clean)
    what = "output of an earlier query, when later keys and values are huge"
    yield attention.unchanged(seen, clean, x, what)


@law(
    source="Vaswani et al. 2017, section 3.2.3",
    formula="is_causal = (the triangle as attn_mask)",
    guards="Alignment that turns with the lengths, a diagonal off by one (pytorch 103082, onnx 8068).",
    needs=("is_causal", "attn_mask"),
    given=(causal, no_mask),
)
def causal_equals_its_mask(attention: AttentionSubject, x: Inputs) -> Comparison:
    """is_causal does what the triangle does as an explicit mask, in the declared alignment."""
    triangle = masks.causal(x.q_len, x.kv_len, x.alignment)
    return attention.agree(x.but(is_causal=False, attn_mask=attention.mask_of(triangle, x.dtype)), x)


@law(
    source=MASKED,
    formula="mask M = bias (0 where M, -inf elsewhere)",
    guards="A float mask treated as boolean or ignored (pytorch 92554, mlverse 1205), booleans added as 0 and 1.",
    needs=("boolean", "additive"),
    given=(boolean_mask, one_in(12, having(batch=1, q_len=1, kv_len=1025))),
)
def boolean_equals_additive(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """A boolean mask does what its additive form does, 0 and minus infinity."""
    if x.attn_mask is None:
        return None
    return attention.agree(x.but(attn_mask=masks.additive(x.attn_mask, x.dtype)), x)


@law(
    source=MASKED,
    formula="mask of True = no mask; bias of 0 = no bias",
    guards="Boolean bytes read as floats (pytorch 182285), another path that differs (tail, scale, dtype).",
    needs=("attn_mask",),
    given=(no_mask,),
)
def an_all_true_mask_equals_none(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A mask that masks nothing changes nothing."""
    if x.is_causal and MASK_WITH_CAUSAL in attention.avoids:
        x = x.but(is_causal=False)
    keep = torch.ones((x.q_len, x.kv_len), dtype=torch.bool)
    return attention.agree(x.but(attn_mask=attention.mask_of(keep, x.dtype)), x)


@law(
    source="padding is no part of the sequence",
    formula="O(K, V, padding mask) = O(K[:n], V[:n]), or K[n:], V[n:] for padding on the left",
    guards="Padding keys in the denominator, a tail of the wrong length (flashinfer 3717, flash-attention 25), "
    "NaN from a first block that is all padding (pytorch 127055).",
    needs=("attn_mask", "rectangular"),
    given=(no_mask, blind_to_order, at_least(kv_len=2)),
)
def padding_equals_truncation(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Masking the first or the last keys gives what leaving them out gives."""
    cut = 1 + x.case.seed % (x.kv_len - 1)
    real = slice(cut, None) if x.case.seed // 13 % 2 else slice(0, cut)
    keep = torch.zeros((x.q_len, x.kv_len), dtype=torch.bool)
    keep[:, real] = True
    padded = x.but(attn_mask=attention.mask_of(keep, x.dtype))
    return attention.agree(padded, x.but(key=x.key[:, :, real], value=x.value[:, :, real]))


@law(
    source="broadcasting: an axis of size 1 stands for all",
    formula="O(mask of size 1) = O(mask repeated)",
    guards="A broadcast mask indexed with its full strides (xformers 952), aligned to the wrong axes (mlx-lm 1467).",
    needs=("attn_mask",),
    given=(
        masked,
        one_of("mask_axes", *BROADCAST_SHAPES[1:]),
        one_in(
            3,
            at_least(batch=2, heads=2, q_len=2),
            alike("batch", "q_len"),
            alike("batch", "heads"),
            alike("batch", "q_len"),
        ),
        one_in(4, having(mask_axes="bh1k"), at_least(heads=2, q_len=17)),
    ),
)
def broadcast_equals_expanded(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """A mask that is broadcast does what the same mask does when it is written out."""
    if x.attn_mask is None or x.attn_mask.shape == x.may_attend.shape:
        return None
    whole = x.attn_mask.expand(x.may_attend.shape).clone()
    return attention.agree(x.but(attn_mask=whole), x)


@law(
    source="the canonical call: both restrict, or the call is refused",
    formula="mask and causal = mask AND triangle",
    guards="The causal flag dropped when a mask is given (keras 23040), or the mask when the flag is.",
    needs=("is_causal", "attn_mask"),
    given=(masked, no_negative_scale, at_least(kv_len=2)),
)
def mask_and_causal_compose(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A mask together with is_causal is the conjunction of both, or is refused."""
    if x.attn_mask is None:
        return
    both = x.but(is_causal=True)
    triangle = masks.causal(x.q_len, x.kv_len, x.alignment)
    if x.attn_mask.dtype == torch.bool:
        explicit = x.attn_mask & triangle
    else:
        explicit = x.attn_mask.masked_fill(~triangle, -torch.inf)
    try:
        attention(both)
    except SubjectRaised as refusal:
        if MASK_WITH_CAUSAL not in attention.avoids:  # It composes them on a plain case.
            raise
        raise NotApplicable(f"attn_mask with is_causal is refused: {refusal}") from refusal
    if attention.declaration.mask_with_causal == "refused":
        raise LawBroken("attn_mask with is_causal is declared refused, and was answered")
    # Where the smallest number is all that is left of a row, what the triangle hides may weigh as much.
    left_out = _only_the_lowest(explicit).expand(x.batch, x.heads, x.q_len)[..., None]
    slack = torch.where(left_out, torch.inf, 0.0)
    yield within(attention(both), attention.expected(both), attention.bound(both) + slack)
    yield attention.agree(both, x.but(is_causal=False, attn_mask=explicit), slack=slack)


def _only_the_lowest(mask: torch.Tensor) -> torch.Tensor:
    """The rows of a mask that leave keys, none of them with more than half the smallest number."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape[:-1], dtype=torch.bool)
    lowest = torch.finfo(mask.dtype).min
    return (mask <= lowest / 2).all(dim=-1) & (mask >= lowest).any(dim=-1)


@law(
    source="convention: a query that may attend to nothing gives zeros, unless declared otherwise",
    formula="no key for query i: O_i = 0",
    guards="0/0 in the softmax: NaN in the row, then in all that follows (pytorch 103749, xformers 540fcbfd).",
    needs=("attn_mask",),
    given=(
        masked,
        without("sinks"),
        # A mask of one element is a mask.
        one_in(5, having(batch=1, heads=1, kv_heads=1, q_len=1, kv_len=1)),
    ),
    unless=("empty_rows=mean", "empty_rows=nan", "empty_rows=undefined"),
)
def dead_rows_follow_the_convention(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """A query whose keys are all masked gives what is declared, and the other queries are not disturbed."""
    if x.attn_mask is None or x.case.mask_form == "lowest":
        return None
    if attention.empty_rows == "undefined":
        raise NotApplicable("empty_rows='undefined'")
    y = x.with_a_dead_row()
    return within(attention(y), attention.expected(y), attention.strict_bound(y))


@law(
    source=MASKED,
    formula="O(M) differs from O(no mask) where M hides a key that matters",
    guards="A masked_fill whose result is thrown away (flamingo-pytorch 10): the mask never reaches the kernel.",
    needs=("attn_mask",),
    given=(boolean_mask, live_rows, at_least(kv_len=2)),
    share=0.5,
)
def a_mask_changes_something(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """Hiding a key that mattered changes the output."""
    if x.attn_mask is None:
        return None
    open_ = x.but(attn_mask=None)
    limit = attention.bound(x) + attention.bound(open_)
    should = (attention.expected(x) - attention.expected(open_)).abs() > 2 * limit
    if not should.any():
        return None
    hidden, seen = attention(x).cpu().double(), attention(open_).cpu().double()
    moved = ~should | ((hidden - seen).abs() > 0)
    return holds(moved, hidden, "output, the same as without the mask", attention.expected(x))


@law(
    source="Shaw et al. 2018; Press et al. 2022: a bias is added to the scores before the softmax",
    formula="one bias of log 2 on a key = that key given twice",
    guards="A bias added after the softmax, scaled with the scores, clipped to a mask, or dropped.",
    needs=("additive", "rectangular"),
    given=(no_mask, blind_to_order, without("sinks")),
)
def a_bias_of_log_two_counts_a_key_twice(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Raising a key's score by log 2 does what giving that key twice does."""
    chosen = x.case.seed % x.kv_len
    bias = torch.zeros((x.q_len, x.kv_len), dtype=x.dtype)
    bias[:, chosen] = math.log(2)
    again = x.but(
        key=torch.cat([x.key, x.key[:, :, chosen, None]], dim=2),
        value=torch.cat([x.value, x.value[:, :, chosen, None]], dim=2),
        generic=False,
    )
    # log 2 is rounded to the dtype: the exact problem with that bias is what the subject can be held to.
    with_bias = x.but(attn_mask=bias)
    rounding = (with_bias.problem.attended.output - again.problem.attended.output).abs()
    return attention.agree(with_bias, again, slack=rounding)
