"""The gradient of the output, for random cotangents: sum().backward() sees half of the faults."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, compared_gradients, none, within
from headcheck.functions.inputs import Inputs
from headcheck.functions.subject import FunctionSubject
from headcheck.given import having
from headcheck.laws import law
from headcheck.roles import OF_TENSORS
from headcheck.strides import STRIDES

CHAIN = "the chain rule: dx = J^T dy"
STRIDED = tuple(name for name in STRIDES if name != "contiguous")


@law(
    source=CHAIN,
    formula="|dx - J^T dy| <= bound, for a random dy and each tensor x",
    guards="A backward that lacks a term which sum() cancels (flash-attention bdcae547), or detaches one input.",
    share=1.5,
    roles=OF_TENSORS,
)
def gradients_are_within_the_bound(function: FunctionSubject[Inputs], x: Inputs) -> Iterator[Comparison]:
    """The gradient of every tensor is the reference's, within the rounding of the declared arithmetic."""
    g = x.cotangent
    found, exact = function.gradients(x, g), function.exact_gradients(x, g)
    return compared_gradients(found, exact, function.gradient_bounds(x, g.double()))


@law(
    source="recording gradients is no part of the function",
    formula="|f(x), its gradients recorded, - exact(x)| <= bound(x)",
    guards="A forward pass of an autograd.Function that lacks a term which the one for inference has.",
    share=0.5,
    roles=OF_TENSORS,
)
def recording_gradients_changes_nothing(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """A call whose tensors want gradients gives the exact output, within the rounding of the declared arithmetic."""
    return within(function.recorded(x), function.expected(x), function.bound(x), "output, gradients recorded")


@law(
    source=CHAIN,
    formula="the gradient of one tensor is the same whether or not the others want one",
    guards="A backward that is skipped, or returns zeros, for the one input that it was not asked for.",
    share=0.5,
    roles=OF_TENSORS,
)
def each_gradient_can_be_asked_for_alone(
    function: FunctionSubject[Inputs], x: Inputs
) -> Iterator[Comparison]:
    """With the other tensors frozen, the gradient of one is what it is with all of them."""
    g = x.cotangent
    exact = function.exact_gradients(x, g)
    for name, bound in function.gradient_bounds(x, g.double()).items():
        observed = function.gradients(x, g, wanted=(name,))
        yield from compared_gradients(observed, exact, {name: bound}, " alone")


@law(
    source=CHAIN,
    formula="the same cotangent, expanded from one row, gives the same gradients",
    guards="A backward that reads the cotangent as if it were contiguous (pytorch 133671).",
    share=0.5,
    roles=OF_TENSORS,
)
def an_expanded_cotangent_changes_nothing(
    function: FunctionSubject[Inputs], x: Inputs
) -> Iterator[Comparison]:
    """A cotangent with strides of zero, as a sum over rows sends it, gives the gradients of its contiguous copy."""
    one = x.cotangent.reshape(-1, x.output_shape[-1])[0].expand(x.output_shape)
    strided, plain = function.gradients(x, one), function.gradients(x, one.contiguous())
    return compared_gradients(strided, plain, _twice(function.gradient_bounds(x, one.double())))


def _twice(bounds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: 2 * bound for name, bound in bounds.items()}


@law(
    source=CHAIN,
    formula="the same cotangent, laid out otherwise, gives the same gradients",
    guards="A backward that goes through the cotangent with a stride of one (unsloth 10617).",
    share=0.5,
    # Complex numbers turn pairs, and torch cannot view such a cotangent so.
    roles=("softmax", "layer_norm", "rms_norm"),
)
def a_strided_cotangent_changes_nothing(function: FunctionSubject[Inputs], x: Inputs) -> Iterator[Comparison]:
    """A transposed, packed or sliced cotangent gives the gradients of its contiguous copy."""
    strided = STRIDES[STRIDED[x.case.seed % len(STRIDED)]](x.cotangent)
    found, plain = function.gradients(x, strided), function.gradients(x, x.cotangent)
    return compared_gradients(found, plain, _twice(function.gradient_bounds(x, x.cotangent.double())))


@law(
    source="torch.autograd.grad, argument retain_graph",
    formula="the gradients of one call, asked for twice: the same",
    guards="A backward that works in the memory of what it kept (triton 4004, apex 1587).",
    share=0.5,
    roles=OF_TENSORS,
)
def a_second_backward_gives_the_same(function: FunctionSubject[Inputs], x: Inputs) -> Iterator[Comparison]:
    """Going back twice through one call gives the same gradients, or is refused."""
    g = x.cotangent
    try:
        first, second = function.gradients_asked_for(2, x, g)
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses a second backward: {refusal}") from refusal
    bounds = function.gradient_bounds(x, g.double())
    return compared_gradients(second, first, _twice(bounds), ", the second time")


@law(
    source="torch.autograd.function: save_for_backward sees to it that what was changed in place is not read",
    formula="f(x), then x or f(x) changed in place: backward is refused, or gives df of what x was",
    guards="Tensors kept for backward as attributes: an output that is masked or dropped from in place is read anew.",
    given=(having(strides="contiguous"),),
    share=0.5,
    roles=("softmax", "layer_norm", "rms_norm"),
)
def what_is_changed_before_backward_is_noticed(
    function: FunctionSubject[Inputs], x: Inputs
) -> Iterator[Comparison]:
    """After a tensor or the output was changed in place, backward is refused or gives the gradients of what it was."""
    exact, bounds = (
        function.exact_gradients(x, x.cotangent),
        function.gradient_bounds(x, x.cotangent.double()),
    )
    yield none("changes that went unnoticed")
    for changed in ("output",) if function.is_checkpointed(x) else (*x.tensors, "output"):
        found = function.gradients_after_a_change(x, changed)
        if found is not None:
            yield from compared_gradients(found, exact, bounds, f", {changed} having been changed in place")
