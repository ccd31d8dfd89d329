"""Cases as the engine draws them, for the tests of drawing, building and repairing."""

import functools
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import given as hypothesis_given
from torch import Tensor

from headcheck.attention import drawing
from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs, build
from headcheck.attention.role import role
from headcheck.attention.subject import AttentionSubject
from headcheck.declarations import FOUR_AXES, Attention
from headcheck.reference.canonical import canonical_attention
from headcheck.subjects import builtins

SEEDED = 2000
DRAWN = 600


@functools.cache
def prepared(name: str = "reference") -> AttentionSubject:
    return role.prepare(builtins()[name].declaration(), dtypes=(), device="cpu", seed=0)[0]


def seeded(subject: AttentionSubject, count: int) -> list[Case]:
    return [drawing.draw(Random(f"tests/{number}"), subject) for number in range(count)]


def by_hypothesis(subject: AttentionSubject, count: int) -> list[Case]:
    """What Hypothesis draws when the engine asks it to."""
    found: list[Case] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis_given(drawing.drawn(subject))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def drawn_inputs() -> Iterator[Inputs]:
    """They are built again each time: kept, they take half a gigabyte, in every copy of the process."""
    return map(build, seeded(prepared(), SEEDED))


@functools.cache
def hypothesis_inputs() -> list[Inputs]:
    return [build(case) for case in by_hypothesis(prepared(), DRAWN)]


def _refuse(problem: str) -> Tensor:
    raise TypeError(problem)


def bare(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """Nothing but the three tensors, and no grouped heads."""
    if query.shape[1] != key.shape[1]:
        return _refuse("grouped heads")
    return canonical_attention(query, key, value)


def boolean_4d(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    if attn_mask is not None and (attn_mask.dtype != torch.bool or attn_mask.ndim != 4):
        return _refuse(f"a mask of {attn_mask.dtype} with {attn_mask.ndim} axes")
    return canonical_attention(query, key, value, attn_mask)


def additive_only(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        return _refuse("a boolean mask")
    return canonical_attention(query, key, value, attn_mask)


def square(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Any:
    if query.shape[2] != key.shape[2] or value.shape[3] != query.shape[3]:
        return _refuse("another length or dim")
    if any(x.stride(-1) != 1 and x.shape[-1] > 1 for x in (query, key, value)):
        return _refuse("strides")
    return canonical_attention(query, key, value, is_causal=is_causal)


def one_at_a_time(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    if is_causal and (attn_mask is not None or (scale is not None and scale <= 0)):
        return _refuse("a mask, or a scale of zero or below, with is_causal")
    return canonical_attention(query, key, value, attn_mask, is_causal=is_causal, scale=scale)


STRICT = {
    "bare": Attention(bare, dtypes=("float64",)),
    "boolean": Attention(boolean_4d, masks=("boolean",), mask_shapes=FOUR_AXES),
    "additive": Attention(additive_only, masks=("additive",)),
    "square": Attention(square, rectangular=False, value_dim=False, any_strides=False),
    "refused": Attention(one_at_a_time, mask_with_causal="refused", scale_with_causal="positive"),
    "undeclared": Attention(one_at_a_time),
    "no causal": Attention(one_at_a_time, causal=False, scale=False, dtypes=("bfloat16", "float16")),
    "no features": Attention(canonical_attention, window=False, softcap=False, sinks=False, alibi=False),
}


@functools.cache
def strict(name: str) -> AttentionSubject:
    return role.prepare(STRICT[name], dtypes=(), device="cpu", seed=0)[0]
