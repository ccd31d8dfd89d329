"""Norms of libraries: the RMS norms of transformers' models, torchtune, litgpt, timm, diffusers, x-transformers, MLX."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from headcheck.functions.layer_norm import LayerNorm
from headcheck.functions.rms_norm import RMSNorm
from headcheck.subjects import builtin

MODELS: dict[str, tuple[str, float, str]] = {
    "llama": ("LlamaRMSNorm", 0.0, "rounded before the weight"),
    "gemma": ("GemmaRMSNorm", 1.0, "the weight plus one, rounded once"),
    "gemma3n": ("Gemma3nRMSNorm", 0.0, "by a power, rounded once"),
    "olmo2": ("Olmo2RMSNorm", 0.0, "rounded once"),
    "gpt_oss": ("GptOssRMSNorm", 0.0, "rounded once"),
    "llama4": ("Llama4TextRMSNorm", 0.0, "rounded before the weight"),
    "t5": ("T5LayerNorm", 0.0, "the layer norm of T5, which has no mean"),
}
"""Model: the class, what it adds to the weight, what is its own. All compute in float32 whatever they are given."""


def _with_weight(module: Any, x: Any, weight: Any) -> Any:
    """A module's answer with another weight, gradients included."""
    from torch.func import functional_call

    return functional_call(module, {"weight": weight}, (x,))


def _in_float32(narrow: str) -> dict[str, Any]:
    from dataclasses import replace

    from headcheck.arithmetic import named

    wide = replace(named("native"), inputs="float32")
    return {"float64": wide, "bfloat16": narrow, "float16": narrow}


def _huggingface(model: str) -> RMSNorm:
    title, offset, _ = MODELS[model]
    made = getattr(import_module(f"transformers.models.{model}.modeling_{model}"), title)
    return _declared(f"hf-{model.replace('_', '-')}-rms-norm", made, offset, narrow="flash")


def _declared(name: str, made: Callable[..., Any], offset: float = 0.0, narrow: str = "wide") -> RMSNorm:
    from torch import Tensor

    def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Any:
        return _with_weight(made(x.shape[-1], eps=eps), x, weight)

    return RMSNorm(
        norm,
        name=name,
        weight_offset=offset,
        weightless=False,
        gradients=True,
        arithmetic=_in_float32(narrow),
    )


for _model in MODELS:
    builtin(
        f"hf-{_model.replace('_', '-')}-rms-norm",
        f"transformers' RMS norm of {_model}: {MODELS[_model][2]}.",
        needs=("transformers",),
        install="pip install transformers",
    )(partial(_huggingface, _model))


@builtin(
    "torchtune-rms-norm",
    "torchtune's RMSNorm.",
    needs=("torchtune", "torchao"),
    install="pip install torchtune torchao==0.9.0",
)
def torchtune_rms_norm() -> RMSNorm:
    """In float32."""
    from torch import Tensor
    from torch.func import functional_call
    from torchtune.modules import RMSNorm as Module

    def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Any:
        return functional_call(Module(x.shape[-1], eps=eps), {"scale": weight}, (x,))

    return RMSNorm(
        norm,
        name="torchtune-rms-norm",
        weightless=False,
        gradients=True,
        arithmetic=_in_float32("wide"),
    )


@builtin("litgpt-rms-norm", "litgpt's RMSNorm.", needs=("litgpt",), install="pip install litgpt")
def litgpt_rms_norm() -> RMSNorm:
    """In float32."""
    from litgpt.model import RMSNorm as Module

    return _declared("litgpt-rms-norm", Module)


@builtin("diffusers-rms-norm", "diffusers' RMSNorm.", needs=("diffusers",), install="pip install diffusers")
def diffusers_rms_norm() -> RMSNorm:
    """The mean of squares in float32; x in its own dtype."""
    from diffusers.models.normalization import RMSNorm as Module

    return _declared("diffusers-rms-norm", Module, narrow="flash")


