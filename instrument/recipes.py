"""A recipe: one call of a subject as a line of text, small enough to be typed and replayed.

The case of every role is a frozen dataclass of plain data with this class as its base; it has the fields
`dtype`, `seed` and `numbers`, and a default for each field. Only what differs from the defaults is printed.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, Self, get_type_hints

from headcheck.declarations import DTYPES
from headcheck.errors import CaseError
from headcheck.reading import Numbers, numbers_in, of_type, one_of, unknown

MOST_NUMBERS = 1 << 26
"""So many numbers a tensor of a case may hold: with its float64 copies it fits into a few GiB."""

RARELY = 0.06
"""The chance of a size of real models, for each axis by itself."""


def option(*options: Any, rarely: Sequence[Any] = ()) -> Any:
    """A field of a case: its default, which is the simplest, and what else it may be drawn as.

    rarely: the sizes of real models, which cost time, and at which kernels take other paths.
    """
    return field(default=options[0], metadata={"options": options, "rarely": tuple(rarely)})


def picked(random: Random, each: Field[Any]) -> Any:
    """One of a field's options."""
    rarely = each.metadata.get("rarely")
    return random.choice(rarely if rarely and random.random() < RARELY else options_of(each))


def options_of(each: Field[Any]) -> tuple[Any, ...]:
    """What a field may be drawn as; () where it is not drawn by its options."""
    found: tuple[Any, ...] = each.metadata.get("options", ())
    return found


@dataclass(frozen=True)
class Recipe:
    """What all cases have in common: changed copies, their text, and reading it back."""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Each tensor that may be written out, and the fields that say how long its axes are."""

    SIZES: ClassVar[tuple[str, ...]] = ()
    """Further fields that are sizes, of which a smaller one is simpler."""

    dtype: str = "float32"
    seed: int = 0
    numbers: tuple[tuple[str, Numbers], ...] = ()
    """Tensors written out, by name, in place of those that the seed gives."""

    def but(self, **changes: Any) -> Self:
        """The same case with some fields changed; itself where none is."""
        differing = {name: value for name, value in changes.items() if getattr(self, name) != value}
        return replace(self, **differing) if differing else self

    @property
    def written_out(self) -> bool:
        """Whether the numbers stand in the case itself."""
        return bool(self.numbers)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor that may be written out."""
        return {name: tuple(getattr(self, axis) for axis in axes) for name, axes in self.AXES.items()}

    @classmethod
    def sizes(cls) -> list[str]:
        """The fields that are sizes, the lengths of axes before others."""
        of_axes = (axis for axes in cls.AXES.values() for axis in axes)
        return list(dict.fromkeys((*of_axes, *cls.SIZES)))

    def asked_for(self) -> list[str]:
        """What the call asks for beyond tensors of some sizes: the fields that differ from their defaults."""
        plain = {*self.sizes(), "dtype", "seed", "numbers", "values"}
        differing = (each.name for each in fields(self) if getattr(self, each.name) != each.default)
        return [name for name in differing if name not in plain]

    def __str__(self) -> str:
        last = ("seed", "numbers")
        named = [each for each in fields(self) if each.name not in last]
        named += [each for each in fields(self) if each.name == "seed"]
        tokens = [
            f"{each.name}={_write(getattr(self, each.name))}"
            for each in named
            if getattr(self, each.name) != each.default
        ]
        tokens += [f"{name}={_write(numbers)}" for name, numbers in self.numbers]
        return " ".join(tokens)

    def changes(self, other: Self) -> str:
        """What makes this case the other one, as it would be typed."""
        plain = [each.name for each in fields(self) if each.name != "numbers"]
        changed = [name for name in plain if getattr(self, name) != getattr(other, name)]
        tensors = [pair for pair in other.numbers if pair not in self.numbers]
        pairs = [*((name, getattr(other, name)) for name in changed), *tensors]
        gone = [f"no {name}" for name, _ in self.numbers if name not in dict(other.numbers)]
        return " ".join([*(f"{name}={_write(value)}" for name, value in pairs), *gone])

    @classmethod
    def parse(cls, text: str, options: Mapping[str, Collection[str]] = MappingProxyType({})) -> Self:
        """Read a case as `str` writes it: name=value, separated by blanks.

        options: what fields of text may be, where they do not say so themselves. CaseError: a value is none of
        its field, or too large.
        """
        known = {each.name: each for each in fields(cls) if each.name != "numbers"}
        hints, numbers = get_type_hints(cls), list[tuple[str, Numbers]]()
        plain: dict[str, Any] = {}
        for token in text.split():
            name, equals, value = token.partition("=")
            if not equals or name not in {*known, *cls.AXES}:
                raise unknown(token, dict.fromkeys([*known, *cls.AXES]))
            if name in cls.AXES and (value.startswith("[") or name not in known):
                numbers.append((name, numbers_in(name, value)))
            elif hints[name] is str:
                allowed = DTYPES if name == "dtype" else options.get(name) or options_of(known[name])
                plain[name] = one_of(name, value, allowed)
            else:
                plain[name] = of_type(name, value, hints[name], _least(known[name]))
        case = cls(**plain, numbers=tuple(numbers))
        _require_moderate(case)
        return case


def _least(each: Field[Any]) -> float:
    """The least that a field may be, of those that are whole numbers."""
    return min(number for number in (1, each.default, *options_of(each)) if isinstance(number, int))


def _require_moderate(case: Recipe) -> None:
    """CaseError: the written tensors are of other shapes, or some tensor would not fit into memory."""
    shapes = case.shapes()
    for name, numbers in case.numbers:
        if _count(numbers) != math.prod(shapes[name]):
            raise CaseError(
                f"{name} holds {_count(numbers)} numbers in the case; its shape {shapes[name]} asks for "
                f"{math.prod(shapes[name])}"
            )
    largest = max(case.sizes(), key=lambda size: getattr(case, size), default="")
    most = max([*map(math.prod, shapes.values()), math.prod(getattr(case, size) for size in case.SIZES)])
    if most > MOST_NUMBERS:
        raise CaseError(
            f"{largest}={getattr(case, largest)} is too large in the case: a tensor would hold {most:,} numbers, "
            f"and {MOST_NUMBERS:,} are the most"
        )


def _count(numbers: Any) -> int:
    return sum(map(_count, numbers)) if isinstance(numbers, tuple) else 1


def _write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
