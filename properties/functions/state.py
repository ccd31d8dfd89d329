"""Nothing is remembered from call to call, and nothing outside the call is touched."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, LawBroken, NotApplicable, compared_gradients, none, within
from headcheck.forks import require_right_in_a_copy
from headcheck.functions.inputs import Inputs
from headcheck.functions.subject import FunctionSubject
from headcheck.laws import law
from headcheck.library import changed_by, generators_watched
from headcheck.roles import FUNCTIONS, OF_TENSORS

PURE = "a call is a function of its arguments"


@law(
    source=PURE,
    formula="f(x) = f(x), bit for bit unless declared otherwise",
    guards="Uninitialised memory, a race, state that grows with each call.",
    roles=FUNCTIONS,
    unless=("deterministic=False",),
)
def same_call_same_answer(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """The same call twice gives the same bits."""
    return function.identical(x, x)


@law(
    source=PURE,
    formula="f(x), f(x'), f(x) again: each as if it were alone",
    guards="A memo whose key lacks the numbers, the dtype or one of the arguments.",
    roles=OF_TENSORS,
)
def one_call_does_not_answer_for_another(
    function: FunctionSubject[Inputs], x: Inputs
) -> Iterator[Comparison]:
    """A call with other numbers in tensors of the same shape gives its own answer, and the first one is unmoved."""
    first, other = function(x), x.other()
    yield function.against_the_oracle(other, "the second output")
    limit = 0.0 if function.declaration.deterministic else 2 * function.bound(x)
    yield within(function(x), first, limit, "output, the second time")


@law(
    source=PURE,
    formula="x changed in place between two calls: the second answers for what it is given",
    guards="Answers cached by address or by shape.",
    share=0.5,
    roles=OF_TENSORS,
)
def inputs_changed_in_place_are_read_again(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """Numbers changed in place, in the same tensors, give the answer for the new numbers."""
    tensors, new = function.tensors_for(x), x.other()
    with torch.no_grad():
        function.run(x, tensors)
        for name, each in function.tensors_for(new).items():
            tensors[name].copy_(each)
        second = function.run(new, tensors).clone()
    return within(second, function.expected(new), function.bound(new))


@law(
    source=PURE,
    formula="the state of the generators and of torch's settings is the same before and after",
    guards="A function that seeds a global generator, sets a default dtype, turns gradients off.",
    share=0.5,
    roles=FUNCTIONS,
)
def nothing_global_is_touched(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """The call leaves the generators of torch, Python and NumPy, torch's settings and functions as they were."""
    with generators_watched() as moved:
        changed = changed_by(lambda: function.run(x, function.tensors_for(x)))
    if changed or moved:
        raise LawBroken(f"the call changed {', '.join([*changed, *moved])}")
    return none("settings and generators that were changed")


MODES = "torch.inference_mode: tensors without the records of autograd; the numbers are the same"


@law(
    source=MODES,
    formula="|f(x) in torch.inference_mode - f(x) outside| <= 2 bound(x)",
    guards="A path for inference that lacks the weight, the scale or half of the pairs.",
    share=0.5,
    roles=OF_TENSORS,
)
def inference_mode_changes_nothing(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """In inference mode the output is what it is outside."""
    if function.forward_only:  # A buffer of one that is made there may serve no other call.

        def exactly() -> Comparison:
            return within(function.in_inference_mode(x), function.expected(x), function.bound(x))

        require_right_in_a_copy(lambda: [exactly()], function.device, "in torch.inference_mode")
        return none("outputs that are other in inference mode")
    inside = function.in_inference_mode(x)  # First: what a call outside keeps would hide it.
    return within(inside, function(x), 2 * function.bound(x))


@law(
    source=MODES,
    formula="f(x) in torch.inference_mode, then df(x): the gradients",
    guards="A table that is made in inference mode and kept: autograd refuses it later.",
    share=0.5,
    roles=OF_TENSORS,
)
def inference_mode_leaves_nothing_behind(
    function: FunctionSubject[Inputs], x: Inputs
) -> Iterator[Comparison]:
    """After a call in inference mode the same call has its gradients."""
    if function.forward_only:
        raise NotApplicable(function.forward_only)
    function.in_inference_mode(x)
    found, exact = function.gradients(x, x.cotangent), function.exact_gradients(x, x.cotangent)
    yield from compared_gradients(found, exact, function.gradient_bounds(x, x.cotangent.double()))
