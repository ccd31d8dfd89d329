"""The rule of flash-attention's tests: at most twice the error of a naive implementation.

tests/test_flash_attn.py of Dao-AILab/flash-attention, commit 0251105a, functions test_flash_attn_output and
test_flash_attn_causal. A reference computes in float32; a naive implementation computes in the 16 bits of the
inputs, with the scale on the key. The largest error of the kernel may be twice the largest error of the naive
one, that of each gradient three times. In the causal test it is twice for all, plus 1e-5.

Scaled: lengths above 256 are divided by 8, batch 1, six heads (three in the causal test), head dims up to
111; each pair of lengths meets both dtypes with and without the causal mask, head dims and numbers of key heads
take turns. The local window, the softcap of 50 (with queries raised as much) and ALiBi are asked of subjects
that take them. The causal mask is aligned at the top left, which is what the canonical call means. Dropout is
left out: their rule needs the kernel's own dropout mask.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.rules import Peer, Trial
from benchmarks.peers.subjects import Subject, Triple, three

HALF = (torch.float16, torch.bfloat16)
OUTPUT_LENGTHS = (
    (113, 203),
    (128, 217),
    (113, 211),
    (108, 256),
    (256, 64),
    (64, 32),
    (128, 128),
    (127, 128),
    (128, 127),
    (256, 256),
)
CAUSAL_LENGTHS = ((1, 239), (3, 99), (127, 64), (127, 65), (113, 203), (128, 217), (108, 256), (127, 128))
HEAD_DIMS = (32, 40, 59, 64, 111)


@dataclass(frozen=True)
class Point:
    """One point of their grid."""

    q_len: int
    kv_len: int
    head_dim: int
    dtype: torch.dtype
    is_causal: bool
    batch: int = 1
    heads: int = 6
    kv_heads: int = 6
    window: tuple[int, int] | None = None
    softcap: float | None = None
    alibi: bool = False
    factors: tuple[float, float] = (2.0, 3.0)
    """Of the output, of the gradients."""
    slack: float = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the call beside the tensors."""
        asked = {"is_causal": self.is_causal, "window": self.window, "softcap": self.softcap}
        asked["enable_gqa"] = self.kv_heads != self.heads
        return {name: value for name, value in asked.items() if value}


@dataclass(frozen=True)
class Allowed:
    """Inputs, the reference's results, and how far a kernel may be from them."""

    inputs: Triple
    slopes: Tensor | None
    cotangent: Tensor
    exact: Mapping[str, Tensor]
    most: Mapping[str, float]


