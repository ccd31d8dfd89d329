"""PyTorch's own rule for its fused attention kernels: the error of low precision, times fudge factors.

test/test_transformers.py of pytorch/pytorch, commit 00030eb8, get_tolerances and the tests
test_flash_attention_vs_math_ref_grads, test_mem_efficient_attention_vs_math_ref_grads and
test_mem_efficient_attention_attn_mask_vs_math_ref_grads. The math backend runs in the dtype of the inputs and
in a higher one (float32 for 16 bits, float64 for float32). The largest absolute and the largest relative
difference of the two, or the default tolerance of the dtype where that is larger, times a factor for each
tensor, are atol and rtol of the comparison with the higher one. Inputs are uniform in [0, 1).

Scaled: batch 1 and 2, lengths up to 143, head dims 8, 21 (16) and 64; each pair of lengths meets every dtype
or mask setting in turn, head dim, batch and scale take turns. Dropout is left out: their rule needs the
kernel's own dropout mask.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.peers.rules import Peer, Trial
from benchmarks.peers.subjects import Subject

HEADS = 4
DEFAULT_ATOL = {torch.float16: 1e-3, torch.bfloat16: 1e-3, torch.float32: 1e-5, torch.float64: 1e-7}
DEFAULT_RTOL = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float32: 1.3e-6, torch.float64: 1e-7}
TOO_LARGE = 1e30
"""A relative tolerance above this is replaced by the default."""


@dataclass(frozen=True)
class Point:
    """One point of their grids."""

    kernel: str
    """flash, efficient or masked."""
    batch: int
    q_len: int
    kv_len: int
    head_dim: int
    dtype: torch.dtype
    is_causal: bool
    scale: float | None

    @property
    def factors(self) -> dict[str, float]:
        """The fudge factor of each tensor."""
        if self.kernel == "flash":
            output = 3.0 if self.head_dim % 8 else 1.0
            return {"output": output, "query": 4.0, "key": 2.0, "value": 2.0}
        if self.kernel == "efficient":
            return {"output": 1.0, "query": 1.5, "key": 12.0, "value": 1.0}
        mask = 12.0 if self.q_len * self.kv_len > 512 else 22.0
        return {"output": 1.0, "query": 2.0, "key": 12.0, "value": 1.0, "attn_mask": mask}


@dataclass(frozen=True)
class Rule:
    """Inputs, the results in high precision, and atol and rtol of each."""

    inputs: Mapping[str, Tensor]
    upstream: Tensor
    exact: Mapping[str, Tensor]
    tolerances: Mapping[str, tuple[float, float]]


def called(
    function: Any, tensors: Mapping[str, Tensor], upstream: Tensor, point: Point, *, backward: bool = True
) -> dict[str, Tensor]:
    """The output and the gradient of every tensor."""
    given = {name: each.clone().requires_grad_() for name, each in tensors.items()}
    output = function(**given, is_causal=point.is_causal, scale=point.scale)
    if not backward:
        return {"output": output.detach()}
    output.backward(upstream.to(output.dtype, copy=True))
    return {"output": output.detach()} | {name: each.grad for name, each in given.items()}


def math(**arguments: Any) -> Tensor:
    with sdpa_kernel(backends=[SDPBackend.MATH]):
        return scaled_dot_product_attention(**arguments)


def tolerances(exact: Tensor, low: Tensor, factor: float) -> tuple[float, float]:
    """atol and rtol."""
    off = (exact - low).abs()
    relative = (off / exact.abs()).nan_to_num(nan=DEFAULT_RTOL[low.dtype]).max().item()
    atol = factor * max(off.max().item(), DEFAULT_ATOL[low.dtype])
    rtol = factor * max(relative, DEFAULT_RTOL[low.dtype])
    return atol, rtol if rtol <= TOO_LARGE else DEFAULT_RTOL[low.dtype]


@cache
def rule_for(point: Point) -> Rule:
    """What both precisions of the math backend say of one point."""
    source = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=source).to(point.dtype)

    batch, q_len, kv_len, head_dim = point.batch, point.q_len, point.kv_len, point.head_dim
    inputs = {"query": uniform(batch, HEADS, q_len, head_dim)}
    inputs |= {name: uniform(batch, HEADS, kv_len, head_dim) for name in ("key", "value")}
    if point.kernel == "masked":
        inputs["attn_mask"] = uniform(q_len, kv_len)
    upstream = uniform(batch, HEADS, q_len, head_dim)
    higher = torch.float32 if point.dtype.itemsize == 2 else torch.float64
    low = called(math, inputs, upstream, point)
    exact = called(math, {name: each.to(higher) for name, each in inputs.items()}, upstream, point)
    found = {name: tolerances(exact[name], low[name], factor) for name, factor in point.factors.items()}
    return Rule(inputs, upstream, exact, found)


def within(subject: Subject, point: Point) -> None:
    """The subject's output and gradients are within the fudged tolerances."""
    rule = rule_for(replace(point, dtype=subject.dtype(point.dtype)))

    def function(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        asked = {name: each for name, each in options.items() if each is not None and each is not False}
        return subject(query, key, value, **asked)

    found = called(function, rule.inputs, rule.upstream, point, backward=subject.gradients)
    for name, value in found.items():
        expected = rule.exact[name]
        assert value is not None, f"no gradient of {name}"
        atol, rtol = rule.tolerances[name]
        torch.testing.assert_close(
            value,
            expected.to(value.dtype),
            atol=atol,
            rtol=rtol,
            equal_nan=True,
            msg=partial(_named, f"{name} in {value.dtype}"),
        )


def _named(name: str, text: str) -> str:
    return f"{name}: {text}"


def points() -> Iterator[Point]:
    """Their grids, scaled."""
    half = (torch.float16, torch.bfloat16)
    number = 0
    for q_len, kv_len in product((4, 8, 64, 143), (4, 8, 64, 128)):
        for dtype, is_causal in product(half, (False, True) if q_len == kv_len else (False,)):
            number += 1
            yield _point("flash", number, q_len, kv_len, dtype, (8, 21, 64), is_causal=is_causal)
    for q_len, kv_len in product((4, 8, 64, 128), repeat=2):
        for is_causal in (False, True):
            number += 1
            dtype = (*half, torch.float32)[number % 3]
            yield _point("efficient", number, q_len, kv_len, dtype, (8, 16, 64), is_causal=is_causal)
    for q_len, kv_len in product((4, 8, 64, 128), (4, 8, 65, 128)):
        number += 1
        dtype = (*half, torch.float32)[number % 3]
        yield _point("masked", number, q_len, kv_len, dtype, (8, 16, 64), is_causal=False)


def _point(
    kernel: str,
    number: int,
    q_len: int,
    kv_len: int,
    dtype: torch.dtype,
    dims: tuple[int, ...],
    *,
    is_causal: bool,
) -> Point:
    head_dim = dims[number // 2 % 3]
    scale = 1 / head_dim if number // 3 % 2 else None
    return Point(kernel, 1 + number // 4 % 2, q_len, kv_len, head_dim, dtype, is_causal, scale)


def trials() -> list[Trial]:
    return [partial(within, point=point) for point in points()]


PEER = Peer(
    name="fudge",
    title="PyTorch's tests of its kernels: fudge factors",
    rule=(
        "On the grids of the flash and memory-efficient kernels, scaled to lengths of 4 to 143, uniform inputs, "
        "float16, bfloat16 and float32: output and gradients within the largest error of the math backend in "
        "the same dtype, times factors of 1 to 22. Upstream asks it of CUDA kernels only."
    ),
    source="https://github.com/pytorch/pytorch/blob/00030eb8e81f911c48c4d7634fa6b8bb2fae1a1b/test/test_transformers.py",
    trials=trials,
)
