"""How many keys each sequence has, said by a number: those behind them are none."""

from collections.abc import Callable, Iterator
from random import Random

import torch
from torch import Tensor

from headcheck.attention import watching
from headcheck.attention.given import (
    beside_a_block,
    blind_to_order,
    causal,
    live_rows,
    masked,
    no_mask,
    without,
)
from headcheck.attention.inputs import Inputs
from headcheck.attention.loud import with_loud_slots
from headcheck.attention.subject import AttentionSubject
from headcheck.calling import SubjectRaised, refused_on_purpose
from headcheck.comparison import Comparison, NotApplicable, within
from headcheck.given import alternately, at_least, at_most, one_of
from headcheck.laws import law

LENGTHS = "a batch of sequences of several lengths, as of valid_lens, cache_seqlens, key_value_seq_lengths"
EDGES = (1, 16, 32, 64, 128, 256)
_ROOM = at_least(batch=2, kv_len=2)
_BLOCKS = alternately(
    (), (beside_a_block,), (at_most(q_len=1, head_dim=16, value_dim=16), at_least(kv_len=200))
)


def _of_several_lengths(attention: AttentionSubject, x: Inputs) -> Inputs:
    """Each sequence with a number of keys, one at least with fewer than there are.

    Every query sees one, but for one case in two: there the first queries of a causal call may stand before all keys.
    """
    random = Random(x.case.seed)
    of_order = x.is_causal or x.window is not None or x.alibi_slopes is not None
    from_the_end = of_order and attention.alignment == "bottom-right"
    # Where there are as many keys as queries, a length may say which of both are padding.
    may_be_fewer = (
        x.q_len != x.kv_len
        and attention.declaration.rectangular in (None, True)
        and x.window is None
        and x.alibi_slopes is None
    )
    fewer_than_queries = may_be_fewer and x.case.seed % 2 == 0
    least = min(x.q_len, x.kv_len) if from_the_end and not fewer_than_queries else 1
    if least == x.kv_len or x.batch < 1:
        raise NotApplicable("takes no fewer keys than there are, with every query at one of them")
    edges = [each for each in (*EDGES, x.kv_len - 1) if least <= each < x.kv_len]
    lengths = [
        random.choice(edges) if edges and random.random() < 0.5 else random.randint(least, x.kv_len)
        for _ in range(x.batch)
    ]
    lengths[random.randrange(x.batch)] = random.choice([*edges, random.randint(least, x.kv_len - 1)])
    return x.but(key_lengths=tuple(lengths))


def _asked(x: Inputs) -> Tensor:
    """The queries (batch, heads, q_len) that have a key; with as many as keys those behind may be padding, too."""
    if x.q_len != x.kv_len or x.key_lengths is None:
        return ~x.dead_rows
    return ~x.dead_rows & (torch.arange(x.q_len) < torch.tensor(x.key_lengths)[:, None, None])


