"""Tensors of torch to arrays of NumPy and back: the edge of every subject of another framework."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def array(x: Tensor) -> Any:
    """A contiguous array of the same numbers; bfloat16, which NumPy lacks, as float32."""
    wide = x.float() if x.dtype == torch.bfloat16 else x
    return np.ascontiguousarray(wide.detach().numpy())


def tensor(x: Any, dtype: torch.dtype) -> Tensor:
    """A tensor of its own with the numbers of an array."""
    return torch.from_numpy(np.array(x, copy=True)).to(dtype)


def split_mask(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A boolean mask and a bias: one of them is there where there is a mask, with all its four axes."""
    if mask is None:
        return None, None
    whole = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    return (whole, None) if mask.dtype == torch.bool else (None, whole)
