"""torch.compile of the reference: one graph of the textbook's steps, its kernels made by the compiler."""

import functools
from typing import Any

from headcheck.declarations import Attention
from headcheck.subjects import builtin
from headcheck.subjects.torch_flex import as_one_graph, require_compiler


@builtin("torch-compiled-reference", "The reference's attention under torch.compile, dynamic shapes.")
def torch_compiled_reference() -> Attention:
    """One graph for all calls: every mask is made before it, so that a shape compiles nothing anew. No buffer is donated
    to its backward, which torch does by default: then it could be asked for once only.
    """
    require_compiler()
    return Attention(
        _compiled_reference(),
        name="torch-compiled-reference",
        causal="top-left",
        masks=("boolean", "additive"),
        mask_with_causal="and",
        scale_with_causal="any",
        grouped_heads=False,
        scale=True,
        dropout=False,
        gradients=True,
        mask_gradient=False,
        autocast=False,
        operator="Torch-Compiled Region",
        dtypes=("float32", "float64"),
        may_refuse=True,
        effort=0.1,
    )


@functools.cache
def _compiled_reference() -> Any:
    import torch
    from torch import Tensor
    from torch._functorch import config

    from headcheck.reference.attention import attention as textbook
    from headcheck.reference.masks import causal

    def steps(
        query: Tensor, key: Tensor, value: Tensor, may_attend: Tensor, bias: Tensor, scale: Tensor
    ) -> Tensor:
        return textbook(query * scale[0], key, value, may_attend=may_attend, bias=bias, scale=1.0).output

    config.donated_buffer = False  # It is read when the backward is compiled, long after this call.
    compiled = as_one_graph(torch.compile(steps, dynamic=True))

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Any:
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        may_attend = torch.ones(shape, dtype=torch.bool, device=query.device)
        bias = torch.zeros(shape, dtype=query.dtype, device=query.device)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            may_attend = may_attend & attn_mask
        elif attn_mask is not None:
            may_attend = may_attend & ~attn_mask.isneginf()
            bias = bias + attn_mask.masked_fill(attn_mask.isneginf(), 0.0)
        if is_causal:
            may_attend = may_attend & causal(shape[2], shape[3]).to(query.device)
        factor = query.new_full((2,), query.shape[-1] ** -0.5 if scale is None else scale)
        return compiled(query, key, value, may_attend, bias, factor)

    return attention
