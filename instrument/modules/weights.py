"""A module set to where a law speaks: its weights replaced, its norms watched, its dropout taken out."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from headcheck.comparison import NotApplicable

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Norms by the statistics of a batch: other in training, affine in evaluation."""
WIDTHS = ("d_model", "embed_dim", "hidden_size", "dim", "in_features")
"""Attributes that may say how wide a state is; which of them does is tried."""
RATES = ("dropout", "dropout_p", "attn_dropout", "attention_dropout")
"""Rates of dropout by their usual names, which a class may have for all of its modules."""


@contextmanager
def weights_changed(
    module: nn.Module, change: Callable[[Tensor], Tensor], *, but: Iterable[nn.Module] = ()
) -> Iterator[None]:
    """Each weight replaced by change(weight), and put back bit for bit; but: modules that keep theirs."""
    kept = {id(weight) for each in but for weight in each.parameters()}
    weights = [each for each in module.parameters() if each.is_floating_point() and id(each) not in kept]
    before = [each.detach().clone() for each in weights]
    with torch.no_grad():
        for each in weights:
            each.copy_(change(each))
    try:
        yield
    finally:
        with torch.no_grad():
            for each, old in zip(weights, before, strict=True):
                each.copy_(old)


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """No weight wants a gradient. NotApplicable: one is no leaf, as in a copy of a scripted module."""
    wanting = [each for each in module.parameters() if each.requires_grad]
    if not all(each.is_leaf for each in wanting):
        raise NotApplicable("its weights are no leaves of a graph: they cannot be frozen")
    for each in wanting:
        each.requires_grad_(False)
    try:
        yield
    finally:
        for each in wanting:
            each.requires_grad_(True)


def is_matrix(weight: Tensor) -> bool:
    """Whether it has two axes or more: not a gain, a bias, or a scale of one number."""
    return sum(size > 1 for size in weight.shape) > 1


def without_matrices(weight: Tensor) -> Tensor:
    """Zero for a matrix: what a sub-layer gives is then the same for every input."""
    return torch.zeros_like(weight) if is_matrix(weight) else weight


def without_zero_rows(weight: Tensor, *, generator: torch.Generator) -> Tensor:
    """Rows of a matrix that are zero, as some are before training, drawn at random, of the size of fresh ones."""
    if not is_matrix(weight):
        return weight
    drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64) / weight.shape[-1] ** 0.5
    return torch.where((weight == 0).all(dim=-1, keepdim=True), drawn.to(weight), weight)


def moderate(weight: Tensor) -> Tensor:
    """A matrix brought to the size of a fresh one: entries of the order of 1 / sqrt(columns)."""
    if not is_matrix(weight):
        return weight
    size = weight.square().mean().sqrt() * weight.shape[-1] ** 0.5
    return torch.where(size > 0, weight / size, weight)


def norms_of(module: nn.Module) -> list[nn.Module]:
    """The norms by the name of their class; a wrapper that holds one is none."""
    parts = module.modules()
    return [each for each in parts if "norm" in type(each).__name__.lower() and not list(each.children())]


@dataclass(frozen=True, eq=False)
class NormCall:
    """One call of a norm: a copy of what it was given, what it returned, and how often that was changed by then."""

    norm: nn.Module
    given: Tensor
    returned: Tensor
    changes: int
    made_by: Node | None
    """Of the graph of what it returned, the last step; None: nothing wants a gradient."""

    def is_the_end(self, output: Tensor) -> bool:
        """Whether what the norm returned, to which nothing was added, is what the module returned, or an equal copy.

        A copy is made by steps that read nothing else: padding may be cleared behind the norm, where there is some.
        """
        untouched = changes_in_place(self.returned) == self.changes
        if untouched and self.returned.data_ptr() == output.data_ptr():
            return True
        made_of_it = self.made_by is not None and self.made_by in _steps_alone(output.grad_fn)
        return made_of_it and torch.equal(output, self.returned)


def _steps_alone(step: Node | None) -> Iterator[Node]:
    """The steps from the end of a graph backwards, as long as each reads one result alone."""
    while step is not None:
        yield step
        before = [each for each, _ in step.next_functions if each is not None]
        step = before[0] if len(before) == 1 else None


def changes_in_place(x: Tensor) -> int:
    """How often a tensor was written to since it was made."""
    return x._version  # noqa: SLF001  # torch's own counter, which has no other name


@contextmanager
def norms_watched(module: nn.Module) -> Iterator[list[NormCall]]:
    """The calls of the norms, in the order in which they run."""
    seen: list[NormCall] = []

    def keep(norm: nn.Module, given: tuple[Any, ...], returned: Any) -> None:
        if given and isinstance(given[0], Tensor) and isinstance(returned, Tensor):
            seen.append(
                NormCall(
                    norm, given[0].detach().clone(), returned, changes_in_place(returned), returned.grad_fn
                )
            )

    handles = [each.register_forward_hook(keep) for each in norms_of(module)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def rates_of_dropout(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Where rates of dropout stand: numbers so named, and `p` of a class that drops: elsewhere it may be an exponent."""
    for part in module.modules():
        drops = "drop" in type(part).__name__.lower()
        for name in dict.fromkeys((*vars(part), *RATES)):
            value: Any = getattr(part, name, None)
            if name == "p":
                is_rate = drops and type(value) in (int, float)
            else:
                is_rate = "drop" in name.lower() and type(value) is float
            if is_rate and 0 <= value <= 1 and not isinstance(getattr(type(part), name, None), property):
                yield part, name


def set_dropout(module: nn.Module, rate: float) -> None:
    """Set every rate of dropout."""
    for part, name in [*rates_of_dropout(module)]:
        setattr(part, name, rate)


def widths_of(parts: list[nn.Module]) -> list[int]:
    """What may be d_model: said by the module or its norms, attentions and linear layers, each once."""
    found: dict[int, None] = {}
    for kind in (nn.MultiheadAttention, nn.LayerNorm, nn.RMSNorm, nn.Module):
        for part in parts:
            if not isinstance(part, kind):
                continue
            said = chain(map(vars(part).get, WIDTHS), [*vars(part).get("normalized_shape", ())][-1:])
            found |= {width: None for width in said if type(width) is int and width > 0}
    return [*found]
