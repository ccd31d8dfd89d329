"""No state sees the future, and each sees all of its past."""

import torch

from headcheck.comparison import Comparison, LawBroken, NotApplicable, none, same
from headcheck.given import at_least, having
from headcheck.laws import law
from headcheck.modules.decoder import DecoderInputs, DecoderSubject
from headcheck.modules.weights import moderate, weights_changed

MASKED = "Vaswani et al. 2017, section 3.2.3: leftward information flow is prevented"
TRIES = 4
"""So many other states are tried, since one may happen to be overlooked."""


@law(
    source=MASKED,
    formula="x[:t] the same: f(x)[:t] the same",
    guards="A mask that is off by one, transposed, forgotten in one layer, dropped beside another (keras 23038).",
    given=(at_least(length=2),),
    share=2.0,
)
def later_states_do_not_matter(module: DecoderSubject, x: DecoderInputs) -> Comparison:
    """Whatever stands later, the earlier states stay."""
    later = torch.arange(x.length) >= x.cut
    other = module(x.replaced(later))[:, : x.cut]
    return module.close(other, module(x)[:, : x.cut], x, "earlier state")


@law(
    source=MASKED,
    formula="d f(x)[:t] / d x[t:] = 0, exactly",
    guards="A leak too small for values: a finite number in place of -inf, a mean over all positions.",
    given=(at_least(length=2),),
)
def no_gradient_comes_from_later_states(module: DecoderSubject, x: DecoderInputs) -> Comparison:
    """Earlier states have no gradient with respect to what stands later."""
    earlier = x.real & (torch.arange(x.length) < x.cut)
    later = module.gradient(x, earlier)[:, x.cut :]
    return same(later, torch.zeros_like(later), "gradient of what stands later")


@law(
    source="Vaswani et al. 2017, section 3.2.3: all positions up to and including that position",
    formula="x[s] changed: f(x)[t] changes, for s <= t",
    guards="The first or last one cut off, a mask that hides the diagonal or the past, a sub-layer never called.",
    needs=("full_context", "weights"),
    given=(having(padding="none", memory_padding="none", spread=1.0),),
)
def every_earlier_state_counts(module: DecoderSubject, x: DecoderInputs) -> Comparison:
    """Each state, itself included, has an influence on those from it on; matrices are of a moderate size for it."""
    if module.d_model < 4:
        raise NotApplicable("d_model is below 4: a norm leaves next to nothing of a state")
    place = x.case.seed % x.length
    assert module.module is not None
    with weights_changed(module.module, moderate):
        before = module(x)
        after = [module(x.replaced(place, f"other {number}")) for number in range(TRIES)]
        for row in range(len(x.x)):
            for state in range(place, x.length):
                if not any(module.moves(each[row, state], before[row, state], x) for each in after):
                    raise LawBroken(f"state {state} of sequence {row} does not depend on x at {place}")
    return none("states that do not depend on an earlier one")


@law(
    source="a prefix is a sequence of its own",
    formula="f(x[:t]) = f(x)[:t]",
    guards="A length that enters the computation: a scale, a mask or positions counted from the end.",
    given=(at_least(length=2), having(padding="none")),
)
def a_prefix_gives_the_same_states(module: DecoderSubject, x: DecoderInputs) -> Comparison:
    """A sequence cut short has the states of the longer one up to the cut."""
    return module.close(module(x.but(x=x.x[:, : x.cut])), module(x)[:, : x.cut], x)
