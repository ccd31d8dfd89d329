"""What the inputs of every role have in common."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class CaseInputs:
    """One call, as its case describes it; a role's own inputs are a dataclass under this one."""

    case: Any

    def but(self, **changes: Any) -> Self:
        """The same inputs with some replaced."""
        return replace(self, **changes)

    def generator(self, purpose: str = "") -> torch.Generator:
        """Randomness of a law's own, the same at each replay."""
        return torch.Generator().manual_seed(Random(f"{self.case.seed}/{purpose}").getrandbits(63))

    def permutation(self, length: int) -> Tensor:
        """An order of `length` things that is not the given one, where there are two at least."""
        order = torch.randperm(length, generator=self.generator("permutation"))
        return order if not torch.equal(order, torch.arange(length)) else order.roll(1)
