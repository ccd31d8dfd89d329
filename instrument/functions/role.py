"""What the engine asks of a role, for functions of a few tensors: drawn, built and simplified by their fields."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import fields
from random import Random
from typing import Any, ClassVar, Generic, TypeVar

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from headcheck.arithmetic import Arithmetic, named
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.declarations import DTYPES, Declaration
from headcheck.errors import SubjectError
from headcheck.functions.inputs import FunctionCase, Inputs
from headcheck.functions.subject import FunctionSubject
from headcheck.numbers import (
    DOZEN,
    NUMBER,
    below,
    dropped,
    numbers_that_fit,
    rounder_numbers,
    rounder_tensors,
    tensors_of,
    written,
)
from headcheck.recipes import options_of

AnyCase = TypeVar("AnyCase", bound=FunctionCase)
AnyInputs = TypeVar("AnyInputs", bound=Inputs)

READABLE = 48
"""A case is written out number by number when its tensors hold at most this many."""
SMALL = 64
"""Tensors of at most this many numbers are shown in full."""
FEW = 4
"""The largest size of a case whose numbers Hypothesis draws."""
PLAINER_VALUES = ("integers", "normal")
LOW_PRECISION = ("bfloat16", "float16")
TRIES = 24
MOST = {"float16": 100.0}
"""The largest number that Hypothesis draws, where it is not 1000."""


class FunctionRole(ABC, Generic[AnyCase, AnyInputs]):
    """A role is this class with a case, a declaration and a subject of its own, and one method, `build`."""

    name: ClassVar[str]
    case: type[AnyCase]
    declaration: type[Declaration]
    subject: type[FunctionSubject[AnyInputs]]
    aliases: tuple[str, ...] = ()
    """Words in the name of a plain callable by which it is recognised as one of this role."""
    inferred: tuple[Arithmetic, ...] = (named("wide"), named("opwise"))
    """The models that an undeclared low-precision function is fitted to, the narrowest first."""

    @abstractmethod
    def build(self, case: AnyCase, subject: Any) -> AnyInputs:
        """The inputs that a case describes."""

    def settle(self, case: AnyCase, subject: Any) -> AnyCase:
        """The case with what contradicts itself, or what the subject lacks, taken out."""
        return case

    def notes(self, subject: Any) -> list[str]:
        """What else the preparation finds out; it may change the subject."""
        return []

    def telling(self, case: AnyCase) -> AnyCase:
        """The case, made to tell apart the models of arithmetic."""
        return case

    # Subjects

    def recognises(self, attribute: Any) -> bool:
        """Whether a plain callable is one of this role, by its name."""
        name = getattr(attribute, "__name__", type(attribute).__name__).lower()
        return any(alias in name for alias in self.aliases)

    def declare(self, attribute: Any, name: str) -> Declaration:
        return (
            attribute if isinstance(attribute, self.declaration) else self.declaration(attribute, name=name)
        )

    def prepare(
        self, declaration: Declaration, *, dtypes: tuple[str, ...], device: str, seed: int
    ) -> tuple[FunctionSubject[AnyInputs], list[str]]:
        """Which dtypes it takes, and how it rounds."""
        wanted = dtypes or declaration.dtypes or DTYPES
        native = {dtype: named("native") for dtype in wanted}
        subject = self.subject(declaration, dtypes=wanted, arithmetic=native, device=device)
        problems = {dtype: self._problem(subject, dtype) for dtype in wanted}
        declared = declaration.dtypes or ()
        taken = tuple(dtype for dtype in wanted if problems[dtype] is None or dtype in declared)
        if not taken and "float32" not in wanted and self._problem(subject, "float32") is None:
            raise SubjectError(f"the subject does not work in {', '.join(wanted)}: {problems[wanted[0]]}")
        subject.dtypes = taken or wanted[:1]
        notes = [f"{dtype}: not supported ({problems[dtype]})" for dtype in wanted if dtype not in taken]
        notes = notes if taken else []
        subject.arithmetic = arithmetic = dict(native)
        for dtype in subject.dtypes:
            arithmetic[dtype], note = self._arithmetic(subject, dtype, seed)
            notes += [note] if note else []
        return subject, [*notes, *self.notes(subject)]

    def _problem(self, subject: FunctionSubject[AnyInputs], dtype: str) -> str | None:
        """Why a plain call does not work in a dtype, or None if it does."""
        case = self.fit(self.case(dtype=dtype, seed=1), _Taking(subject, dtype))
        try:
            subject(self.build(case, subject))
        except (LawBroken, NotApplicable) as problem:
            return str(problem)
        return None

    def _arithmetic(
        self, subject: FunctionSubject[AnyInputs], dtype: str, seed: int
    ) -> tuple[Arithmetic, str]:
        declared = subject.declaration.arithmetic
        if isinstance(declared, Mapping):
            declared = declared.get(dtype)
        if declared is not None:
            return (named(declared) if isinstance(declared, str) else declared), ""
        if dtype not in LOW_PRECISION:
            return named("native"), ""
        candidates, worst = self.inferred, 0.0
        for number in range(TRIES):
            case = self.draw(Random(f"{seed}/arithmetic/{dtype}/{number}"), subject).but(dtype=dtype)
            case = self.fit(self.telling(case), subject)
            ratios = [self._ratio(subject, case, model) for model in candidates]
            fits = next((place for place, ratio in enumerate(ratios) if ratio <= 1), None)
            if fits is not None:
                worst = max(ratios[fits], 0.0 if fits else worst)
                candidates = candidates[fits:]
        model = candidates[0]
        return model, f"{dtype}: arithmetic inferred as {model} (largest error {worst:.2f} of its bound)"

    def _ratio(self, subject: FunctionSubject[AnyInputs], case: AnyCase, model: Arithmetic) -> float:
        """The largest error over bound of one case under a model; 0 where a law will say what is wrong."""
        trial = self.subject(
            subject.declaration, dtypes=(case.dtype,), arithmetic={case.dtype: model}, device=subject.device
        )
        x = self.build(case, trial)
        ratios = [0.0]
        try:
            ratios = [within(trial(x), trial.expected(x), trial.bound(x)).ratio]
            g = x.cotangent
            exact, bounds = trial.exact_gradients(x, g), trial.gradient_bounds(x, g.double())
            for name, found in trial.gradients(x, g).items():
                if found is not None:
                    ratios.append(within(found, exact[name], bounds[name]).ratio)
        except (LawBroken, NotApplicable):
            pass
        return max(ratios)

    # Cases

    def draw(self, random: Random, subject: Any) -> AnyCase:
        """Each field by one of its options, all of them jointly; the first dtype half of the time."""
        dtypes = (*subject.dtypes[:1] * max(1, len(subject.dtypes) - 1), *subject.dtypes[1:])
        drawn = {each.name: random.choice(options_of(each)) for each in fields(self.case) if options_of(each)}
        case = self.case(dtype=random.choice(dtypes), seed=random.randrange(1_000_000), **drawn)
        return self.fit(case, subject)

    def drawn(self, subject: Any) -> SearchStrategy[AnyCase]:
        """The same space in small, every number drawn."""
        tensors = [name for name in self.case.AXES if name != "cotangent"]
        lists = st.tuples(*(st.lists(NUMBER, min_size=DOZEN, max_size=DOZEN) for _ in tensors))
        return st.tuples(st.integers(0, 2**63), lists).map(
            lambda both: self._from_numbers(both[0], both[1], subject)
        )

    def _from_numbers(self, seed: int, numbers: tuple[list[float], ...], subject: Any) -> AnyCase:
        # The numbers are part of the seed: Hypothesis varies them around a seed that it keeps.
        case = self.draw(Random(repr((seed, numbers))), subject)
        most = MOST.get(case.dtype, 1000.0)
        tensors = [name for name in self.case.AXES if name != "cotangent"]
        named_numbers = tuple(
            (name, tuple(min(max(number, -most), most) for number in each))
            for name, each in zip(tensors, numbers, strict=True)
        )
        few = {name: min(getattr(case, name), FEW) for name in self._sizes()}
        return self.fit(case.but(values="normal", numbers=named_numbers, **few), subject)

    def fit(self, case: AnyCase, subject: Any) -> AnyCase:
        if case.dtype not in subject.dtypes:
            case = case.but(dtype=subject.dtypes[0])
        return numbers_that_fit(self.settle(case, subject))

    def _sizes(self) -> list[str]:
        """The fields that are lengths of axes."""
        return list(dict.fromkeys(axis for axes in self.case.AXES.values() for axis in axes))

    def simpler(self, case: AnyCase, subject: Any) -> Iterator[AnyCase]:
        for step in self._steps(case, subject):
            fitted = self.fit(step, subject)
            if fitted != case:
                yield fitted

    def _steps(self, case: AnyCase, subject: Any) -> Iterator[AnyCase]:
        if case.dtype != subject.dtypes[0]:
            yield case.but(dtype=subject.dtypes[0])
        for each in fields(case):
            value, sizes = getattr(case, each.name), self._sizes()
            if each.name not in (*sizes, "values", "numbers", "dtype") and value != each.default:
                yield case.but(**{each.name: each.default})
        if case.written_out:
            yield from self._fewer_numbers(case)
            yield from self._rounder(case)
            return
        for axis in self._sizes():
            yield from (case.but(**{axis: size}) for size in below(getattr(case, axis)))
        rank = PLAINER_VALUES.index(case.values) if case.values in PLAINER_VALUES else len(PLAINER_VALUES)
        yield from (case.but(values=values) for values in PLAINER_VALUES[:rank])
        if sum(torch.Size(shape).numel() for shape in case.shapes().values()) <= READABLE:
            yield self._written_out(case, subject)

    def _written_out(self, case: AnyCase, subject: Any) -> AnyCase:
        x = self.build(case, subject)
        tensors = {name: getattr(x, name) for name in case.AXES}
        return case.but(
            values="normal", numbers=tuple((n, written(t)) for n, t in tensors.items() if t is not None)
        )

    def _fewer_numbers(self, case: AnyCase) -> Iterator[AnyCase]:
        """Without the cotangent, or one slice of one axis taken out of every tensor that has it."""
        if "cotangent" in dict(case.numbers):
            yield case.but(numbers=tuple(pair for pair in case.numbers if pair[0] != "cotangent"))
        tensors = tensors_of(case)
        for axis in self._sizes():
            size = getattr(case, axis)
            for index in reversed(range(size if size > 1 else 0)):
                less = {
                    name: dropped(t, case.AXES[name].index(axis), index) if axis in case.AXES[name] else t
                    for name, t in tensors.items()
                }
                yield case.but(**{axis: size - 1}, numbers=tuple((n, written(t)) for n, t in less.items()))

    def _rounder(self, case: AnyCase) -> Iterator[AnyCase]:
        """Rounder numbers: whole tensors first, then number by number."""
        tensors = tensors_of(case)

        def replaced(name: str, tensor: torch.Tensor) -> AnyCase:
            changed = {**tensors, name: tensor}
            return case.but(numbers=tuple((n, written(t)) for n, t in changed.items()))

        for name, tensor in tensors.items():
            yield from (replaced(name, rounder) for rounder in rounder_tensors(tensor))
        for name, tensor in tensors.items():
            for index, number in enumerate(tensor.reshape(-1).tolist()):
                for simple in rounder_numbers(number):
                    changed = tensor.reshape(-1).clone()
                    changed[index] = simple
                    yield replaced(name, changed.reshape(tensor.shape))

    def parse(self, text: str) -> AnyCase:
        return self.case.parse(text)

    def show(self, inputs: AnyInputs) -> dict[str, Any]:
        """Each tensor, and each field of the case that says something else than its default."""
        shown: dict[str, Any] = {}
        for name, tensor in inputs.tensors.items():
            small = tensor.numel() <= SMALL
            shown[name] = tensor.tolist() if small else f"{inputs.case.dtype} {tuple(tensor.shape)}"
        hidden = {*self._sizes(), "dtype", "values", "seed", "numbers"}
        for each in fields(inputs.case):
            value = getattr(inputs.case, each.name)
            if each.name not in hidden and value != each.default:
                shown[each.name] = value
        return shown


class _Taking:
    """A subject as if it took one dtype only."""

    def __init__(self, subject: Any, dtype: str) -> None:
        self._subject, self.dtypes = subject, (dtype,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)
