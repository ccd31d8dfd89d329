"""A function of the corpus as a peer meets it: what it takes, and in which dtypes."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tests.faults import Entry, Fault

Triple = tuple[Tensor, Tensor, Tensor]
"""Query, key and value."""
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""By precision."""


class NotTaken(Exception):
    """The subject does not take this call: the peer leaves it out."""


@dataclass(frozen=True)
class Subject:
    """A right or wrong attention; calling it again and again is one life of it."""

    entry: Entry

    @cached_property
    def function(self) -> Callable[..., Any]:
        return self.entry.call

    @cached_property
    def parameters(self) -> frozenset[str]:
        return frozenset(inspect.signature(self.function).parameters)

    @property
    def declaration(self) -> Any:
        return self.entry.declaration()

    @property
    def gradients(self) -> bool:
        """False where it says that it has none."""
        return getattr(self.entry, "gradients", None) is not False

    def require(self, *names: str) -> None:
        """Leave the call out if there is no argument of such a name."""
        for name in names:
            if name not in self.parameters:
                raise NotTaken(name)

    def dtype(self, wanted: torch.dtype) -> torch.dtype:
        """The wanted dtype, or of those that the entry is made for the one closest in precision."""
        if self.entry.dtypes is None:
            return wanted
        taken = [each for each in DTYPES if str(each).removeprefix("torch.") in self.entry.dtypes]
        return min(taken, key=lambda each: abs(DTYPES.index(each) - DTYPES.index(wanted)))

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """The canonical call; what is refused as not known or not implemented is left out."""
        self.require(*options)
        try:
            return self.function(query, key, value, **options)
        except (TypeError, NotImplementedError) as refusal:
            raise NotTaken(str(refusal)) from refusal


def three(tensors: Iterable[Tensor]) -> Triple:
    """Query, key and value of an iterable."""
    query, key, value = tensors
    return query, key, value


def harmless(entry: Entry) -> bool:
    """Whether it may be called in this process, as all peers call: it does not hang, exit or patch, nor take packs."""
    return not (isinstance(entry, Fault) and (entry.peril or "cu_seqlens_q" in entry.features))
