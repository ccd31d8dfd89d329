"""Where slips are made: in the right functions of the corpus, and in what these call of their own modules."""

import ast
import builtins
import hashlib
import importlib
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from benchmarks.mutants.slips import Slip, slips
from tests import corpus, faults, roles

KERNELS = ("tests.faults.clean", "tests.faults.blocked")
"""Modules of steps that the right variants of attention are put together from."""

REACHED = "_reached"

Place = tuple[str, str]
"""A module and what is defined at its top."""


@dataclass(frozen=True)
class Mutant:
    """A right function with one slip in it, or in what it calls."""

    id: str
    """Where it is, and what became of what."""
    base: str
    """The right function of the corpus by which it is judged."""
    role: str
    kind: str
    module: str
    number: int
    """Of the slip among all of its module."""

    def put(self, reached: Callable[[Any], Any]) -> Any:
        """Make the slip in this process, for good, and give the entry of the corpus that has it.

        reached: handed what stands where the slip is, each time that it is run, and gives it back.
        """
        _slips(self.module)[self.number][1].make(REACHED)
        setattr(builtins, REACHED, reached)
        base = _home(self.base)
        for table in (faults.FAULTS, faults.VARIANTS, roles.WRONG, roles.RIGHT):
            table.clear()
        for name in dict.fromkeys((self.module, base)):
            tree = ast.fix_missing_locations(_tree(name))
            module = sys.modules[name]
            exec(compile(tree, str(module.__file__), "exec"), vars(module))  # noqa: S102 - that is what a slip is
        return {**faults.VARIANTS, **roles.RIGHT}[self.base]


def mutants() -> list[Mutant]:
    """One for each slip, in an order by chance that never changes."""
    found = {}
    for module, bases in _bases().items():
        for number, (name, slip) in enumerate(_slips(module)):
            if name in bases:
                stem = module.rpartition(".")[2]
                base = bases[name]
                mutant = Mutant(
                    f"{stem}.{name}: {slip.told}", base, corpus.RIGHT[base].role, slip.kind, module, number
                )
                found.setdefault(mutant.id, mutant)
    return sorted(found.values(), key=lambda each: hashlib.sha256(each.id.encode()).digest())


def _bases() -> dict[str, dict[str, str]]:
    """By module and definition: the right function that shows what a slip there does."""
    found: dict[str, dict[str, tuple[tuple[int, int], str]]] = {}
    for name, entry in corpus.RIGHT.items():
        if entry.role == "agreement":
            continue
        reached = set(_reached(_home(name), name.partition("/")[2].replace("-", "_")))
        rank = (-len(getattr(entry, "features", ())), len(reached))
        for module, definition in reached:
            known = found.setdefault(module, {})
            known[definition] = min(known.get(definition, (rank, name)), (rank, name))
    return {
        module: {name: base for name, (_, base) in definitions.items()}
        for module, definitions in found.items()
    }


def _home(name: str) -> str:
    """The module of a right function."""
    entry = corpus.RIGHT[name]
    if isinstance(entry, faults.Entry):
        return f"tests.faults.{entry.family}"
    return str(inspect.unwrap(entry.function).__module__)


def _reached(module: str, definition: str) -> Iterator[Place]:
    """The definitions that one of them comes to by names, itself the first."""
    waiting, seen = deque([(module, definition)]), set()
    while waiting:
        place = waiting.popleft()
        if place in seen or place[1] not in _definitions(place[0]):
            continue
        seen.add(place)
        yield place
        waiting.extend(_named(place[0], _definitions(place[0])[place[1]]))


def _named(module: str, node: ast.AST) -> Iterator[Place]:
    for each in ast.walk(node):
        match each:
            case ast.Name(name):
                yield module, name
            case ast.Attribute(ast.Name(name), attribute):
                for kernel in KERNELS:
                    if kernel.endswith(f".{name}") and isinstance(
                        vars(sys.modules[module]).get(name), ModuleType
                    ):
                        yield kernel, attribute
            case ast.keyword("replaces", ast.Attribute(ast.Name(name), _)):
                yield f"tests.faults.{name}", "attention"


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


@cache
def _definitions(module: str) -> dict[str, ast.AST]:
    if module not in sys.modules or not module.startswith("tests."):
        return {}
    return {
        each.name: each for each in _tree(module).body if isinstance(each, ast.FunctionDef | ast.ClassDef)
    }


@cache
def _slips(module: str) -> list[tuple[str, Slip]]:
    return [(name, slip) for name, node in _definitions(module).items() for slip in slips(node)]
