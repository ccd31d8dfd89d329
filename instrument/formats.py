"""In which floating-point formats a call computes: what Python's calls of torch are given is watched."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

MASK = 3
"""Which of the positional arguments of torch's scaled_dot_product_attention the mask is."""
MIXED = (
    "float64: not judged (it gives torch's scaled_dot_product_attention a mask of float32 there, "
    "whose memory torch's CPU kernel takes for float64)"
)
"""What is said of a subject that does."""


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


class _MasksBeside(TorchFunctionMode):
    """Whether torch's attention was given a mask of float32 beside a query of float64."""

    found = False

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is scaled_dot_product_attention:
            query = args[0] if args else kwargs.get("query")
            mask = args[MASK] if len(args) > MASK else kwargs.get("attn_mask")
            both = [each.dtype for each in (query, mask) if isinstance(each, Tensor)]
            self.found = self.found or both == [torch.float64, torch.float32]
        return function(*args, **kwargs)


def mixes_masks(call: Callable[[], object]) -> bool:
    """Whether a call gives torch's attention a mask of float32 beside float64: its kernel of CPUs takes the memory for
    that of float64. What the call raises passes.
    """
    watching = _MasksBeside()
    with watching:
        call()
    return watching.found


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
