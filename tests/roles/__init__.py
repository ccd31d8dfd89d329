"""Wrong and right functions of the roles other than attention: a module for each role, with others such as ROLE_more.py
beside it.

    @wrong("The sum starts at one.", breaks="distribution/weights-sum-to-one", real="where it happened")
    def off_by_one(x: Tensor, dim: int) -> Tensor:
        ...

The role is the one with which the module's name begins. `breaks` names the laws that a person would
name, each of which must break; `declares` gives fields of the declaration. A function with a parameter named
`memory` is handed a dict of its own.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headcheck.roles import HOMES, role

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One function of a role's corpus."""

    id: str
    """Role and function: softmax/off-by-one."""
    role: str
    sentence: str
    function: Function
    declares: Mapping[str, Any]
    breaks: tuple[str, ...] = ()
    """Laws, without the role, that must break; none for a right function."""
    real: str = ""
    """Where it happened."""

    def declaration(self) -> Any:
        """The function as a subject that remembers nothing of those handed out before."""
        function = self.function
        if "memory" in inspect.signature(function).parameters:
            function = functools.partial(function, memory={})
        of_role: Any = role(self.role)
        return of_role.declaration(function, name=self.id, **self.declares)


WRONG: dict[str, Entry] = {}
RIGHT: dict[str, Entry] = {}


def wrong(
    sentence: str, *, breaks: str | Iterable[str], real: str = "", **declares: Any
) -> Callable[[Function], Function]:
    """Register a wrong function."""
    named = (breaks,) if isinstance(breaks, str) else tuple(breaks)
    return _register(WRONG, sentence, declares, breaks=named, real=real)


def right(sentence: str, **declares: Any) -> Callable[[Function], Function]:
    """Register a right function, written in another way."""
    return _register(RIGHT, sentence, declares)


def _register(
    table: dict[str, Entry], sentence: str, declares: Mapping[str, Any], **more: Any
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        module = function.__module__.rpartition(".")[2]
        of_role = next((role for role in HOMES if f"{module}_".startswith(f"{role}_")), module)
        identity = f"{of_role}/{function.__name__.replace('_', '-')}"
        if identity in WRONG or identity in RIGHT:
            raise ValueError(f"two functions are called {identity}")
        table[identity] = Entry(
            id=identity, role=of_role, sentence=sentence, function=function, declares=declares, **more
        )
        return function

    return register


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
