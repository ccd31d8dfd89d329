"""What a module returned: by itself, in a tuple, under a name."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headcheck.calling import kind_of
from headcheck.comparison import LawBroken


def named_in(returned: Any, name: str) -> Any:
    """What a module returned under a name, an attribute or an entry of a dict; None where there is nothing."""
    return returned.get(name) if isinstance(returned, Mapping) else getattr(returned, name, None)


def first_in(returned: Any, names: tuple[str, ...]) -> Any:
    """What a module returned under the first of these names that there is, as in a dict or a named tuple; without
    one, what stands first in a tuple, or all of it.
    """
    for name in names:
        if (named := named_in(returned, name)) is not None:
            return named
    return returned[0] if isinstance(returned, tuple | list) and returned else returned


def tensor_in(returned: Any, names: tuple[str, ...]) -> Tensor:
    """The tensor that a module returned: by itself, or as `first_in` has it, of a tuple in a tuple too."""
    returned = first_in(first_in(returned, names), names)
    if not isinstance(returned, Tensor):
        keys = f" with {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else ""
        raise LawBroken(f"returned {kind_of(returned)}{keys}, expected a torch.Tensor")
    return returned
