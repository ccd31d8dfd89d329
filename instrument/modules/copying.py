"""Copies of modules, whether they can be had and are modules of their own, and the parts that a call runs."""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parameter import is_lazy

from headcheck.errors import SubjectError

AnyModule = TypeVar("AnyModule", bound=nn.Module | None)
AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])
DEPTH = 3
"""So deep in lists and dicts of an attribute tensors are looked for."""


def copy_of(module: AnyModule) -> AnyModule:
    """A deep copy; what it keeps of a call, such as its last weights, goes without its graph, which deepcopy refuses."""
    parts = module.modules() if module is not None else ()
    kept = (each for part in parts for each in _tensors_in(vars(part), DEPTH))
    return copy.deepcopy(module, {id(each): each.detach().clone() for each in kept if not each.is_leaf})


def in_format(module: nn.Module, device: str, dtype: torch.dtype) -> nn.Module:
    """The module itself with its numbers in a format; complex ones stay complex, of which `to` keeps the real parts."""
    held = [
        (part, name, each, each.detach())  # `to` changes what a parameter holds.
        for part in module.modules()
        for name, each in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
        if each.is_complex()
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Casting complex")
        module.to(device, dtype)
    of_pairs = torch.complex128 if dtype == torch.float64 else torch.complex64
    for part, name, each, numbers in held:
        moved = numbers.to(device, of_pairs)
        if isinstance(each, nn.Parameter):
            each.data = moved
        else:
            setattr(part, name, moved)
    return module


def _tensors_in(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(each, depth - 1)


def on_device(function: AnyCallable, device: str) -> tuple[AnyCallable, list[str]]:
    """A function that is a module, or a method of one, with what the module holds on a device, and a note: then it is
    that of a copy.
    """
    module: Any = function.__self__ if isinstance(function, MethodType) else function
    if not isinstance(module, nn.Module):
        return function, []
    there = torch.device(device)
    held = (*module.parameters(), *module.buffers())
    if all(each.device.type == there.type and there.index in (None, each.device.index) for each in held):
        return function, []
    try:
        copied: Any = copy_of(module).to(device)
    except Exception as problem:  # noqa: BLE001 - what a module holds may refuse to be copied in any way
        return function, [f"what the module holds stays where it is: it cannot be copied ({problem})"]
    of_copy: Any = MethodType(function.__func__, copied) if isinstance(function, MethodType) else copied
    return of_copy, [f"a copy of the module is judged, on {device}"]


def parts_run(original: nn.Module, call: Callable[[], object]) -> list[str]:
    """The names of the parts of a module that a call runs: of a copy, none."""
    ran: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        return lambda *_: ran.append(name)

    watched = {name: part for name, part in original.named_modules() if takes_hooks(part)}
    hooks = [part.register_forward_pre_hook(watch(name)) for name, part in watched.items()]
    try:
        call()
    finally:
        for hook in hooks:
            hook.remove()
    return list(dict.fromkeys(ran))


def returned_by(part: nn.Module, call: Callable[[], object]) -> list[Any]:
    """What a part of a module gives during a call, each time that it is run."""
    returned: list[Any] = []
    hook = part.register_forward_hook(lambda _part, _given, output: returned.append(output))
    try:
        call()
    finally:
        hook.remove()
    return returned


def takes_hooks(part: nn.Module) -> bool:
    """Whether its calls can be watched: not those of TorchScript."""
    return not isinstance(part, ScriptModule)


def aliased(module: nn.Module) -> str:
    """The names of two parameters whose numbers stand in the same memory: 'a and b', or nothing.

    SubjectError: some have no numbers yet, as those of torch.nn.LazyLinear.
    """
    if any(map(is_lazy, module.parameters())):
        raise SubjectError(
            "layers of it learn their sizes in the first call: name a function that makes it and calls it once"
        )
    names: dict[tuple[int, torch.Size], str] = {}
    for name, each in module.named_parameters():
        first = names.setdefault((each.data_ptr(), each.shape), name)
        if each.numel() and first != name:
            return f"{first} and {name}"
    return ""
