"""A declaration as Python that a user can paste, and what was found out of a subject beside it."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from headcheck.declarations import name_of
from headcheck.roles import role

WIDTH = 100
"""Columns that a pasted line takes at most."""


@dataclass(frozen=True)
class Found:
    """What a role finds out of a subject before it judges it, and the declaration that says so."""

    notes: Sequence[str]
    declaration: Any
    name: str

    def __str__(self) -> str:
        return "\n".join([*map(commented, self.notes), "", self.pasted])

    @property
    def pasted(self) -> str:
        """The declaration as Python with its imports, without the fields at their default."""
        return pasted(self.declaration, self.name)


def found_out(declaration: Any, *, device: str = "cpu", name: str = "") -> Found:
    """What a role other than attention finds out of a subject: fields that are declared stay as they are."""
    of_role: Any = role(declaration.role)
    subject, notes = of_role.prepare(declaration, dtypes=(), device=device, seed=0)
    new = {
        field: value
        for field, value in of_role.found(subject).items()
        if value is not None and getattr(declaration, field) is None
    }
    return Found(notes, declaration.but(**new), identifier(declaration, name))


def commented(line: str) -> str:
    """What is told beside what is to be pasted: all that is printed together is Python."""
    return "\n".join(f"# {each}" for each in line.splitlines())


def identifier(declaration: Any, name: str) -> str:
    """The name that was typed for the function, where it can stand in Python, or the function's own."""
    known = name if name.isidentifier() else getattr(declaration.function, "__name__", "")
    return known if known.isidentifier() else "my_function"


def pasted(declaration: Any, name: str) -> str:
    """The declaration of a function that goes by this name, with its imports, without what is at its default."""
    given = [
        f"{each.name}={written(getattr(declaration, each.name))}"
        for each in fields(declaration)
        if each.name not in ("function", "name") and not _at_default(declaration, each)
    ]
    text = _wrapped(f"subject = headcheck.{type(declaration).__name__}({name}", given)
    if "replace(named(" not in text:
        return f"import headcheck\n\n{text}"
    imports = "from dataclasses import replace\n\nimport headcheck\nfrom headcheck.arithmetic import named"
    return f"{imports}\n\n{text}"


def written(value: Any) -> str:
    """As Python is written by hand: double quotes."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        inside = ", ".join(map(written, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written(k)}: {written(v)}" for k, v in value.items()) + "}"
    return name_of(value) if callable(value) else str(value)


def _at_default(declaration: Any, each: Any) -> bool:
    default = each.default if each.default is not MISSING else each.default_factory()
    return bool(getattr(declaration, each.name) == default)


def _wrapped(head: str, arguments: list[str]) -> str:
    line = ", ".join([head, *arguments]) + ")"
    if len(line) <= WIDTH:
        return line
    opening, _, first = head.partition("(")
    return "\n".join([f"{opening}(", *(f"    {each}," for each in [first, *arguments]), ")"])
