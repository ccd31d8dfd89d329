"""Several sequences of several lengths in one call: the tokens on one axis, and where each begins."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import PACKS, Call

Spans = list[tuple[int, int]]
ALONE = "ragged/each-sequence-of-a-pack-is-what-it-is-alone"
OPTIONS: dict[str, Any] = {
    "features": PACKS,
    "without": ("attn_mask", "dropout_p", "is_causal"),
    "declares": {"layout": "thd", "empty_rows": "zeros"},
}


def spans(starts: Tensor | None) -> Spans:
    """Where each sequence begins and ends."""
    assert starts is not None
    return list(pairwise(starts.tolist()))


def attention(
    call: Call,
    *,
    rows: Callable[[Spans], Spans] = list,
    columns: Callable[[Spans], Spans] = list,
    one: Callable[[Call], Tensor] = clean.attention,
) -> Tensor:
    """One sequence after another; rows and columns change where they are read."""
    output = call.query.new_zeros(*call.query.shape[:2], call.value.shape[2])
    queries, keys = rows(spans(call.cu_seqlens_q)), columns(spans(call.cu_seqlens_k))
    for (a, b), (c, d) in zip(queries, keys, strict=False):
        parts = {"query": call.query[a:b], "key": call.key[c:d], "value": call.value[c:d]}
        alone = call.but(**{name: part.transpose(0, 1)[None] for name, part in parts.items()})
        output[a:b] = one(alone)[0].transpose(0, 1)
    return output


@fault(
    "Keys are counted by the lengths of the queries.",
    breaks=ALONE,
    naive="SH",
    when=("sequences of several lengths", "other lengths of keys"),
    **OPTIONS,
)
def keys_counted_by_queries(call: Call) -> Tensor:
    return attention(call.but(cu_seqlens_k=call.cu_seqlens_q))


@fault(
    "The first key of the next sequence counts.",
    breaks=("ragged/neighbours-in-a-pack-do-not-matter", ALONE),
    naive="SH",
    real="https://github.com/Dao-AILab/flash-attention/issues/654",
    **OPTIONS,
)
def first_key_of_the_next(call: Call) -> Tensor:
    return attention(call, columns=lambda spans: [(a, b + 1) for a, b in spans])


@fault(
    "An empty sequence is taken for the end of the pack.",
    breaks=ALONE,
    naive="SH",
    real="https://github.com/Dao-AILab/flash-attention/issues/1537",
    when=("several sequences", "an empty one before the last"),
    **OPTIONS,
)
def an_empty_sequence_ends_the_pack(call: Call) -> Tensor:
    def until_empty(spans: Spans) -> Spans:
        lengths = [b - a for a, b in spans]
        return spans[: lengths.index(0)] if 0 in lengths else spans

    return attention(call, rows=until_empty)


@fault(
    "No sequence is read further than the first one is long.",
    breaks=("ragged/the-order-of-a-pack-does-not-matter", ALONE),
    naive="SH",
    when=("several sequences", "the first is not the longest"),
    **OPTIONS,
)
def first_is_taken_for_the_longest(call: Call) -> Tensor:
    def no_longer(spans: Spans) -> Spans:
        longest = spans[0][1] - spans[0][0]
        return [(a, min(b, a + longest)) for a, b in spans]

    return attention(call, columns=no_longer)


@fault(
    "The last sequence reaches to the end of the buffer.",
    breaks="ragged/tokens-behind-a-pack-do-not-matter",
    naive="SH",
    real="https://github.com/fla-org/flash-linear-attention/pull/892",
    when=("a buffer longer than the pack",),
    **OPTIONS,
)
def last_reaches_to_the_end(call: Call) -> Tensor:
    return attention(call, columns=lambda spans: [*spans[:-1], (spans[-1][0], len(call.key))])


@fault(
    "The backward leaves out the keys and values of sequences that are shorter than the longest.",
    breaks="ragged/each-sequence-of-a-pack-has-its-own-gradients",
    naive="GR",
    when=("sequences of several lengths", "gradients"),
    **OPTIONS,
)
def short_sequences_have_no_gradient(call: Call) -> Tensor:
    longest = max(b - a for a, b in spans(call.cu_seqlens_k))

    def one(alone: Call) -> Tensor:
        if alone.kv_len < longest:
            alone = alone.but(key=alone.key.detach(), value=alone.value.detach())
        answer: Tensor = clean.attention(alone)
        return answer

    return attention(call, one=one)


@fault(
    "Keys whose sequence has no query get a gradient that was never written.",
    breaks="ragged/each-sequence-of-a-pack-has-its-own-gradients",
    naive="GR",
    real="https://github.com/Dao-AILab/flash-attention/issues/2562",
    when=("keys without queries", "gradients"),
    **OPTIONS,
)
def keys_without_queries_keep_what_was_there(call: Call) -> Tensor:
    output = attention(call)
    pairs = zip(spans(call.cu_seqlens_q), spans(call.cu_seqlens_k), strict=True)
    idle = [call.key[c:d] for (a, b), (c, d) in pairs if a == b and c < d]
    for keys in idle:
        output = output + _Stale.apply(keys).to(output.dtype)  # type: ignore[no-untyped-call]
    return output


class _Stale(torch.autograd.Function):
    """Zero, with a gradient of 7."""

    @staticmethod
    def forward(ctx: Any, keys: Tensor) -> Tensor:
        ctx.like = keys
        return keys.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.full_like(ctx.like, 7.0).to(gradients[0].dtype)
