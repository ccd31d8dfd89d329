"""What a call may not touch: torch's own functions, and the settings of the process."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (torch, "matmul"), (torch, "softmax"), (torch, "allclose"), (torch, "isclose"), (torch, "where"),
    (torch, "equal"), (torch, "einsum"), (torch, "bmm"), (torch, "exp"), (torch, "no_grad"),
    (torch.nn.functional, "scaled_dot_product_attention"), (torch.nn.functional, "softmax"),
    (torch.testing, "assert_close"), (torch.autograd, "grad"), (torch.Tensor, "__sub__"),
    (torch.Tensor, "__matmul__"), (torch.Tensor, "abs"), (torch.Tensor, "max"), (torch.Tensor, "softmax"),
    (torch.Tensor, "double"), (torch.Tensor, "__eq__"), (torch.Tensor, "clone"), (torch.Tensor, "to"),
)  # fmt: skip
_ORIGINAL = {(place, name): getattr(place, name) for place, name in _FUNCTIONS}
"""The functions as they were when headcheck was imported, before any subject was called."""


def _flushes_denormals() -> bool:
    """torch tells nobody whether it does: a product shows it."""
    return bool(torch.tensor(1e-310, dtype=torch.float64) * 1 == 0)


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "whether gradients are on": (torch.is_grad_enabled, torch.set_grad_enabled),
    "the use of deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "the precision of float32 products": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "whether denormal numbers are flushed to zero": (_flushes_denormals, torch.set_flush_denormal),
}
_USUAL = {
    "the default dtype": torch.float32,
    "whether gradients are on": True,
    "the use of deterministic algorithms": False,
    "the precision of float32 products": "highest",
    "whether denormal numbers are flushed to zero": False,
}
"""What is set while a call is watched, so that a setting which an earlier call has left behind shows again."""


def functions_replaced() -> list[str]:
    """The functions of torch that are not the ones headcheck was imported with; they are put back."""
    replaced = []
    for (place, name), original in _ORIGINAL.items():
        if getattr(place, name) is not original:
            replaced.append(f"{getattr(place, '__name__', place)}.{name}")
            setattr(place, name, original)
    return replaced


@contextmanager
def settings_watched() -> Iterator[list[str]]:
    """The usual settings inside; at the end the list holds those that changed, and all are as before."""
    before = {name: read() for name, (read, _) in _SETTINGS.items()}
    for name, usual in _USUAL.items():
        _set(name, usual)
    expected = before | _USUAL
    changed: list[str] = []
    try:
        yield changed
    finally:
        changed += [name for name, (read, _) in _SETTINGS.items() if read() != expected[name]]
        for name, value in before.items():
            _set(name, value)


@contextmanager
def generators_watched() -> Iterator[list[str]]:
    """At the end the list holds those of Python's and NumPy's generators that were moved; they are put back."""
    numpy = sys.modules.get("numpy")
    states: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "Python's generator": (random.getstate, random.setstate)
    }
    if numpy is not None:
        states["NumPy's generator"] = (numpy.random.get_state, numpy.random.set_state)
        numpy.random.random()
    random.random()  # Not where a generator that was just seeded stands.
    before = {name: read() for name, (read, _) in states.items()}
    moved: list[str] = []
    try:
        yield moved
    finally:
        moved += [name for name, (read, _) in states.items() if str(read()) != str(before[name])]
        for name, (_, write) in states.items():
            write(before[name])


def _set(name: str, value: Any) -> None:
    read, write = _SETTINGS[name]
    if read() != value:
        write(value)
