"""What a module is made of: d_model = num_heads x head_dim."""

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, LawBroken, none
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.subject import MultiHeadSubject


@law(
    source="Vaswani et al. 2017, section 3.2.2: d_k = d_model / h",
    formula="d_model not a multiple of num_heads: ValueError or AssertionError when the module is made, or the first "
    "call raises",
    guards="A head_dim rounded down: some dims lost, or a reshape that mixes tokens (document 004).",
    needs=("sizes",),
    given=(at_least(heads=2),),
    share=0.3,
)
def widths_that_heads_do_not_divide_are_refused(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Comparison:
    """A d_model that is no multiple of num_heads is refused when the module is made, or by its first call.

    Where none is lost by rounding, heads of a whole width cannot be cut: view, unflatten and the like raise.
    """
    d_model, heads = x.case.d_model + 1 + x.case.seed % (x.heads - 1), x.heads
    sizes = f"d_model = {d_model} with num_heads = {heads}"
    try:
        made = attention.of_sizes(d_model, heads, x)
    except SubjectRaised as raised:
        if not isinstance(raised.problem, ValueError | AssertionError):
            raise
        return none("modules of such sizes")
    given = {
        name: x.random(name, *tensor.shape[:2], d_model)
        for name in ("query", "key", "value")
        if (tensor := getattr(x, name)) is not None
    }
    try:
        made(x.masked(None).but(is_real=None, **given))
    except SubjectRaised:
        return none("modules of such sizes")
    raise LawBroken(f"a module of {sizes} was made, and called, without a word")
