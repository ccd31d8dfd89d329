"""Norms."""

from headcheck.functions.layer_norm import LayerNorm
from headcheck.functions.rms_norm import RMSNorm
from headcheck.subjects import builtin


@builtin("reference-layer-norm", "headcheck's own layer norm.")
def reference_layer_norm() -> LayerNorm:
    """16 bits are computed in float32 and rounded once."""
    from headcheck.reference.norms import layer_norm

    return LayerNorm(
        layer_norm,
        name="reference-layer-norm",
        gradients=True,
        arithmetic="wide",
        weightless=True,
        biasless=True,
    )


@builtin("torch-layer-norm", "torch's layer norm.")
def torch_layer_norm() -> LayerNorm:
    """In 16 bits its backward on the CPU reads mean and scale rounded, and adds rows up in the input's dtype."""
    from dataclasses import replace

    import torch

    from headcheck.arithmetic import named

    rounded = replace(named("opwise"), rescale="input")
    return LayerNorm(
        torch.nn.functional.layer_norm,
        name="torch-layer-norm",
        gradients=True,
        weightless=True,
        biasless=True,
        dtypes=("float32", "float64", "bfloat16", "float16"),
        arithmetic={"float32": "native", "float64": "native", "bfloat16": rounded, "float16": rounded},
    )


@builtin("reference-rms-norm", "headcheck's own RMS norm.")
def reference_rms_norm() -> RMSNorm:
    """16 bits are computed in float32 and rounded once."""
    from headcheck.reference.norms import rms_norm

    return RMSNorm(rms_norm, name="reference-rms-norm", gradients=True, arithmetic="wide", weightless=True)


@builtin("torch-rms-norm", "torch's RMS norm.")
def torch_rms_norm() -> RMSNorm:
    """16 bits are computed in float32 and rounded once."""
    import torch

    return RMSNorm(
        torch.nn.functional.rms_norm,
        name="torch-rms-norm",
        gradients=True,
        weightless=True,
        dtypes=("float32", "float64", "bfloat16", "float16"),
        arithmetic="wide",
    )
