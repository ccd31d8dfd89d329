"""Gradients of what is expanded: one place is read by several, and gets the sum of what they send back."""

from collections.abc import Mapping

import torch
from torch import Tensor

from headcheck.attention.edge import Arguments
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import require_gradients

INPUTS = ("query", "key", "value")


def gradients_of_places(
    subject: AttentionSubject, x: Inputs, *, written_out: bool
) -> dict[str, Tensor | None]:
    """The gradients of what query, key and value expand, as (batch, heads, length, dim): that of a place at each who
    reads it.

    written_out: whether they are copied after they were expanded.
    """
    require_gradients(subject.declaration.gradients)
    arguments = subject.arguments_for(x)
    places, readers = {}, _readers(arguments)
    for name, tensor in readers.items():
        place = tensor
        for axis in _expanded(tensor):
            place = place.narrow(axis, 0, 1)
        places[name] = place = place.clone().requires_grad_()
        expanded = place.expand(tensor.shape)
        arguments.tensors[name] = expanded.contiguous() if written_out else expanded
    output = subject.run(x, arguments).output
    subject.require_a_graph(output, x, places)
    found = subject.clock.call(
        torch.autograd.grad, output, [*places.values()], x.cotangent.to(output), allow_unused=True
    )
    return {
        name: None
        if each is None
        else subject.canonical_gradient(x, name, each.cpu().expand(readers[name].shape).clone())
        for name, each in zip(places, found, strict=True)
    }


def summed_over_readers(
    subject: AttentionSubject, x: Inputs, bounds: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Bounds of the gradients of query, key and value, summed over all who read one place."""
    summed = {}
    for name, tensor in _readers(subject.arguments_for(x)).items():
        bound, axes = bounds[name], _expanded(subject.canonical(tensor, x.batch, x.heads))
        summed[name] = bound.sum(dim=axes, keepdim=True).expand(bound.shape) if axes else bound
    return summed


def _readers(arguments: Arguments) -> dict[str, Tensor]:
    return {name: tensor for name in INPUTS if (tensor := arguments.tensors[name]) is not None}


def _expanded(tensor: Tensor) -> list[int]:
    """The axes along which one place is read again and again."""
    return [axis for axis in range(tensor.ndim) if tensor.stride(axis) == 0 and tensor.shape[axis] > 1]
