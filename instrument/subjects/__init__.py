"""Built-in subjects. Adding one is adding one function to a module of this package:

    @builtin("torch-sdpa", "torch's scaled_dot_product_attention, dispatched as torch likes.")
    def torch_sdpa() -> Attention:
        ...

A module here imports what its subjects need inside the function, so that listing them costs nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

from headcheck.errors import SubjectError


@dataclass(frozen=True)
class BuiltIn:
    """One built-in subject: what it is, and what it takes to have it."""

    name: str
    sentence: str
    make: Callable[[], Any]
    needs: tuple[str, ...]
    install: str

    @property
    def missing(self) -> tuple[str, ...]:
        """The packages it needs that are not installed here."""
        return tuple(package for package in self.needs if find_spec(package) is None)

    def declaration(self) -> Any:
        """The subject itself."""
        if self.missing:
            raise SubjectError(
                f"the built-in subject {self.name} needs {', '.join(self.missing)}; run: {self.install}"
            )
        return self.make()


_REGISTRY: dict[str, BuiltIn] = {}


def builtin(
    name: str, sentence: str, *, needs: tuple[str, ...] = ("torch",), install: str = ""
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function that returns a declaration. install: the line that installs what it needs."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        line = install or f"pip install {' '.join(needs)}"
        if name in _REGISTRY:
            raise ValueError(f"two built-in subjects are called {name}")
        _REGISTRY[name] = BuiltIn(name, sentence, make, needs, line)
        return make

    return register


_FAMILIES: dict[str, Callable[[str], BuiltIn]] = {}


def family(
    name: str, sentence: str, *, needs: tuple[str, ...], install: str
) -> Callable[[Callable[[str], Any]], Callable[[str], Any]]:
    """Register a function from a word to a declaration: NAME:WORD is then a built-in subject."""

    def register(make: Callable[[str], Any]) -> Callable[[str], Any]:
        def member(word: str) -> BuiltIn:
            return BuiltIn(f"{name}:{word}", sentence, lambda: make(word), needs, install)

        _FAMILIES[name] = member
        return make

    return register


def families() -> dict[str, Callable[[str], BuiltIn]]:
    """What makes the built-in subjects of a family, by the word before the colon."""
    builtins()
    return dict(_FAMILIES)


def named(name: str) -> BuiltIn | None:
    """The built-in subject of that name, a member of a family too; None where there is none."""
    word, colon, rest = name.partition(":")
    if colon and rest and word in families():
        return families()[word](rest)
    return builtins().get(name)


@cache
def builtins() -> dict[str, BuiltIn]:
    """Every built-in subject, by name."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(_REGISTRY)
