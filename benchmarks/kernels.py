"""Attention as correct and faulty programs compute it, and the inputs that `calibration.py` gives them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from headcheck.attention.problem import Problem

BFLOAT16, FLOAT16, FLOAT32, FLOAT64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@dataclass(frozen=True, eq=False)
class Inputs:
    """One head of attention: query (q_len, dim), key (kv_len, dim), value (kv_len, value_dim)."""

    name: str
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    may_attend: Tensor | None = None
    generic: bool = False
    """Drawn from continuous distributions, without structure: the generic tier applies."""

    def to(self, dtype: torch.dtype) -> "Inputs":
        return replace(self, query=self.query.to(dtype), key=self.key.to(dtype), value=self.value.to(dtype))

    @property
    def dtype(self) -> torch.dtype:
        return self.query.dtype

    @cached_property
    def problem(self) -> Problem:
        query, key, value = (x[None, None].double() for x in (self.query, self.key, self.value))
        return Problem(query, key, value, self.scale, may_attend=self.may_attend)

    @cached_property
    def exact(self) -> Tensor:
        return self.problem.attended.output[0, 0]

    @cached_property
    def naive(self) -> Tensor:
        return eager(self)


# Correct implementations.


def _masked(scores: Tensor, inputs: Inputs) -> Tensor:
    return scores if inputs.may_attend is None else scores.masked_fill(~inputs.may_attend, -math.inf)


def eager(inputs: Inputs) -> Tensor:
    scores = _masked(inputs.query @ inputs.key.mT * inputs.scale, inputs)
    return scores.softmax(-1) @ inputs.value


def opwise(inputs: Inputs) -> Tensor:
    scores = inputs.query @ inputs.key.mT * inputs.scale
    raised = torch.exp(scores - scores.amax(-1, keepdim=True))
    return raised / raised.sum(-1, keepdim=True) @ inputs.value


def _torch(inputs: Inputs, backend: SDPBackend) -> Tensor:
    with sdpa_kernel(backend):
        query, key, value = (x[None, None] for x in (inputs.query, inputs.key, inputs.value))
        return scaled_dot_product_attention(query, key, value, inputs.may_attend, scale=inputs.scale)[0, 0]


def torch_math(inputs: Inputs) -> Tensor:
    return _torch(inputs, SDPBackend.MATH)


def torch_flash(inputs: Inputs) -> Tensor:
    return _torch(inputs, SDPBackend.FLASH_ATTENTION)


def sequential(inputs: Inputs) -> Tensor:
    """Every sum one term after the other."""
    query, key, value = inputs.query, inputs.key, inputs.value
    scores = torch.zeros(len(query), len(key), dtype=query.dtype)
    for index in range(query.shape[-1]):
        scores = scores + query[:, index, None] * key[:, index]
    raised = torch.exp((scores * inputs.scale) - (scores * inputs.scale).amax(-1, keepdim=True))
    total = torch.zeros(len(query), 1, dtype=query.dtype)
    mixed = torch.zeros(len(query), value.shape[-1], dtype=query.dtype)
    for index in range(len(key)):
        total = total + raised[:, index, None]
        mixed = mixed + raised[:, index, None] * value[index]
    return mixed / total


@dataclass(frozen=True)
class Fault:
    """What is wrong with a kernel; nothing by default."""

    scale: float = 0.0
    exp: float = 0.0
    output: float = 0.0
    missing: int = 0
    doubled: int = 0
    padding: int = 0
    accumulator: torch.dtype | None = None
    row_sum: torch.dtype | None = None
    scores: torch.dtype | None = None
    mask_value: float = -math.inf
    straight_exp: bool = False


def kernel(inputs: Inputs, model: str, fault: Fault = Fault(), block: int = 64) -> Tensor:
    """Online softmax in float32 (or wider) with the stores of its model, and perhaps with a fault."""
    dtype = inputs.dtype
    wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
    store = dtype if model == "eager" else wide
    scores = (
        (inputs.query.to(wide) @ inputs.key.to(wide).mT).to(store) * (inputs.scale * (1 + fault.scale))
    ).to(store)
    scores = scores.to(fault.scores or wide).to(wide)
    if inputs.may_attend is not None:
        scores = scores.masked_fill(~inputs.may_attend, fault.mask_value)
    value = inputs.value.to(wide)
    if fault.missing:
        scores, value = scores[:, fault.missing :], value[fault.missing :]
    if fault.doubled:
        scores = torch.cat([scores, scores[:, -fault.doubled :]], 1)
        value = torch.cat([value, value[-fault.doubled :]])
    if model == "eager":
        return _whole(scores, value, dtype, fault)
    top = torch.full((len(scores), 1), -math.inf, dtype=wide)
    total, mixed = torch.zeros_like(top), torch.zeros(len(scores), value.shape[-1], dtype=wide)
    for start in range(0, scores.shape[1], block):
        part = scores[:, start : start + block]
        new = torch.maximum(top, part.amax(-1, keepdim=True))
        shift = new.masked_fill(new.isneginf(), 0.0)
        rescale, raised = torch.exp(top - shift), _exp(part - shift, fault)
        stored = raised.to(dtype).to(wide) if model == "flash" else raised
        total = _sum(total * rescale, raised[..., None], fault.row_sum)
        mixed = _sum(mixed * rescale, stored[..., None] * value[start : start + block], fault.accumulator)
        top = new
    if fault.padding:
        total = total + fault.padding * torch.exp(-top)
    return (mixed / total * (1 + fault.output)).to(dtype)


def _whole(scores: Tensor, value: Tensor, dtype: torch.dtype, fault: Fault) -> Tensor:
    """Softmax of the whole row at once, its weights stored."""
    top = scores.amax(-1, keepdim=True)
    raised = _exp(scores - top, fault)
    total = _sum(torch.zeros_like(top), raised[..., None], fault.row_sum)
    total = total + fault.padding * torch.exp(-top)
    weights = (raised / total).to(dtype).to(scores.dtype)
    mixed = torch.zeros(len(scores), value.shape[-1], dtype=scores.dtype)
    return (_sum(mixed, weights[..., None] * value, fault.accumulator) * (1 + fault.output)).to(dtype)


def _sum(start: Tensor, terms: Tensor, narrow: torch.dtype | None) -> Tensor:
    """start + sum over the keys, in a narrow format if that is the fault."""
    if narrow is None:
        return start + terms.sum(1)
    result = start.to(narrow)
    for index in range(terms.shape[1]):
        result = (result.to(start.dtype) + terms[:, index]).to(narrow)
    return result.to(start.dtype)


def _exp(exponent: Tensor, fault: Fault) -> Tensor:
    """exp, with an error that follows the fraction of the binary exponent, as that of a polynomial does."""
    binary = exponent * math.log2(math.e)
    fraction = binary - binary.floor()
    if fault.straight_exp:
        return torch.exp2(binary.floor()) * (1 + fraction)
    raised = torch.exp(exponent)
    return (
        raised
        if not fault.exp
        else raised * (1 + fault.exp * torch.where(binary.isfinite(), 2 * fraction - 1, 0.0))
    )


Implementation = Callable[[Inputs], Tensor]
CORRECT: Sequence[tuple[Sequence[torch.dtype], str, Implementation, str]] = (
    ((FLOAT64, FLOAT32), "torch math", torch_math, "native"),
    ((FLOAT64, FLOAT32), "torch flash", torch_flash, "native"),
    ((FLOAT64, FLOAT32), "online, 1 key a step", lambda x: kernel(x, "native", block=1), "native"),
    ((FLOAT64, FLOAT32), "fully sequential", sequential, "native"),
    ((BFLOAT16, FLOAT16), "torch math", torch_math, "wide"),
    ((BFLOAT16, FLOAT16), "torch flash", torch_flash, "flash"),
    ((BFLOAT16, FLOAT16), "online, 1 key a step", lambda x: kernel(x, "flash", block=1), "flash"),
    ((BFLOAT16, FLOAT16), "eager", eager, "eager"),
    ((BFLOAT16, FLOAT16), "eager, op by op", opwise, "opwise"),
)


# Inputs.


def families(kv_len: int, dim: int, dtype: torch.dtype, q_len: int = 4) -> Iterator[Inputs]:
    """Thirteen kinds of inputs, eight of them without structure."""
    query, key, value = torch.randn(q_len, dim), torch.randn(kv_len, dim), torch.randn(kv_len, dim)
    plain = Inputs("randn", query, key, value, dim**-0.5, generic=True)
    shaped = replace(plain, generic=False)
    tied = key[:1].expand_as(key)
    sign = torch.where(torch.arange(kv_len) % 2 == 0, 1.0, -1.0)[:, None]
    near = tied * (1 + 2.0**-6 * (sign > 0))
    outlier = torch.where(torch.rand_like(key) < 0.02, 100 * key, key)
    ascending = torch.cat([torch.linspace(0, 30, kv_len)[:, None], key[:, 1:]], 1)
    found = [
        *(replace(plain, name=f"randn x {size}", query=size * query) for size in (0.1, 1, 10, 100)),
        replace(plain, name="outliers", key=outlier),
        replace(plain, name="tiny", query=1e-3 * query, key=1e-3 * key, value=1e-4 * value),
        replace(plain, name="values of mean 100", value=value + 100),
        replace(plain, name="keys with an offset", key=key + 10),
        replace(shaped, name="constant", query=0.7 + 0 * query, key=0.3 + 0 * key, value=1.1 + 0 * value),
        replace(shaped, name="tied scores", key=tied),
        replace(shaped, name="tied, signed values", key=near, value=sign * value.abs()),
        replace(shaped, name="one-hot values", value=torch.eye(kv_len, dim)),
        replace(shaped, name="ascending scores", query=query.abs(), key=ascending),
    ]
    yield from (inputs.to(dtype) for inputs in found)


def suite(dtype: torch.dtype) -> Iterator[Inputs]:
    """Inputs on which a fault shows as a large error of some element."""
    steps = 12 if dtype == FLOAT16 else 48
    ladder = -torch.arange(steps + 1.0)[:, None]
    # 83/64 times a step is exact in float32 and not in bfloat16: scores that are stored show.
    yield Inputs("ladder", torch.full((1, 1), 83 / 64), ladder, torch.eye(steps + 1), 1.0).to(dtype)
    yield Inputs("uniform", torch.zeros(1, 4), torch.randn(513, 4), torch.eye(513), 0.5).to(dtype)
    plain = Inputs("cancel", torch.randn(1, 64), torch.randn(513, 64), torch.randn(513, 64), 0.125).to(dtype)
    yield replace(plain, value=(plain.value.double() - plain.exact).to(dtype))
    light = torch.full((4096, 1), -7.0)
    light[:64] = 0.0
    value = torch.cat([torch.ones(4096, 1), (light < 0).float()], 1)
    for order in (light, light.flip(0)):
        values = value if order is light else value.flip(0)
        yield Inputs("stagnate", torch.ones(1, 1), order, values, 1.0).to(dtype)
    few = torch.tensor([0.0, -0.3, -0.7, -1.4])[:, None]
    yield Inputs("few keys", torch.ones(1, 1), few, torch.eye(4), 1.0).to(dtype)
    mask = torch.ones(1, 128, dtype=torch.bool)
    mask[:, 100:] = False
    poison = torch.where(mask[0, :, None], torch.randn(128, 64), 6e4 if dtype == FLOAT16 else 1e30)
    yield Inputs("poison", torch.randn(4, 64), torch.randn(128, 64), poison, 0.125, mask).to(dtype)


def one_draw(dtype: torch.dtype, masked: bool = False) -> Inputs:
    """64 queries, 513 keys, 64 dimensions; the last eight keys masked where the fault concerns a mask."""
    mask = None
    if masked:
        mask = torch.ones(1, 513, dtype=torch.bool)
        mask[:, -8:] = False
    tensors = (torch.randn(64, 64), torch.randn(513, 64), torch.randn(513, 64))
    return Inputs("randn", *tensors, 0.125, mask, generic=True).to(dtype)
