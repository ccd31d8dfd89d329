"""Inputs, and correct implementations in the order and formats of real ones, for the tests of the bounds."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from headcheck.arithmetic import Arithmetic
from headcheck.attention.bounds import forward_bounds
from headcheck.attention.gradient_bounds import gradient_bounds
from headcheck.attention.problem import Problem
from headcheck.reference.attention import group_heads
from headcheck.reference.masks import causal

NOTHING = float("-inf")


@dataclass(frozen=True)
class Case:
    """Inputs in the dtype under test, and all that may be asked for."""

    query: Tensor
    key: Tensor
    value: Tensor
    may_attend: Tensor | None = None
    bias: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.query.dtype

    @property
    def resolved_scale(self) -> float:
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def problem(self) -> Problem:
        return Problem(
            query=self.query.detach().double(),
            key=self.key.detach().double(),
            value=self.value.detach().double(),
            scale=self.resolved_scale,
            may_attend=self.may_attend,
            bias=None if self.bias is None else self.bias.detach().double(),
            softcap=self.softcap,
            sinks=None if self.sinks is None else self.sinks.detach().double(),
        )

    def to(self, dtype: torch.dtype) -> "Case":
        tensors = {
            name: getattr(self, name).to(dtype)
            for name in ("query", "key", "value", "bias", "sinks")
            if getattr(self, name) is not None
        }
        return replace(self, **tensors)


def normal(
    dtype: torch.dtype,
    heads: int = 2,
    kv_heads: int = 2,
    q_len: int = 5,
    kv_len: int = 33,
    dim: int = 8,
    spread: float = 1.0,
    **features: object,
) -> Case:
    query = spread * torch.randn(1, heads, q_len, dim)
    key, value = torch.randn(2, 1, kv_heads, kv_len, dim)
    return Case(query.to(dtype), key.to(dtype), value.to(dtype), **features)  # type: ignore[arg-type]


Implementation = Callable[[Case], Tensor]


def scores_of(case: Case) -> Tensor:
    scores = case.query @ group_heads(case.key, case.query.shape[1]).mT * case.resolved_scale
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    if case.bias is not None:
        scores = scores + case.bias
    return scores if case.may_attend is None else scores.masked_fill(~case.may_attend, NOTHING)


def softmax_weights(case: Case, softmax: Callable[[Tensor], Tensor]) -> Tensor:
    scores = scores_of(case)
    if case.sinks is not None:
        sink = case.sinks[:, None, None].expand(*scores.shape[:-1], 1)
        return softmax(torch.cat([scores, sink], dim=-1))[..., :-1]
    dead = scores.isneginf().all(dim=-1, keepdim=True)
    return softmax(scores.masked_fill(dead, 0.0)).masked_fill(dead, 0.0)


def _one_by_one(scores: Tensor) -> Tensor:
    raised = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return raised / raised.sum(dim=-1, keepdim=True)


def eager(case: Case) -> Tensor:
    return softmax_weights(case, lambda s: s.softmax(-1)) @ group_heads(case.value, case.query.shape[1])


def softmax_in_float32(case: Case) -> Tensor:
    def softmax(scores: Tensor) -> Tensor:
        return scores.softmax(-1, dtype=torch.float32).to(case.dtype)

    return softmax_weights(case, softmax) @ group_heads(case.value, case.query.shape[1])


def opwise(case: Case) -> Tensor:
    return softmax_weights(case, _one_by_one) @ group_heads(case.value, case.query.shape[1])


def upcast(case: Case) -> Tensor:
    return eager(case.to(wider(case.dtype))).to(case.dtype)


def wider(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


def online(case: Case, block: int, reverse: bool = False) -> Tensor:
    """Dao et al. 2022, algorithm 1, with weights stored in the dtype as FlashAttention does."""
    wide = case.to(wider(case.dtype))
    scores, value = scores_of(wide), group_heads(wide.value, wide.query.shape[1])
    top = torch.full((*scores.shape[:-1], 1), NOTHING, dtype=wide.dtype)
    total, mixed = torch.zeros_like(top), torch.zeros(*scores.shape[:-1], value.shape[-1], dtype=wide.dtype)
    starts = range(0, scores.shape[-1], block)
    for start in reversed(starts) if reverse else starts:
        part = scores[..., start : start + block]
        new = torch.maximum(top, part.amax(dim=-1, keepdim=True))
        shift = new.masked_fill(new.isneginf(), 0.0)
        rescale, raised = torch.exp(top - shift), torch.exp(part - shift)
        total = total * rescale + raised.sum(dim=-1, keepdim=True)
        stored = raised.to(case.dtype).to(wide.dtype)
        mixed = mixed * rescale + stored @ value[..., start : start + block, :]
        top = new
    if wide.sinks is not None:
        total = total + torch.exp(wide.sinks[:, None, None] - top)
    return torch.where(total > 0, mixed / total.clamp(min=1e-300), 0.0).to(case.dtype)


def _torch(case: Case, backend: SDPBackend) -> Tensor:
    mask = case.may_attend if case.bias is None else case.bias
    if case.bias is not None and case.may_attend is not None:
        mask = case.bias.masked_fill(~case.may_attend, NOTHING)
    grouped = case.query.shape[1] != case.key.shape[1]
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(
            case.query, case.key, case.value, mask, scale=case.scale, enable_gqa=grouped
        )


def torch_math(case: Case) -> Tensor:
    return _torch(case, SDPBackend.MATH)


def torch_flash(case: Case) -> Tensor:
    return _torch(case, SDPBackend.FLASH_ATTENTION)


CORRECT: dict[str, tuple[Implementation, str]] = {
    "torch math": (torch_math, "wide"),
    "torch flash": (torch_flash, "flash"),
    "upcast": (upcast, "wide"),
    "online, block 1": (lambda case: online(case, 1), "flash"),
    "online, block 16": (lambda case: online(case, 16), "flash"),
    "online, reversed": (lambda case: online(case, 3, reverse=True), "flash"),
    "eager": (eager, "eager"),
    "softmax in float32": (softmax_in_float32, "eager"),
    "opwise": (opwise, "opwise"),
}


def supports(implementation: str, case: Case) -> bool:
    """torch's attention has neither softcap nor sinks."""
    return not implementation.startswith("torch") or (case.softcap is None and case.sinks is None)


