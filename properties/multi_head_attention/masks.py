"""A mask means one thing, in whatever form it comes; what it hides does not matter."""

import math
from collections.abc import Iterator

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, same, within
from headcheck.given import at_least, having, one_in, one_of
from headcheck.laws import law
from headcheck.modules.multi_head.asking import answer_beside_causal, with_numbers_added
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.finding import without_keys, without_keys_by_both
from headcheck.modules.multi_head.masks import can_say
from headcheck.modules.multi_head.subject import MultiHeadSubject

HIDDEN = "a masked key has the weight 0: Vaswani et al. 2017, section 3.2.3"
FORMS = "the forms of a mask are ways of writing one thing"
UNMASKED = having(mask="none", padding=False)


@law(
    source=HIDDEN,
    formula="K, V changed where masked: f the same",
    guards="A mask inverted, dropped, or filled with a number that is too small (pytorch 92554, flamingo-pytorch 10).",
    needs=("attn_mask",),
    given=(UNMASKED, at_least(q_len=2, kv_len=2)),
)
def masked_keys_do_not_matter(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Whatever stands in keys that are masked, the output stays."""
    kept = attention.some_keys(x)
    masked = x.masked(kept.expand(len(x.query), 1, x.query.shape[1], -1))
    other = masked.with_other_keys(~kept.expand(len(x.query), -1), "masked")
    rows = kept.nonzero()[:, 0]
    return attention.close_between(
        x.rows_of(attention(other), rows), x.rows_of(attention(masked), rows), masked, other
    )


@law(
    source=HIDDEN,
    formula="f(q, [K, K'], [V, V'], K' masked) = f(q, K, V)",
    guards="A softmax whose sum still counts the masked keys; a mask multiplied into the scores as zeros.",
    needs=("attn_mask",),
    given=(UNMASKED, at_least(q_len=2, kv_len=2)),
)
def masking_keys_is_leaving_them_out(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """With some keys masked the output is that without these keys."""
    kept = attention.some_keys(x)
    masked = x.masked(kept.expand(len(x.query), 1, x.query.shape[1], -1))
    rows = kept.nonzero()[:, 0]
    alone = attention.bare(x.with_keys(rows))
    return attention.close_between(x.rows_of(attention(masked), rows), attention(alone), masked, alone)


@law(
    source=HIDDEN,
    formula="f(q, [K, pad], [V, pad], is_real) = f(q, K, V)",
    guards="A mask of the keys that is inverted, ignored where another is given, or read along the queries.",
    needs=("key_mask",),
    given=(UNMASKED, at_least(q_len=2, kv_len=2)),
)
def padding_keys_is_leaving_them_out(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """With some keys said to be padding the output is that without these keys."""
    kept = attention.some_keys(x)
    padded = x.but(is_real=kept.expand(len(x.query), -1))
    rows = kept.nonzero()[:, 0]
    alone = x.with_keys(rows)
    return attention.close_between(x.rows_of(attention(padded), rows), attention(alone), padded, alone)


@law(
    source=FORMS,
    formula="f(x, mask in one shape) = f(x, mask in another)",
    guards="A mask broadcast on the wrong axis, heads read for sequences (attention-is-all-you-need-keras 28).",
    needs=("attn_mask",),
    given=(one_of("mask", "keys", "random", "causal", "by-head"), at_least(batch=2)),
)
def shapes_of_a_mask_agree(attention: MultiHeadSubject, x: MultiHeadInputs) -> Iterator[Comparison]:
    """A mask means the same in every shape in which it is taken."""
    mask = x.may_attend if x.may_attend is not None else x.visible()
    shapes = [shape for shape in attention.found.mask_shapes if can_say(shape, mask)]
    if len(shapes) < 2:
        raise NotApplicable("there is one shape only that could say it")
    first = attention(x.masked(mask).but(case=x.case.but(mask_shape=shapes[0])))
    for shape in shapes[1:]:
        other = x.masked(mask).but(case=x.case.but(mask_shape=shape))
        yield attention.close(attention(other), first, x, f"output, mask of shape {shape}")


@law(
    source=FORMS,
    formula="f(x, keep) = f(x, 0 where kept and -inf elsewhere)",
    guards="An additive mask read as a boolean one (pytorch 92554, mlverse/torch 1205).",
    needs=("additive",),
    given=(one_of("mask", "random", "keys", "causal"), at_least(kv_len=2)),
)
def an_additive_mask_equals_the_boolean_one(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """A mask of 0 and minus infinity means what the boolean mask means."""
    if "boolean" not in attention.found.masks:
        raise NotApplicable("takes no boolean mask")
    additive, boolean = (x.but(case=x.case.but(mask_kind=kind)) for kind in ("additive", "boolean"))
    return attention.close(attention(additive), attention(boolean), x, "output, mask additive")


@law(
    source="torch.nn.MultiheadAttention, attn_mask: a mask of floats is added to the attention weights",
    formula="f(x, b) = Concat(softmax(Q K^T / sqrt(head_dim) + b) V) W_o",
    guards="A path that takes numbers for booleans, so that what is not 0 is masked (pytorch 107084); a bias that is "
    "added to one head, or in the order of other axes.",
    needs=("additive",),
    given=(
        at_least(kv_len=2, q_len=2),
        one_in(2, at_least(head_dim=2)),
        one_of("values", "normal", "integers", "tiny"),
    ),
)
def numbers_in_a_mask_are_added_to_the_scores(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """A mask of finite numbers is added to the scores, beside what it hides."""
    biased, exact = with_numbers_added(attention, x)
    return attention.close(attention(biased), exact(biased), biased)


@law(
    source=FORMS,
    formula="f(x, is_real) = f(x, 0 where real and -inf elsewhere)",
    guards="A float mask of the keys given to masked_fill, or not at all (pytorch 92554, mlverse/torch 1208).",
    needs=("additive_key_mask",),
    given=(having(padding=True, mask="none"), at_least(kv_len=2)),
)
def an_additive_key_mask_equals_the_boolean_one(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Comparison:
    """A mask of the keys of 0 and minus infinity means what the boolean one means."""
    if "boolean" not in attention.found.key_masks:
        raise NotApplicable("takes no boolean mask of the keys")
    additive, boolean = (x.but(case=x.case.but(mask_kind=kind)) for kind in ("additive", "boolean"))
    return attention.close(attention(additive), attention(boolean), x, "output, mask of the keys additive")


@law(
    source=FORMS,
    formula="f(x, is_causal) = f(x, j <= i)",
    guards="is_causal dropped where weights are asked for or a mask of the keys is given (keras 23038, 23040).",
    needs=("is_causal",),
    given=(having(mode="self", mask="causal", flag=True), at_least(q_len=2)),
)
def is_causal_is_the_causal_mask(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """is_causal means the mask in which each query sees itself and what is before it."""
    return attention.close(attention(x), attention.exact(x), x, "output, is_causal")


@law(
    source="masks that are given together hide what either hides, or the call is refused",
    formula="f(x, M, is_causal) = f(x, M and j <= i)",
    guards="is_causal dropped beside a mask, or the mask beside is_causal (keras 23038, 23040).",
    needs=("is_causal", "attn_mask"),
    given=(having(mode="self", flag=False), one_of("mask", "random", "by-head", "keys"), at_least(q_len=2)),
)
def a_mask_beside_is_causal_hides_what_either_hides(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Iterator[Comparison]:
    """A mask with is_causal is the conjunction of both, or is refused; and the mask is not changed by the call."""
    both = attention.beside_causal(x)
    if both is None:
        raise NotApplicable("is_causal is said beside a mask that says so too")
    seen = attention.visible(both).any(dim=-1).all(dim=1)[..., None]
    given = attention.masks_for(both)["attn_mask"].clone()
    found = answer_beside_causal(attention, both)
    yield same(attention.masks_given["attn_mask"], given, "attn_mask after the call")
    exact = attention.exact(both)
    yield attention.close(torch.where(seen, found, exact), exact, both, "output, is_causal beside a mask")


@law(
    source="Vaswani et al. 2017, section 3.2.3: leftward information flow is prevented",
    formula="keys j > i changed: f(x)_i the same",
    guards="A causal mask that is transposed, inverted or off by one.",
    given=(having(mask="causal"), at_least(q_len=2, kv_len=2)),
)
def under_a_causal_mask_later_tokens_do_not_matter(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Comparison:
    """Under a causal mask later keys change no earlier query."""
    if x.case.mask != "causal" and not attention.declaration.causal:
        raise NotApplicable("takes no causal mask")
    if attention.declaration.causal:
        x = x.masked(None)
    kv_len = x.keys.shape[1]
    cut = 1 + x.case.seed % (min(x.query.shape[1], kv_len - 1) or 1)
    places = (torch.arange(kv_len) >= cut).expand(len(x.query), -1)
    other = x.with_other_keys(places, "later")
    return attention.close_between(attention(other)[:, :cut], attention(x)[:, :cut], x, other)


@law(
    source=FORMS,
    formula="f(x, all True) = f(x)",
    guards="A path with a mask and a path without that differ, or an inverted mask.",
    needs=("attn_mask", "no_mask"),
    given=(having(mask="none"),),
)
def a_mask_of_nothing_changes_nothing(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """A mask that hides nothing gives what no mask gives."""
    if attention.declaration.causal == "unless-masked":
        raise NotApplicable("is causal unless it is given a mask")
    return attention.close(attention(x.nothing_hidden()), attention(x), x)


@law(
    source=FORMS,
    formula="f(x, is_real) = f(x, may_attend_bij = is_real_bj)",
    guards="A mask of the keys along the wrong axis, or of another polarity than documented.",
    needs=("attn_mask", "key_mask"),
    given=(having(mask="none", padding=True), at_least(kv_len=2)),
)
def a_key_mask_is_a_mask_of_every_query(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """A mask of the keys does what the same mask does that is written for every query."""
    x = attention.bare(x)
    seen = x.visible().expand(-1, -1, x.query.shape[1], -1)
    if x.is_real is None or not any(can_say(shape, seen) for shape in attention.found.mask_shapes):
        seen = seen[:1].expand(len(x.query), -1, -1, -1)
        x = x.but(is_real=seen[:, 0, 0])
    return attention.close(attention(x), attention(x.masked(seen).but(is_real=None)), x)


@law(
    source="exp(s + log 2) = 2 exp(s)",
    formula="a bias of log 2 on a key = that key given twice, whatever other mask there is",
    guards="A float mask of the keys that is read as a boolean one, or added twice where both masks are given.",
    needs=("additive", "additive_key_mask"),
    given=(having(mode="cross", mask="none", padding=False), at_least(kv_len=2)),
)
def a_key_bias_of_log_two_counts_a_key_twice(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Iterator[Comparison]:
    """A number in an additive mask of the keys is added to the scores, once."""
    if attention.declaration.causal or x.key is None:
        raise NotApplicable("does not attend to all keys of another sequence")
    kv_len = x.keys.shape[1]
    chosen = torch.arange(kv_len) == x.case.seed % kv_len
    order = torch.cat([torch.arange(kv_len), chosen.nonzero()[:, 0]])
    twice = x.with_keys(order)
    bias = (math.log(2) * chosen.double()).expand(len(x.query), -1)
    additive = x.but(case=x.case.but(mask_kind="additive"))
    alone = additive.but(is_real=torch.ones(len(x.query), kv_len, dtype=torch.bool), key_bias=bias)
    beside = alone.masked(torch.ones(len(x.query), 1, x.query.shape[1], kv_len, dtype=torch.bool))
    expected = attention(twice)
    for biased in (alone, beside):
        yield attention.close_between(attention(biased), expected, x, twice)


@law(
    source="a key is seen that no mask hides",
    formula="f(x, may_attend, is_real) = f(x with the keys that are real, may_attend)",
    guards="One of two masks dropped where both are given (keras 23040).",
    needs=("attn_mask", "key_mask"),
    given=(one_of("mask", "random", "causal", "keys"), at_least(kv_len=3, q_len=3)),
)
def both_masks_hold(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Where both masks are given, a key is seen that both leave."""
    kept = attention.some_keys(x)
    rows = kept.nonzero()[:, 0]
    both, alone = x.but(is_real=kept.expand(len(x.query), -1)), x.but(is_real=None).with_keys(rows)
    return attention.close_between(x.rows_of(attention(both), rows), attention(alone), both, alone)


@law(
    source="a key is seen that no mask hides, of whatever kind the masks are",
    formula="f(x, additive mask, boolean is_real) = f(x, both additive); or it is refused",
    guards="A boolean mask of the keys added to an additive one as 0 and 1.",
    needs=("additive", "additive_key_mask"),
    given=(having(mask="random", mask_kind="additive", padding=True), at_least(kv_len=3, q_len=2)),
)
def masks_of_two_kinds_hold(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """An additive mask beside a boolean mask of the keys hides what two additive masks hide."""
    if "boolean" not in attention.found.key_masks:
        raise NotApplicable("takes no boolean mask of the keys")
    mixed = x.but(of_two_kinds=True)
    try:
        found = attention(mixed)
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses masks of two kinds: {refusal}") from refusal
    return attention.close(found, attention(x), x)


@law(
    source="Vaswani et al. 2017, section 3.2.2: heads are independent",
    formula="head h under masks M_1 .. M_H = head h under M_h",
    guards="A mask for each head read in the order of the batch (attention-is-all-you-need-keras 36).",
    needs=("head_masks", "many_heads"),
    given=(having(mask="by-head", mask_shape="bhqk"), at_least(heads=2, kv_len=3, batch=2)),
)
def a_mask_of_a_head_is_for_that_head(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Where each head has a mask of its own, a head obeys its own."""
    if x.may_attend is None or x.may_attend.shape[1] != x.heads:
        raise NotApplicable("the masks of all heads are the same")
    head = x.case.seed % x.heads
    own = x.may_attend[:, head : head + 1].expand(-1, x.heads, -1, -1)
    only = x.with_only(head)
    return attention.close(attention(only), attention(only.masked(own)), only, f"output of head {head}")


@law(
    source="Vaswani et al. 2017, section 3.2.2: heads are independent",
    formula="no key for query i in head g: head h of f(x)_i as if there were one",
    guards="A row that is dead in one head cleared in all of them.",
    needs=("head_masks", "many_heads"),
    given=(having(mask="by-head", mask_shape="bhqk"), at_least(heads=2, kv_len=2, batch=2)),
)
def a_query_without_keys_in_one_head_has_the_others(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Comparison:
    """Where one head hides every key from a query, the other heads answer it all the same."""
    if x.may_attend is None or x.may_attend.shape[1] != x.heads:
        raise NotApplicable("the masks of all heads are the same")
    if attention.found.empty_rows not in ("zeros", "mean"):
        raise NotApplicable("a head without keys gives no numbers that a projection could leave out")
    head = x.case.seed % x.heads
    hidden = x.may_attend.clone()
    hidden[:, head - 1, 0] = False
    only = x.with_only(head)
    return attention.close(attention(only.masked(hidden)), attention(only), only, f"output of head {head}")


def _dead(attention: MultiHeadSubject, x: MultiHeadInputs) -> MultiHeadInputs:
    dead = without_keys(attention, x)
    if dead is None:
        raise NotApplicable("takes no mask, or lengths above zero alone")
    return dead


@law(
    source="each query is answered by itself",
    formula="no key for query i: f(x)_j the same for j != i",
    guards="NaN of one row that reaches the others, through a sum or a maximum over all rows.",
    given=(having(mask="none", padding=False), at_least(batch=2, q_len=2)),
)
def a_query_without_keys_spoils_no_other(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """A query that may attend to nothing changes no other query's output."""
    dead = _dead(attention, x)
    alive = attention.visible(dead).any(dim=-1).all(dim=1)
    if not alive.any():
        raise NotApplicable("every query is without keys")
    alive = alive.expand(x.query.shape[:2])
    return attention.close(
        attention(dead)[alive], attention.exact(dead)[alive], dead, "output of another query"
    )


def _evenly(x: MultiHeadInputs) -> MultiHeadInputs:
    """All keys seen, and all with one weight: queries of zeros."""
    changed = {name: torch.zeros_like(each) for name, each in x.weights.items() if name in ("w_q", "b_q")}
    return x.masked(None).but(is_real=None).weighing(**changed)


@law(
    source="the empty sum is zero; or as declared: empty_rows",
    formula="no key for query i: f(x)_i = b_o",
    guards="-1e9 in place of -inf: the mean of all values, masked ones too; NaN by some paths (pytorch 103749, 160064).",
    given=(having(mask="none", padding=False),),
    unless=("empty_rows=nan", "empty_rows=mean", "empty_rows=undefined"),
)
def a_query_without_keys_gives_what_is_declared(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Iterator[Comparison]:
    """A query that may attend to nothing gives the output's bias alone, unless empty_rows is declared otherwise."""
    declared = attention.declaration.empty_rows
    if declared == "undefined":
        raise NotApplicable("what a query without keys gives is declared undefined")
    # Of which keys, each mask says.
    by_both = without_keys_by_both(attention, x) if declared != "mean" else None
    for dead in (_dead(attention, x), by_both):
        if dead is None:
            continue
        lost = ~attention.visible(dead).any(dim=-1).any(dim=1).expand(x.query.shape[:2])
        expected = attention.exact(_evenly(dead)) if declared == "mean" else attention.exact(dead)
        if declared == "nan":
            expected = torch.full_like(expected, torch.nan)
        found = attention(dead)[lost]
        yield within(found, expected[lost], attention.bound(x), "output of a query without keys")
