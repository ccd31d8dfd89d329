"""One function by whatever path a call of it takes: gradients flow on each, and on each they are the same."""

from collections.abc import Iterator

from headcheck.attention import watching
from headcheck.attention.given import live_rows, masked
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, LawBroken, NotApplicable, compared_gradients, none
from headcheck.given import alternately, at_least
from headcheck.laws import law


@law(
    source="the gradient is a property of the function, not of the path that a call takes",
    formula="f(Q, K, V) carries a gradient: so does f with a mask, with is_causal, with a single query",
    guards="torch.no_grad() around one path, such as decoding, or beside a mask: training stops without a word.",
    given=(alternately((masked,), ()), live_rows, at_least(q_len=2)),
    share=0.3,
)
def every_call_carries_gradients_or_none_does(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """Where the output of any call carries a gradient, so does that of a plain one, and of any other."""
    plain = x.but(attn_mask=None, window=None, softcap=None, sinks=None, alibi_slopes=None, is_causal=False)
    plain = plain.but(**attention.declaration.always)
    if x.dead_rows.any():
        return None
    calls = {"a plain call": plain, "this call": x}
    if attention.has("rectangular"):
        calls["a call with a single query"] = plain.but(query=x.query[:, :, :1])
    carries = {name: watching.carries_gradients(attention, call) for name, call in calls.items()}
    silent = [name for name in calls if not carries[name]]
    if len(silent) == len(calls):
        raise NotApplicable("the output carries no gradient")
    if silent:
        speaking = next(name for name in calls if carries[name])
        raise LawBroken(f"the output of {silent[0]} carries no gradient, that of {speaking} does")
    return none("outputs without a gradient")


@law(
    source="an auxiliary output is no other computation",
    formula="dQ, dK, dV of O, where weights or the log-sum-exp are returned as well: those without",
    guards="A path of its own for returned weights, that runs without gradients, or lacks a term of them.",
    share=0.3,
)
def asking_for_more_changes_no_gradient(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Returning weights or log-sum-exp does not change the gradients of the output."""
    extras = [name for name in ("log_sum_exp", "weights") if attention.has(name)]
    if not extras:
        raise NotApplicable("returns neither weights nor log-sum-exp")
    attention.require_specified_gradients(x)
    attention.gradients(x)  # Not applicable where there are none at all.
    exact, bounds = x.problem.gradients(x.cotangent.double())._asdict(), attention.gradient_bounds(x).of()
    for extra in extras:
        found = watching.gradients_beside(attention, x, extra)
        yield from compared_gradients(found, exact, bounds, f", {extra.replace('_', '-')} asked for")
