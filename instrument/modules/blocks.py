"""One layer of a module by itself: what it adds to the states that it is given, within a call of the whole."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.modules.noise import scaled
from headcheck.modules.weights import is_matrix, norms_watched, weights_changed

OF_STATES = 64
"""So many roundings of a state of size one may be in what a layer adds to it."""
NORMS_OF_TWO = 2
"""A pre-norm layer of two sub-layers has so many norms at least on its path."""


@dataclass
class Block:
    """A layer, and how the whole module is called; what it is given may be replaced by other states.

    axis: along which its tokens stand. drawn: states of the shape of what it was given, by a purpose.
    """

    layer: nn.Module
    call: Callable[[], object]
    drawn: Callable[[str, Tensor], Tensor]
    axis: int = 1

    def states(self, purpose: str) -> Tensor:
        """Other states that it may be given."""
        return self.drawn(purpose, self._called(None)[0])

    def with_another_first(self, states: Tensor, purpose: str) -> Tensor:
        """The same states, but for the first token."""
        other = states.clone()
        other.select(self.axis, 0).copy_(self.drawn(purpose, states).select(self.axis, 0))
        return other

    def adds(self, states: Tensor, without: Collection[Tensor] = ()) -> Tensor:
        """What comes out beyond what went in, where these weights are zero."""
        with scaled(without, 0.0):
            given, gave = self._called(states)
        return gave - given

    def mixes(self, states: Tensor, other: Tensor, without: Collection[Tensor] = ()) -> bool:
        """Whether the last token sees that the first one is another."""
        one, two = self.adds(states, without), self.adds(other, without)
        return self.differ(one.select(self.axis, -1), two.select(self.axis, -1))

    def differ(self, one: Tensor, two: Tensor) -> bool:
        """Whether by more than rounding: of what is added, and of the states around one, of which it is a difference."""
        eps = torch.finfo(one.dtype).eps
        room = eps**0.5 * torch.maximum(one.abs(), two.abs()).amax() + OF_STATES * eps
        return not bool(((one - two).abs() <= room).all())

    def _called(self, states: Tensor | None) -> tuple[Tensor, Tensor]:
        with _fed(self.layer, states) as seen, torch.no_grad():
            self.call()
        if not seen:
            raise NotApplicable("a layer is not given states and does not give states of the same shape")
        return seen[-1]

    def norms_of_its_input(self, states: Tensor, others: Tensor, without: Tensor) -> set[nn.Module]:
        """The norms that are given the states of the layer, or these and a constant, where a weight is zero."""
        with norms_watched(self.layer) as calls, scaled([without], 0.0):
            self._called(states)
            ours = [*calls]
            self._called(others)
        both = zip(ours, calls[len(ours) :], strict=False)
        return {
            one.norm
            for one, two in both
            if one.given.shape == two.given.shape == states.shape and one.norm is two.norm
            if not self.differ(one.given - states.to(one.given), two.given - others.to(two.given))
        }

    def matrices(self) -> list[tuple[str, Tensor]]:
        """Its weights of two axes, by their names."""
        return [(name, each) for name, each in self.layer.named_parameters() if is_matrix(each)]

    def is_pre_norm(self, states: Tensor) -> bool:
        """Whether without any weight it adds nothing: all that it adds is made by sub-layers, on a path beside."""
        with weights_changed(self.layer, torch.zeros_like):
            return not self.adds(states).any()


@contextmanager
def _fed(layer: nn.Module, states: Tensor | None) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """The calls of a layer: the states that it was given, or is given instead, and those that it gave."""
    seen: list[tuple[Tensor, Tensor]] = []
    given: list[Tensor] = []

    def before(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        place = next((n for n, each in enumerate(arguments) if isinstance(each, Tensor)), None)
        name = next((n for n, each in keywords.items() if isinstance(each, Tensor)), None)
        found = arguments[place] if place is not None else keywords.get(name or "")
        if not isinstance(found, Tensor) or found.is_nested or found.ndim < 3:
            return None  # A nested one is a batch without its padding, on torch's fast path.
        there = found if states is None or states.shape != found.shape else states.to(found)
        given.append(there.detach().clone())
        if place is not None:
            return (*arguments[:place], there, *arguments[place + 1 :]), keywords
        return arguments, {**keywords, str(name): there}

    def after(_: nn.Module, __: Any, returned: Any) -> None:
        first = returned[0] if isinstance(returned, tuple | list) and returned else returned
        if given and isinstance(first, Tensor) and not first.is_nested and first.shape == given[-1].shape:
            seen.append((given[-1], first.detach().clone()))

    handles = [
        layer.register_forward_pre_hook(before, with_kwargs=True),
        layer.register_forward_hook(after),
    ]
    try:
        yield seen
    finally:
        for each in handles:
            each.remove()


def require_by_itself(block: Block) -> None:
    """LawBroken: of a layer of two sub-layers, one adds nothing where the other is zero, though not the other way round.

    NotApplicable: it has no two sub-layers that are added to one path.
    """
    states, others = block.states("states"), block.states("other states")
    if not block.is_pre_norm(states):
        raise NotApplicable("its layers do more than to add to the states that they are given")
    other = _with_another_first_that_counts(block, states)

    def is_idle(*without: Tensor) -> bool:
        return not block.differ(block.adds(states, without), block.adds(others, without))

    matrices = block.matrices()
    mixers = [
        (name, each)
        for name, each in matrices
        if not block.mixes(states, other, [each]) and not is_idle(each)
    ]
    if not mixers:
        raise NotApplicable("no matrix of a layer is needed by its attention alone")
    (mixer, matrix), *_ = mixers
    if len(block.norms_of_its_input(states, others, matrix)) < NORMS_OF_TWO:
        raise NotApplicable(
            "no two norms of a layer are given what it is given, where its attention adds nothing"
        )
    rest = [(name, each) for name, each in matrices if each is not matrix and is_idle(each, matrix)]
    if rest and all(is_idle(each) for _, each in rest):
        raise LawBroken(
            f"a layer without {mixer} adds to each token what depends on it alone; without {rest[0][0]} it adds nothing "
            "at all: what its attention gives does not pass on by itself"
        )


def _with_another_first_that_counts(block: Block, states: Tensor) -> Tensor:
    """Other states, along the axis on which the first token has an influence on the last. NotApplicable: none has."""
    for axis in (1, 0):
        block.axis = axis
        other = block.with_another_first(states, "first")
        if states.shape[axis] > 1 and block.mixes(states, other):
            return other
    raise NotApplicable("its layers mix no tokens")
