"""Who wrote to a tensor that autograd had kept: its graph can then not be followed back."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def graphs_followed_back(tensors: Mapping[str, Tensor | None]) -> Iterator[list[str]]:
    """Around a call without gradients: the names of the tensors that it wrote to are in the list at its end.

    A graph keeps each of them before the call; autograd refuses to go back where it was written to since, be it
    that the same bits stand there again.
    """
    factors = {name: torch.ones((), requires_grad=True) for name in tensors}
    with torch.enable_grad():
        kept = {
            name: _keeping(tensor, factors[name].to(tensor.device))
            for name, tensor in tensors.items()
            if tensor is not None and (tensor.dtype == torch.bool or tensor.is_floating_point())
        }
    written: list[str] = []
    with torch.no_grad():
        yield written
    written += [name for name, total in kept.items() if _is_cut(total, factors[name])]


def _keeping(tensor: Tensor, factor: Tensor) -> Tensor:
    """A number whose graph has kept the tensor."""
    if tensor.dtype == torch.bool:
        return torch.where(tensor, factor, 0.0).sum()
    return (factor * tensor).sum()


def _is_cut(total: Tensor, factor: Tensor) -> bool:
    try:
        torch.autograd.grad(total, factor)
    except RuntimeError:
        return True
    return False
