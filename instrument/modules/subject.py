"""A module as laws see it: a copy of its own in evaluation, in float64 where it can be, its weights stirred."""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from headcheck.calling import Clock, DidNotReturn, SubjectRaised, require_willing
from headcheck.comparison import (
    Comparison,
    Failure,
    LawBroken,
    NotApplicable,
    failure_of,
    require_a_graph,
    within,
)
from headcheck.declarations import Declaration
from headcheck.errors import SubjectError
from headcheck.inputs import CaseInputs
from headcheck.modules.copying import aliased, copy_of, in_format
from headcheck.modules.noise import Noise, measured, scaled
from headcheck.recipes import Recipe, option
from headcheck.recognising import from_its_file
from headcheck.signatures import needed_by, parameters_of, require_parameters

EFFORT = 0.4
"""The share of each law's examples: a call of a module is slow, and says much."""
STIR = 0.1
"""The spread of what is added to weights of one axis and to those that are all equal: as made they are often
zeros and ones, and hide faults."""
SCALES = (1.0, 1 / 8, 1 / 64, 8.0)
"""By what all weights are multiplied, one after the other, before something counts as not to be seen."""

FUNCTION = "is a function, with no layers or modes that could be seen"
REMEMBERED = 16
"""So many inputs and scales have their noise remembered: a law asks again at few."""
COARSE = 1e-3
"""The share of the largest number from which on rounding is said to hide things."""


@dataclass(frozen=True)
class ModuleCase(Recipe):
    """What the cases of these roles have in common; a role adds its sizes, each an `option`, named in SIZES."""

    SIZES: ClassVar[tuple[str, ...]] = ("batch",)

    batch: int = option(1, 1, 2, 3, rarely=(5, 8, 9, 17))


AnyCase = TypeVar("AnyCase", bound=ModuleCase)
LONG = 33


def long(case: AnyCase, /) -> AnyCase:
    """With so many tokens that what goes by segments or blocks has several."""
    lengths = {name: LONG for name in type(case).SIZES if name.endswith("len") or name == "length"}
    return case.but(**lengths)


