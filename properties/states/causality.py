"""No state sees the future, and each sees all of its past."""

from functools import partial

import torch

from headcheck.comparison import Comparison, same
from headcheck.given import at_least, having
from headcheck.laws import law
from headcheck.modules.influence import moves_states
from headcheck.modules.states import STATES, StateInputs, StatesSubject
from headcheck.modules.training import unheard_in_training

Module = StatesSubject[StateInputs]

MASKED = "Vaswani et al. 2017, section 3.2.3: leftward information flow is prevented"


@law(
    source=MASKED,
    formula="x[:t] the same: f(x)[:t] the same",
    guards="A mask that is off by one, transposed, forgotten in one layer, dropped beside another (keras 23038).",
    needs=("causal",),
    given=(at_least(length=2),),
    share=2.0,
    roles=STATES,
)
def later_states_do_not_matter(module: Module, x: StateInputs) -> Comparison:
    """Whatever stands later, the earlier states stay."""
    later = torch.arange(x.length) >= x.cut
    other = module(x.replaced(later))[:, : x.cut]
    return module.close(other, module(x)[:, : x.cut], x, "earlier state")


@law(
    source="Srivastava et al. 2014, section 4.1: dropout thins the network, in which what is hidden stays so",
    formula="f.train() drawn with one seed: d f(x)[:t] / d x[t:] = 0",
    guards="Dropout of the scores in place of the weights: a hidden score that is dropped is 0, and seen.",
    needs=("causal", "module"),
    given=(at_least(length=2),),
    share=0.25,
    roles=STATES,
)
def later_states_do_not_matter_in_training(module: Module, x: StateInputs) -> Comparison:
    """In training with dropout, at one draw, the earlier states have no gradient with respect to what stands later."""
    earlier = x.real & (torch.arange(x.length) < x.cut)
    return unheard_in_training(
        module, x, lambda trained: trained.gradient(x, earlier)[:, x.cut :], "what stands later"
    )


@law(
    source=MASKED,
    formula="d f(x)[:t] / d x[t:] = 0, exactly",
    guards="A leak too small for values: a finite number in place of -inf, a mean over all positions.",
    needs=("causal",),
    given=(at_least(length=2),),
    roles=STATES,
)
def no_gradient_comes_from_later_states(module: Module, x: StateInputs) -> Comparison:
    """Earlier states have no gradient with respect to what stands later."""
    earlier = x.real & (torch.arange(x.length) < x.cut)
    later = module.gradient(x, earlier)[:, x.cut :]
    return same(later, torch.zeros_like(later), "gradient of what stands later")


@law(
    source="Vaswani et al. 2017, section 3.2.3: all positions up to and including that position",
    formula="x[s] changed: f(x)[t] changes, for s <= t",
    guards="The first or last one cut off, a mask that hides the diagonal or the past, a sub-layer never called.",
    needs=("causal", "full_context", "weights"),
    given=(having(padding="none", spread=1.0),),
    roles=STATES,
    unless=("full_context=False",),
)
def every_earlier_state_counts(module: Module, x: StateInputs) -> Comparison:
    """Each state, itself included, has an influence on those from it on; matrices are of a moderate size for it."""
    place = x.case.seed % x.length
    later = range(place, x.length)
    return moves_states(module, x, partial(x.replaced, place), f"x at {place}", later, may_fade=True)


@law(
    source="a prefix is a sequence of its own",
    formula="f(x[:t]) = f(x)[:t]",
    guards="A length that enters the computation: a scale, a mask or positions counted from the end.",
    needs=("causal",),
    given=(at_least(length=2), having(padding="none")),
    roles=STATES,
)
def a_prefix_gives_the_same_states(module: Module, x: StateInputs) -> Comparison:
    """A sequence cut short has the states of the longer one up to the cut."""
    return module.close(module(x.but(x=x.x[:, : x.cut])), module(x)[:, : x.cut], x)
