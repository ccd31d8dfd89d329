"""Sequences of different lengths in one batch."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison
from headcheck.given import at_least, having, one_in
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.subject import MultiHeadSubject

BLOCKS = 70
"""So many keys are several blocks of 16 or 32, or a block of 64 and some more."""


@law(
    source="a masked key has the weight 0: Vaswani et al. 2017, section 3.2.3; a batch is a way of computing",
    formula="f([a; b] of all lengths, is_real)_a = f(a)",
    guards="One mask for the whole batch: that of the first sequence, or of the longest; a block of keys that is skipped "
    "in all sequences where it is padding in one.",
    needs=("key_mask",),
    given=(
        having(mask="none", padding=False),
        at_least(batch=2, q_len=2, kv_len=2),
        one_in(2, at_least(q_len=BLOCKS, kv_len=BLOCKS)),
    ),
)
def a_padded_batch_gives_what_each_sequence_gives_alone(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Iterator[Comparison]:
    """Sequences of different lengths, padded at the end, give what each gives without its padding."""
    batch, kv_len = len(x.query), x.keys.shape[1]
    lengths = torch.randint(1, kv_len + 1, (batch,), generator=x.generator("lengths"))
    lengths[x.case.seed % batch] = kv_len
    padded = x.but(is_real=torch.arange(kv_len) < lengths[:, None])
    together = attention(padded)
    for row, length in enumerate(lengths):
        order, own = torch.arange(int(length)), torch.tensor([row])
        alone = x.picked(own).with_keys(order)
        yield attention.close_between(x.rows_of(together[own], order), attention(alone), padded, alone)