def attention(point: Point, tensors: Triple, slopes: Tensor | None, *, naive: bool) -> Tensor:
    """The reference, in float32 or better, or the naive implementation, in the dtype of the inputs."""
    query, key, value = tensors if naive else three(each.to(wide(point.dtype)) for each in tensors)
    group, root = point.heads // point.kv_heads, point.head_dim**0.5
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = query @ (key / root).mT if naive else (query / root) @ key.mT
    if point.softcap:
        scores = (scores / point.softcap).tanh() * point.softcap
    away = torch.arange(point.kv_len) - torch.arange(point.q_len)[:, None]
    hidden = away > 0 if point.is_causal else torch.zeros_like(away, dtype=torch.bool)
    if point.window:
        hidden = hidden | (away < -point.window[0]) | (away > point.window[1])
    scores = scores.masked_fill(hidden, float("-inf"))
    if slopes is not None:
        scores = scores - slopes[:, None, None] * away.abs()
    weights = scores.softmax(dim=-1).to(value.dtype).masked_fill(hidden.all(dim=-1, keepdim=True), 0.0)
    output: Tensor = weights @ value
    return output.to(point.dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize == 2 else torch.float64


def results(output: Tensor, tensors: Triple, cotangent: Tensor) -> dict[str, Tensor]:
    """The output and the gradients of query, key and value."""
    gradients = torch.autograd.grad(output, tensors, cotangent)
    return {"output": output.detach()} | dict(zip(("dq", "dk", "dv"), gradients, strict=True))


def leaves(tensors: Triple) -> Triple:
    return three(each.clone().requires_grad_() for each in tensors)


@cache
def allowed(point: Point) -> Allowed:
    """What the reference and the naive implementation say of one point."""
    source = torch.Generator().manual_seed(0)

    def normal(heads: int, length: int) -> Tensor:
        return torch.randn(point.batch, heads, length, point.head_dim, generator=source).to(point.dtype)

    query, cotangent = normal(point.heads, point.q_len), normal(point.heads, point.q_len)
    key, value = (normal(point.kv_heads, point.kv_len) for _ in range(2))
    inputs = (query * (point.softcap or 1.0), key, value)
    slopes = torch.rand(point.heads, generator=source) * 0.3 if point.alibi else None
    exact, naive = (
        results(attention(point, given := leaves(inputs), slopes, naive=kind), given, cotangent)
        for kind in (False, True)
    )
    most = {}
    for name, value in exact.items():
        factor = point.factors[0 if name == "output" else 1]
        most[name] = factor * (naive[name] - value).abs().max().item() + point.slack
    return Allowed(inputs, slopes, cotangent, exact, most)


def within(subject: Subject, point: Point) -> None:
    """The kernel's errors are within the rule."""
    subject.require(*point.options, *(("alibi_slopes",) if point.alibi else ()))
    rule = allowed(replace(point, dtype=subject.dtype(point.dtype)))
    tensors = leaves(rule.inputs)
    slopes = {} if rule.slopes is None else {"alibi_slopes": rule.slopes.clone()}
    output = subject(*tensors, **(point.options | slopes))
    held(rule, "output", output.detach())
    if subject.gradients:
        for name, value in results(output, tensors, rule.cotangent.clone()).items():
            held(rule, name, value)


def held(rule: Allowed, name: str, value: Tensor) -> None:
    assert value.shape == rule.exact[name].shape, f"{name} has the shape {tuple(value.shape)}"
    error = (value - rule.exact[name]).abs().max().item()
    assert error <= rule.most[name], (
        f"{name} in {value.dtype} is off by {error:.3g}, {rule.most[name]:.3g} is allowed"
    )


def points() -> Iterator[Point]:
    """Their grid, scaled."""
    grid = product(OUTPUT_LENGTHS, HALF, (False, True))
    for number, (lengths, dtype, is_causal) in enumerate(grid):
        head_dim, kv_heads = HEAD_DIMS[number % 5], (6, 1, 2)[number % 3]
        plain = Point(*lengths, head_dim, dtype, is_causal, kv_heads=kv_heads)
        yield plain
        yield replace(plain, window=(lengths[1] // 3, lengths[1] // 5))
        yield replace(plain, softcap=50.0, heads=4, kv_heads=min(kv_heads, 4))
        yield replace(plain, alibi=True)
    for number, (lengths, dtype) in enumerate(product(CAUSAL_LENGTHS, HALF)):
        causal = Point(*lengths, HEAD_DIMS[number % 5], dtype, is_causal=True, heads=3, kv_heads=3)
        causal = replace(causal, factors=(2.0, 2.0), slack=1e-5)
        yield causal
        yield replace(causal, q_len=causal.kv_len, kv_len=causal.q_len)


def trials() -> list[Trial]:
    return [partial(within, point=point) for point in points()]


PEER = Peer(
    name="flash",
    title="flash-attention's tests: twice the naive error",
    rule=(
        "On their grid, scaled to lengths of 1 to 256 and head dims of 32 to 111, in float16 and bfloat16: the "
        "largest error against a float32 reference is at most twice that of a naive 16-bit implementation, in "
        "gradients three times (in the causal test twice, plus 1e-5). Two largest errors of right functions can be "
        "further apart than that."
    ),
    source="https://github.com/Dao-AILab/flash-attention/blob/0251105a2fb19d2957484b7f023cd8c115286ced/tests/test_flash_attn.py",
    trials=trials,
)
