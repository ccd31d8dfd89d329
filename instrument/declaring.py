"""What `--declare FIELD=VALUE` says of a subject, beside what its declaration does."""

import ast
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from headcheck.errors import SubjectError

NOT_SAID = ("function", "name")
"""Fields that the subject itself tells."""


def declaring(declaration: Any, said: Iterable[str]) -> Any:
    """The declaration with each FIELD=VALUE in the place of its own. VALUE: a word, or Python as in a file."""
    types = {each.name: str(each.type) for each in fields(declaration) if each.name not in NOT_SAID}
    changes: dict[str, Any] = {}
    for text in said:
        field, equals, value = text.partition("=")
        if not equals:
            raise SubjectError(f"cannot read --declare {text!r}; write FIELD=VALUE, such as layout=bshd")
        if field not in types:
            close = get_close_matches(field, types, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(types)}"
            raise SubjectError(f"a subject of the role {declaration.role} declares no {field!r} ({hint})")
        changes[field] = _several(_value(value)) if "tuple" in types[field] else _value(value)
    return declaration.but(**changes) if changes else declaration


def _value(text: str) -> Any:
    """64 is a number, True a truth value, (1, 2) a tuple, and what Python cannot read is a word."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _several(value: Any) -> Any:
    """What stands in a field that holds several, or None: one alone, or words with commas between them."""
    if isinstance(value, str):
        return tuple(value.split(","))
    return value if isinstance(value, tuple | None) else (value,)
