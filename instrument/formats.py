"""In which floating-point formats a call computes: what Python's calls of torch are given is watched."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


class _Watching(TorchFunctionMode):
    """The formats in which any function that Python called was given numbers.

    Whole numbers and infinities are whole in every format: a mask or positions in float32 round nothing.
    What is inside of scripted modules is not seen. Where tensors are dispatched it would be, but there flex_attention
    cannot be watched, and fails from then on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.formats: set[torch.dtype] = set()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        returned = function(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs)):  # Now, since a buffer that was given may have been written.
            known = not isinstance(each, Tensor) or not each.is_floating_point() or each.dtype in self.formats
            if not known and not _whole(each):
                self.formats.add(each.dtype)
        return returned


def _whole(x: Tensor) -> bool:
    """Whether all numbers are whole or infinite; not where it cannot be asked, as inside of torch.vmap."""
    try:
        return bool((x == x.round()).all())
    except RuntimeError:
        return False


def formats_of(call: Callable[[], object]) -> frozenset[torch.dtype]:
    """The formats in which a call computes. What it raises passes; watched, torch takes no fast paths."""
    watching = _Watching()
    with watching:
        call()
    return frozenset(watching.formats)
