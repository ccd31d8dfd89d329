"""What a call does to its arguments and its results: read off the very tensors that the subject was given."""

from collections.abc import Iterator

import torch
from torch import Tensor

from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject


def _memory(tensor: Tensor) -> Tensor:
    """All of the memory behind a tensor, what lies between its rows included."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.as_strided(tensor.detach(), (size,), (1,), 0)


def before_and_after(
    subject: AttentionSubject, x: Inputs, *, gradients: bool
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each tensor argument's memory: its name, a copy from before the call, and what it holds after.

    gradients: whether the inputs want gradients, which takes many functions another way.
    """
    arguments = subject.arguments_for(x)
    given = {name: tensor for name, tensor in arguments.tensors.items() if tensor is not None}
    before = {name: _memory(tensor).clone() for name, tensor in given.items()}
    if gradients:
        subject.want_gradients(arguments)
    with torch.set_grad_enabled(gradients):
        subject.run(x, arguments)
    for name, tensor in given.items():
        yield name, before[name], _memory(tensor).clone()


def shared_memory(subject: AttentionSubject, x: Inputs) -> str:
    """The names of the arguments whose memory the output uses, or nothing."""
    arguments = subject.arguments_for(x)
    with torch.no_grad():
        output = subject.run(x, arguments).output
    places = {
        name: tensor.untyped_storage().data_ptr()
        for name, tensor in arguments.tensors.items()
        if tensor is not None and tensor.numel()
    }
    mine = output.untyped_storage().data_ptr()
    return ", ".join(name for name, place in places.items() if output.numel() and place == mine)


def kept_over_the_next_call(subject: AttentionSubject, x: Inputs, other: Inputs) -> tuple[Tensor, Tensor]:
    """A copy of the first result, and the first result itself after the second call."""
    with torch.no_grad():
        first = subject.run(x, subject.arguments_for(x)).output
        copy = first.clone()
        subject.run(other, subject.arguments_for(other))
    return copy, first.clone()


def after_change_in_place(subject: AttentionSubject, x: Inputs, new: Inputs) -> Tensor:
    """The second answer, where the same tensors held `x` in the first call and hold `new` in the second."""
    arguments = subject.arguments_for(x)
    with torch.no_grad():
        subject.run(x, arguments)
        for name, tensor in subject.arguments_for(new).tensors.items():
            mine = arguments.tensors[name]
            if mine is not None and tensor is not None:
                mine.copy_(tensor)
        return subject.run(x, arguments).output.clone()
