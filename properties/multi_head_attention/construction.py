"""What a module is made of: d_model = num_heads x head_dim."""

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, LawBroken, none
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.subject import MultiHeadSubject


@law(
    source="Vaswani et al. 2017, section 3.2.2: d_k = d_model / h",
    formula="d_model not a multiple of num_heads: ValueError or AssertionError when the module is made",
    guards="A head_dim rounded down: some dims lost, or a reshape that mixes tokens (document 004).",
    needs=("sizes",),
    given=(at_least(heads=2),),
    share=0.3,
)
def widths_that_heads_do_not_divide_are_refused(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Comparison:
    """A d_model that is no multiple of num_heads is refused when the module is made."""
    d_model, heads = x.case.d_model + 1 + x.case.seed % (x.heads - 1), x.heads
    try:
        attention.new(d_model, heads)
    except SubjectRaised as raised:
        if not isinstance(raised.problem, ValueError | AssertionError):
            raise
        return none("modules of such sizes")
    raise LawBroken(f"a module of d_model = {d_model} with num_heads = {heads} was made without a word")
