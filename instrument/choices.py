"""What a field of a declaration may be, where its type says so by naming literals."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@cache
def choices_of(declaration: Any) -> Mapping[str, tuple[object, ...]]:
    """Field -> its values, of the fields of a dataclass whose type names literals."""
    hints = get_type_hints(declaration)
    types = {each.name: _alternatives(hints[each.name]) for each in fields(declaration)}
    return {
        name: tuple(value for each in alternatives for value in _values(each))
        for name, alternatives in types.items()
        if any(get_origin(each) is Literal for each in alternatives)
    }


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _values(alternative: Any) -> tuple[object, ...]:
    """Those of a type that has few: of literals, of bool and of None."""
    if get_origin(alternative) is Literal:
        return get_args(alternative)
    return {bool: (True, False), NoneType: (None,)}[alternative]
