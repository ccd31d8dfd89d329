"""Wrong layer norms of the kind that survived the laws at first contact."""

import torch
from torch import Tensor

from tests.roles import wrong
from tests.roles.layer_norm import Maybe, library


@wrong(
    "Rows that are dense are taken to lie in the order of the axes: (length, batch, dim) seen as (batch, length, dim) "
    "comes back in another order.",
    breaks="memory/strided-equals-contiguous",
)
def order_of_the_memory(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    mapped = torch._C._functorch.is_batchedtensor(x)
    if (
        mapped
        or x.requires_grad
        or x.ndim < 3
        or x.stride(-1) != 1
        or not x.mT.mT.transpose(0, 1).is_contiguous()
    ):
        return library(x, weight, bias, eps)
    rows = x.as_strided((x.numel() // x.shape[-1], x.shape[-1]), (x.shape[-1], 1))
    return library(rows, weight, bias, eps).view(x.shape)
