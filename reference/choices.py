"""Where the field has several conventions, the choice is a name."""

from typing import Any, get_args


def require_choice(name: str, value: str, choices: Any) -> None:
    """ValueError unless `value` is one of the names of the Literal `choices`."""
    if value not in get_args(choices):
        raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, get_args(choices)))}")
