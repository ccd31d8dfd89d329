"""Sliding windows at their edges: W and W + 1, none at all, beside the causal flag and beside a mask."""

import torch

from headcheck.attention.given import live_rows, masked, no_mask
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import MASK_WITH_CAUSAL, AttentionSubject
from headcheck.comparison import Comparison, NotApplicable, holds
from headcheck.given import at_least, at_most, one_of
from headcheck.laws import law
from headcheck.reference import masks

BELTAGY = "Beltagy et al. 2020 (Longformer), section 3.1"
_WINDOWED = one_of("window", (0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (3, None), (None, 1), (8, 8))
LOUD = 1e3


@law(
    source=BELTAGY,
    formula="O_i depends on K_j, V_j only where i - left <= j <= i + right",
    guards="A window as a finite penalty, or of whole blocks: a key at distance W + 1 still counts (transformers 29623).",
    needs=("window",),
    given=(no_mask, _WINDOWED, at_least(kv_len=3, q_len=2)),
)
def a_key_one_step_outside_does_not_matter(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """What stands in a key outside of its window changes no query, bit for bit, however near the key is."""
    chosen = x.case.seed % x.kv_len
    blind = ~x.may_attend[..., chosen] & ~attention.special_rows(x)
    if not blind.any():
        return None
    x = x.written_out()
    here = (torch.arange(x.kv_len) == chosen)[:, None]
    loud = x.but(
        key=torch.where(here, LOUD * x.key.sign(), x.key).to(x.dtype),
        value=torch.where(here, LOUD, x.value).to(x.dtype),
        generic=False,
    )
    clean = attention(x).cpu()
    seen = torch.where(blind[..., None], attention(loud).cpu(), clean)
    what = f"output of a query that does not see key {chosen}, when that key is huge"
    return attention.unchanged(seen, clean, x, what)


@law(
    source=BELTAGY,
    formula="V_j = e_j: O_i,j > 0 at j = i - left and at j = i + right",
    guards="W keys against W + 1: the outermost key of the window is left out (transformers 39408).",
    needs=("window",),
    given=(no_mask, _WINDOWED, at_least(kv_len=3)),
)
def the_outermost_key_of_a_window_counts(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """The last key inside a window, on either side, has its weight."""
    edges = x.may_attend & ~(x.may_attend.roll(1, -1) & x.may_attend.roll(-1, -1))
    chosen = x.case.seed % x.kv_len
    column = edges[..., chosen] & ~attention.special_rows(x)
    if not column.any():
        return None
    lit = (torch.arange(x.kv_len) == chosen)[:, None].to(x.dtype)
    y = x.but(query=torch.zeros_like(x.query), value=lit.expand(x.value.shape).clone(), strides="contiguous")
    seen = attention(y)[..., 0].cpu().double()
    exact = y.problem.attended.output[..., 0]
    right = ~column | (seen > 0) | (exact < 2 * attention.bound(y)[..., 0])
    return holds(right, seen, f"weight of key {chosen}, the outermost of the window", exact)


@law(
    source=BELTAGY,
    formula="left, right of 31 to 129 keys, of some hundred: |O - exact| <= bound",
    guards="Windows wider than a block: the number of blocks rounded down, a band that holds 32 keys at most.",
    needs=("window",),
    given=(
        at_least(q_len=200, kv_len=200),
        at_most(batch=1, q_len=280, kv_len=280, head_dim=4, value_dim=4),
        one_of("window", (31, 33), (64, 0), (65, 64), (100, None), (None, 40), (127, 0), (129, 1), (96, 17)),
    ),
    share=0.3,
)
def a_window_of_several_blocks_sees_its_keys(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Windows that are wider than a block, and narrower than the sequence, see the keys that they name."""
    return attention.against_the_oracle(x)


@law(
    source=BELTAGY,
    formula="left, right >= the number of positions: O(window) = O(no window)",
    guards="A window as long as the keys that is cut by one, or taken modulo.",
    needs=("window",),
    given=(no_mask,),
)
def a_window_wider_than_the_keys_is_none(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A window that reaches beyond all keys changes nothing, just as long as they are or far longer."""
    longest = max(x.q_len, x.kv_len)
    width = (longest - 1, longest, longest + 1, 16 * longest)[x.case.seed % 4]
    return attention.agree(x.but(window=(width, width)), x.but(window=None))


@law(
    source="Jiang et al. 2023 (Mistral 7B), section 2: a causal window",
    formula="O(causal, (left, right)) = O((left, 0))",
    guards="The causal flag dropped when there is a window, so that `right` keys of the future are seen.",
    needs=("window", "is_causal"),
    given=(no_mask, one_of("window", (0, 2), (1, 1), (2, None), (None, 3)), at_least(q_len=2, kv_len=2)),
)
def a_causal_window_has_no_right_side(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Under is_causal a window ends at the query's own position, whatever its right side is."""
    left = None if x.window is None else x.window[0]
    return attention.agree(
        x.but(is_causal=True, window=x.window or (None, 1)), x.but(is_causal=False, window=(left, 0))
    )


@law(
    source=BELTAGY,
    formula="window and mask = (the band AND the mask) as attn_mask",
    guards="The window dropped beside a padding mask, or the mask beside a window (flash-attention 1035).",
    needs=("window", "attn_mask"),
    given=(masked, live_rows, _WINDOWED, at_least(kv_len=2)),
)
def a_window_and_a_mask_compose(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """A window beside a mask leaves the keys that both leave."""
    if x.attn_mask is None or x.case.mask_form == "lowest":
        return None
    if x.is_causal and MASK_WITH_CAUSAL in attention.avoids:
        raise NotApplicable("attn_mask and is_causal do not compose, or are declared not to")
    left, right = x.window or (None, None)
    band = masks.sliding_window(x.q_len, x.kv_len, left, right, x.alignment)
    boolean = x.attn_mask.dtype == torch.bool
    both = x.attn_mask & band if boolean else x.attn_mask.masked_fill(~band, -torch.inf)
    return attention.agree(x, x.but(window=None, attn_mask=both))
