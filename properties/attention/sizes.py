"""The sizes at which kernels take another path: the gradients are the oracle's there too."""

from collections.abc import Iterator

from headcheck.attention.given import causal_across_blocks, causal_over_hundreds, no_mask, real_sizes
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, NotApplicable
from headcheck.given import alternately, at_least, at_most, one_of
from headcheck.laws import law

DAO = "Dao et al. 2022 (FlashAttention), appendix B.2: backward goes through tiles of its own"
SOME_HUNDRED = 256
"""Queries that shorter cases have already; a subject of equally many queries and keys is asked for one more."""
SEVERAL_BLOCKS = (
    at_least(q_len=100, kv_len=100),
    at_most(batch=1, heads=2, kv_heads=2, q_len=140, kv_len=140, head_dim=4, value_dim=4),
    one_of("window", (31, 33), (64, 0), (17, 16), (20, None), (None, 40), (0, 65)),
)


@law(
    source=DAO,
    formula="head_dim of 64 and more over several tiles, causal over several blocks: dQ, dK, dV are the oracle's",
    guards="A backward of several tiles that lacks a term for wide heads, or the last tile where it is no whole one.",
    given=(alternately((real_sizes,), (causal_across_blocks,)),),
    share=0.5,
)
def sizes_of_real_models_have_their_gradients(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Wide heads over many positions, and causal calls over several blocks, give the oracle's gradients."""
    return attention.gradients_against_the_oracle(x)


@law(
    source="Vaswani et al. 2017, section 3.2.3; kernels skip the blocks above the diagonal, each by its own count",
    formula="is_causal over 257 to 600 positions: |O - exact| <= bound",
    guards="Rows beyond some hundred that lose keys or see later ones: a block of the diagonal skipped, a count capped.",
    needs=("is_causal",),
    given=(no_mask, causal_over_hundreds),
    share=0.3,
)
def long_causal_sequences_are_no_exception(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Under is_causal, queries at some hundredth position give the oracle's output, too."""
    if x.q_len <= SOME_HUNDRED:
        raise NotApplicable("takes no causal calls of some hundred queries")
    return attention.against_the_oracle(x)


@law(
    source=DAO,
    formula="left, right of 16 to 65 keys, of more than a hundred: dQ, dK, dV are the oracle's",
    guards="A window that the backward pass rounds to whole blocks, or forgets beyond one.",
    needs=("window",),
    given=SEVERAL_BLOCKS,
    share=0.2,
)
def a_window_of_several_blocks_has_its_gradients(
    attention: AttentionSubject, x: Inputs
) -> Iterator[Comparison]:
    """Windows that are wider than a block, and narrower than the sequence, give the oracle's gradients."""
    return attention.gradients_against_the_oracle(x)
