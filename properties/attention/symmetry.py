"""What may be exchanged, moved or scaled without a change: no law here needs to know the right output."""

import torch
from torch import Tensor

from headcheck.attention.given import blind_to_order, live_rows, masked, unmasked, without
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, within
from headcheck.given import alternately, at_least, at_most, having, one_of
from headcheck.laws import law

_A_MASK_FOR_EACH_HEAD = (
    masked,
    one_of("mask_axes", "bhqk", "1hqk", "hqk"),
    one_of("mask_form", "bias", "boolean"),
    at_least(kv_len=2),
)
SETS = "Lee et al. 2019 (Set Transformer), property 1: attention is a function of sets"


def _mask_picked(x: Inputs, axis: int, order: Tensor) -> Tensor | None:
    """attn_mask with one axis reordered, where it has that axis."""
    mask = x.attn_mask
    if mask is None or mask.ndim + axis < 0 or mask.shape[axis] == 1:
        return mask
    return mask.index_select(axis, order)


def _grouped(order: Tensor, group: int) -> Tensor:
    """An order of key heads as the order of the query heads that read them."""
    return (order[:, None] * group + torch.arange(group)).reshape(-1)


@law(
    source=SETS,
    formula="Attention(Q, PK, PV) = Attention(Q, K, V) for every permutation P",
    guards="Keys paired with the wrong values; a key dropped at the end of a block (diffusers 8837).",
    given=(blind_to_order, at_least(kv_len=2)),
)
def permuting_keys_changes_nothing(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Keys may stand in any order, if values and mask columns move with them."""
    order = x.permutation(x.kv_len)
    moved = x.but(key=x.key[:, :, order], value=x.value[:, :, order], attn_mask=_mask_picked(x, -1, order))
    return attention.agree(moved, x)


@law(
    source=SETS,
    formula="Attention(PQ, K, V) = P Attention(Q, K, V)",
    guards="A row that depends on its place in a block, or on its neighbours.",
    given=(blind_to_order, at_least(q_len=2)),
)
def permuting_queries_permutes_rows(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Queries in another order give the same rows in that order."""
    order = x.permutation(x.q_len)
    moved = x.but(query=x.query[:, :, order], attn_mask=_mask_picked(x, -2, order))
    return attention.agree(moved, x, back=lambda output: output[:, :, order.argsort()])


@law(
    source="Vaswani et al. 2017, section 3.2.2: heads are computed in parallel",
    formula="heads permuted in, heads permuted out",
    guards="Heads merged or split by a view without a transpose (transformer-from-scratch 6).",
    given=(at_least(heads=2, kv_heads=2), without("sinks", "alibi")),
)
def permuting_heads_permutes_heads(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Heads in another order give the same heads in that order."""
    kv_order = x.permutation(x.kv_heads)
    order = _grouped(kv_order, x.group)
    mask = _mask_picked(x, -3, order)
    moved = x.but(query=x.query[:, order], key=x.key[:, kv_order], value=x.value[:, kv_order], attn_mask=mask)
    return attention.agree(moved, x, back=lambda output: output[:, order.argsort()])


@law(
    source="design of the canonical call: the batch axis is a list of independent problems",
    formula="batches permuted in, batches permuted out",
    guards="A mask repeated batch-major while scores are head-major (attention-is-all-you-need-keras 28).",
    given=(at_least(batch=2),),
)
def permuting_batches_permutes_batches(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Sequences of a batch in another order give the same outputs in that order."""
    order = x.permutation(x.batch)
    moved = x.but(
        query=x.query[order], key=x.key[order], value=x.value[order], attn_mask=_mask_picked(x, -4, order)
    )
    return attention.agree(moved, x, back=lambda output: output[order.argsort()])


def _dyed(tensor: Tensor, axis: int, keep: int, dye: float) -> Tensor:
    """Everything but one index of an axis turned round and set far off."""
    others = torch.arange(tensor.shape[axis]) != keep
    shape = [1] * tensor.ndim
    shape[axis] = -1
    return torch.where(others.view(shape), -tensor.flip(-1) + dye, tensor)


def _mask_dyed(x: Inputs, axis: int, keep: int) -> Tensor | None:
    """attn_mask with keys and queries elsewhere at all but one index of an axis, where it has that axis."""
    mask = x.attn_mask
    if mask is None or mask.ndim + axis < 0 or mask.shape[axis] == 1:
        return mask
    others = torch.arange(mask.shape[axis]) != keep
    return torch.where(others.view(-1, *[1] * (-1 - axis)), mask.roll(1, dims=-1).flip(-2), mask)


@law(
    source="design of the canonical call: the batch axis is a list of independent problems",
    formula="O[b] depends on Q[b], K[b], V[b] and mask[b] alone",
    guards="Batch and length mixed up (AEMatter 3), the first batch's mask or keys used for all.",
    given=(at_least(batch=2),),
)
def batches_do_not_hear_each_other(attention: AttentionSubject, x: Inputs) -> Comparison:
    """What stands in the other sequences of a batch does not change this one."""
    keep = x.case.seed % x.batch
    dyed = x.but(
        query=_dyed(x.query, 0, keep, 1.0),
        key=_dyed(x.key, 0, keep, -1.0),
        value=_dyed(x.value, 0, keep, 97.0),
        attn_mask=_mask_dyed(x, -4, keep),
        strides="contiguous",
        generic=False,
    )
    return _agree_at(attention, dyed, x, 0, keep, "batch")


@law(
    source="Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023, section 2.2",
    formula="O[h] depends on Q[h], mask[h] and on the key head h // group alone",
    guards="Grouped heads tiled in place of interleaved (onnx 7274), the first head's bias used for all.",
    given=(
        at_least(kv_heads=2, heads=2),
        alternately((*_A_MASK_FOR_EACH_HEAD, at_most(q_len=1)), _A_MASK_FOR_EACH_HEAD, (), ()),
    ),
)
def heads_do_not_hear_each_other(attention: AttentionSubject, x: Inputs) -> Comparison:
    """What stands in the other heads does not change this one."""
    kv_keep = x.case.seed % x.kv_heads
    keep = kv_keep * x.group + x.case.seed % x.group
    dyed = x.but(
        query=_dyed(x.query, 1, keep, 1.0),
        key=_dyed(x.key, 1, kv_keep, -1.0),
        value=_dyed(x.value, 1, kv_keep, 97.0),
        attn_mask=_mask_dyed(x, -3, keep),
        strides="contiguous",
        generic=False,
    )
    return _agree_at(attention, dyed, x, 1, keep, "head")


@law(
    source=SETS,
    formula="O[i] depends on Q[i] alone",
    guards="A softmax or a maximum taken over a block of queries; a row loaded from its neighbour.",
    given=(at_least(q_len=2),),
)
def queries_do_not_hear_each_other(attention: AttentionSubject, x: Inputs) -> Comparison:
    """What the other queries ask does not change this one's answer."""
    keep = x.case.seed % x.q_len
    dyed = x.but(query=_dyed(x.query, 2, keep, 3.0), strides="contiguous", generic=False)
    return _agree_at(attention, dyed, x, 2, keep, "query")


def _agree_at(
    attention: AttentionSubject, dyed: Inputs, x: Inputs, axis: int, index: int, what: str
) -> Comparison:
    """The two calls agree at one index of an axis."""

    def part(tensor: Tensor) -> Tensor:
        return tensor.narrow(axis, index, 1)

    limit = attention.apart(dyed, x, at=part)
    return within(part(attention(dyed)), part(attention(x)), limit, f"output of {what} {index}")


@law(
    source="Vaswani et al. 2017, equation (1): the output is a matrix times V",
    formula="Attention(Q, K, V + 2W) = Attention(Q, K, V) + 2 Attention(Q, K, W)",
    guards="A value that reaches the weights, a clipped or normalised output.",
)
def linear_in_the_values(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """The output of a sum of values is the sum of their outputs."""
    if attention.empty_rows == "nan" and x.dead_rows.any():
        return None
    other = x.normal_like(x.value)
    both = x.but(value=x.value + 2 * other, generic=False)
    parts = x, x.but(value=other, generic=False)
    # The sum was rounded before the subject saw it; the exact problem is the one that it saw.
    rounding = (both.value.double() - x.value.double() - 2 * other.double()).abs().amax()
    outputs = [attention(each).cpu().double() for each in parts]
    bounds = [attention.bound(each) for each in parts]
    limit = attention.bound(both) + bounds[0] + 2 * bounds[1] + rounding
    return within(attention(both), outputs[0] + 2 * outputs[1], limit)


@law(
    source="softmax(s + c) = softmax(s)",
    formula="mask + c_i in row i changes nothing",
    guards="A softmax without its maximum, a running maximum that starts at 0, a bias that is clipped.",
    needs=("additive",),
    given=(having(is_causal=False), without("sinks")),
)
def a_common_score_shift_changes_nothing(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Adding the same number to all scores of a query changes nothing."""
    steps = torch.tensor([-90.0, -20.0, -1.0, 0.0, 2.0, 30.0, 90.0], dtype=x.dtype)
    shift = steps[torch.randint(len(steps), (x.q_len, 1), generator=x.generator("shift"))]
    keep = torch.ones((), dtype=torch.bool) if x.attn_mask is None else _kept(x.attn_mask)
    nothing = torch.zeros((x.q_len, x.kv_len), dtype=x.dtype).masked_fill(~keep, -torch.inf)
    return attention.agree(x.but(attn_mask=nothing + shift, generic=False), x.but(attn_mask=nothing))


def _kept(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else ~mask.isneginf()


@law(
    source="(QR)(KR)^T = Q K^T for orthogonal R",
    formula="Attention(QR, KR, V) = Attention(Q, K, V), R a signed permutation",
    guards="A dim left out of the dot product, dims of query and key that are paired wrongly.",
    given=(at_least(head_dim=2),),
)
def changing_the_basis_changes_nothing(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Query and key may be turned together: dims permuted, signs flipped."""
    order = x.permutation(x.head_dim)
    signs = 1 - 2 * torch.randint(2, (x.head_dim,), generator=x.generator("signs")).to(x.dtype)
    return attention.agree(x.but(query=x.query[..., order] * signs, key=x.key[..., order] * signs), x)


@law(
    source="Vaswani et al. 2017, section 3.2.1",
    formula="scale (aQ) K^T = scale Q (aK)^T = (a scale) Q K^T, a = 2",
    guards="A query or key that is normalised, clipped or cached; a scale taken from the wrong tensor.",
)
def scale_trades_with_query_and_key(attention: AttentionSubject, x: Inputs) -> list[Comparison]:
    """A factor of two may stand on the query, on the key, or on the scale."""
    on_query, on_key = x.but(query=2 * x.query), x.but(key=2 * x.key)
    found = [attention.agree(on_query, on_key)]
    if attention.has("scale"):
        found.append(attention.agree(x.but(scale=2 * x.resolved_scale), on_query))
    return found


@law(
    source="(c q) . (k / c) = q . k",
    formula="O(c Q, K / c) = O(Q, K), c = 2^17 or 2^-17, in float16 16 or 1 / 16",
    guards="Numbers of bfloat16 or float32 taken through float16, or clamped to its range, on their way to a product.",
    given=(one_of("values", "normal", "integers"),),
    share=0.5,
)
def size_may_stand_in_query_or_key(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A query far larger and a key as much smaller, or the other way round, have the scores that they had."""
    size = 2.0 ** (4 if x.dtype == torch.float16 else 17)
    factor = size if x.case.seed % 2 else 1 / size
    y = x.but(query=x.query * factor, key=x.key / factor, generic=False)
    return attention.against_the_oracle(y)


@law(
    source="softmax over a repeated list halves each weight",
    formula="Attention(Q, [K; K], [V; V]) = Attention(Q, K, V)",
    guards="Padding keys in the denominator, a last block that is not masked (flashinfer 3717).",
    needs=("rectangular",),
    given=(unmasked, without("sinks", "alibi")),
)
def duplicated_keys_change_nothing(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Giving every key and value twice changes nothing."""
    twice = x.but(
        key=torch.cat([x.key, x.key], dim=2), value=torch.cat([x.value, x.value], dim=2), generic=False
    )
    return attention.agree(twice, x)


@law(
    source="Milakov & Gimelshein 2018; Dao et al. 2022 (FlashAttention), section 3.1",
    formula="O = sum_p exp(L_p - L) O_p, L_p the log-sum-exp of part p, L of the whole",
    guards="A merge of blocks without rescaling, a split that loses its last block (vllm 26042).",
    needs=("rectangular",),
    given=(unmasked, live_rows, at_least(kv_len=2), without("sinks", "alibi")),
)
def parts_merge_to_the_whole(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Attention over the parts of the keys, merged by log-sum-exp, is attention over all of them."""
    cut = 1 + x.case.seed % (x.kv_len - 1)
    parts = [
        x.but(key=x.key[:, :, :cut], value=x.value[:, :, :cut]),
        x.but(key=x.key[:, :, cut:], value=x.value[:, :, cut:]),
    ]
    whole = x.problem.attended.log_sum_exp
    shares = [torch.exp(part.problem.attended.log_sum_exp - whole)[..., None] for part in parts]
    merged = sum(s * attention(p).cpu().double() for s, p in zip(shares, parts, strict=True))
    limit = sum(s * attention.bound(p) for s, p in zip(shares, parts, strict=True))
    # The shares are exact to float64: their own error is a few units of that, on outputs in the hull.
    slack = 2.0**-45 * (1 + whole.abs().amax()) * x.problem.value.abs().amax()
    return within(attention(x), torch.as_tensor(merged), attention.bound(x) + limit + slack)
