"""The steps by which a case that breaks a law is made smaller: the boldest first, none leads back."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from headcheck.attention.case import Case
from headcheck.attention.drawing import fit, nest, shapes
from headcheck.attention.inputs import build
from headcheck.attention.subject import DEAD_ROWS, AttentionSubject

READABLE = 48
"""A case is written out number by number when it has at most this many of them."""

PLAINER_VALUES = ("integers", "normal", "large")


def simpler(case: Case, subject: AttentionSubject) -> Iterator[Case]:
    """Cases simpler than this one; whether they still break the law is for the caller to try."""
    for step in _steps(case, subject):
        fitted = fit(step, subject)
        if fitted != case:
            yield fitted


def _steps(case: Case, subject: AttentionSubject) -> Iterator[Case]:
    if case.dtype != subject.dtypes[0]:
        yield case.but(dtype=subject.dtypes[0])
    yield from _fewer_conditions(case)
    if case.seed:
        yield case.but(seed=0)
    if case.written_out:
        if "cotangent" in dict(case.numbers):
            yield case.but(numbers=tuple(pair for pair in case.numbers if pair[0] != "cotangent"))
        yield from _without_one(case)
        yield from _rounder(case)
    else:
        yield from _smaller_shapes(case)
        yield from _plainer_values(case)
        if _numbers_in(case) <= READABLE:
            yield _write_out(case, subject)


def _fewer_conditions(case: Case) -> Iterator[Case]:
    plain = Case()
    for name in (
        "mask",
        "window",
        "softcap",
        "sinks",
        "alibi",
        "is_causal",
        "scale",
        "layout",
        "mask_layout",
        "cotangent_layout",
        "mask_axes",
    ):
        if getattr(case, name) != getattr(plain, name):
            yield case.but(**{name: getattr(plain, name)})
    if case.mask != "none" and case.mask_form not in ("boolean", "additive"):
        yield case.but(mask_form="additive")
    if case.mask not in ("none", "random", "some-dead-rows", "all-true") and not case.written_out:
        yield case.but(mask="random")


def _smaller_shapes(case: Case) -> Iterator[Case]:
    yield from _fewer_heads(case)
    for name in ("batch", "q_len", "kv_len", "head_dim", "value_dim"):
        size = getattr(case, name)
        yield from (case.but(**{name: smaller}) for smaller in _below(size))
    for size in _below(min(case.kv_len, case.q_len)):
        yield case.but(q_len=size, kv_len=size)
    for size in _below(min(case.head_dim, case.value_dim)):
        yield case.but(head_dim=size, value_dim=size)


def _below(size: int) -> list[int]:
    return [smaller for smaller in sorted({1, 2, size // 2, size - 1}) if 0 < smaller < size]


def _fewer_heads(case: Case) -> Iterator[Case]:
    if case.kv_heads > 1:
        yield case.but(heads=case.heads // case.kv_heads, kv_heads=1)
    if case.heads > case.kv_heads:
        yield case.but(heads=case.kv_heads)
        if case.heads > 2 * case.kv_heads:
            yield case.but(heads=2 * case.kv_heads)


def _plainer_values(case: Case) -> Iterator[Case]:
    rank = PLAINER_VALUES.index(case.values) if case.values in PLAINER_VALUES else len(PLAINER_VALUES)
    for values in PLAINER_VALUES[:rank]:
        yield case.but(values=values)


def _numbers_in(case: Case) -> int:
    mask = case.batch * case.heads * case.q_len * case.kv_len if case.mask != "none" else 0
    return case.elements + mask


def _write_out(case: Case, subject: AttentionSubject) -> Case:
    """The same case with its numbers in it."""
    inputs = build(case, subject.alignment, dead_rows=DEAD_ROWS not in subject.avoids)
    tensors = {
        "query": inputs.query,
        "key": inputs.key,
        "value": inputs.value,
        "cotangent": inputs.cotangent,
    }
    if inputs.attn_mask is not None:
        tensors["mask"] = inputs.attn_mask.expand(shapes(case)["mask"])
    numbers = tuple((name, _written(tensor, shapes(case)[name])) for name, tensor in tensors.items())
    return case.but(values="normal", mask_axes="bhqk", numbers=numbers)


def _written(tensor: Tensor, shape: tuple[int, ...]) -> Any:
    return nest(tensor.reshape(-1).tolist(), shape)


def _tensors(case: Case) -> dict[str, Tensor]:
    return {
        name: torch.tensor(numbers, dtype=torch.float64).reshape(shapes(case)[name])
        for name, numbers in case.numbers
    }


def _with_tensors(case: Case, tensors: dict[str, Tensor]) -> Case:
    boolean = case.mask_form == "boolean"
    numbers = tuple(
        (name, _written(t.bool() if name == "mask" and boolean else t, tuple(t.shape)))
        for name, t in tensors.items()
    )
    return case.but(numbers=numbers)


# Axis of each tensor that goes with each field of the case.
_AXES = {
    "batch": {"query": 0, "key": 0, "value": 0, "mask": 0, "cotangent": 0},
    "q_len": {"query": 2, "mask": 2, "cotangent": 2},
    "kv_len": {"key": 2, "value": 2, "mask": 3},
    "head_dim": {"query": 3, "key": 3},
    "value_dim": {"value": 3, "cotangent": 3},
}


def _without_one(case: Case) -> Iterator[Case]:
    """One batch, query, key or dim taken out."""
    tensors = _tensors(case)
    if case.kv_heads == case.heads > 1:
        for index in range(case.heads):
            less = {name: _drop(t, 1, index) for name, t in tensors.items()}
            yield _with_tensors(case.but(heads=case.heads - 1, kv_heads=case.heads - 1), less)
    elif case.kv_heads == 1 < case.heads:
        for index in range(case.heads):
            less = {n: _drop(t, 1, index) if t.shape[1] > 1 else t for n, t in tensors.items()}
            yield _with_tensors(case.but(heads=case.heads - 1), less)
    for field, axes in _AXES.items():
        size = getattr(case, field)
        for index in reversed(range(size if size > 1 else 0)):
            less = {name: _drop(t, axes[name], index) if name in axes else t for name, t in tensors.items()}
            yield _with_tensors(case.but(**{field: size - 1}), less)


def _drop(x: Tensor, axis: int, index: int) -> Tensor:
    rest = [i for i in range(x.shape[axis]) if i != index]
    return x.index_select(axis, torch.tensor(rest, dtype=torch.long))


def _rounder(case: Case) -> Iterator[Case]:
    """Rounder numbers: whole tensors first, then number by number."""
    tensors = _tensors(case)
    for name, tensor in tensors.items():
        for rounding in _ROUNDINGS:
            rounder = rounding(tensor)
            if name != "mask" and _total(rounder) < _total(tensor):
                yield _with_tensors(case, {**tensors, name: rounder})
    for name, tensor in tensors.items():
        flat = tensor.reshape(-1)
        for index, number in enumerate(flat.tolist()):
            for simple in _simpler_numbers(number, name, case.mask_form):
                changed = flat.clone()
                changed[index] = simple
                yield _with_tensors(case, {**tensors, name: changed.reshape(tensor.shape)})


_ROUNDINGS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.zeros_like,
    torch.ones_like,
    torch.round,
    lambda x: torch.round(x, decimals=1),
    lambda x: torch.round(x, decimals=2),
)


def _simpler_numbers(number: float, name: str, mask_form: str) -> Iterator[float]:
    if name == "mask" and mask_form == "boolean":
        if number == 0:
            yield 1.0
        return
    if number == float("-inf"):
        yield 0.0
        return
    candidates = (0.0, 1.0, float(round(number)), round(number, 1), round(number, 2))
    for candidate in candidates:
        if _complexity(candidate) < _complexity(number):
            yield candidate


def _total(x: Tensor) -> tuple[float, ...]:
    return tuple(map(sum, zip((0, 0.0), *map(_complexity, x.reshape(-1).tolist()), strict=True)))


def _complexity(number: float) -> tuple[int, float]:
    return (len(repr(abs(number)).rstrip("0")), abs(number)) if number else (0, 0.0)
