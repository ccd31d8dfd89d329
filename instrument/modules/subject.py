"""A module as laws see it: a copy of its own in evaluation, in float64 where it can be, its weights stirred."""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from headcheck.calling import Clock, SubjectRaised, keyword_for, kind_of, parameters_of
from headcheck.comparison import Comparison, LawBroken, within
from headcheck.declarations import Declaration
from headcheck.errors import SubjectError
from headcheck.modules.noise import measured_bound
from headcheck.recipes import Recipe, option

EFFORT = 0.4
"""The share of each law's examples: a call of a module is slow, and says much."""
STIR = 0.1
"""The spread of what is added to weights of one axis, which as made are often zeros and ones, and hide faults."""


@dataclass(frozen=True)
class ModuleCase(Recipe):
    """What the cases of these roles have in common; a role adds its sizes, each an `option`, named in SIZES."""

    SIZES: ClassVar[tuple[str, ...]] = ("batch",)

    batch: int = option(1, 1, 2, 3)


@dataclass(frozen=True, eq=False)
class ModuleInputs:
    """One call; a role's own inputs are a dataclass under this one with a field for each argument."""

    case: Any

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What is shown of a counterexample."""
        return {name: each for name, each in vars(self).items() if isinstance(each, Tensor)}

    def generator(self, purpose: str = "") -> torch.Generator:
        """Randomness of a law's own, the same at each replay."""
        return torch.Generator().manual_seed(Random(f"{self.case.seed}/{purpose}").getrandbits(63))

    def picked(self, order: Tensor) -> Self:
        """The sequences of the batch in another order, or some of them."""
        picked: dict[str, Any] = {name: each[order] for name, each in self.tensors.items()}
        return replace(self, **picked)


AnyInputs = TypeVar("AnyInputs", bound=ModuleInputs)


class ModuleSubject(ABC, Generic[AnyInputs]):
    """What laws call. A role says how its canonical call is made."""

    FEATURES: ClassVar[Mapping[str, str]] = {}
    """What not every module of the role has: the name, and the words for its absence."""

    def __init__(self, declaration: Declaration, *, dtypes: tuple[str, ...], device: str = "cpu") -> None:
        self.declaration: Any = declaration
        self.dtypes = dtypes
        self.device = device
        self.effort = EFFORT * declaration.effort
        self.clock = Clock()
        self.function = self.made(declaration.function)
        self.module = self.function if isinstance(self.function, nn.Module) else None
        self.bound = cache(self._bound)
        target = self.module.forward if self.module is not None else self.function
        self.places = {
            argument: declaration.arguments.get(argument) or keyword_for(target, aliases, 99)
            for argument, aliases in declaration.ARGUMENTS.items()
        }
        """Each optional argument: its keyword, or None."""

    @abstractmethod
    def output(self, x: AnyInputs) -> Tensor:
        """The canonical output of one call, made by `call`."""

    @abstractmethod
    def another(self, x: AnyInputs) -> AnyInputs:
        """Another call, of another size."""

    def made(self, given: Any) -> Any:
        """A copy of the module that was given, or of what a function without parameters makes."""
        if not isinstance(given, nn.Module) and _needs_nothing(given):
            with torch.random.fork_rng([]):
                torch.manual_seed(0)
                given = self.clock.call(given)
        if not isinstance(given, nn.Module):
            return given
        try:
            module = copy.deepcopy(given)
        except Exception as problem:
            raise SubjectError(
                f"the module cannot be copied: {problem}; name a function that makes it"
            ) from problem
        module = module.to(self.device, getattr(torch, self.dtypes[0])).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for each in module.parameters():
                if each.requires_grad and each.is_floating_point() and each.ndim == 1:
                    noise = torch.randn(each.shape, generator=generator, dtype=torch.float64)
                    each.add_(STIR * noise.to(each.device, each.dtype))
        return module

    @property
    def seconds(self) -> float:
        """Wall time spent inside the implementation so far."""
        return self.clock.seconds

    def lacks(self, feature: str) -> str | None:
        """Why the subject does not have a feature, or None if it has."""
        declared = getattr(self.declaration, feature, None)
        if declared is False:
            return f"{self.FEATURES[feature]}, as declared"
        if declared is None and self.places.get(feature, "") is None:
            return self.FEATURES[feature]
        return None

    def has(self, feature: str) -> bool:
        return self.lacks(feature) is None

    def call(self, *arguments: Any, **canonical: Any) -> Any:
        """One call, with the optional arguments by their canonical names; None is left out."""
        given = {name: value for name, value in canonical.items() if value is not None}
        keywords: dict[str, Any] = {str(self.places[name] or name): value for name, value in given.items()}
        return self.clock.call(self.function, *arguments, **keywords)

    def __call__(self, x: AnyInputs) -> Tensor:
        """The output without gradients, a copy on the CPU."""
        with torch.no_grad():
            return self.output(x).detach().cpu().clone()

    def weights(self) -> list[Tensor]:
        """What the answer depends on beside its inputs."""
        return list(self.module.parameters()) if self.module is not None else []

    def _bound(self, x: AnyInputs) -> float:
        return measured_bound(lambda: self(x), self.weights())

    def close(self, observed: Tensor, expected: Tensor, x: AnyInputs, what: str = "output") -> Comparison:
        """Two answers that are the same but for rounding, as large as it was measured at `x`."""
        return within(observed, expected, self.bound(x), what)

    def moves(self, observed: Tensor, expected: Tensor, x: AnyInputs) -> bool:
        """Whether two answers differ by more than rounding."""
        return within(observed, expected, self.bound(x)).broken


def tensor_in(returned: Any, names: tuple[str, ...]) -> Tensor:
    """The tensor that a module returned: by itself, first in a tuple, or under one of these names."""
    if isinstance(returned, tuple | list) and returned:
        returned = returned[0]
    for name in names:
        returned = getattr(returned, name, returned)
    if not isinstance(returned, Tensor):
        raise LawBroken(f"returned {kind_of(returned)}, expected a torch.Tensor")
    return returned


def _needs_nothing(function: Any) -> bool:
    """Whether a callable can be called without arguments: then it makes the module."""
    parameters = parameters_of(function)
    if parameters is None:
        return False
    star = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(each.default is not each.empty or each.kind in star for each in parameters.values())


def problem_of(subject: Any, x: Any) -> str | None:
    """Why a call does not work, or None if it does."""
    try:
        subject(x)
    except (SubjectRaised, LawBroken) as problem:
        return str(problem)
    return None
