"""What a module is made of: d_model = num_heads x head_dim."""

from torch import nn

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, LawBroken, NotApplicable, none
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


@law(
    source="torch.nn.Module.state_dict: a dictionary of references to the whole state of the module",
    formula="g newly made, its state that of f: g(x) = f(x)",
    guards="Heads in a list that is no ModuleList: they are not saved, not moved to another device and not trained.",
    needs=("sizes",),
    share=0.3,
)
def the_state_holds_all_weights(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """A module that is made anew and given the state of another computes what that one does."""
    expected = attention(x)
    other = attention.of_sizes(x.case.d_model, x.heads, x)
    assert attention.module is not None
    assert other.module is not None
    state = nn.Module.state_dict(attention.module)  # Its own may mean to save a part.
    if not state:
        raise NotApplicable("it keeps its weights elsewhere than in parameters")
    try:
        nn.Module.load_state_dict(other.module, state)
    except Exception as problem:
        raise NotApplicable(f"the state of one is not taken by another: {problem}") from problem
    return attention.close(other(x), expected, x, "output with the state of another")
