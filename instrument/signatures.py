"""What a function's signature says of how it is called."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from headcheck.errors import SubjectError

INPUTS = {
    "query": ("query", "queries", "q"),
    "key": ("key", "keys", "k"),
    "value": ("value", "values", "v"),
}
"""What query, key and value are called."""
STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
OTHER_THINGS = ("mask", "valid", "lengths", "residual", "dim", "axis")
"""Words in the names of what may be left out, and is not asked for by place where its own names lack them."""


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters by name, of a module those of its forward; None where a function written in C does not tell."""
    function = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return _scripted(function)


def _scripted(function: Any) -> dict[str, inspect.Parameter] | None:
    """The parameters of a function of TorchScript, whose schema tells what its signature does not; None of others."""
    schema = getattr(function, "schema", None)
    if not isinstance(schema, torch._C.FunctionSchema):  # noqa: SLF001 - it has no public name
        return None
    return {
        each.name: inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY if each.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=each.default_value if each.has_default_value() else inspect.Parameter.empty,
        )
        for each in schema.arguments
    }


def require_parameters(function: Callable[..., Any], declared: Mapping[str, str]) -> None:
    """SubjectError: an argument is declared under a name that the function has no parameter of.

    declared: canonical argument -> the name by which the function is said to take it.
    """
    parameters = parameters_of(function)
    if parameters is None or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for argument, name in declared.items():
        if name not in parameters:
            raise SubjectError(
                f"arguments={{{argument!r}: {name!r}}} is declared, and the function has no parameter {name!r}; "
                f"it has: {', '.join(parameters) or 'none'}"
            )


def needed_by(function: Callable[..., Any]) -> list[str] | None:
    """The parameters that a call does not do without; None where a function written in C does not tell."""
    parameters = parameters_of(function)
    if parameters is None:
        return None
    return [
        name for name, each in parameters.items() if each.default is each.empty and each.kind not in STARS
    ]


def must_be_given(function: Callable[..., Any], arguments: Mapping[str, str]) -> tuple[str, ...]:
    """The canonical arguments that are passed in every call: without a default, or with one that does something.

    arguments: canonical name -> the parameter that takes it.
    """
    parameters = parameters_of(function) or {}
    defaults = {
        canonical: parameters[name].default for canonical, name in arguments.items() if name in parameters
    }
    return tuple(
        canonical
        for canonical, default in defaults.items()
        if default is inspect.Parameter.empty or _does_something(canonical, default)
    )


def _does_something(canonical: str, default: object) -> bool:
    """Whether a default is causal, or causal unless there is a mask, as None may mean, or drops at a rate."""
    if canonical == "is_causal":
        return default is None or default is True
    return canonical == "dropout_p" and isinstance(default, float) and default > 0


def no_limit(function: Callable[..., Any], parameter: str) -> int | None:
    """What stands for no limit on a side of a window: as the default (-1, -1) or (None, None) says, else by the name."""
    known = (parameters_of(function) or {}).get(parameter)
    if known is not None and isinstance(known.default, tuple | list):
        return None if None in known.default else -1
    return -1 if parameter == "window_size" else None


def takes_a_rate(function: Callable[..., Any], parameter: str) -> bool:
    """Whether a parameter of dropout may be a number: not so where it is None by default, or a module by its type."""
    known = (parameters_of(function) or {}).get(parameter)
    return known is None or not (
        known.default is None or re.search(r"\b(Dropout|Module)\b", str(known.annotation))
    )


def tensors_by_name(function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of query, key and value where these are taken by keyword only, or in another order; () elsewhere."""
    first = {name.lower(): name for name in islice(parameters_of(function) or (), len(INPUTS))}
    in_order = [next((first[name] for name in INPUTS[place] if name in first), "") for place in INPUTS]
    if all(in_order) and in_order != [*first.values()]:
        return tuple(in_order)
    by_keyword = [
        name
        for name, each in (parameters_of(function) or {}).items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    taken = [next((name for name in by_keyword if name in (long, long[0])), "") for long in INPUTS]
    return tuple(taken) if all(taken) else ()


def keyword_for(function: Callable[..., Any], aliases: Sequence[str], place: int) -> str | int | None:
    """How a function takes an argument: by a keyword, at a place, or not at all.

    aliases: the names that other libraries gave the argument. place: where the canonical call has it.
    """
    parameters = parameters_of(function)
    if parameters is None:
        return place
    named = next((name for name in aliases if name in parameters), None)
    if named is not None:
        placed = parameters[named].kind is inspect.Parameter.POSITIONAL_ONLY
        return list(parameters).index(named) if placed else named
    if _is_an_option(next(islice(parameters.values(), place, None), None), aliases):
        return None
    kinds = [each.kind for each in parameters.values()]
    if any(kind is inspect.Parameter.VAR_KEYWORD for kind in kinds):
        return aliases[0]
    free = sum(kind in POSITIONAL for kind in kinds)
    open_end = any(kind is inspect.Parameter.VAR_POSITIONAL for kind in kinds)
    return place if place < free or open_end else None


def _is_an_option(parameter: inspect.Parameter | None, aliases: Sequence[str]) -> bool:
    """Whether it may be left out, and its name or default is none of what is asked for: mask=None where that is an axis,
    a flag, a word, a count such as block=128, or a factor where that is no small number, such as an eps.

    aliases: names of what is asked for.
    """
    if parameter is None or parameter.default is parameter.empty:
        return False
    if any(word in parameter.name and not any(word in name for name in aliases) for word in OTHER_THINGS):
        return True
    default = parameter.default
    factor = isinstance(default, float) and "eps" not in aliases
    return isinstance(default, bool | str) or factor or (isinstance(default, int) and default > 1)


def placed_only(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that go by place only."""
    parameters = (parameters_of(function) or {}).values()
    return [each for each in parameters if each.kind is inspect.Parameter.POSITIONAL_ONLY]


def by_place(
    only: Sequence[inspect.Parameter], inputs: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call by place and by keyword.

    only: the parameters that go by place only. inputs: what goes first. What is not given before an argument that is has
    its default.
    """
    placed, named = [*inputs], dict(keywords)
    last = max((place for place, each in enumerate(only) if each.name in named), default=-1)
    between = only[len(placed) : last + 1]
    if any(each.default is each.empty and each.name not in named for each in between):
        return placed, named  # Python says what is missing.
    placed += [named.pop(each.name, each.default) for each in between]
    return placed, named


def not_recognised(
    function: Callable[..., Any], given: Collection[object], inputs: int
) -> list[inspect.Parameter]:
    """The parameters after so many inputs, which come first, that nothing is given to; *args and **kwargs are none.

    given: the parameters that something is given to.
    """
    after = [*(parameters_of(function) or {}).values()][inputs:]
    return [each for each in after if each.kind not in STARS and each.name not in given]


def left_at_defaults(unknown: Iterable[inspect.Parameter]) -> str:
    """What is said of such parameters."""
    return f"parameters not recognised, left at their defaults: {', '.join(each.name for each in unknown)}"
