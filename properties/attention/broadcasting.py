"""Masks with several axes of one: what they say holds for every sequence, head or query."""

from headcheck.attention.given import blind_to_order, live_rows, masked, without
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.calling import SubjectRaised, was_raised
from headcheck.comparison import Comparison, NotApplicable
from headcheck.given import at_least, having
from headcheck.laws import law


@law(
    source="broadcasting: an axis of size 1 stands for all, whichever axes have it",
    formula="O(mask (1, heads, 1, kv_len)) = O(mask repeated); (heads, 1, kv_len) and (1, 1, 1, kv_len) alike",
    guards="A mask of one sequence taken for one without heads; a stride of zero for the queries in a whole batch only.",
    needs=("attn_mask",),
    given=(
        live_rows,
        masked,
        blind_to_order,
        without("window"),
        having(mask_axes="bhqk"),
        at_least(batch=2, heads=2, q_len=2, kv_len=2),
    ),
    share=0.5,
)
def a_mask_of_keys_holds_for_all_queries_of_its_heads(
    attention: AttentionSubject, x: Inputs
) -> Comparison | None:
    """A mask that says of each head, or of all, which keys count does so for every query of every sequence."""
    if attention.mask_shapes is not None:
        raise NotApplicable(f"takes masks of the shapes {', '.join(attention.mask_shapes)} only")
    if x.attn_mask is None:
        return None
    of_heads = x.attn_mask[:1, :, :1]
    mask = (of_heads, of_heads[0], of_heads[:, :1])[x.case.seed % 3].clone()
    written_out = x.but(attn_mask=mask.expand(x.may_attend.shape).clone())
    try:
        return attention.agree(x.but(attn_mask=mask), written_out)
    except SubjectRaised as raised:
        if was_raised(raised.problem):
            raise NotApplicable(f"refuses an attn_mask {tuple(mask.shape)}: {raised}") from raised
        raise
