"""Values of a case as they are typed: text of a few kinds, numbers, booleans, null, and lists of them."""

import json
from collections.abc import Collection
from difflib import get_close_matches
from types import NoneType
from typing import Any, get_args, get_origin

from headcheck.errors import CaseError

Numbers = tuple[Any, ...]
"""A tensor written out: nested tuples of numbers (or of booleans, for a mask)."""
PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Words of Python, which are read as well."""
KINDS = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
"""What a field takes, in words."""


def unknown(token: str, names: Collection[str]) -> CaseError:
    """Of a token that names no field."""
    close = get_close_matches(token.partition("=")[0], names, n=1)
    hint = f"did you mean {close[0]}=...?" if close else f"the names are {', '.join(names)}"
    return CaseError(f"cannot read {token!r} in the case, where a token is name=value; {hint}")


def one_of(name: str, text: str, allowed: Collection[str]) -> str:
    """A text that is one of these; any text where there are none."""
    if allowed and text not in allowed:
        raise _wrong(name, text, f"one of {', '.join(dict.fromkeys(allowed))}")
    return text


def of_type(name: str, text: str, hint: Any, least: float) -> Any:
    """A value of an annotated type; least: the least that a whole number may be."""
    value = _read(text)
    if not _fits(value, hint) or (hint is int and value < least):
        raise _wrong(name, text, _in_words(hint) + (f", {least} or more" if hint is int else ""))
    return value


def numbers_in(name: str, text: str) -> Numbers:
    """A tensor written out."""
    found = _read(text)
    if not isinstance(found, tuple) or not _are_numbers(found):
        raise _wrong(name, text, "numbers in brackets, such as [[0.5],[1]]")
    return found


def _wrong(name: str, text: str, wanted: str) -> CaseError:
    return CaseError(f"cannot read {name}={text} in the case: {name} is {wanted}")


def _read(text: str) -> Any:
    """What JSON makes of a text, with tuples for lists; the text itself where it makes nothing of it."""
    try:
        return _freeze(json.loads(PYTHON.get(text, text)))
    except ValueError:
        return text


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def _are_numbers(value: object) -> bool:
    return all(map(_are_numbers, value)) if isinstance(value, tuple) else isinstance(value, int | float)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of an annotated type; a whole number is a number, true is neither."""
    parts = get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_fits, value, parts))
    if parts:
        return any(_fits(value, part) for part in parts)
    kinds = (int, float) if hint is float else hint
    return isinstance(value, kinds) and (hint is bool or not isinstance(value, bool))


def _in_words(hint: Any) -> str:
    parts = get_args(hint)
    if get_origin(hint) is tuple:
        return f"[{', '.join(map(_in_words, parts))}]"
    return " or ".join(map(_in_words, parts)) if parts else KINDS[hint]
