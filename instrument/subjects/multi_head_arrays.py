"""Multi-head attention of libraries on arrays: flax (linen and nnx), equinox, haiku, keras, mlx.

The weights stand in a module of torch, and are handed to the library at each call; its gradients are not judged.
"""

import os
import random
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from headcheck.errors import SubjectError
from headcheck.modules.multi_head.conventions import MultiHeadAttention
from headcheck.subjects import builtin

Weights = dict[str, Any]
"""w_q, w_k, w_v, w_o of shape (in, out) and b_q, b_k, b_v, b_o, arrays of NumPy."""
Call = Callable[[int, Weights, Any, Any, Any, Any], Any]
"""f(num_heads, weights, query, key, value, mask) -> output, of arrays with the batch first."""


def _declared(name: str, call: Call, **conventions: Any) -> MultiHeadAttention:
    from torch import Tensor, nn

    from headcheck.subjects._arrays import array, tensor

    class Held(nn.Module):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__()
            if d_model % num_heads:
                raise ValueError("the weights stand here, and heads of one width are asked for")
            self.num_heads = num_heads
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
                nn.Linear(d_model, d_model) for _ in "qkvo"
            )

        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
            layers = zip("qkvo", (self.q_proj, self.k_proj, self.v_proj, self.out_proj), strict=True)
            weights = {}
            for letter, layer in layers:
                weights[f"w_{letter}"], weights[f"b_{letter}"] = array(layer.weight.T), array(layer.bias)
            q, k, v = map(array, (query, key, value))
            output = call(self.num_heads, weights, q, k, v, None if mask is None else array(mask))
            return tensor(output, query.dtype)

    usual: dict[str, Any] = {"masks": ("boolean",), "mask_shapes": ("b1qk", "bhqk"), "effort": 0.1}
    return MultiHeadAttention(
        Held,
        name=name,
        true_means="keep",
        empty_rows="undefined",
        weights=False,
        gradients=False,
        dtypes=("float32",),
        **(usual | conventions),
    )