def _against_the_oracle(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The output of these queries."""
    expected = attention.expected(x)
    found = torch.where(_asked(x)[..., None], attention(x), expected)
    return within(found, expected, lambda: attention.bound(x), "output, where key_lengths are given")


def _output_and_log_sum_exp(
    attention: AttentionSubject, x: Inputs, output: Callable[[AttentionSubject, Inputs], Comparison]
) -> Iterator[Comparison]:
    """The output of these queries by `output`, and the log-sum-exp where it is returned."""
    yield output(attention, x)
    if attention.has("log_sum_exp"):
        exact = x.problem.attended.log_sum_exp
        found = torch.where(_asked(x), attention.log_sum_exp(x).to(exact), exact)
        yield within(found, exact, lambda: attention.log_sum_exp_bound(x), "log-sum-exp")


def _or_refused(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The same, where both together are not refused on purpose."""
    try:
        return _against_the_oracle(attention, x)
    except SubjectRaised as refusal:
        if not refused_on_purpose(refusal.problem):
            raise
        raise NotApplicable(f"refuses both together: {refusal}") from refusal


@law(
    source=LENGTHS,
    formula="O(Q, K, V; lengths)_b = O(Q_b, K_b[:lengths_b], V_b[:lengths_b])",
    guards="A length read as another sequence's, one key too many or too few, the tail of a block; a split without keys.",
    needs=("key_lengths",),
    given=(no_mask, blind_to_order, _ROOM, _BLOCKS),
)
def a_sequence_has_as_many_keys_as_is_said(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """With key_lengths the output, and the log-sum-exp, are those of the first keys of each sequence."""
    return _output_and_log_sum_exp(attention, _of_several_lengths(attention, x), _against_the_oracle)


@law(
    source=LENGTHS,
    formula="O(K, V; lengths) = O(K', V'; lengths) if they differ behind the lengths only, bit for bit",
    guards="A fill value that leaks, keys behind a length that weigh something, values that are added with weight zero.",
    needs=("key_lengths",),
    given=(no_mask, blind_to_order, _ROOM, _BLOCKS),
    share=0.5,
)
def what_stands_behind_a_length_does_not_matter(attention: AttentionSubject, x: Inputs) -> list[Comparison]:
    """Keys and values behind the length of a sequence change nothing, however large they are."""
    x = _of_several_lengths(attention, x.written_out())
    what = "output, when keys and values behind the lengths are huge"
    return [attention.identical(loud, x, what) for loud in with_loud_slots(x, x.hidden_keys)]


@law(
    source=LENGTHS,
    formula="attn_mask and lengths: a query may attend to a key that both leave it",
    guards="A mask that is dropped where lengths are given, or read from the wrong place; lengths that are dropped.",
    needs=("key_lengths", "attn_mask"),
    given=(masked, live_rows, blind_to_order, _ROOM),
    share=0.3,
)
def key_lengths_beside_a_mask_hide_what_either_hides(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Beside attn_mask key_lengths hide the keys behind them, and the mask what it hides; or both are refused."""
    return _or_refused(attention, _of_several_lengths(attention, x))


@law(
    source=LENGTHS,
    formula="is_causal and lengths: the diagonal stands at the first key, or at the last of lengths_b",
    guards="The diagonal counted from the longest sequence, or from the end of the buffer (flash-attention's kvcache).",
    needs=("key_lengths", "is_causal"),
    given=(no_mask, causal, without("window", "alibi"), _ROOM),
    share=0.5,
)
def key_lengths_with_is_causal_end_at_the_last_key(attention: AttentionSubject, x: Inputs) -> Comparison:
    """With is_causal key_lengths move the diagonal where it is counted from the last key; or both are refused."""
    return _or_refused(attention, _of_several_lengths(attention, x))


@law(
    source=LENGTHS,
    formula="a window and lengths: query i stands at key i, or at i + lengths_b - q_len",
    guards="A window counted from the end of the buffer, where the diagonal is counted from the length.",
    needs=("key_lengths", "window"),
    given=(no_mask, one_of("window", (1, 0), (2, 1), (0, 0), (3, None), (8, 8)), without("alibi"), _ROOM),
    share=0.5,
)
def key_lengths_with_a_window_end_at_the_last_key(attention: AttentionSubject, x: Inputs) -> Comparison:
    """With a window key_lengths move it where it is counted from the last key; or both are refused."""
    return _or_refused(attention, _of_several_lengths(attention, x))


@law(
    source=LENGTHS,
    formula="s_ij - m |p_i - j| with lengths: p_i = i, or i + lengths_b - q_len",
    guards="ALiBi counted from the end of the buffer: what moves all scores of a row shows in the log-sum-exp alone.",
    needs=("key_lengths", "alibi"),
    given=(no_mask, one_of("alibi", True), without("window"), _ROOM),
    share=0.5,
)
def key_lengths_with_slopes_end_at_the_last_key(
    attention: AttentionSubject, x: Inputs
) -> Iterator[Comparison]:
    """With slopes key_lengths move the places of the queries where they are counted from the last key."""
    return _output_and_log_sum_exp(attention, _of_several_lengths(attention, x), _or_refused)


@law(
    source=LENGTHS,
    formula="dQ, dK, dV with lengths are the oracle's: zero behind them",
    guards="A backward pass that does not know the lengths, or takes the first sequence's for all.",
    needs=("key_lengths",),
    given=(no_mask, blind_to_order, _ROOM, _BLOCKS),
    share=0.5,
)
def gradients_end_at_the_length(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """With key_lengths the gradients are the oracle's, and those of keys and values behind them are zero."""
    x = _of_several_lengths(attention, x)
    asked = torch.where(_asked(x)[..., None], x.cotangent, 0)
    return attention.gradients_against_the_oracle(x, asked)


@law(
    source="the torch tensor: sizes, strides, offset",
    formula="O(lengths, a column of a table) = O(their contiguous copy)",
    guards="Lengths that are read side by side, whatever their stride: those of other sequences, or other numbers.",
    needs=("key_lengths",),
    given=(no_mask, blind_to_order, _ROOM),
    share=0.25,
)
def lengths_may_be_a_column(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Lengths that are a column of a table say what their contiguous copy says."""
    x = _of_several_lengths(attention, x)
    plain, asked = attention(x), _asked(x)[..., None]
    found = watching.of_columns(attention, x, "key_lengths")
    return within(torch.where(asked, found, plain), plain, attention.apart(x, x))
