"""What a law gives to a subject, call by call, where all calls to implementations pass.

It is listened to while the smallest counterexample is run once more, for the mask, the cut or the cotangent of its own
that its case does not hold; and by laws on what a call does to the very tensors that it is given.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from headcheck.numbers import SMALL, shown

MOST = 3
"""So many calls are told."""
COTANGENT = "cotangent"
"""What a gradient begins with: no input of the call."""
MAPPED = "mapped over"
Call = dict[str, Any]

Given = tuple[str, Tensor, Tensor]
"""A tensor that a call is given: its name, itself, and a copy from before the call."""

_given: ContextVar[list[Given] | None] = ContextVar("given", default=None)
_calls: ContextVar[list[Call] | None] = ContextVar("calls", default=None)


@contextmanager
def listening() -> Iterator[list[Call]]:
    """The calls that are made within, each with its arguments by name: small tensors as lists, flags that are set, and
    numbers other than 0, or a scale.
    """
    heard: list[Call] = []
    token = _calls.set(heard)
    try:
        yield heard
    finally:
        _calls.reset(token)


@contextmanager
def tensors_given() -> Iterator[list[Given]]:
    """The very tensors that calls within are given, a mask in the form in which it is taken."""
    given: list[Given] = []
    token = _given.set(given)
    try:
        yield given
    finally:
        _given.reset(token)


def is_listening() -> bool:
    """Whether calls are to be noted."""
    return _calls.get() is not None or _given.get() is not None


def note(arguments: Mapping[str, Any]) -> None:
    """Keep what a call is given, as it is before the call. What it is given of an answer of its own is left out."""
    calls, given = _calls.get(), _given.get()
    if given is not None:
        of_all = [(name, each) for name, each in arguments.items() if isinstance(each, Tensor)]
        given += [(name, each, each.detach().clone()) for name, each in of_all]
    tensors = {name: each for name, each in arguments.items() if isinstance(each, Tensor) and each.is_leaf}
    if calls is None or not tensors:
        return
    small = {name: _numbers(each) for name, each in tensors.items() if each.numel() <= SMALL}
    others = {
        name: each
        for name, each in arguments.items()
        if isinstance(each, int | float) and (each or "scale" in name)  # Elsewhere 0 stands for nothing.
    }
    calls.append(small | others)


def _numbers(tensor: Tensor) -> Any:
    """As a verdict shows them; within torch.func.vmap a tensor has no numbers of its own."""
    try:
        return shown(tensor.detach(), str(tensor.dtype).removeprefix("torch."))
    except RuntimeError:
        return MAPPED


def told(calls: Iterable[Call], inputs: Mapping[str, Any]) -> list[Call]:
    """The first calls that differ, each by what is not among the inputs that are shown already.

    Those that differ in one number alone are one, as of a law that tries one scale after the other.
    """
    known = {_in_a_row(each) for each in inputs.values() if isinstance(each, list)}
    found: list[Call] = []
    tried: dict[str, list[str]] = {}
    for call in calls:
        other = {
            name: each
            for name, each in call.items()
            if (_in_a_row(each) not in known if isinstance(each, list) else _is_other(each, name, inputs))
            or name == COTANGENT
        }
        if not other or other in found:
            continue
        name, value = next(iter(other.items()))
        if len(other) == 1 and type(value) in (int, float):
            tried.setdefault(name, []).append(str(value))
            if len(tried[name]) > 1:
                continue
        found.append(other)
    return [_with_all(tried, each) if len(each) == 1 else each for each in found[:MOST]]


def _with_all(tried: Mapping[str, list[str]], call: Call) -> Call:
    """A call that differs in one thing, with all numbers that were given in its place."""
    return {
        name: ", ".join(tried[name]) if type(value) in (int, float) and len(tried[name]) > 1 else value
        for name, value in call.items()
    }


def _is_other(value: Any, name: str, inputs: Mapping[str, Any]) -> bool:
    """Whether what is no list, a tensor without numbers, a flag or a number, is not among the inputs, by a like name."""
    alike = [inputs[each] for each in inputs if name in each or each in name]
    return not alike or (value != MAPPED and not any(value == each for each in alike))


def _in_a_row(value: Any) -> str:
    """The numbers of a tensor: another order of its axes of size 1 is no other tensor, False is not 0."""
    return " ".join(map(_in_a_row, value)) if isinstance(value, list) else repr(value)
