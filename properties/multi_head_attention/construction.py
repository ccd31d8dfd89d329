"""What a module is made of: d_model = num_heads x head_dim."""

import torch
from torch import Tensor, nn

from headcheck.calling import REFUSALS, SubjectRaised, refused_on_purpose, was_raised
from headcheck.comparison import Comparison, LawBroken, NotApplicable, none, within
from headcheck.errors import SubjectError
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.multi_head.bounds import output_bound
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.oracle import with_bias
from headcheck.modules.multi_head.subject import MultiHeadSubject


@law(
    source="Vaswani et al. 2017, section 3.2.2: d_k = d_model / h",
    formula="d_model not a multiple of num_heads: an exception when the module is made, or by the first call; or "
    "heads of d_k = floor(d_model / h), w_q, w_k, w_v: d_model -> h d_k, w_o: h d_k -> d_model",
    guards="A head_dim rounded down: some dims lost, or a reshape that mixes tokens (document 004).",
    needs=("sizes",),
    given=(at_least(heads=2),),
    share=0.3,
)
def widths_that_heads_do_not_divide_are_refused(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Comparison:
    """A d_model that is no multiple of num_heads is refused when the module is made, or by its first call; or the
    projections lead to heads of a whole width and back, and lose nothing, as in Llama.

    Where none is lost by rounding, heads of a whole width cannot be cut: view, unflatten and the like raise.
    """
    d_model, heads = x.case.d_model + 1 + x.case.seed % (x.heads - 1), x.heads
    given = {
        name: x.random(name, *tensor.shape[:2], d_model)
        for name in ("query", "key", "value")
        if (tensor := getattr(x, name)) is not None
    }
    try:
        made = attention.of_sizes(d_model, heads, x)
    except SubjectRaised as raised:
        refused = isinstance(raised.problem, (RuntimeError, *REFUSALS)) or was_raised(raised.problem)
        if not refused and not refused_on_purpose(raised.problem):
            raise
        return none("modules of such sizes")
    try:
        made(x.masked(None).but(is_real=None, **given))
    except SubjectRaised:
        return none("modules of such sizes")
    whole = x.masked(None).but(is_real=None, weights=_between(d_model, x), **given)
    try:
        found = made(whole)
    except (SubjectError, SubjectRaised) as problem:
        sizes = f"d_model = {d_model} with num_heads = {heads}"
        raise LawBroken(f"a module of {sizes} was made, and called, without a word") from problem
    nothing = torch.zeros(1, 1, whole.query.shape[1], whole.keys.shape[1], dtype=torch.float64)
    exact = with_bias(whole, nothing, attention.visible(whole))
    what = f"output of a module of d_model = {d_model} with num_heads = {heads}"
    return within(found, exact, output_bound(whole, attention.found.unit), what)


def _between(d_model: int, x: MultiHeadInputs) -> dict[str, Tensor]:
    """Weights of these heads between another d_model and itself."""

    def shape(name: str) -> list[int]:
        rows, *columns = x.weights[name].shape
        return [
            d_model if name in ("w_o", "b_o") else rows,
            *(columns if name == "w_o" else [d_model] * len(columns)),
        ]

    return {name: x.random(f"other {name}", *shape(name)).double() for name in x.weights}


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
