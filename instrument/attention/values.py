"""Regimes of values: the inputs decide what a law can see.

Each regime is one function of a draw that gives query, key and value in float64; they are rounded to the
case's dtype afterwards. Adding a regime is adding one function. `@regime(continuous=True)` marks values drawn
from continuous distributions without ties: on those alone the generic tier of the bound is valid.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headcheck.attention.case import Case

Triple = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Draw:
    """The shapes of one case and its source of randomness."""

    case: Case
    generator: torch.Generator

    def query_shape(self) -> tuple[int, int, int, int]:
        case = self.case
        return (case.batch, case.heads, case.q_len, case.head_dim)

    def key_shape(self) -> tuple[int, int, int, int]:
        case = self.case
        return (case.batch, case.kv_heads, case.kv_len, case.head_dim)

    def value_shape(self) -> tuple[int, int, int, int]:
        case = self.case
        return (case.batch, case.kv_heads, case.kv_len, case.value_dim)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        """Whole numbers from low to high, both included."""
        return torch.randint(low, high + 1, shape, generator=self.generator).to(torch.float64)

    def pick(self, *options: float) -> float:
        return options[int(torch.randint(len(options), (), generator=self.generator))]

    def normals(self) -> Triple:
        return (
            self.normal(self.query_shape()),
            self.normal(self.key_shape()),
            self.normal(self.value_shape()),
        )

    def scores_of(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key whose scaled dot products are `scores` (one number for each key), for every query."""
        scale = 1 / math.sqrt(self.case.head_dim) if self.case.scale is None else self.case.scale
        query = torch.zeros(self.query_shape(), dtype=torch.float64)
        query[..., 0] = 1.0
        key = torch.zeros(self.key_shape(), dtype=torch.float64)
        key[..., 0] = scores / (scale or 1.0)
        return query, key

    def one_value_for_each_key(self) -> Tensor:
        """Value j is the unit vector of dim j (modulo value_dim): the output shows the weights."""
        lit = torch.arange(self.case.kv_len) % self.case.value_dim
        return (
            torch.nn.functional.one_hot(lit, self.case.value_dim).double().expand(self.value_shape()).clone()
        )


Regime = Callable[[Draw], Triple]
REGIMES: dict[str, Regime] = {}
CONTINUOUS: set[str] = set()


def regime(*, continuous: bool = False) -> Callable[[Regime], Regime]:
    """Register a regime under its function's name, dashes for underscores."""

    def register(function: Regime) -> Regime:
        name = function.__name__.replace("_", "-")
        if name in REGIMES:
            raise ValueError(f"two regimes are called {name}")
        REGIMES[name] = function
        if continuous:
            CONTINUOUS.add(name)
        return function

    return register


@regime(continuous=True)
def normal(draw: Draw) -> Triple:
    """Standard normal numbers: logits of spread about 1."""
    return draw.normals()


@regime(continuous=True)
def large(draw: Draw) -> Triple:
    """Logits of spread 4 to 1000: weights from even to one-hot."""
    query, key, value = draw.normals()
    spread = math.sqrt(draw.pick(4.0, 16.0, 64.0, 1000.0))
    if draw.case.dtype == "float16":
        spread = min(spread, 8.0)
    return query * spread, key * spread, value


@regime(continuous=True)
def small(draw: Draw) -> Triple:
    """Inputs of about 0.01: nearly equal weights, and nothing near an absolute tolerance of 0.01."""
    query, key, value = draw.normals()
    return 0.1 * query, 0.1 * key, 0.01 * value


@regime()
def tiny(draw: Draw) -> Triple:
    """Values near the smallest normal number of their dtype, where underflow begins."""
    size = {"float16": 1e-4, "bfloat16": 1e-30, "float32": 1e-30, "float64": 1e-290}[draw.case.dtype]
    query, key, value = draw.normals()
    return query, key, value * size


@regime(continuous=True)
def outliers(draw: Draw) -> Triple:
    """A few coordinates a hundred times larger than the others, as trained models have."""
    query, key, value = draw.normals()
    loud = torch.rand(key.shape[-1], generator=draw.generator) < 0.2
    key[..., loud] *= 10.0
    query[..., loud] *= 4.0
    value = value * torch.where(torch.rand(value.shape, generator=draw.generator) < 0.1, 100.0, 1.0)
    return query, key, value


@regime()
def opposed(draw: Draw) -> Triple:
    """Large products that cancel in the sum: a score rounds with their size, not with its own."""
    query, key, value = draw.normals()
    side = query.new_ones(draw.case.head_dim)
    side[1::2] = -1.0
    size = draw.pick(4.0, 10.0)
    # Along `side` in the queries, across it in the keys: the products are size^2, their sum is about 0.
    across = key - (key * side).mean(dim=-1, keepdim=True) * side
    return query / size + size * side, key / size + size * across, value


@regime()
def very_negative(draw: Draw) -> Triple:
    """All logits far below zero: exp underflows unless the largest is taken out first."""
    query, key, value = draw.normals()
    return _shifted(draw, query, key, -draw.pick(20.0, 95.0, 130.0, 800.0)) + (value,)


