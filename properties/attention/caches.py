"""Generation step by step: a query at a time, a prompt in chunks, a cache longer than what stands in it."""

from collections.abc import Iterator

import torch

from headcheck.attention.given import causal, no_mask, unmasked, without
from headcheck.attention.inputs import Inputs
from headcheck.attention.sizes_shown import refuses_a_size
from headcheck.attention.subject import AttentionSubject
from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, within
from headcheck.given import at_least, at_most, having, one_of
from headcheck.laws import law
from headcheck.reference import masks

STEPS = "Vaswani et al. 2017, section 3.1: the model is auto-regressive; what is past is not computed again"


def _square(x: Inputs) -> Inputs:
    """As many queries as keys, so that both alignments are one."""
    length = min(x.q_len, x.kv_len)
    parts = {name: getattr(x, name)[:, :, :length] for name in ("query", "key", "value")}
    return x.but(**parts, strides="contiguous" if x.strides.startswith("expanded") else x.strides)


@law(
    source=STEPS,
    formula="O(Q, K, V; causal, window)_L = O(Q_L, K[L - left:], V[L - left:])",
    guards="A decode kernel of its own: a split of the keys lost, another scale, the wrong key head (vllm 26042).",
    needs=("is_causal", "rectangular"),
    given=(no_mask, causal, without("alibi", "sinks"), at_least(q_len=2, kv_len=2)),
)
def decoding_one_query_equals_the_last_row(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The last query alone, over the keys that it sees, gives the last row of the whole causal pass."""
    whole = _square(x).but(is_causal=True)
    left = None if whole.window is None else whole.window[0]
    first = 0 if left is None else max(0, whole.kv_len - 1 - left)
    step = whole.but(
        query=whole.query[:, :, -1:],
        key=whole.key[:, :, first:],
        value=whole.value[:, :, first:],
        is_causal=False,
        window=None,
    )
    limit = attention.bound(step) + attention.bound(whole)[:, :, -1:]
    return within(attention(step), attention(whole)[:, :, -1:], limit, "output of the last query alone")


@law(
    source="convention: a query that may attend to nothing gives zeros, unless declared otherwise",
    formula="causal, aligned at the last key, L > S: O_i = 0 for i < L - S",
    guards="0/0 in the rows before the first key, which no mask says are dead; flash-attention 2.1 and later give zeros.",
    needs=("is_causal", "rectangular"),
    given=(no_mask, without("sinks", "window"), at_least(q_len=2)),
    share=0.5,
    unless=("empty_rows=mean", "empty_rows=nan", "empty_rows=undefined"),
)
def queries_before_the_first_key_follow_the_convention(
    attention: AttentionSubject, x: Inputs
) -> Comparison | None:
    """Where causal masks are aligned at the last key, queries that come before all keys give what is declared."""
    if attention.alignment != "bottom-right":
        raise NotApplicable("causal='top-left': every query sees the first key")
    if attention.empty_rows == "undefined":
        raise NotApplicable("empty_rows='undefined'")
    keys = max(1, x.q_len // 2)
    y = x.but(key=x.key[:, :, :keys], value=x.value[:, :, :keys], is_causal=True, strides="contiguous")
    try:
        output = attention(y)
    except SubjectRaised as refusal:
        if attention.declaration.rectangular or not refuses_a_size(refusal.problem):
            raise
        raise NotApplicable(f"refuses causal calls of more queries than keys: {refusal}") from refusal
    return within(output, attention.expected(y), attention.strict_bound(y))


@law(
    source="Agrawal et al. 2023 (Sarathi), section 4: chunked prefill",
    formula="O(Q[a:b], K[:b], V[:b]; its triangle) = O(Q, K, V; causal)[a:b] for each chunk [a, b)",
    guards="A chunk whose triangle starts at the first key and not at its own place (onnxruntime 29020).",
    needs=("is_causal", "rectangular"),
    given=(no_mask, causal, without("window", "alibi"), at_least(q_len=2, kv_len=2), at_most(q_len=33)),
)
def prefill_in_chunks_equals_one_pass(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A prompt that is read in chunks of any size gives what it gives in one pass."""
    whole = _square(x).but(is_causal=True)
    output, bound = attention(whole), attention.bound(whole)
    for rows in _chunks(whole.kv_len, x.case.seed):
        chunk = _chunk(attention, whole, rows)
        limit = attention.bound(chunk) + bound[:, :, rows]
        yield within(
            attention(chunk), output[:, :, rows], limit, f"output of queries {rows.start} to {rows.stop - 1}"
        )


def _chunks(length: int, seed: int) -> Iterator[slice]:
    """Of one size, the last one shorter; or a first one of any length and the rest."""
    size = 1 + seed % length
    if seed // 7 % 2:
        yield from (slice(a, min(a + size, length)) for a in range(0, length, size))
    else:
        yield from (part for part in (slice(0, size), slice(size, length)) if part.stop > part.start)


def _chunk(attention: AttentionSubject, whole: Inputs, rows: slice) -> Inputs:
    """These queries over all keys so far: by the causal flag where it is aligned to the end, else by a mask."""
    part = whole.but(
        query=whole.query[:, :, rows], key=whole.key[:, :, : rows.stop], value=whole.value[:, :, : rows.stop]
    )
    if attention.alignment == "bottom-right" or rows.start == 0:
        return part
    if attention.lacks("attn_mask"):
        raise NotApplicable("its causal flag starts at the first key, and it takes no attn_mask")
    triangle = masks.causal(part.q_len, part.kv_len, "bottom-right")
    return part.but(is_causal=False, attn_mask=attention.mask_of(triangle, part.dtype))


@law(
    source="a cache is longer than what stands in it, and each sequence has its own length",
    formula="O(K, V, j < n_b)[b] = O(K[b, :n_b], V[b, :n_b]), whatever stands at j >= n_b",
    guards="The longest sequence's length used for all, unused slots that count (llama.cpp 14363).",
    needs=("attn_mask", "rectangular"),
    given=(unmasked, without("alibi"), at_least(batch=2, kv_len=3)),
)
def unused_slots_of_a_cache_do_not_matter(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Each sequence of a batch reads its own length of the cache, and the garbage behind it does not matter."""
    lengths = 1 + (torch.arange(x.batch) * 5 + x.case.seed) % x.kv_len
    used = masks.padding(lengths, x.kv_len)
    garbage = ~used[:, :, 0, :, None]
    cache = x.but(
        key=torch.where(garbage, 50.0, x.key).to(x.dtype),
        value=torch.where(garbage, -1e4, x.value).to(x.dtype),
        attn_mask=attention.mask_of(used.expand(x.batch, x.heads, x.q_len, x.kv_len).clone(), x.dtype),
        is_causal=False,
        strides="contiguous",
        mask_strides="contiguous",
        generic=False,
    )
    output, bound = attention(cache), attention.bound(cache)
    for b, length in enumerate(lengths.tolist()):
        alone = x.but(
            query=x.query[b : b + 1],
            key=x.key[b : b + 1, :, :length],
            value=x.value[b : b + 1, :, :length],
            attn_mask=None,
            is_causal=False,
            strides="contiguous",
        )
        limit = attention.bound(alone) + bound[b : b + 1]
        yield within(attention(alone), output[b : b + 1], limit, f"output of sequence {b} alone")


@law(
    source="Dao et al. 2023 (Flash-Decoding): the keys of one query are cut into splits, and the splits merged",
    formula="q_len = 1, Q = 0, 8200 keys or more: O = mean(V)",
    guards="So many splits of such a size at most: the keys of a long cache that are beyond them are lost.",
    needs=("rectangular",),
    given=(
        unmasked,
        without("softcap", "alibi", "sinks"),
        having(q_len=1, strides="contiguous"),
        one_of("values", "equal"),
        one_of("kv_len", 8200, 12_289, 16_500),
        at_most(batch=1, heads=2, kv_heads=2, head_dim=4, value_dim=4),
    ),
    share=0.1,
)
def every_key_of_a_long_cache_counts(attention: AttentionSubject, x: Inputs) -> Comparison:
    """One query that scores thousands of keys alike gives the mean of all their values."""
    if attention.is_packed or min(x.kv_len, x.q_len) > 1 or x.kv_len < 8200:
        raise NotApplicable("takes no one query over thousands of keys")
    values = x.normal_like(x.value, "values").sort(dim=2).values
    y = x.but(query=torch.zeros_like(x.query), value=values, generic=False)
    return attention.against_the_oracle(y)