@dataclass(frozen=True, eq=False)
class ModuleInputs(CaseInputs):
    """One call; a role's own inputs are a dataclass under this one with a field for each argument."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What is shown of a counterexample."""
        return {name: each for name, each in vars(self).items() if isinstance(each, Tensor)}

    def in_float32(self) -> Self:
        """The same inputs, their numbers in float32."""
        numbers: dict[str, Any] = {n: each for n, each in self.tensors.items() if each.is_floating_point()}
        return replace(self, **{name: each.float() for name, each in numbers.items()})

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
        self.clock = Clock(device)
        self.aliased = ""
        """Two parameters of the module, as it was given, that share their memory."""
        self.original: nn.Module | None = None
        """The module as it was given, of which laws have copies."""
        self.function = self.made(declaration.function)
        self.module = self.function if isinstance(self.function, nn.Module) else None
        self.as_made = copy_of(self.module)
        self.scale = 1.0
        """By what all weights are multiplied at present, see `shows`."""
        self.left_at_none: dict[str, None] = {}
        """Masks that are asked for and None in every call, by the names by which the module takes them."""
        self.autocast = False
        """Whether calls are made under autocast to bfloat16."""
        self.carries_gradients = False
        """Whether the output of some plain call does."""
        self._noises = self._remembered()
        require_parameters(self.function, declaration.arguments)
        named = parameters_of(self.function) or {}
        self.places: dict[str, str | None] = {
            argument: declaration.arguments.get(argument)
            or next((alias for alias in aliases if alias in named), None)
            for argument, aliases in declaration.ARGUMENTS.items()
        }
        """Each optional argument: its keyword, or None. What only **kwargs would take, a module may ignore."""

    @abstractmethod
    def output(self, x: AnyInputs) -> Tensor:
        """The canonical output of one call, made by `call`."""

    @abstractmethod
    def another(self, x: AnyInputs) -> AnyInputs:
        """Another call, of another size."""

    def padded(self, x: AnyInputs) -> AnyInputs:
        """The same call with padding, where cases are drawn without and the module takes a mask of it."""
        return x

    def other_calls(self, x: AnyInputs) -> list[Callable[[], object]]:
        """What may be called beside the canonical call, gradients as they are around it."""
        return []

    def made(self, given: Any) -> Any:
        """A copy of the module that was given, or of what a function without parameters makes."""
        if not isinstance(given, nn.Module) and needed_by(given) == []:
            given = constructed(given, "", lambda: self._from(given, seed=0))
        if isinstance(given, type):
            raise SubjectError(
                f"{given.__name__} needs arguments; name a function without parameters that makes one"
                f"{from_its_file(given)}"
            )
        if not isinstance(given, nn.Module):
            return given
        self.original, self.aliased = given, aliased(given)
        try:
            module = copy_of(given)
        except Exception as problem:
            raise SubjectError(
                f"the module cannot be copied: {problem}; name a function that makes it"
            ) from problem
        return self._settled(module)

    def _from(self, maker: Callable[[], Any], seed: int) -> Any:
        """What a function without parameters makes; torch's generator is as it was when it ends."""
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            return self.clock.call(maker)

    def _settled(self, module: nn.Module) -> nn.Module:
        """The module itself in evaluation, of the dtype and on the device of the subject, its weights stirred."""
        module = in_format(module, self.device, getattr(torch, self.dtypes[0])).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for each in module.parameters():
                if each.requires_grad and each.is_floating_point() and _as_made(each):
                    noise = torch.randn(each.shape, generator=generator, dtype=torch.float64)
                    each.add_(STIR * noise.to(each.device, each.dtype))
        return module

    @property
    def seconds(self) -> float:
        """Wall time spent inside the implementation so far."""
        return self.clock.seconds

    def lacks(self, feature: str) -> str | None:
        """Why the subject does not have a feature, or None if it has."""
        if feature == "module":
            return FUNCTION if self.module is None else None
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
        return self.called(*arguments, **keywords)

    def called(self, *arguments: Any, **keywords: Any) -> Any:
        """One call as the module takes it.

        NotApplicable: gradients are wanted, and refused by NotImplementedError, where they are not declared.
        """
        try:
            return self.clock.call(self.function, *arguments, **self.left_at_none, **keywords)
        except SubjectRaised as why:
            require_willing(why.problem, may_refuse=self.declaration.may_refuse)
            # Under autocast gradients are on in every call, whether they are wanted or not.
            followed = torch.is_grad_enabled() and not self.autocast
            refused = followed and isinstance(why.problem, NotImplementedError)
            if refused and self.declaration.gradients is None:
                raise NotApplicable(f"is not followed by gradients: {why}") from why
            raise

    def __call__(self, x: AnyInputs) -> Tensor:
        """The output, a copy on the CPU; gradients are wanted under autocast alone, which is for training."""
        kind = torch.device(self.device).type
        narrow = torch.autocast(kind, dtype=torch.bfloat16) if self.autocast else nullcontext()
        with torch.set_grad_enabled(self.autocast), narrow:
            return self.output(x).detach().cpu().clone()

    def require_a_graph(self, output: Tensor) -> None:
        """NotApplicable, or LawBroken where gradients are declared or a plain call has them: the output carries none."""
        require_a_graph(output, declared=self.declaration.gradients, elsewhere=self.carries_gradients)

    def weights(self) -> list[Tensor]:
        """What the answer depends on beside its inputs: of a function, the weights of the modules that it names."""
        if self.module is not None:
            return list(self.module.parameters())
        named = inspect.getclosurevars(self.function) if inspect.isfunction(self.function) else None
        values = (*named.nonlocals.values(), *named.globals.values()) if named is not None else ()
        return [each for module in values if isinstance(module, nn.Module) for each in module.parameters()]

    def unused(self) -> Self:
        """The same subject with a module that was never called, where it is a module."""
        if self.as_made is None:
            return self
        other = copy.copy(self)
        other.module = other.function = copy_of(self.as_made)
        return other

    def newly_made(self, seed: int = 0) -> Self:
        """The same subject with a module straight from its maker, which is no copy of any other."""
        maker = self.declaration.function
        if isinstance(maker, nn.Module) or needed_by(maker) != []:
            raise NotApplicable("it is given made: laws have a copy of it")
        module, another = self._from(maker, seed), self._from(maker, seed)
        if module is another or {*map(id, module.parameters())} & {*map(id, another.parameters())}:
            raise NotApplicable("its maker does not make a new module each time")
        other = copy.copy(self)
        other.module = other.function = self._settled(module)
        return other

    def set_mode(self, *, training: bool) -> None:
        """Set the module to training or to evaluation. NotApplicable: that is refused by NotImplementedError."""
        if self.module is None:
            raise NotApplicable("it is a function, which has no modes")
        try:
            self.clock.call(self.module.train, training)
        except SubjectRaised as refusal:
            if not isinstance(refusal.problem, NotImplementedError):
                raise
            raise NotApplicable(f"is not made for that mode: {refusal}") from refusal

    def copied(self) -> Self:
        """The same subject with a deep copy of its module as it stands."""
        if self.module is None:
            raise NotApplicable("it is a function, which has no copies")
        other = copy.copy(self)
        try:
            other.module = other.function = copy_of(self.module)
        except Exception as problem:
            raise NotApplicable(f"the module cannot be copied: {problem}") from problem
        return other

    def under_autocast(self, bare: AnyInputs) -> Self:
        """The same subject in float32, each of its calls under autocast to bfloat16.

        NotApplicable: it does not take `bare`, a call without masks, in that way.
        """
        other = self.in_float32()
        other.autocast = True
        problem = problem_of(other, bare)
        if problem is not None:
            raise NotApplicable(f"does not compute under autocast: {problem}")
        return other

    def in_float32(self) -> Self:
        """The same subject in float32."""
        other = self.unused()
        if other.module is None:
            raise NotApplicable("it is a function, whose dtype cannot be changed")
        other.dtypes = ("float32",)
        other.module = other.function = in_format(other.module, self.device, torch.float32)
        other._noises = other._remembered()  # noqa: SLF001  # its own, not those of the subject that it comes from
        return other

    def sent_back(self, to: Self) -> None:
        """Send the module to the format of another subject's, and give it the weights of that.

        NotApplicable: it holds numbers that no optimiser changes, of which it may have made what it keeps.
        """
        assert self.module is not None and to.module is not None
        self.dtypes = to.dtypes
        self.module = self.function = in_format(self.module, self.device, getattr(torch, self.dtypes[0]))
        held = (*self.module.parameters(), *self.module.buffers())
        fixed = [each for each in held if not each.requires_grad]
        if any(each.is_floating_point() or each.is_complex() for each in fixed):
            raise NotApplicable("it holds numbers that are not trained, which may be kept as they were cast")
        mine, theirs = [*self.module.parameters()], [*to.module.parameters()]
        if [each.shape for each in mine] != [each.shape for each in theirs]:
            raise NotApplicable("its weights are made in a call")
        with torch.no_grad():
            for here, there in zip(mine, theirs, strict=True):
                here.copy_(there)

    def bound(self, x: AnyInputs) -> float:
        """The largest difference that rounding explains at `x`."""
        return self._noises(x, self.scale).bound

    def _remembered(self) -> Callable[[AnyInputs, float], Noise]:
        """The noise at inputs, measured once: of a few at a time, as those of a whole verdict would fill the memory."""
        return lru_cache(maxsize=REMEMBERED)(self._measured)

    def _measured(self, x: AnyInputs, scale: float) -> Noise:
        return measured(lambda: self(x), self.weights(), self.module)

    def close(self, observed: Tensor, expected: Tensor, x: AnyInputs, what: str = "output") -> Comparison:
        """Two answers that are the same but for rounding, as large as it was measured at `x`."""
        return within(observed, expected, lambda: self.bound(x), what)

    def unchanged(self, observed: Tensor, expected: Tensor, x: AnyInputs, what: str = "output") -> Comparison:
        """Two answers to `x` that must be the same bits, or, if declared not deterministic, agree within the bound."""
        limit = 0.0 if self.declaration.deterministic else lambda: self.bound(x)
        return within(observed, expected, limit, what)

    def moves(self, observed: Tensor, expected: Tensor, x: AnyInputs) -> bool:
        """Whether two answers differ by more than the noise, of which the bound is a multiple."""
        return within(observed, expected, self._noises(x, self.scale).size).broken

    def differing(self, observed: Tensor, expected: Tensor, x: AnyInputs) -> Tensor:
        """Where two answers differ: in any bit, or, if declared not deterministic, by more than the noise."""
        if self.declaration.deterministic:
            return observed != expected
        return (observed - expected).abs() > self._noises(x, self.scale).size

    def require_fine(self, x: AnyInputs) -> None:
        """NotApplicable where rounding hides what a law looks for: inside, the module computes too coarsely."""
        if self.bound(x) > COARSE * float(self(x).abs().max()):
            raise NotApplicable("the module computes too coarsely for such an influence to be seen")

    def shows(self, seen: Callable[[], bool], x: AnyInputs | None = None) -> bool:
        """Whether something can be seen, if need be with smaller or larger weights.

        A softmax of large scores gives all weight to one key, and one of tiny scores the same to each: then
        what is there does not show. x: where rounding may hide it: NotApplicable where it is not seen there.
        """
        weights = [each for each in self.weights() if each.is_floating_point()]
        try:
            for self.scale in SCALES:
                with scaled(weights, self.scale):
                    if seen():
                        return True
        finally:
            self.scale = 1.0
        if x is not None:
            self.require_fine(x)
        return False


def constructed(maker: Any, arguments: str, make: Callable[[], Any]) -> Any:
    """What a maker makes to begin with. SubjectError: it raises, and no call was made yet."""
    try:
        return make()
    except LawBroken as problem:
        name = getattr(maker, "__name__", "the maker")
        raise SubjectError(
            f"no module could be made by {name}({arguments}): {problem}; "
            f"name an instance, or a function without parameters that makes one{from_its_file(maker)}"
        ) from problem


def _as_made(weight: Tensor) -> bool:
    """Whether a weight is one that is made of zeros or ones, or of one number."""
    return weight.ndim <= 1 or (weight.numel() > 1 and bool((weight == weight.flatten()[0]).all()))


def problem_of(subject: Any, x: Any) -> Failure | None:
    """Why a call does not work, or None if it does."""
    problem = failure_of(subject, x)
    # Where it hangs, a law will say so.
    return None if isinstance(problem, DidNotReturn) else problem
