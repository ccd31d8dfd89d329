"""What `--declare FIELD=VALUE` says of a subject, beside what its declaration does."""

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from headcheck.errors import SubjectError
from headcheck.loading import load

NOT_SAID = ("function", "name")
"""Fields that the subject itself tells."""
TRUTH = {"true": True, "false": False}
WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a word", NoneType: "None"}


def declaring(declaration: Any, said: Iterable[str]) -> Any:
    """The declaration with each FIELD=VALUE in the place of its own, or FIELD.KEY=VALUE of a mapping. VALUE: a word,
    Python as in a file, or where a function stands, as a subject is named.

    SubjectError: there is no such field, or it takes no such value.
    """
    types = {each.name: each.type for each in fields(declaration) if each.name not in NOT_SAID}
    changes: dict[str, Any] = {}
    for text in said:
        field, equals, value = text.partition("=")
        if not equals:
            raise SubjectError(f"cannot read --declare {text!r}; write FIELD=VALUE, such as layout=bshd")
        field, dot, key = field.partition(".")
        if dot and field in types and not _holds_entries(types[field]):
            raise SubjectError(f"cannot take --declare {text!r}; {field} is no mapping")
        if field not in types:
            close = get_close_matches(field, types, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(types)}"
            if declaration.role == "agreement":
                hint = (
                    f"name declarations, such as file.py:subject with headcheck.Attention(function, {text})"
                )
            raise SubjectError(f"a subject of the role {declaration.role} declares no {field!r} ({hint})")
        read = load(value)[0] if _is_named(value, types[field]) else _value(value)
        if dot:
            before = changes.get(field, getattr(declaration, field))
            read = {**(before if isinstance(before, Mapping) else {}), key: read}
        fitting = [each for each in (read, _several(read)) if _fits(each, types[field])]
        if not fitting:
            named, kind = (f"{field}.{key}", _of_entries(types[field])) if dot else (field, types[field])
            if dot:
                # What checks the entries of a mapping says best what they are.
                declaration.but(**{field: {key: read[key]}})
            raise SubjectError(f"cannot take --declare {text!r}; {named} is {in_words(kind)}")
        changes[field] = fitting[0]
    return declaration.but(**changes) if changes else declaration


def _is_named(value: str, kind: Any) -> bool:
    """Whether a function is meant, which stands in a file or a module."""
    return ":" in value and any(get_origin(part) is Callable for part in _parts(kind))


def _holds_entries(kind: Any) -> bool:
    """Whether a field may be a mapping."""
    return any(get_origin(part) is Mapping for part in _parts(kind))


def _of_entries(kind: Any) -> Any:
    """What the entries of such a mapping may be."""
    return next(get_args(part)[1] for part in _parts(kind) if get_origin(part) is Mapping)


def _parts(kind: Any) -> tuple[Any, ...]:
    """What a field may be, one by one."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def in_words(kind: Any) -> str:
    """What a field of that type takes."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(in_words, parts)))
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple:
        return f"several, each {in_words(parts[0])}"
    if origin is Callable:
        return "a function, as FILE.py:NAME or MODULE:NAME"
    if origin is Mapping:
        return "a mapping, said entry by entry: FIELD.KEY=VALUE"
    return WORDS.get(kind, "what only a file can declare")


def _value(text: str) -> Any:
    """64 is a number, True a truth value, (1, 2) a tuple, and what Python cannot read is a word."""
    try:
        return TRUTH[text.lower()] if text.lower() in TRUTH else ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _several(value: Any) -> tuple[Any, ...]:
    """Of one alone, of words with commas between them, and of a list."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(","))
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a field's type; which words a convention knows, its declaration says."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str | bool) or value in parts
    if origin is tuple:
        each = parts[:1] * len(value) if Ellipsis in parts and isinstance(value, tuple) else parts
        return isinstance(value, tuple) and len(value) == len(each) and all(map(_fits, value, each))
    if origin is Mapping:
        return isinstance(value, dict) and all(
            _fits(key, parts[0]) and _fits(of_it, parts[1]) for key, of_it in value.items()
        )
    if origin is Callable:
        return callable(value)
    plain = isinstance(kind, type) and isinstance(value, (int, float) if kind is float else kind)
    return plain and (kind is bool or not isinstance(value, bool))
