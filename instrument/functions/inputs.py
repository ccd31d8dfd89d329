"""What a function is given: its case, and the tensors made from it."""

import random
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from headcheck.functions.values import REGIMES
from headcheck.inputs import CaseInputs
from headcheck.recipes import Recipe, option
from headcheck.strides import STRIDES


@dataclass(frozen=True)
class FunctionCase(Recipe):
    """What the cases of these roles have in common; a role adds its sizes, each an `option`."""

    values: str = option("normal", "normal", "normal", *REGIMES)
    """The regime of the numbers (`headcheck.functions.values`)."""
    strides: str = option("contiguous", "contiguous", *STRIDES)
    """How the tensors lie in memory (`headcheck.strides`)."""


@dataclass(frozen=True, eq=False)
class Inputs(CaseInputs):
    """Contiguous CPU tensors in the dtype under test. Laws make new inputs with `but`; nothing is changed in place.

    A role's own inputs are a dataclass under this one with a field for each argument.
    """

    TENSORS: ClassVar[tuple[str, ...]] = ("x",)
    """The fields that are tensors and may want a gradient, in the order of the call."""

    x: Tensor

    def cast(self, dtype: torch.dtype) -> Self:
        """The same numbers in another dtype."""
        return self.but(**{name: each.to(dtype) for name, each in self.tensors.items()})

    def other(self) -> Self:
        """Inputs of the same shape with other numbers."""
        return self.but(x=-self.x.flip(-1) + 1)

    def idle(self) -> Self:
        """Inputs of the same shape for which there may be nothing to do."""
        return self

    @property
    def dtype(self) -> torch.dtype:
        return self.x.dtype

    @property
    def strides(self) -> str:
        strides: str = self.case.strides
        return strides

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape that the output must have."""
        return tuple(self.x.shape)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, those that are not given left out."""
        return {name: each for name in self.TENSORS if (each := getattr(self, name)) is not None}

    @property
    def cotangent(self) -> Tensor:
        """The gradient of the output."""
        written = dict(self.case.numbers).get("cotangent")
        if written is not None:
            return torch.tensor(written, dtype=torch.float64).reshape(self.output_shape).to(self.dtype)
        return self.normal(self.output_shape, "cotangent")

    def normal(self, shape: tuple[int, ...], purpose: str = "normal") -> Tensor:
        """Standard normal numbers in the dtype under test."""
        return torch.randn(shape, generator=self.generator(purpose), dtype=torch.float64).to(self.dtype)


def tensor_of(case: FunctionCase, name: str, regime: str | None = None) -> Tensor:
    """A tensor of a case in its dtype: as it is written out, or as its regime and seed give it.

    Each name has a generator of its own, so that writing out one tensor does not change another.
    """
    shape, dtype = case.shapes()[name], getattr(torch, case.dtype)
    written = dict(case.numbers).get(name)
    if written is not None:
        return torch.tensor(written, dtype=torch.float64).reshape(shape).to(dtype)
    generator = torch.Generator().manual_seed(random.Random(f"{case.seed}/{name}").getrandbits(63))
    drawn = REGIMES[regime or case.values](shape, generator)
    largest = torch.finfo(dtype).max / 64
    return drawn.clamp(-largest, largest).to(dtype)
