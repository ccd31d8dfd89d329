"""Without positions an encoder is a function of a set: only attention lets its states meet."""

from functools import partial

import torch

from headcheck.comparison import Comparison, LawBroken, NotApplicable, none
from headcheck.given import at_least, having, one_in
from headcheck.laws import law
from headcheck.modules.encoder import EncoderSubject
from headcheck.modules.influence import moves_states
from headcheck.modules.states import StateInputs
from headcheck.modules.tokens import exchanged, two_places
from headcheck.modules.weights import moderate, weights_changed, without_matrices

LONGER = 34
"""Of tables that begin with 32 positions, or a power of two below, so many states reach two behind the end."""
ORDERLESS = "Vaswani et al. 2017, section 3.5: without positions there is no order"


@law(
    source=ORDERLESS,
    formula="f(P x) = P f(x)",
    guards="A norm, a convolution or a causal mask over the sequence; batch and length exchanged.",
    needs=("no_positions", "bidirectional"),
    given=(at_least(length=2),),
    share=1.5,
    unless=("positions=True", "causal=True"),
)
def permuting_the_input_permutes_the_states(module: EncoderSubject, x: StateInputs) -> Comparison:
    """Without positions, states in another order give the same answers in that order."""
    if any(module.lacks(side) for side in ("left_padding", "right_padding")):
        x = x.but(is_real=None)  # In another order, padding stands anywhere.
    order = torch.randperm(x.length, generator=x.generator("order"))
    real = None if x.is_real is None else x.is_real[:, order]
    permuted = x.but(x=x.x[:, order], is_real=real)
    return module.close(module(permuted), module(x)[:, order], x)


@law(
    source=ORDERLESS,
    formula="f(P x) differs from P f(x)",
    guards="Positions that are all zero, added to the wrong axis, or lost; a table that begins anew where it grows.",
    needs=("positions", "weights"),
    given=(at_least(length=3), having(padding="none", spread=1.0), one_in(3, at_least(length=LONGER))),
)
def the_order_of_the_input_counts(module: EncoderSubject, x: StateInputs) -> Comparison:
    """With positions, two states exchanged give more than the answers exchanged, to those behind both as well."""
    first, second = two_places(x.case.seed, x.length, behind=1)
    order = exchanged(torch.arange(x.length)[None], first, second)[0]
    behind = second + 1 if module.has("causal") and second > first + 1 else 0
    assert module.module is not None
    with weights_changed(module.module, moderate):
        other, before = module(x.but(x=x.x[:, order])), module(x)[:, order]
        if not module.moves(other[:, behind:], before[:, behind:], x):
            module.require_fine(x)
            if not module.has("full_context"):
                raise NotApplicable("it has windows, in which order need not count")
            raise LawBroken(
                f"the states do not depend on the order of {first} and {second} "
                "(where that is meant, declare positions=False)"
            )
    return none("orders that do not count")


@law(
    source="Vaswani et al. 2017, section 3.2.3: each position in the encoder can attend to all positions",
    formula="x[s] changed: f(x)[t] changes, for every s and t",
    guards="A last token that is cut off, a causal mask, a sub-layer that is never called.",
    needs=("bidirectional", "full_context", "weights"),
    given=(at_least(length=2), having(padding="none", spread=1.0)),
    unless=("causal=True", "full_context=False"),
)
def every_state_depends_on_every_token(module: EncoderSubject, x: StateInputs) -> Comparison:
    """Each token has an influence on each state; matrices are brought to a moderate size for it."""
    place = x.case.seed % x.length
    return moves_states(module, x, partial(x.replaced, place), f"token {place}", range(x.length))


@law(
    source="attention's weights sum to one: among copies of one value, that value is the mean",
    formula="f([a, a, ..., a]) = [f(a), f(a), ..., f(a)]",
    guards="Weights that do not sum to one, a convolution that meets zeros at the edges, a sum for a mean.",
    needs=("no_positions", "only_tokens"),
    given=(at_least(length=2), having(padding="none"), one_in(3, at_least(length=LONGER))),
    unless=("only_tokens=False",),
)
def copies_of_a_token_give_what_it_gives_alone(module: EncoderSubject, x: StateInputs) -> Comparison:
    """Without positions, a sequence of one token repeated gives what the token gives by itself."""
    alone = x.but(x=x.x[:, :1])
    copies = x.but(x=x.x[:, :1].expand_as(x.x).clone())
    return module.close(module(copies), module(alone).expand(-1, x.length, -1), x)


@law(
    source="Vaswani et al. 2017, section 3.3: applied to each position separately and identically",
    formula="f(x, only t real)[t] = f(x[t])",
    guards="A norm over length and d_model, a feed-forward that reshapes tokens into each other (labml 146).",
    needs=("is_real", "left_padding", "right_padding", "no_positions", "bidirectional"),
    given=(at_least(length=2), having(padding="none")),
    unless=("positions=True",),
)
def a_token_that_sees_itself_alone_is_alone(module: EncoderSubject, x: StateInputs) -> Comparison:
    """With a mask that leaves one token of the sequence, it gives what it gives without the others."""
    place = x.case.seed % x.length
    only = torch.zeros_like(x.real)
    only[:, place] = True
    alone = x.but(x=x.x[:, place : place + 1])
    return module.close(module(x.but(is_real=only))[:, place : place + 1], module(alone), alone)


@law(
    source="Vaswani et al. 2017, section 3.3: only attention lets positions meet",
    formula="matrices at zero, x[s] changed: f(x)[t] stays, for t other than s",
    guards="A norm over the whole sequence; a skip path that is shifted, pooled or reshaped.",
    needs=("weights",),
    given=(at_least(length=2), having(padding="none")),
    share=0.5,
)
def position_wise_parts_mix_no_tokens(module: EncoderSubject, x: StateInputs) -> Comparison:
    """Where matrices are zero, attention's among them, a token changes its own state only."""
    place = x.case.seed % x.length
    others = torch.arange(x.length) != place
    assert module.module is not None
    with weights_changed(module.module, without_matrices):
        changed, before = module(x.replaced(place)), module(x)
        if before.isnan().any():
            raise NotApplicable("matrices at zero give NaN")
        return module.close(changed[:, others], before[:, others], x.but(), "state of another token")
