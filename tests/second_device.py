"""A second device, on a machine that has none: tensors that claim to lie elsewhere, and compute where they are.

Torch takes their device for `AWAY`, which its CPU build knows by name alone. An operation on one of them and a tensor of
the CPU raises what it raises on a GPU, numbers alone excepted; so does code that made a tensor without saying where.
What goes wrong with kernels, streams and processes of a GPU is not shown here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

AWAY = torch.device("lazy", 0)
MIXED = {"aten::copy_", "aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
"""What takes tensors of two devices: indices may lie on the CPU."""


class Elsewhere(Tensor):
    """A tensor that holds another one, of the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Self:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=AWAY,
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"Elsewhere({self.inner!r})"

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert a tensor of another device to numpy; use Tensor.cpu() first")

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _done(operation, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """Within it, tensors can be made on `AWAY`, and moved there and back."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _done(operation, args, kwargs or {})


def _done(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """One operation, on the tensors within; what comes out lies where it is asked for, or where those given lie."""
    name, asked = operation._schema.name, kwargs.get("device")
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    away = any(isinstance(each, Elsewhere) for each in tensors)
    here = any(not isinstance(each, Elsewhere) and each.ndim for each in tensors)
    indexed = name in MIXED and (name == "aten::copy_" or isinstance(args[0], Elsewhere))
    if away and here and not indexed:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices ({name})"
        )
    inner_args, inner_kwargs = tree_map(_inner, (args, dict(kwargs)))
    if asked is not None:
        inner_kwargs["device"] = torch.device("cpu")
        away = torch.device(asked).type == AWAY.type
    out = operation(*inner_args, **inner_kwargs)
    if name == "aten::_to_copy" and out is inner_args[0]:
        out = out.clone()
    if not away or name == "aten::_local_scalar_dense":
        return out
    wrapped = tree_map(_wrapped, out)
    try:
        return return_and_correct_aliasing(operation, args, dict(kwargs), wrapped)
    except (AssertionError, RuntimeError):  # It is no view, or was made in inference mode.
        return wrapped


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Elsewhere) else value


def _wrapped(value: Any) -> Any:
    return Elsewhere(value) if isinstance(value, Tensor) else value
