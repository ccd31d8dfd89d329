"""What a call of a subject gave, in canonical form."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


class Answer(NamedTuple):
    """What one call gave, in canonical form."""

    output: Tensor
    log_sum_exp: Tensor | None = None
    weights: Tensor | None = None


class Gradients(NamedTuple):
    """Observed gradients; None where the output does not depend on that input for autograd."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    bias: Tensor | None
    sinks: Tensor | None


def each_part(answer: Answer, change: Callable[[Tensor], Tensor]) -> Answer:
    """The same change made to the output and to whatever came with it."""
    extras = [None if part is None else change(part) for part in answer[1:]]
    return Answer(change(answer.output), *extras)


def copied(answer: Answer) -> Answer:
    """Copies taken at once, and brought to the CPU: what the subject writes later, into a buffer of its own, comes too
    late.
    """
    return each_part(answer, lambda part: part.detach().to("cpu", copy=True))


def told_apart(returned: Any) -> tuple[Any, ...]:
    """The things that were returned; None stands for one that was not asked for."""
    return (
        tuple(each for each in returned if each is not None)
        if isinstance(returned, tuple | list)
        else (returned,)
    )
