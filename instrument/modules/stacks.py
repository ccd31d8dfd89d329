"""Which parts of a module are the layers of one stack: each is given what the one before it gave, or they attend."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from headcheck.declarations import Declaration

OF_ATTENTION = re.compile(r"att(?![a-z])|attn|attend|attention|quer|qkv|(?<![a-z])(kv|wq|q)(?![a-z])")
"""What stands in the names of attention, and of its projections."""

NUMBERED = re.compile(r"_?\d+$")
"""What stands at the end of the name of a part that is one of several: norm1, ln_2."""
LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""Parts of these are not called by them as their author's own code calls parts: each for itself, or in turn."""


@dataclass(frozen=True)
class Stacked(Declaration):
    """The conventions of a module that may be a stack of layers."""

    all_layers: bool = True
    """Whether every layer of a stack counts, and every part of a fused projection: not so where the states of an earlier
    layer are what is returned, or a part is off on purpose."""


@dataclass
class Stack:
    """Parts of one list, all of one class, and what those gave that were called."""

    name: str
    layers: list[nn.Module]
    outputs: dict[int, Tensor] = field(default_factory=dict)
    """Of the layers that were called, by their number: the last output."""
    last: Tensor | None = None
    """What the layer gave that was called last."""
    is_chain: bool = True
    """Whether each that was called was given what the one called before it gave."""

    @property
    def attends(self) -> bool:
        """Whether its layers hold attention, by the names of their parts: they are a stack, as experts are not."""
        parts = self.layers[0].named_modules()
        return any(OF_ATTENTION.search(f"{name} {type(part).__name__}".lower()) for name, part in parts)

    @property
    def is_stack(self) -> bool:
        """Whether each has to count: of layers that are no chain, and not all called, the input may choose."""
        if self.is_chain:
            return len(self.outputs) > 1 or (self.attends and 0 in self.outputs)
        return self.attends and len(self.outputs) == len(self.layers)

    def called(self, number: int, given: Any, returned: Any) -> None:
        """A layer was called."""
        begins = number == 0 or not self.outputs
        self.is_chain &= begins or (number - 1 in self.outputs and _first(given) is self.last)
        self.last = _first(returned)
        self.is_chain &= self.last is not None
        if self.last is not None:
            self.outputs[number] = self.last


def stacks_in(module: nn.Module, call: Callable[[], object]) -> list[Stack]:
    """The stacks of a module, as one call shows them: layers that attend, or two at least that are called in turn."""
    stacks = list(_alike(module))
    with _watched(stacks):
        call()
    return [each for each in stacks if each.is_stack]


def _alike(module: nn.Module) -> Iterator[Stack]:
    for name, part in module.named_modules():
        layers: list[Any] = list(part) if isinstance(part, nn.ModuleList | nn.Sequential) else []
        alike = len(layers) > 1 and len({*map(type, layers)}) == 1
        if alike and all(_has_numbers(each) for each in layers):
            yield Stack(name, layers)


def _has_numbers(layer: nn.Module | None) -> bool:
    """Whether it has weights that can be moved by a little; a ModuleList may hold None."""
    return layer is not None and any(each.is_floating_point() for each in layer.parameters())


def parts_alike(module: nn.Module) -> Iterator[tuple[str, nn.Module, list[tuple[str, nn.Module]]]]:
    """Parts with weights that are numbered, as norm1 and norm2, of one class and of the same sizes: by their names.

    Before them the name of what they are parts of, and that itself; not of lists, whose parts are numbered all the same.
    Parts with names of their own may be there for other calls: a norm of a context that is not given, a copy.
    """
    for name, whole in module.named_modules():
        alike: dict[Any, list[tuple[str, nn.Module]]] = {}
        for its_name, part in () if isinstance(whole, LISTS) else whole.named_children():
            sizes = tuple(each.shape for each in part.parameters() if each.requires_grad)
            if sizes and (numbered := NUMBERED.sub("", its_name)) != its_name:
                alike.setdefault((numbered, type(part), sizes), []).append((its_name, part))
        yield from ((name, whole, parts) for parts in alike.values() if len(parts) > 1)


def calls_of_parts(module: nn.Module, call: Callable[[], object]) -> Counter[int]:
    """How often each part is called in one call of the whole, by its id."""
    calls: Counter[int] = Counter()
    handles = [
        part.register_forward_hook(lambda part, *_: calls.update([id(part)])) for part in module.modules()
    ]
    try:
        call()
    finally:
        for each in handles:
            each.remove()
    return calls


@contextmanager
def _watched(stacks: list[Stack]) -> Iterator[None]:
    handles = [
        layer.register_forward_hook(partial(_called, stack, number), with_kwargs=True)
        for stack in stacks
        for number, layer in enumerate(stack.layers)
    ]
    try:
        yield
    finally:
        for each in handles:
            each.remove()


def _called(
    stack: Stack, number: int, layer: nn.Module, given: Any, keywords: dict[str, Any], returned: Any
) -> None:
    stack.called(number, given or tuple(keywords.values()), returned)


def _first(values: Any) -> Tensor | None:
    """The tensor itself, or the first of a tuple."""
    first = values[0] if isinstance(values, tuple | list) and values else values
    return first if isinstance(first, Tensor) else None
