"""What the annotations of the reference say of shapes, checked at each call: jaxtyping's import hook with this checker.

The hook wants a typechecker. Only tensors are to be checked here, for which a few lines do.
"""

import inspect
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin, get_type_hints

from jaxtyping import AbstractArray, config, install_import_hook

HOOK = f"sys.modules[{__name__!r}].checked"
"""The checker as the hook imports it: by an expression that begins with a module's name."""


def check_the_reference() -> None:
    """From now on, where no module of the reference is imported yet."""
    install_import_hook("headcheck.reference", HOOK)


def look_at_shapes(look: bool) -> None:
    """Whether calls of the reference are checked from now on: it takes as long as a small call does."""
    config.update("jaxtyping_disable", not look)


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises TypeError where a tensor that it takes or gives is of another shape than annotated."""
    signature = inspect.signature(function)
    hints = {name: each.annotation for name, each in signature.parameters.items()}

    def call(*args: Any, **kwargs: Any) -> Any:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            _require(value, hints[name])
        result = function(*args, **kwargs)
        _require(result, signature.return_annotation)
        return result

    return call


def _require(value: Any, hint: Any) -> None:
    if not _fits(value, hint):
        raise TypeError(f"not as annotated: {hint}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether tensors are of the shapes that an annotation says; what it says of other things is not looked at."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if get_origin(hint) is tuple and Ellipsis not in get_args(hint):
        return isinstance(value, tuple) and all(map(_fits, value, get_args(hint)))
    if hint is types.NoneType:
        return value is None
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return isinstance(value, hint)
    fields = get_type_hints(hint) if isinstance(hint, type) and issubclass(hint, tuple) else {}
    return all(_fits(getattr(value, name), each) for name, each in fields.items())
