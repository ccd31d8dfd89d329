"""Roles whose cases are drawn, simplified and read by their fields alone: each an option, or the length of an axis."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import fields
from random import Random
from typing import Any, ClassVar, Generic, TypeVar

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from headcheck.numbers import (
    A_DOZEN,
    MANY,
    READABLE,
    below,
    dropped,
    numbers_that_fit,
    rounder_numbers,
    rounder_tensors,
    shown,
    tensors_of,
    written,
)
from headcheck.recipes import Recipe, options_of, picked

AnyCase = TypeVar("AnyCase", bound=Recipe)

FEW = 4
"""The largest size of a case whose numbers Hypothesis draws."""
WORK = 200_000
"""The largest product of a drawn case's sizes: it bounds the time of an example."""
PLAINER_VALUES = ("integers", "normal")
MOST = {"float16": 100.0}
"""The largest number that Hypothesis draws, where it is not 1000."""


class CaseRole(ABC, Generic[AnyCase]):
    """What is the same for every role that is not attention: how cases are drawn and made simpler."""

    name: ClassVar[str]
    case: type[AnyCase]

    def limited(self, subject: Any) -> tuple[str, ...]:
        """No size is refused that cases are drawn with."""
        return ()

    @abstractmethod
    def build(self, case: AnyCase, subject: Any) -> Any:
        """The inputs that a case describes: they have `tensors`, by name, and each tensor as an attribute."""

    def settle(self, case: AnyCase, subject: Any) -> AnyCase:
        """The case with what contradicts itself, or what the subject lacks, taken out."""
        return case

    def draw(self, random: Random, subject: Any) -> AnyCase:
        """Each field by one of its options, all of them jointly; the first dtype half of the time."""
        dtypes = (*subject.dtypes[:1] * max(1, len(subject.dtypes) - 1), *subject.dtypes[1:])
        drawn = {each.name: picked(random, each) for each in fields(self.case) if options_of(each)}
        case = self.case(dtype=random.choice(dtypes), seed=random.randrange(1_000_000), **drawn)
        return self.fit(self._affordable(random, case), subject)

    def _affordable(self, random: Random, case: AnyCase) -> AnyCase:
        """The case with axes at their defaults, in any order, until the product of all is bounded."""
        sizes = self.case.sizes()
        for axis in random.sample(sizes, len(sizes)):
            if math.prod(getattr(case, size) for size in sizes) <= WORK:
                break
            case = case.but(**{axis: getattr(self.case(), axis)})
        return case

    def drawn(self, subject: Any) -> SearchStrategy[AnyCase]:
        """The same space in small, every number drawn."""
        tensors = [name for name in self.case.AXES if name != "cotangent"]
        lists = st.tuples(*(A_DOZEN for _ in tensors))
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
        few = {name: min(getattr(case, name), FEW) for name in self.case.sizes()}
        plain = {"values": "normal"} if tensors else {}
        return self.fit(case.but(numbers=named_numbers, **plain, **few), subject)

    def fit(self, case: AnyCase, subject: Any) -> AnyCase:
        if case.dtype not in subject.dtypes:
            case = case.but(dtype=subject.dtypes[0])
        return numbers_that_fit(self.settle(case, subject))

    def simpler(self, case: AnyCase, subject: Any) -> Iterator[AnyCase]:
        for step in self._steps(case, subject):
            fitted = self.fit(step, subject)
            if fitted != case:
                yield fitted

    def _steps(self, case: AnyCase, subject: Any) -> Iterator[AnyCase]:
        if case.dtype != subject.dtypes[0]:
            yield case.but(dtype=subject.dtypes[0])
        for each in fields(case):
            value, sizes = getattr(case, each.name), self.case.sizes()
            if each.name not in (*sizes, "values", "numbers", "dtype") and value != each.default:
                yield case.but(**{each.name: each.default})
        numbers = sum(map(math.prod, case.shapes().values()))
        if case.written_out and numbers <= MANY:
            yield from self._fewer_numbers(case)
            yield from self._rounder(case)
            return
        if case.written_out:
            yield case.but(numbers=())
        for axis in self.case.sizes():
            yield from (case.but(**{axis: size}) for size in below(getattr(case, axis)))
        values = getattr(case, "values", "")
        rank = PLAINER_VALUES.index(values) if values in PLAINER_VALUES else len(PLAINER_VALUES)
        yield from (case.but(values=plainer) for plainer in PLAINER_VALUES[:rank] if values)
        if case.AXES and numbers <= READABLE:
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
        for axis in self.case.sizes():
            size = getattr(case, axis) if axis not in self.case.SIZES else 1
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

    def show(self, inputs: Any) -> dict[str, Any]:
        """Each tensor, and each field of the case that says something else than its default."""
        told = {name: shown(tensor, inputs.case.dtype) for name, tensor in inputs.tensors.items()}
        hidden = {*self.case.sizes(), "dtype", "values", "seed", "numbers"}
        for each in fields(inputs.case):
            value = getattr(inputs.case, each.name)
            if each.name not in hidden and value != each.default:
                told[each.name] = value
        return told
