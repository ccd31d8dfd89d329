"""Attention functions of libraries on JAX: flax (linen and nnx), equinox; each new shape takes a part of a second."""

from collections.abc import Callable
from typing import Any

from headcheck.declarations import Attention
from headcheck.subjects import builtin


def _jax(function: Callable[..., Any], *, causal: bool) -> Callable[..., Any]:
    """The canonical call of a function of arrays BLHD with a mask (True keeps) and a bias."""
    import jax
    import torch
    from torch import Tensor

    from headcheck.subjects._arrays import array, split_mask, tensor

    def given(x: Tensor | None) -> Any:
        if x is None:
            return None
        moved = jax.numpy.asarray(array(x))
        return moved.astype(jax.numpy.bfloat16) if x.dtype == torch.bfloat16 else moved

    def called(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, **more: Any) -> Tensor:
        mask, bias = split_mask(attn_mask)
        output = function(given(query), given(key), given(value), bias=given(bias), mask=given(mask), **more)
        return tensor(output.astype(jax.numpy.float32), query.dtype)

    def plain(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return called(query, key, value, attn_mask)

    def with_causal(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        return called(query, key, value, attn_mask, is_causal=is_causal)

    return with_causal if causal else plain


def _declared(name: str, function: Callable[..., Any]) -> Attention:
    return Attention(
        function,
        name=name,
        layout="bshd",
        masks=("boolean", "additive"),
        empty_rows="undefined",
        grouped_heads=False,
        scale=False,
        dropout=False,
        gradients=False,
        dtypes=("float32", "bfloat16", "float16"),
        arithmetic={"bfloat16": "native", "float16": "native"},
        effort=0.1,
    )


@builtin(
    "flax-linen", "flax.linen.dot_product_attention.", needs=("jax", "flax"), install="pip install jax flax"
)
def flax_linen() -> Attention:
    """BLHD; masks by the smallest number, the softmax in the dtype of the inputs."""
    from flax.linen import dot_product_attention

    return _declared("flax-linen", _jax(dot_product_attention, causal=False))


@builtin("flax-nnx", "flax.nnx.dot_product_attention.", needs=("jax", "flax"), install="pip install jax flax")
def flax_nnx() -> Attention:
    """BLHD; without dropout and weights by jax.nn."""
    from flax.nnx import dot_product_attention

    return _declared("flax-nnx", _jax(dot_product_attention, causal=True)).but(
        causal="top-left", mask_with_causal="and", grouped_heads="interleaved", value_dim=False
    )


@builtin(
    "flax-nnx-weights",
    "flax.nnx.dot_product_attention on the path that keeps the weights.",
    needs=("jax", "flax"),
    install="pip install jax flax",
)
def flax_nnx_weights() -> Attention:
    """BLHD; with a module, so that dot_product_attention_weights is called."""
    from flax import nnx

    holder = type("Holder", (nnx.Module,), {})

    def function(*arrays: Any, **more: Any) -> Any:
        return nnx.dot_product_attention(*arrays, module=holder(), **more)

    return _declared("flax-nnx-weights", _jax(function, causal=True)).but(
        causal="top-left", mask_with_causal="and", grouped_heads="interleaved"
    )


@builtin(
    "equinox-attention",
    "equinox's dot_product_attention, mapped over batch and heads.",
    needs=("jax", "equinox"),
    install="pip install jax equinox",
)
def equinox_attention() -> Attention:
    """One head; a boolean mask, by the smallest number."""
    import jax
    from equinox.nn._attention import dot_product_attention

    def function(query: Any, key: Any, value: Any, bias: Any, mask: Any) -> Any:
        assert bias is None
        numpy = jax.numpy
        if mask is None:
            mask = numpy.ones((1, 1, 1, 1), dtype=bool)
        shape = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
        by_head = [numpy.swapaxes(x, 1, 2) for x in (query, key, value)]
        one = jax.vmap(jax.vmap(dot_product_attention))
        return numpy.swapaxes(one(*by_head, numpy.broadcast_to(mask, shape)), 1, 2)

    return _declared("equinox-attention", _jax(function, causal=False)).but(masks=("boolean",))
