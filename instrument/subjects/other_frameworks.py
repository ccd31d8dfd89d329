"""Attention functions of frameworks other than torch and JAX: tinygrad, MLX, OpenVINO, PaddlePaddle."""

from functools import cache
from shutil import which
from typing import Any

from headcheck.declarations import FOUR_AXES, Attention
from headcheck.errors import SubjectError
from headcheck.subjects import builtin


@builtin(
    "tinygrad-attention",
    "tinygrad's Tensor.scaled_dot_product_attention on the CPU.",
    needs=("tinygrad",),
    install="pip install tinygrad, and clang",
)
def tinygrad_attention() -> Attention:
    """Each new shape is compiled, so that a call takes a good part of a second."""
    import tinygrad
    from torch import Tensor

    if which("clang") is None:
        raise SubjectError(
            "tinygrad compiles by clang on the CPU, which is not there; install Debian's clang, or its like"
        )

    from headcheck.subjects._arrays import array, tensor

    def given(x: Tensor) -> Any:
        return tinygrad.Tensor(array(x), device="CPU")

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        enable_gqa: bool = False,
    ) -> Tensor:
        mask = None if attn_mask is None else given(attn_mask)
        output = given(query).scaled_dot_product_attention(
            given(key), given(value), attn_mask=mask, is_causal=is_causal, enable_gqa=enable_gqa
        )
        return tensor(output.numpy(), query.dtype)

    return Attention(
        attention,
        name="tinygrad-attention",
        masks=("boolean", "additive"),
        mask_with_causal="refused",
        causal="top-left",
        empty_rows="nan",
        grouped_heads="interleaved",
        dropout=False,
        gradients=False,
        dtypes=("float32",),
        effort=0.1,
    )


@builtin(
    "mlx-attention",
    "MLX's fast.scaled_dot_product_attention on the CPU.",
    needs=("mlx",),
    install="pip install 'mlx[cpu]'",
)
def mlx_attention() -> Attention:
    """Causal by the last rows; masks by the smallest number."""
    import mlx.core as mx
    import torch
    from torch import Tensor

    from headcheck.subjects._arrays import array, tensor

    def given(x: Tensor) -> Any:
        moved = mx.array(array(x))
        return moved.astype(mx.bfloat16) if x.dtype == torch.bfloat16 else moved

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if is_causal and attn_mask is not None:
            raise ValueError("one mask only")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        mask: Any = "causal" if is_causal else (None if attn_mask is None else given(attn_mask))
        output = mx.fast.scaled_dot_product_attention(
            given(query),
            given(key),
            given(value),
            scale=scale,
            mask=mask,
            sinks=None if sinks is None else given(sinks),
            stream=mx.cpu,
        )
        return tensor(output.astype(mx.float32), query.dtype)

    return Attention(
        attention,
        name="mlx-attention",
        masks=("boolean", "additive"),
        mask_with_causal="refused",
        causal="bottom-right",
        empty_rows="undefined",
        grouped_heads="interleaved",
        scale=True,
        sinks=True,
        dropout=False,
        gradients=False,
        dtypes=("float32", "float16", "bfloat16"),
    )


@builtin(
    "openvino-attention",
    "OpenVINO's operator ScaledDotProductAttention on the CPU.",
    needs=("openvino",),
    install="pip install openvino",
)
def openvino_attention() -> Attention:
    """A model of one node, compiled for each rank of the mask; computed in float32."""
    import openvino
    from openvino import opset13
    from torch import Tensor

    from headcheck.subjects._arrays import array, tensor

    core = openvino.Core()
    hint = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}

    @cache
    def compiled(
        heads: int, kv_heads: int, dims: tuple[int, int], mask: tuple[int, str], causal: bool
    ) -> Any:
        shapes = [[-1, heads, -1, dims[0]], [-1, kv_heads, -1, dims[0]], [-1, kv_heads, -1, dims[1]]]
        inputs = [opset13.parameter(shape, openvino.Type.f32) for shape in shapes]
        if mask[0]:
            inputs.append(opset13.parameter([-1] * mask[0], getattr(openvino.Type, mask[1])))
        node = opset13.scaled_dot_product_attention(*inputs, causal=causal)
        return core.compile_model(openvino.Model([opset13.result(node)], inputs, "attention"), "CPU", hint)

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        if is_causal and attn_mask is not None:
            raise ValueError("beside causal the mask is ignored, as the operator's documentation says")
        mask = (0, "")
        if attn_mask is not None:
            mask = (attn_mask.ndim, "f32" if attn_mask.is_floating_point() else "boolean")
        model = compiled(query.shape[1], key.shape[1], (query.shape[3], value.shape[3]), mask, is_causal)
        given = [array(x) for x in (query, key, value, attn_mask) if x is not None]
        return tensor(model(given)[0], query.dtype)

    return Attention(
        attention,
        name="openvino-attention",
        masks=("boolean", "additive"),
        causal="top-left",
        mask_with_causal="refused",
        empty_rows="undefined",
        grouped_heads=False,
        dropout=False,
        gradients=False,
        dtypes=("float32",),
        effort=0.3,
    )


def _paddle(name: str, *, compat: bool) -> Attention:
    """True takes part; beside is_causal the mask is ignored, as its documentation says."""
    import paddle
    from torch import Tensor

    from headcheck.subjects._arrays import array, tensor

    home = paddle.compat.nn.functional if compat else paddle.nn.functional
    function = home.scaled_dot_product_attention

    def given(x: Tensor) -> Any:
        return paddle.to_tensor(array(x), place="cpu")

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if is_causal and attn_mask is not None:
            raise ValueError("beside is_causal the mask is ignored, as the documentation says")
        mask = None if attn_mask is None else given(attn_mask)
        arrays = [given(x) for x in (query, key, value)]
        output = function(
            *arrays, attn_mask=mask, dropout_p=0.0, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return tensor(output.numpy(), query.dtype)

    return Attention(
        attention,
        name=name,
        layout="bhsd" if compat else "bshd",
        masks=("boolean", "additive"),
        mask_shapes=FOUR_AXES,
        mask_with_causal="refused",
        causal="top-left",
        empty_rows="undefined",
        grouped_heads="interleaved",
        scale=True,
        dropout=False,
        gradients=False,
        value_dim=False,  # "The dimensions of the three parameters are the same."
        dtypes=("float32", "float64"),
        effort=0.5,
    )


@builtin(
    "paddle-attention",
    "PaddlePaddle's nn.functional.scaled_dot_product_attention on the CPU.",
    needs=("paddle",),
    install="pip install paddlepaddle",
)
def paddle_attention() -> Attention:
    """BLHD."""
    return _paddle("paddle-attention", compat=False)


@builtin(
    "paddle-compat-attention",
    "PaddlePaddle's compat.nn.functional.scaled_dot_product_attention on the CPU.",
    needs=("paddle",),
    install="pip install paddlepaddle",
)
def paddle_compat_attention() -> Attention:
    """BHLD, as torch's."""
    return _paddle("paddle-compat-attention", compat=True)
