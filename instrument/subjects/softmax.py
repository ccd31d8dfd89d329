"""Softmaxes."""

from headcheck.functions.softmax import Softmax
from headcheck.subjects import builtin


@builtin("reference-softmax", "headcheck's own softmax, along the last axis.")
def reference_softmax() -> Softmax:
    """A row of nothing but -inf gives zeros."""
    from torch import Tensor

    from headcheck.reference.attention import softmax

    def along_the_last_axis(x: Tensor) -> Tensor:
        return softmax(x)

    return Softmax(along_the_last_axis, name="reference-softmax", gradients=True)


@builtin("torch-softmax", "torch's softmax, along any axis.")
def torch_softmax() -> Softmax:
    """In 16 bits it rounds twice along an axis that is not the last."""
    import torch

    return Softmax(
        torch.softmax,
        name="torch-softmax",
        gradients=True,
        dtypes=("float32", "float64", "bfloat16", "float16"),
        arithmetic={"bfloat16": "opwise", "float16": "opwise"},
    )
