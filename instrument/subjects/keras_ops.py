"""keras.ops.dot_product_attention on its backends; the backend is chosen when keras is first imported."""

import os
from functools import partial
from typing import Any

from headcheck.declarations import Attention
from headcheck.errors import SubjectError
from headcheck.subjects import builtin

BACKENDS = {"torch": "torch", "jax": "jax", "numpy": "numpy"}


def _keras(backend: str) -> Attention:
    os.environ["KERAS_BACKEND"] = backend
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import keras
    from torch import Tensor

    from headcheck.subjects._arrays import array, split_mask, tensor

    if keras.backend.backend() != backend:
        raise SubjectError(
            f"keras runs on {keras.backend.backend()} in this process; judge keras-{backend} in another one"
        )

    def given(x: Tensor | None) -> Any:
        if x is None:
            return None
        return x if backend == "torch" else keras.ops.convert_to_tensor(array(x))

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        mask, bias = split_mask(attn_mask)
        output = keras.ops.dot_product_attention(
            given(query),
            given(key),
            given(value),
            bias=given(bias),
            mask=given(mask),
            scale=scale,
            is_causal=is_causal,
        )
        return output if isinstance(output, Tensor) else tensor(output, query.dtype)

    return Attention(
        attention,
        name=f"keras-{backend}",
        layout="bshd",
        masks=("boolean", "additive"),
        causal="top-left",
        # On torch a bias is refused beside is_causal, and what torch's kernel does otherwise shows.
        mask_with_causal=None if backend == "torch" else "and",
        nan_scores="may-vanish" if backend == "torch" else "propagate",
        scale_with_causal="positive" if backend == "torch" else None,
        empty_rows="undefined",
        grouped_heads=False if backend == "numpy" else "interleaved",
        scale=True,
        dropout=False,
        value_dim=False,
        dtypes=("float32",),
        effort=0.1 if backend == "jax" else 1.0,
    )


for _backend, _package in BACKENDS.items():
    builtin(
        f"keras-{_backend}",
        f"keras.ops.dot_product_attention on {_backend}.",
        needs=("keras", _package),
        install=f"pip install keras {_package}",
    )(partial(_keras, _backend))
