"""Whether a sequence that gives finite states, though it has nothing to see, leaves gradients finite as well."""

from typing import TypeVar

import torch

from headcheck.comparison import Comparison, LawBroken, NotApplicable, none, require_gradients
from headcheck.modules.states import StateInputs, StatesSubject

AnyStates = TypeVar("AnyStates", bound=StateInputs)


def gradients_beside_the_last(module: StatesSubject[AnyStates], x: AnyStates) -> Comparison:
    """The gradients of the states of all sequences but the last, in each weight, are finite.

    NotApplicable: the states of the last are not, or no weight wants a gradient. LawBroken: a gradient has NaN.
    """
    require_gradients(module.declaration.gradients)
    assert module.module is not None
    output, returned = module.output_as_returned(x)
    module.require_a_graph(output)
    if not returned.isfinite().all():
        raise NotApplicable("what it gives for nothing but padding is not finite")
    named = {n: w for n, w in module.module.named_parameters() if w.requires_grad and w.is_floating_point()}
    if not named:
        raise NotApplicable("no weight of it wants a gradient")
    weights = [*named.values()]
    found = module.clock.call(torch.autograd.grad, output[:-1].sum(), weights, materialize_grads=True)
    spoilt = [name for name, each in zip(named, found, strict=True) if not each.to_dense().isfinite().all()]
    if spoilt:
        raise LawBroken(f"the gradient of {spoilt[0]} has NaN or infinities, and the states have none")
    return none("gradients that are not finite")
