"""How tensors lie in memory, what comes back, and what must be left as it was."""

from collections.abc import Iterator
from math import prod

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, LawBroken, NotApplicable, none, same, within
from headcheck.functions.inputs import FunctionCase, Inputs
from headcheck.functions.subject import FunctionSubject
from headcheck.given import at_least, having, one_in, one_of
from headcheck.kept import graphs_followed_back
from headcheck.laws import law
from headcheck.roles import FUNCTIONS, OF_TENSORS
from headcheck.strides import STRIDES, memory_of


def thousands_of_numbers(case: FunctionCase) -> FunctionCase:
    """With so many sequences that there are 4,096 numbers or more."""
    sequences, count = case.shapes()["x"][0], prod(case.shapes()["x"])
    return case.but(batch=-(-4096 * sequences // count)) if 0 < count < 4096 else case


STRIDED = tuple(name for name in STRIDES if name != "contiguous")
BUFFERS = 3
"""So many calls are made before a result counts as kept: a buffer may be one of two or three that take turns."""


@law(
    source="the torch tensor: sizes, strides, offset",
    formula="f(strided views) = f(contiguous copies)",
    guards="A kernel that assumes contiguous rows, or reads them with a stride of 1.",
    given=(one_of("strides", *STRIDED), one_in(2, at_least(batch=2))),
    roles=OF_TENSORS,
)
def strided_equals_contiguous(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """Transposed, sliced, packed and offset tensors give what their contiguous copies give."""
    plain = x.but(case=x.case.but(strides="contiguous"))
    dense = function(plain)  # First, for a kernel that is compiled for dense tensors to be there.
    limit = function.bound(x) + function.bound(plain)
    return within(function(x), dense, limit)


@law(
    source="torch.Tensor.expand: one sequence, with a stride of zero, is as many as are asked for",
    formula="f(x expanded over the batch) = f(its copy)",
    guards="Learned queries, expanded over the batch, that are read as if each sequence had a place of its own.",
    given=(having(strides="contiguous"), at_least(batch=2)),
    share=0.5,
    roles=OF_TENSORS,
)
def expanded_equals_its_copy(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """One sequence that is expanded over the batch gives what its copies give, or is refused."""
    y = x.but(x=x.x[:1].expand(x.x.shape).contiguous())
    tensors, dense = function.tensors_for(y), function(y)
    tensors["x"] = _expanded(tensors["x"])
    try:
        with torch.no_grad():
            output = function.run(y, tensors)
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses a tensor that is expanded: {refusal}") from refusal
    return within(output, dense, 2 * function.bound(y))


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    """The same with a stride of zero along the first axis along which all are alike."""
    for axis, size in enumerate(tensor.shape):
        first = tensor.narrow(axis, 0, 1)
        if size > 1 and torch.equal(first.expand_as(tensor), tensor):
            return first.contiguous().expand_as(tensor)
    return tensor


@law(
    source="a call changes nothing that it is given",
    formula="each tensor after the call = before",
    guards="A subtraction, a scaling or a rotation in place that the caller finds in his own tensor.",
    given=(one_in(3, thousands_of_numbers),),
    roles=OF_TENSORS,
)
def inputs_are_not_changed(function: FunctionSubject[Inputs], x: Inputs) -> Iterator[Comparison]:
    """Every tensor holds after the call what it held before, and so does the memory around it."""
    tensors = function.tensors_for(x)
    before = {name: memory_of(each).clone() for name, each in tensors.items()}
    wants = x.case.seed % 2 == 0 and function.declaration.gradients is not False
    for each in tensors.values():
        each.requires_grad_(wants)
    with torch.set_grad_enabled(wants):
        function.run(x, tensors)
    for name, each in tensors.items():
        yield same(memory_of(each), before[name], name)


@law(
    source="torch.autograd: what a graph has kept must not be written to before it is followed back",
    formula="L = sum(x w), then f(x), then dL / dw = sum(x)",
    guards="A factor or a maximum put on the caller's tensor and taken off it again: who kept it cannot go back.",
    given=(one_in(3, thousands_of_numbers),),
    share=0.5,
    roles=OF_TENSORS,
)
def a_graph_that_kept_a_tensor_can_be_followed_back(
    function: FunctionSubject[Inputs], x: Inputs
) -> Comparison:
    """What was computed from a tensor before the call has its gradients after it: nothing was written there."""
    tensors = function.tensors_for(x)
    with graphs_followed_back(tensors) as written:
        function.run(x, tensors)
    if written:
        raise LawBroken(f"the call wrote to {', '.join(written)}: a graph that kept it is cut")
    return none("tensors that were written to")


@law(
    source="a call gives a tensor of its own",
    formula="f(x) shares no memory with x",
    guards="The input given back where nothing is to be done; a change of the result that changes the input.",
    share=0.5,
    roles=OF_TENSORS,
)
def output_does_not_alias_an_input(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """Writing into the output leaves the inputs as they were."""
    for each in (x, x.idle()):
        tensors = function.tensors_for(each)
        with torch.no_grad():
            output = function.run(each, tensors)
        place = output.untyped_storage().data_ptr()
        shared = [name for name, given in tensors.items() if given.untyped_storage().data_ptr() == place]
        if shared and output.numel():
            raise LawBroken(f"the output shares memory with {', '.join(shared)}")
    return none("inputs that share memory with the output")


@law(
    source="a call gives a tensor of its own",
    formula="y1 is the same before and after y2 is computed",
    guards="A kept output buffer, or two that take turns: a later call overwrites the first result.",
    share=0.5,
    roles=FUNCTIONS,
)
def results_outlive_the_next_call(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """A result is not overwritten by the next call, nor by those after it."""
    with torch.no_grad():
        first = function.run(x, function.tensors_for(x))
        copy = first.clone()
        for _ in range(BUFFERS):
            function.run(x.other(), function.tensors_for(x.other()))
    return same(first, copy, "the first result, after the next calls")


@law(
    source="torch.autograd: an output and its gradient are the caller's, and other branches of a graph read them too",
    formula="y and dy after the backward pass = before",
    guards="A backward that works in the memory of what it saved, which is the output, or of what is sent back.",
    share=0.3,
    roles=OF_TENSORS,
)
def backward_leaves_the_output_and_its_gradient_alone(
    function: FunctionSubject[Inputs], x: Inputs
) -> Iterator[Comparison]:
    """The output and its gradient hold after the backward pass what they held before."""
    for name, before, after in function.around_backward(x):
        yield same(after, before, f"{name}, after the backward pass")