def cases(dtype: torch.dtype) -> Iterator[tuple[str, Case]]:
    """Normal inputs, with each feature."""
    for spread in (0.1, 1.0, 10.0):
        yield f"spread {spread}", normal(dtype, spread=spread)
    yield "one key", normal(dtype, kv_len=1)
    yield "one dimension", normal(dtype, dim=1)
    yield "long", normal(dtype, q_len=2, kv_len=513, dim=64)
    yield "causal", normal(dtype, q_len=33, may_attend=causal(33, 33))
    yield "masked, dead rows", normal(dtype, may_attend=torch.rand(1, 2, 5, 33) < torch.rand(5, 1))
    yield "bias", normal(dtype, bias=3 * torch.randn(1, 2, 5, 33).to(dtype))
    alibi = -0.3 * (torch.arange(5)[:, None] - torch.arange(33)).abs()
    yield "ALiBi", normal(dtype, bias=alibi[None, None].to(dtype))
    lowest = torch.zeros(1, 1, 5, 33, dtype=dtype)
    lowest[..., 20:] = torch.finfo(dtype).min
    yield "finite mask value", normal(dtype, bias=lowest)
    yield "grouped heads", normal(dtype, heads=6)
    yield "softcap", normal(dtype, spread=10.0, softcap=5.0)
    yield "sinks", normal(dtype, sinks=torch.tensor([0.5, 3.0], dtype=dtype))
    yield "sinks on top", normal(dtype, spread=0.1, sinks=torch.tensor([5.0, 9.0], dtype=dtype))
    yield "negative scale", normal(dtype, scale=-0.7)


def structured(dtype: torch.dtype) -> Iterator[tuple[str, Case]]:
    """Inputs on which rounding errors do not average out."""
    plain = normal(dtype)
    tied = replace(plain, key=plain.key[:, :, :1].expand_as(plain.key).clone())
    yield "constant", replace(tied, value=torch.full_like(plain.value, 1.1))
    yield "tied", tied
    yield "one-hot weights", normal(dtype, spread=100.0)
    yield "one-hot values", replace(plain, value=torch.eye(33, 8, dtype=dtype).expand_as(plain.value).clone())
    yield "tiny", replace(plain, query=plain.query * 1e-3, value=plain.value * 1e-4)
    yield "common offset", replace(plain, key=plain.key + 10)
    ascending = plain.key.clone()
    ascending[..., 0] = torch.arange(33) / 4
    yield "ascending", replace(plain, query=plain.query.abs(), key=ascending)
    zeros = (plain.query * (plain.query > 0), plain.key * (plain.key > 0), plain.value.round())
    yield "zeros", replace(plain, query=zeros[0], key=zeros[1], value=zeros[2])


def excess(observed: Tensor, exact: Tensor, bound: Tensor) -> float:
    """The largest error / bound; a number that is not finite is off by infinity."""
    error = (observed.detach().double() - exact).abs().nan_to_num(nan=math.inf)
    error = torch.where(observed.detach().double() == exact, 0.0, error)
    assert not bound.isnan().any() and bool((bound >= 0).all()) and bound.shape == error.shape
    return torch.where((error == 0) | bound.isinf(), 0.0, error / bound).amax().item()


def output_excess(case: Case, observed: Tensor, arithmetic: Arithmetic, generic: bool = False) -> float:
    problem = case.problem
    bound = forward_bounds(problem, arithmetic, case.dtype, generic=generic).output
    return excess(observed, problem.attended.output, bound)


def every_bound(case: Case, arithmetic: Arithmetic, generic: bool) -> Iterator[Tensor]:
    problem = case.problem
    forward = forward_bounds(problem, arithmetic, case.dtype, generic=generic)
    yield from (forward.output, forward.weights, forward.log_sum_exp)
    cotangent = torch.ones_like(problem.attended.output)
    for bound in gradient_bounds(problem, cotangent, arithmetic, case.dtype, generic=generic):
        if bound is not None:
            yield bound
