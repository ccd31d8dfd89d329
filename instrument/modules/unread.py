"""Which part of a fused projection nobody reads: its rows are cut into parts, and one of them is left out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headcheck.comparison import NotApplicable
from headcheck.modules.stacks import OF_ATTENTION
from headcheck.modules.subject import ModuleSubject


def unread_rows(
    module: ModuleSubject[Any], call: Callable[[], Tensor]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each fused projection of which a part gets no gradient: its name, its weight, and which rows (rows,) these are.

    One that gets none at all is left out: it may be meant. So is one that sees a single token: one key has all the
    weight, whatever query and key are. NotApplicable: it has no such projection.
    """
    assert module.module is not None
    fused = {name: part for name, part in module.module.named_modules() if _is_fused(name, part)}
    with _tokens_counted(fused) as seen:
        output = call()
    module.require_a_graph(output)
    weights = {name: fused[name].weight for name, count in seen.items() if count > 1}
    if not weights:
        raise NotApplicable(
            "it has no linear layer that gives query, key and value, or two of them, of several tokens"
        )
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    found = module.clock.call(torch.autograd.grad, output, [*weights.values()], direction, allow_unused=True)
    for (name, weight), gradient in zip(weights.items(), found, strict=True):
        if gradient is None or not bool(gradient.any()):
            continue
        rows = idle_part(~gradient.any(dim=1), weight.shape[1])
        if rows is not None:
            yield name, weight, rows


def _is_fused(name: str, part: nn.Module) -> bool:
    """Whether it is a linear layer of attention, by its name, with the rows of two projections at least."""
    if not isinstance(part, nn.Linear) or not isinstance(part.weight, nn.Parameter):
        return False
    as_usual = part.weight.shape == (part.out_features, part.in_features) and part.weight.requires_grad
    return as_usual and part.out_features >= 2 * part.in_features and bool(OF_ATTENTION.search(name.lower()))


@contextmanager
def _tokens_counted(parts: dict[str, Any]) -> Iterator[dict[str, int]]:
    """The most tokens of a sequence that each part is given, by its name, of those that are called."""
    seen: dict[str, int] = {}

    def counted(name: str) -> Callable[..., None]:
        def count(_: nn.Module, given: tuple[Any, ...]) -> None:
            if given and isinstance(given[0], Tensor):
                seen[name] = max(seen.get(name, 0), given[0].shape[:-1].numel() // max(1, len(given[0])))

        return count

    handles = [part.register_forward_pre_hook(counted(name)) for name, part in parts.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def idle_part(idle: Tensor, width: int) -> Tensor | None:
    """The largest part of the rows that holds idle ones alone, if there is one: idle (rows,) -> (rows,).

    Rows are cut into parts as (before, parts, behind) is along its middle axis: side by side, or within each head. A part
    has the rows of a projection at least, as many as the input is wide: those of one head may be left out on purpose.
    """
    rows = len(idle)
    for parts in range(2, rows // width + 1):
        for before in range(1, rows // parts + 1):
            if rows % (before * parts):
                continue
            cut = idle.view(before, parts, -1)
            whole = cut.all(dim=2).all(dim=0)
            if bool(whole.any()):
                return whole[None, :, None].expand_as(cut).flatten()
    return None
