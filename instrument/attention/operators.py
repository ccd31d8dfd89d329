"""Which operators of torch a call runs, as its profiler sees them: proof that the intended backend ran."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.autograd.profiler import profile

from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject

ENTRY = "aten::scaled_dot_product_attention"
"""What every backend of torch's function is called through: it says nothing of which one ran."""
TELLING = ("attention", "Torch-Compiled", "multi_head")


def operators_of(call: Callable[[], object]) -> tuple[str, ...]:
    """The names of everything that the profiler saw of a call, in alphabetical order."""
    device = "cuda" if torch.cuda.is_available() else None
    # torch.profiler would load the compiler, which takes a second.
    with _stderr_closed(), profile(use_device=device, use_kineto=True) as seen:
        call()
    return tuple(sorted({event.name for event in seen.function_events or ()}))


def operators_in(subject: AttentionSubject, x: Inputs, *, gradients: bool = False) -> tuple[str, ...]:
    """The same of one call of a subject. gradients: whether the inputs want gradients."""
    arguments = subject.arguments_for(x)
    if gradients:
        subject.want_gradients(arguments)
    with torch.set_grad_enabled(gradients):
        return operators_of(lambda: subject.run(x, arguments))


def telling(operators: tuple[str, ...]) -> tuple[str, ...]:
    """Those that say which kernel of attention ran; the softmax where none of them does."""
    named = [each for each in operators if any(part in each for part in TELLING) and each != ENTRY]
    return tuple(named or [each for each in operators if each.endswith("softmax")])


@contextmanager
def _stderr_closed() -> Iterator[None]:
    """The profiler's library writes lines of its own to the process's standard error."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