@regime()
def very_positive(draw: Draw) -> Triple:
    """All logits far above zero: exp overflows unless the largest is taken out first."""
    query, key, value = draw.normals()
    return _shifted(draw, query, key, draw.pick(20.0, 95.0, 130.0, 800.0)) + (value,)


def _shifted(draw: Draw, query: Tensor, key: Tensor, by: float) -> tuple[Tensor, Tensor]:
    """Query and key moved along one axis, so that every score moves by about `by`."""
    scale = abs(1 / math.sqrt(draw.case.head_dim) if draw.case.scale is None else draw.case.scale) or 1.0
    if draw.case.dtype == "float16":
        by = math.copysign(min(abs(by), 130.0), by)
    side = math.sqrt(abs(by) / scale)
    query[..., 0] = query[..., 0].abs() * 0.01 * side + side
    key[..., 0] = (key[..., 0] * 0.01 * side + side) * math.copysign(1.0, by)
    return query, key


@regime()
def integers(draw: Draw) -> Triple:
    """Whole numbers from -3 to 3: every dot product is exact."""
    return (
        draw.integers(-3, 3, draw.query_shape()),
        draw.integers(-3, 3, draw.key_shape()),
        draw.integers(-3, 3, draw.value_shape()),
    )


@regime()
def ties(draw: Draw) -> Triple:
    """Keys that repeat each other: equal scores, with values that differ."""
    query, key, value = draw.normals()
    few = max(1, draw.case.kv_len // 3)
    return query, key[:, :, torch.arange(draw.case.kv_len) % few], value


@regime()
def equal(draw: Draw) -> Triple:
    """A query of zeros: every key counts the same, and value j lights one dim."""
    query, key, value = draw.normals()
    return torch.zeros_like(query), key, value + 4 * draw.one_value_for_each_key()


@regime()
def constant(draw: Draw) -> Triple:
    """The same value in every key."""
    query, key, value = draw.normals()
    return query, key, value[:, :, :1].expand(value.shape).clone()


@regime()
def one_hot(draw: Draw) -> Triple:
    """One key stands far above all others."""
    scores = torch.full((draw.case.kv_len,), -60.0, dtype=torch.float64)
    if draw.case.kv_len:
        scores[int(torch.randint(draw.case.kv_len, (), generator=draw.generator))] = 0.0
    return (*draw.scores_of(scores), draw.normal(draw.value_shape()))


@regime()
def ladder(draw: Draw) -> Triple:
    """Scores 0, -g, ..., down to -60 (-14 in float16): a slip in scale or exp is amplified by the depth."""
    depth = 14.0 if draw.case.dtype == "float16" else 60.0
    scores = -depth * torch.linspace(0, 1, max(draw.case.kv_len, 2), dtype=torch.float64)[: draw.case.kv_len]
    shuffled = scores[torch.randperm(draw.case.kv_len, generator=draw.generator)]
    return (*draw.scores_of(shuffled), draw.one_value_for_each_key())


@regime()
def cancelling(draw: Draw) -> Triple:
    """Values whose mean is about zero, so that rounding of the output hides nothing."""
    query, key, value = draw.normals()
    return 0.1 * query, key, value - value.mean(dim=2, keepdim=True) if draw.case.kv_len else value


@regime()
def stagnating(draw: Draw) -> Triple:
    """A few heavy keys and many light ones: a narrow accumulator stops growing."""
    scores = torch.full((draw.case.kv_len,), -5.0, dtype=torch.float64)
    heavy = max(1, draw.case.kv_len // 16)
    scores[:heavy] = 0.0
    if draw.pick(0, 1):
        scores = scores.flip(0)
    value = 1.0 + 0.1 * draw.normal(draw.value_shape()).abs()
    return (*draw.scores_of(scores), value)


@regime()
def rising(draw: Draw) -> Triple:
    """Scores that rise from key to key: the running maximum of an online softmax moves at every step."""
    return _sloping(draw, 1.0)


@regime()
def falling(draw: Draw) -> Triple:
    """Scores that fall from key to key: the first block of an online softmax holds the maximum."""
    return _sloping(draw, -1.0)


def _sloping(draw: Draw, sign: float) -> Triple:
    """Scores in even steps, from gentle ones to such that exp of a step between two blocks overflows."""
    height = draw.pick(8.0, 200.0, 2000.0)
    if draw.case.dtype == "float16":
        height = min(height, 60.0)
    steps = torch.linspace(-sign, sign, max(draw.case.kv_len, 2), dtype=torch.float64)[: draw.case.kv_len]
    query, key = draw.scores_of(height * steps + 0.1 * draw.normal((draw.case.kv_len,)))
    return query * (1 + 0.1 * draw.normal(draw.query_shape())), key, draw.normal(draw.value_shape())


def generate(case: Case, generator: torch.Generator) -> Triple:
    """Query, key and value of a case, in float64, before they are rounded to its dtype."""
    return REGIMES[case.values](Draw(case, generator))
