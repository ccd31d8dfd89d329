"""onnx's published node tests of Attention, replayed through the canonical call.

onnx.backend.test.case.node (https://github.com/onnx/onnx/blob/main/onnx/backend/test/case/node/attention.py)
computes each vector from a reference in numpy; the package's runner compares with rtol = 1e-3 and atol = 1e-7 (in
bfloat16 rtol = 2^-6). Replayed are the vectors of four axes without past, padding counts and windows: plain and
causal, boolean and additive masks of every rank, grouped heads, scale, softcap, value dims, float32, float16 and
bfloat16. A function that is made for fewer bits than a vector has is not asked for it. Where a vector has further
outputs, only Y is compared.
"""

import warnings
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.rules import Peer, Trial
from benchmarks.peers.subjects import NotTaken, Subject

HOW_TO_GET = "python -m pip install onnx"
EXPRESSED = {"scale", "is_causal", "softcap", "qk_matmul_output_mode", "softmax_precision"}
"""Attributes that the canonical call says, or that change no Y beyond rounding."""


@dataclass(frozen=True)
class Vector:
    """The inputs and the result of one published test."""

    name: str
    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    attributes: dict[str, Any]
    expected: Tensor
    rtol: float
    atol: float


@cache
def published(operator: str) -> list[Any]:
    """The node tests of an operator, without those of its expansion into others."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Vectors that overflow do so on purpose.
        import_module(f"{node.__name__}.{operator.lower()}")
    # collect_testcases would make the vectors of all operators, which takes seconds.
    cases = {case.name: case for case in node._NodeTestCases}  # noqa: SLF001
    return [case for case in cases.values() if [n.op_type for n in case.model.graph.node] == [operator]]


def attributes_of(case: Any) -> dict[str, Any]:
    import onnx

    return {each.name: onnx.helper.get_attribute_value(each) for each in case.model.graph.node[0].attribute}


def tensor(array: Any) -> Tensor:
    """A numpy array, one of ml_dtypes' bfloat16 included."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(array))


@cache
def vectors() -> tuple[Vector, ...]:
    """Those that the canonical call can say."""
    found = []
    for case in published("Attention"):
        names = case.model.graph.node[0].input
        given, results = case.data_sets[0]
        inputs = dict(zip((name for name in names if name), map(tensor, given), strict=True))
        attributes = attributes_of(case)
        if (
            set(inputs) <= {"Q", "K", "V", "attn_mask"}
            and inputs["Q"].ndim == 4
            and set(attributes) <= EXPRESSED
        ):
            rtol = max(case.rtol, 2**-6) if inputs["Q"].dtype == torch.bfloat16 else case.rtol
            tensors = (inputs["Q"], inputs["K"], inputs["V"], inputs.get("attn_mask"))
            found.append(Vector(case.name, *tensors, attributes, tensor(results[0]), rtol, case.atol))
    return tuple(found)


def replays(subject: Subject, vector: Vector) -> None:
    """The subject gives Y."""
    dtype = subject.dtype(vector.query.dtype)
    if torch.finfo(dtype).eps > torch.finfo(vector.query.dtype).eps:
        raise NotTaken(f"published in {vector.query.dtype}, which {dtype} does not hold")
    query, key, value = (each.to(dtype, copy=True) for each in (vector.query, vector.key, vector.value))
    options: dict[str, Any] = {"enable_gqa": query.shape[1] != key.shape[1]}
    options |= {name: vector.attributes.get(name) for name in ("scale", "softcap")}
    options["is_causal"] = bool(vector.attributes.get("is_causal"))
    if vector.attn_mask is not None:
        boolean = vector.attn_mask.dtype == torch.bool
        options["attn_mask"] = vector.attn_mask.to(torch.bool if boolean else dtype, copy=True)
    output = subject(
        query, key, value, **{k: v for k, v in options.items() if v is not None and v is not False}
    )
    actual, expected = (each.detach().to(torch.float64).numpy() for each in (output, vector.expected))
    np.testing.assert_allclose(actual, expected, rtol=vector.rtol, atol=vector.atol, err_msg=vector.name)


def trials() -> list[Trial]:
    return [partial(replays, vector=vector) for vector in vectors()]


PEER = Peer(
    name="onnx",
    title="onnx's node vectors of Attention",
    rule=(
        "The published vectors that the canonical call can say (four axes; causal, masks, grouped heads, scale, "
        "softcap), rtol = 1e-3 and atol = 1e-7 as the package's runner has it (2^-6 in bfloat16). In float16 that is one "
        "unit in the last place."
    ),
    source="https://github.com/onnx/onnx/blob/main/onnx/backend/test/case/node/attention.py",
    trials=trials,
    needs="onnx",
)