@builtin(
    "timm-rms-norm", "timm's rms_norm.", needs=("timm", "torchvision"), install="pip install timm torchvision"
)
def timm_rms_norm() -> RMSNorm:
    """The function for where torch has none."""
    from timm.layers.fast_norm import rms_norm
    from torch import Tensor

    def norm(x: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Any:
        return rms_norm(x, [x.shape[-1]], weight, eps)

    return RMSNorm(norm, name="timm-rms-norm", gradients=True)


@builtin(
    "curated-transformers-rms-norm",
    "curated_transformers' RMSNorm.",
    needs=("curated_transformers",),
    install="pip install curated-transformers",
)
def curated_rms_norm() -> RMSNorm:
    """As Llama's."""
    from curated_transformers.layers.normalization import RMSNorm as Module
    from torch import Tensor

    def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Any:
        return _with_weight(Module(x.shape[-1], eps=eps), x, weight)

    return RMSNorm(
        norm,
        name="curated-transformers-rms-norm",
        weightless=False,
        gradients=True,
        arithmetic=_in_float32("flash"),
    )


def _mlx(function: str, *names: str) -> Callable[..., Any]:
    import mlx.core as mx
    import torch
    from torch import Tensor

    from headcheck.subjects._arrays import array, tensor

    def given(x: Tensor | None) -> Any:
        if x is None:
            return None
        moved = mx.array(array(x))
        return moved.astype(mx.bfloat16) if x.dtype == torch.bfloat16 else moved

    def called(x: Tensor, *others: Any) -> Tensor:
        *tensors, eps = others
        output = getattr(mx.fast, function)(given(x), *map(given, tensors), eps, stream=mx.cpu)
        return tensor(output.astype(mx.float32), x.dtype)

    return called


@builtin("mlx-rms-norm", "MLX's fast.rms_norm on the CPU.", needs=("mlx",), install="pip install 'mlx[cpu]'")
def mlx_rms_norm() -> RMSNorm:
    """No weight is a weight of ones."""
    from torch import Tensor

    called = _mlx("rms_norm")

    def norm(x: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Any:
        return called(x, weight, eps)

    return RMSNorm(
        norm, name="mlx-rms-norm", weightless=True, gradients=False, dtypes=("float32", "float16", "bfloat16")
    )


@builtin(
    "mlx-layer-norm", "MLX's fast.layer_norm on the CPU.", needs=("mlx",), install="pip install 'mlx[cpu]'"
)
def mlx_layer_norm() -> LayerNorm:
    """Weight and bias may be None."""
    from torch import Tensor

    called = _mlx("layer_norm")

    def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float = 1e-5) -> Any:
        return called(x, weight, bias, eps)

    return LayerNorm(
        norm,
        name="mlx-layer-norm",
        weightless=True,
        biasless=True,
        gradients=False,
        dtypes=("float32", "float16", "bfloat16"),
    )


@builtin("flax-layer-norm", "flax.linen.LayerNorm.", needs=("jax", "flax"), install="pip install jax flax")
def flax_layer_norm() -> LayerNorm:
    """As it is by default: the variance is the mean of squares less the square of the mean."""
    return _flax_layer("flax-layer-norm", fast=True)


@builtin(
    "flax-layer-norm-two-pass",
    "flax.linen.LayerNorm with use_fast_variance=False.",
    needs=("jax", "flax"),
    install="pip install jax flax",
)
def flax_layer_norm_two_pass() -> LayerNorm:
    """The variance is the mean of the squares of what is centred."""
    return _flax_layer("flax-layer-norm-two-pass", fast=False)


def _flax_layer(name: str, *, fast: bool) -> LayerNorm:
    import jax
    from flax import linen
    from torch import Tensor

    from headcheck.subjects._arrays import array, tensor

    def norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
        module = linen.LayerNorm(epsilon=eps, use_fast_variance=fast)
        weights = {
            "params": {"scale": jax.numpy.asarray(array(weight)), "bias": jax.numpy.asarray(array(bias))}
        }
        return tensor(module.apply(weights, jax.numpy.asarray(array(x))), x.dtype)

    return LayerNorm(
        norm,
        name=name,
        weightless=False,
        biasless=False,
        gradients=False,
        dtypes=("float32",),
        effort=0.1,
    )


@builtin("flax-rms-norm", "flax.linen.RMSNorm.", needs=("jax", "flax"), install="pip install jax flax")
def flax_rms_norm() -> RMSNorm:
    """The mean of squares in float32."""
    import jax
    from flax import linen
    from torch import Tensor

    from headcheck.subjects._arrays import array, tensor

    def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
        weights = {"params": {"scale": jax.numpy.asarray(array(weight))}}
        return tensor(linen.RMSNorm(epsilon=eps).apply(weights, jax.numpy.asarray(array(x))), x.dtype)

    return RMSNorm(
        norm, name="flax-rms-norm", weightless=False, gradients=False, dtypes=("float32",), effort=0.1
    )


@builtin(
    "onnx-layer-norm",
    "onnx's reference evaluator of LayerNormalization, opset 17.",
    needs=("onnx",),
    install="pip install onnx",
)
def onnx_layer_norm() -> LayerNorm:
    """The specification in NumPy."""
    from onnx.reference import ReferenceEvaluator

    return _onnx_layer("onnx-layer-norm", lambda model: ReferenceEvaluator(model).run)


@builtin(
    "onnxruntime-layer-norm",
    "onnxruntime's LayerNormalization on the CPU.",
    needs=("onnx", "onnxruntime"),
    install="pip install onnx onnxruntime",
)
def onnxruntime_layer_norm() -> LayerNorm:
    """Its own kernel."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1

    def opened(model: Any) -> Any:
        raw = model.SerializeToString()
        return onnxruntime.InferenceSession(raw, options, providers=["CPUExecutionProvider"]).run

    return _onnx_layer("onnxruntime-layer-norm", opened)


def _onnx_layer(name: str, opened: Callable[[Any], Any]) -> LayerNorm:
    from functools import cache

    from onnx import helper
    from torch import Tensor

    from headcheck.subjects._arrays import array, tensor

    @cache
    def run(eps: float) -> Any:
        shapes = {"X": ["a", "b", "c"], "S": ["c"], "B": ["c"], "Y": ["a", "b", "c"]}
        infos = {n: helper.make_tensor_value_info(n, 1, shape) for n, shape in shapes.items()}
        node = helper.make_node("LayerNormalization", ["X", "S", "B"], ["Y"], epsilon=eps)
        graph = helper.make_graph([node], "norm", [infos[n] for n in "XSB"], [infos["Y"]])
        return opened(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))

    def norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
        arrays = {"X": array(x), "S": array(weight), "B": array(bias)}
        return tensor(run(eps)(None, arrays)[0], x.dtype)

    return LayerNorm(norm, name=name, weightless=False, biasless=False, gradients=False, dtypes=("float32",))
