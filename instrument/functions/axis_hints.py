"""Along which other axis than the last a plain call is right: a note for the reader of a verdict."""

from typing import Any

from torch import Tensor

from headcheck.functions.subject import AnyInputs, FunctionSubject
from headcheck.verdict import Hint

ALONG = "it works along axis {}: where that is meant, put a function around it that moves that axis last"


def axis_note(subject: FunctionSubject[AnyInputs], x: AnyInputs) -> list[str]:
    """The hint, where a plain call is wrong along the last axis and right along another."""
    if subject.is_right(x):
        return []
    axis = right_axis(subject, x)
    return [] if axis is None else [Hint(ALONG.format(axis))]


def right_axis(subject: FunctionSubject[AnyInputs], x: AnyInputs) -> int | None:
    """The first axis but the last along which a plain call is right."""
    axes = range(x.x.ndim - 1)
    return next((axis for axis in axes if _along(subject, axis).is_right(x)), None)


def _along(subject: FunctionSubject[AnyInputs], axis: int) -> FunctionSubject[AnyInputs]:
    """The subject, given x with its last axis in another place."""
    function = subject.declaration.function

    def moved(x: Tensor, *more: Any, **named: Any) -> Tensor:
        output: Tensor = function(x.movedim(-1, axis), *more, **named)
        return output.movedim(axis, -1)

    return subject.around(moved)
