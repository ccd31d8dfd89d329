"""A recipe: one call of a subject as a line of text, small enough to be typed and replayed.

The case of every role is a frozen dataclass of plain data with this class as its base; it has the fields
`dtype`, `seed` and `numbers`, and a default for each field. Only what differs from the defaults is printed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from random import Random
from typing import Any, ClassVar, Self

from headcheck.errors import CaseError

Numbers = tuple[Any, ...]
"""A tensor written out: nested tuples of numbers (or of booleans, for a mask)."""

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
        """The same case with some fields changed."""
        return replace(self, **changes)

    @property
    def written_out(self) -> bool:
        """Whether the numbers stand in the case itself."""
        return bool(self.numbers)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor that may be written out."""
        return {name: tuple(getattr(self, axis) for axis in axes) for name, axes in self.AXES.items()}

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

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a case as `str` writes it: name=value, separated by blanks."""
        plain: dict[str, Any] = {}
        numbers: list[tuple[str, Numbers]] = []
        known = {each.name: each for each in fields(cls) if each.name != "numbers"}
        for token in text.split():
            name, equals, value = token.partition("=")
            if not equals or (name not in known and name not in cls.AXES):
                raise CaseError(
                    f"cannot read {token!r} in the case; a token is name=value with a name of a case"
                )
            if name in cls.AXES and value.startswith("["):
                numbers.append((name, _freeze(_read(name, value))))
            elif name in known:
                default = known[name].default
                plain[name] = value if isinstance(default, str) else _freeze(_read(name, value))
            else:
                raise CaseError(f"cannot read {token!r} in the case: {name} takes numbers in brackets")
        return cls(**plain, numbers=tuple(numbers))


def _read(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as problem:
        raise CaseError(f"cannot read {name}={value!r} in the case: {problem}") from None


def _write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, list) else value
