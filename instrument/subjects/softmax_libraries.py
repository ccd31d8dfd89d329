"""Softmaxes of libraries on arrays, in float32: jax, mlx, keras, PaddlePaddle, onnx and onnxruntime."""

import os
from collections.abc import Callable
from typing import Any

from headcheck.errors import SubjectError
from headcheck.functions.softmax import Softmax
from headcheck.subjects import builtin


def _declared(name: str, function: Callable[[Any, int], Any], effort: float = 1.0) -> Softmax:
    """A function of an array of NumPy and an axis."""
    from torch import Tensor

    from headcheck.subjects._arrays import array, tensor

    def softmax(x: Tensor, dim: int) -> Tensor:
        return tensor(function(array(x), dim), x.dtype)

    return Softmax(softmax, name=name, gradients=False, dtypes=("float32",), effort=effort)


@builtin("jax-softmax", "jax.nn.softmax.", needs=("jax",), install="pip install jax")
def jax_softmax() -> Softmax:
    """Along any axis; each shape is compiled anew."""
    import jax

    return _declared("jax-softmax", lambda x, dim: jax.nn.softmax(x, axis=dim), effort=0.2)


@builtin(
    "mlx-softmax", "mlx.core.softmax on its CPU backend.", needs=("mlx",), install="pip install 'mlx[cpu]'"
)
def mlx_softmax() -> Softmax:
    """Along any axis."""
    import numpy as np
    from mlx import core

    def function(x: Any, dim: int) -> Any:
        return np.array(core.softmax(core.array(x), axis=dim, stream=core.cpu))

    return _declared("mlx-softmax", function)


@builtin("keras-softmax", "keras.ops.softmax on NumPy.", needs=("keras",), install="pip install keras")
def keras_softmax() -> Softmax:
    """On torch and JAX it is theirs."""
    os.environ["KERAS_BACKEND"] = "numpy"
    import keras

    if keras.backend.backend() != "numpy":
        raise SubjectError(
            f"keras runs on {keras.backend.backend()} in this process; judge keras-softmax in another"
        )
    return _declared("keras-softmax", lambda x, dim: keras.ops.softmax(x, axis=dim))


@builtin(
    "paddle-softmax",
    "paddle.nn.functional.softmax on the CPU.",
    needs=("paddle",),
    install="pip install paddlepaddle",
)
def paddle_softmax() -> Softmax:
    """Along any axis."""
    import paddle

    def function(x: Any, dim: int) -> Any:
        return paddle.nn.functional.softmax(paddle.to_tensor(x, place="cpu"), axis=dim).numpy()

    return _declared("paddle-softmax", function)


def _onnx(name: str, opened: Callable[[Any], Any]) -> Softmax:
    """A model of one node for each axis, of opset 13."""
    from functools import cache

    from onnx import helper

    @cache
    def run(dim: int, rank: int) -> Any:
        infos = [helper.make_tensor_value_info(each, 1, [None] * rank) for each in "XY"]
        node = helper.make_node("Softmax", ["X"], ["Y"], axis=dim)
        graph = helper.make_graph([node], "softmax", infos[:1], infos[1:])
        return opened(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10))

    return _declared(name, lambda x, dim: run(dim, x.ndim)(None, {"X": x})[0])


@builtin(
    "onnx-softmax",
    "onnx's Softmax 13 by its reference evaluator.",
    needs=("onnx",),
    install="pip install onnx",
)
def onnx_softmax() -> Softmax:
    """By NumPy."""
    from onnx.reference import ReferenceEvaluator

    return _onnx("onnx-softmax", lambda model: ReferenceEvaluator(model).run)


@builtin(
    "onnxruntime-softmax",
    "onnxruntime's Softmax 13 on the CPU.",
    needs=("onnx", "onnxruntime"),
    install="pip install onnx onnxruntime",
)
def onnxruntime_softmax() -> Softmax:
    """Along any axis."""
    import onnxruntime

    def opened(model: Any) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run

    return _onnx("onnxruntime-softmax", opened)
