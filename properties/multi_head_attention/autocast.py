"""Under autocast a mask hides what it hides elsewhere."""

import torch

from headcheck.comparison import Comparison, NotApplicable
from headcheck.given import at_least, having, one_in
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.subject import MultiHeadSubject

AUTOCAST = "torch.autocast: matrix products are made in bfloat16, and no argument of the module changes"
UNMASKED = having(mask="none", padding=False)


@law(
    source=AUTOCAST,
    formula="under autocast: K, V a thousand times as large where masked, f the same",
    guards="A mask of the least number of float32, which 16 bits cannot hold; a path of 16 bits that lacks a mask.",
    needs=("attn_mask",),
    given=(UNMASKED, at_least(q_len=2, kv_len=2)),
    share=0.5,
)
def masked_keys_do_not_matter(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """A module that computes under autocast takes its masks there, of either kind, and what they hide does not matter."""
    x = x.in_float32()
    narrow = attention.under_autocast(x)
    kept = attention.some_keys(x)
    masked = x.masked(kept.expand(len(x.query), 1, x.query.shape[1], -1))
    if attention.has("key_mask") and x.case.seed % 2:
        masked = x.but(is_real=kept.expand(len(x.query), -1))
    calls = (masked.with_louder_keys(~kept), masked)
    found, expected = (x.rows_of(narrow(each), kept.nonzero()[:, 0]) for each in calls)
    return narrow.close(found, expected, masked, "output under autocast")


@law(
    source=AUTOCAST,
    formula="under autocast: keys j > i a thousand times as large, f(x)_i the same",
    guards="A triangle that the path of 16 bits lacks.",
    given=(having(mask="causal"), one_in(2, having(mode="self", flag=True)), at_least(q_len=2, kv_len=2)),
)
def later_tokens_do_not_matter(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """A module that computes under autocast is causal there, too, where it is told to be."""
    if x.case.mask != "causal" and not attention.declaration.causal:
        raise NotApplicable("takes no causal mask")
    x = x.in_float32()
    x = x.masked(None) if attention.declaration.causal else x
    narrow = attention.under_autocast(x.masked(None))
    kv_len = x.keys.shape[1]
    cut = 1 + x.case.seed % (min(x.query.shape[1], kv_len - 1) or 1)
    louder = x.with_louder_keys(torch.arange(kv_len) >= cut)
    return narrow.close(narrow(louder)[:, :cut], narrow(x)[:, :cut], x, "output under autocast")
