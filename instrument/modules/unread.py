"""Which part of a fused projection nobody reads: its rows are cut into parts, and one of them is left out."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headcheck.comparison import NotApplicable
from headcheck.modules.subject import ModuleSubject

FEWEST = 4
"""Rows of a part: of fewer each may give nothing by chance, as a ReLU does."""


def unread_rows(module: ModuleSubject[Any], output: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each linear layer of which a part gets no gradient: its name, its weight, and which of its rows (rows,) these are.

    A layer that gets none at all is left out: it may be meant. So are rows behind those of the words of a vocabulary.
    NotApplicable: it has no such layer.
    """
    assert module.module is not None
    words = output.shape[-1] if hasattr(module, "vocab") else None
    linear = {
        name: part.weight
        for name, part in module.module.named_modules()
        if isinstance(part, nn.Linear) and isinstance(part.weight, nn.Parameter) and part.weight.requires_grad
    }
    if not linear:
        raise NotApplicable("it has no linear layer whose weight wants a gradient")
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    found = module.clock.call(torch.autograd.grad, output, [*linear.values()], direction, allow_unused=True)
    for (name, weight), gradient in zip(linear.items(), found, strict=True):
        if gradient is None or not bool(gradient.any()):
            continue
        idle = ~gradient.any(dim=1)
        behind_the_words = bool(idle.any()) and int(idle.nonzero()[0]) == words
        rows = None if behind_the_words else idle_part(idle)
        if rows is not None:
            yield name, weight, rows


def idle_part(idle: Tensor) -> Tensor | None:
    """The largest part of the rows that holds idle ones alone, if there is one: idle (rows,) -> (rows,).

    Rows are cut into parts as (before, parts, behind) is along its middle axis: side by side, or within each head.
    """
    rows = len(idle)
    for parts in range(2, rows // FEWEST + 1):
        for before in range(1, rows // parts + 1):
            if rows % (before * parts):
                continue
            cut = idle.view(before, parts, -1)
            whole = cut.all(dim=2).all(dim=0)
            if bool(whole.any()):
                return whole[None, :, None].expand_as(cut).flatten()
    return None
