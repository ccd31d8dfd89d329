"""jax.nn.dot_product_attention: another framework, converted at the edge and nowhere else."""

from typing import Any

from headcheck.declarations import Attention
from headcheck.subjects import builtin


@builtin(
    "jax-dot-product",
    "jax.nn.dot_product_attention, the XLA implementation.",
    needs=("jax",),
    install="pip install 'headcheck[jax]'",
)
def jax_dot_product() -> Attention:
    """BTNH layout; scores and softmax in float32; float64 is computed in float32 by default in JAX.

    Each new shape is compiled, so that a call takes a good part of a second.
    """
    import jax
    import numpy as np
    import torch
    from torch import Tensor

    def array(x: Tensor) -> Any:
        wide = x.float() if x.dtype == torch.bfloat16 else x
        given = jax.numpy.asarray(np.ascontiguousarray(wide.detach().numpy()))
        return given.astype(jax.numpy.bfloat16) if x.dtype == torch.bfloat16 else given

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        mask = bias = None
        if attn_mask is not None:
            lead = attn_mask.reshape((1,) * (4 - attn_mask.ndim) + tuple(attn_mask.shape))
            mask, bias = (array(lead), None) if lead.dtype == torch.bool else (None, array(lead))
        output = jax.nn.dot_product_attention(
            array(query), array(key), array(value), bias=bias, mask=mask, is_causal=is_causal, scale=scale
        )
        return torch.from_numpy(np.array(output.astype(jax.numpy.float32))).to(query.dtype)

    return Attention(
        attention,
        name="jax-dot-product",
        layout="bshd",
        causal="top-left",
        masks=("boolean", "additive"),
        mask_with_causal="and",
        empty_rows="undefined",
        grouped_heads="interleaved",
        effort=0.1,
        arithmetic={"bfloat16": "flash", "float16": "flash"},
        scale=True,
        value_dim=False,
        gradients=False,
        dtypes=("float32", "bfloat16", "float16"),
    )