def _by_head(heads: int, weights: Weights, names: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The weights as einsum takes them: (in, heads, head_dim), and (heads, head_dim, out) of the output."""
    found = {}
    for letter, name in names.items():
        weight, bias = weights[f"w_{letter}"], weights[f"b_{letter}"]
        size = len(bias) // heads
        if letter == "o":
            found[name] = {"kernel": weight.reshape(heads, size, -1), "bias": bias}
        else:
            found[name] = {"kernel": weight.reshape(-1, heads, size), "bias": bias.reshape(heads, size)}
    return found


FLAX = {"q": "query", "k": "key", "v": "value", "o": "out"}


@builtin(
    "flax-linen-mha",
    "flax.linen.MultiHeadDotProductAttention.",
    needs=("jax", "flax"),
    install="pip install jax flax",
)
def flax_linen_mha() -> MultiHeadAttention:
    """True keeps in a mask (batch, heads, q_len, kv_len), as its documentation says."""
    from flax import linen

    def call(heads: int, weights: Weights, query: Any, key: Any, value: Any, mask: Any) -> Any:
        module = linen.MultiHeadDotProductAttention(num_heads=heads)
        return module.apply({"params": _by_head(heads, weights, FLAX)}, query, key, value, mask=mask)

    return _declared("flax-linen-mha", call)


@builtin(
    "flax-nnx-mha", "flax.nnx.MultiHeadAttention.", needs=("jax", "flax"), install="pip install jax flax"
)
def flax_nnx_mha() -> MultiHeadAttention:
    """True keeps in a mask (batch, heads, q_len, kv_len), as its documentation says."""
    import jax
    from flax import nnx

    def call(heads: int, weights: Weights, query: Any, key: Any, value: Any, mask: Any) -> Any:
        module = nnx.MultiHeadAttention(heads, query.shape[-1], decode=False, rngs=nnx.Rngs(0))
        for name, part in _by_head(heads, weights, FLAX).items():
            layer = getattr(module, name)
            layer.kernel.value, layer.bias.value = map(jax.numpy.asarray, (part["kernel"], part["bias"]))
        return module(*map(jax.numpy.asarray, (query, key, value)), mask=mask)

    return _declared("flax-nnx-mha", call)


@builtin(
    "equinox-mha",
    "equinox.nn.MultiheadAttention, mapped over the batch.",
    needs=("jax", "equinox"),
    install="pip install jax equinox",
)
def equinox_mha() -> MultiHeadAttention:
    """True keeps in a mask (num_heads, q_len, kv_len), as its documentation says."""
    import equinox
    import jax

    def call(heads: int, weights: Weights, query: Any, key: Any, value: Any, mask: Any) -> Any:
        biases = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
        module = equinox.nn.MultiheadAttention(heads, query.shape[-1], **biases, key=jax.random.PRNGKey(0))

        def places(of: Any) -> list[Any]:
            layers = (of.query_proj, of.key_proj, of.value_proj, of.output_proj)
            return [part for layer in layers for part in (layer.weight, layer.bias)]

        new = [part for each in "qkvo" for part in (weights[f"w_{each}"].T, weights[f"b_{each}"])]
        module = equinox.tree_at(places, module, [jax.numpy.asarray(each) for each in new])
        if mask is None:
            return jax.vmap(module)(query, key, value)
        shape = len(query), heads, query.shape[1], key.shape[1]
        return jax.vmap(module)(query, key, value, jax.numpy.broadcast_to(mask, shape))

    return _declared("equinox-mha", call)


@builtin("haiku-mha", "haiku.MultiHeadAttention.", needs=("jax", "haiku"), install="pip install jax dm-haiku")
def haiku_mha() -> MultiHeadAttention:
    """Its mask is (batch, heads or 1, q_len, kv_len), as its documentation says; True is kept, as its source shows."""
    import haiku

    names = {"q": "query", "k": "key", "v": "value", "o": "linear"}

    def call(heads: int, weights: Weights, query: Any, key: Any, value: Any, mask: Any) -> Any:
        def forward(*arrays: Any) -> Any:
            start = haiku.initializers.Constant(0.0)
            return haiku.MultiHeadAttention(heads, query.shape[-1] // heads, w_init=start)(*arrays)

        held = {
            f"multi_head_attention/{name}": {"w": weights[f"w_{letter}"], "b": weights[f"b_{letter}"]}
            for letter, name in names.items()
        }
        return haiku.transform(forward).apply(held, None, query, key, value, mask)

    return _declared("haiku-mha", call)


@builtin(
    "mlx-mha",
    "mlx.nn.MultiHeadAttention on its CPU backend.",
    needs=("mlx",),
    install="pip install 'mlx[cpu]'",
)
def mlx_mha() -> MultiHeadAttention:
    """An additive mask that is broadcast to (batch, num_heads, q_len, kv_len), as its documentation says."""
    import numpy as np
    from mlx import core, nn

    names = {"q": "query_proj", "k": "key_proj", "v": "value_proj", "o": "out_proj"}

    def call(heads: int, weights: Weights, query: Any, key: Any, value: Any, mask: Any) -> Any:
        core.set_default_device(core.cpu)
        module = nn.MultiHeadAttention(query.shape[-1], heads, bias=True)
        for letter, name in names.items():
            layer = getattr(module, name)
            layer.weight = core.array(weights[f"w_{letter}"].T)
            layer.bias = core.array(weights[f"b_{letter}"])
        given = None if mask is None else core.array(mask)
        return np.array(module(*map(core.array, (query, key, value)), mask=given))

    return _declared("mlx-mha", call, masks=("additive",), effort=1.0)


def _keras(backend: str) -> MultiHeadAttention:
    """True keeps in attention_mask (batch, q_len, kv_len), as its documentation says."""
    os.environ["KERAS_BACKEND"] = backend
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import keras

    if keras.backend.backend() != backend:
        raise SubjectError(
            f"keras runs on {keras.backend.backend()} in this process; judge keras-mha-{backend} in another one"
        )
    names = {"q": "_query_dense", "k": "_key_dense", "v": "_value_dense", "o": "_output_dense"}

    @cache
    def made(heads: int, d_model: int) -> Any:
        state = random.getstate()  # Keras draws a seed of its own from it.
        layer = keras.layers.MultiHeadAttention(heads, d_model // heads)
        layer.build((None, None, d_model), (None, None, d_model), (None, None, d_model))
        random.setstate(state)
        return layer

    def call(heads: int, weights: Weights, query: Any, key: Any, value: Any, mask: Any) -> Any:
        layer = made(heads, query.shape[-1])
        by_head = _by_head(heads, weights, names)
        for part in names.values():
            getattr(layer, part).set_weights([by_head[part]["kernel"], by_head[part]["bias"]])
        output = layer(query, value, key, attention_mask=mask, training=False)
        return keras.ops.convert_to_numpy(output)

    return _declared(f"keras-mha-{backend}", call, mask_shapes=("bqk",))


for _backend, _package in (("torch", "torch"), ("jax", "jax"), ("numpy", "numpy")):
    builtin(
        f"keras-mha-{_backend}",
        f"keras.layers.MultiHeadAttention on {_backend}.",
        needs=("keras", _package),
        install=f"pip install keras {_package}",
    )(partial(_keras, _backend))
