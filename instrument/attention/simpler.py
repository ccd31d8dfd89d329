"""The steps by which a case that breaks a law is made smaller: the boldest first, none leads back."""

from collections.abc import Iterator

from torch import Tensor

from headcheck.attention.case import Case
from headcheck.attention.drawing import fit, shorter
from headcheck.attention.inputs import build
from headcheck.attention.subject import DEAD_ROWS, AttentionSubject
from headcheck.numbers import (
    MANY,
    READABLE,
    below,
    dropped,
    rounder_numbers,
    rounder_tensors,
    tensors_of,
    written,
)

PLAINER_VALUES = ("integers", "normal", "large")


def simpler(case: Case, subject: AttentionSubject) -> Iterator[Case]:
    """Cases simpler than this one; whether they still break the law is for the caller to try."""
    for step in _steps(case, subject):
        fitted = fit(shorter(step, subject), subject)
        if fitted != case:
            yield fitted


def _steps(case: Case, subject: AttentionSubject) -> Iterator[Case]:
    if case.dtype != subject.dtypes[0]:
        yield case.but(dtype=subject.dtypes[0])
    yield from _fewer_conditions(case)
    if case.seed:
        yield case.but(seed=0)
    if case.written_out and _numbers_in(case) > MANY:
        yield case.but(numbers=())
        yield from _smaller_shapes(case)
    elif case.written_out:
        if "cotangent" in dict(case.numbers):
            yield case.but(numbers=tuple(pair for pair in case.numbers if pair[0] != "cotangent"))
        yield from _without_one(case)
        yield from _rounder(case)
    else:
        yield from _smaller_shapes(case)
        yield from _plainer_values(case)
        if _numbers_in(case) <= READABLE:
            yield _write_out(case, subject)
        elif _numbers_in(case) <= 4 * READABLE:
            yield from _one_alone(_write_out(case, subject))


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
        "strides",
        "mask_strides",
        "cotangent_strides",
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
        yield from (case.but(**{name: smaller}) for smaller in below(size))
    for size in below(min(case.kv_len, case.q_len)):
        yield case.but(q_len=size, kv_len=size)
    for size in below(min(case.head_dim, case.value_dim)):
        yield case.but(head_dim=size, value_dim=size)


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
        tensors["mask"] = inputs.attn_mask.expand(case.shapes()["mask"])
    shapes = case.shapes()
    numbers = tuple((name, written(tensor.reshape(shapes[name]))) for name, tensor in tensors.items())
    return case.but(values="normal", mask_axes="bhqk", numbers=numbers)


def _with_tensors(case: Case, tensors: dict[str, Tensor]) -> Case:
    boolean = case.mask_form == "boolean"
    numbers = tuple(
        (name, written(t.bool() if name == "mask" and boolean else t)) for name, t in tensors.items()
    )
    return case.but(numbers=numbers)


_AXES = {
    field: {name: axes.index(field) for name, axes in Case.AXES.items() if field in axes}
    for field in ("batch", "q_len", "kv_len", "head_dim", "value_dim")
}
"""Field of the case -> tensors that have it, and as which axis. Heads go with those of the key, and are not here."""


def _without_one(case: Case) -> Iterator[Case]:
    """One batch, query, key or dim taken out."""
    tensors = tensors_of(case)
    if case.kv_heads == case.heads > 1:
        for index in range(case.heads):
            less = {name: dropped(t, 1, index) for name, t in tensors.items()}
            yield _with_tensors(case.but(heads=case.heads - 1, kv_heads=case.heads - 1), less)
    elif case.kv_heads == 1 < case.heads:
        for index in range(case.heads):
            less = {n: dropped(t, 1, index) if t.shape[1] > 1 else t for n, t in tensors.items()}
            yield _with_tensors(case.but(heads=case.heads - 1), less)
    for field, axes in _AXES.items():
        size = getattr(case, field)
        for index in reversed(range(size if size > 1 else 0)):
            less = {name: dropped(t, axes[name], index) if name in axes else t for name, t in tensors.items()}
            yield _with_tensors(case.but(**{field: size - 1}), less)


def _one_alone(case: Case) -> Iterator[Case]:
    """One key, query, dim or sequence with its own numbers, the others taken out: a smaller recipe has other numbers."""
    tensors = tensors_of(case)
    for field, axes in _AXES.items():
        size = getattr(case, field)
        alone = case.but(**{field: 1})
        for index in range(size if size > 1 and _numbers_in(alone) <= READABLE else 0):
            one = {name: t.narrow(axes[name], index, 1) if name in axes else t for name, t in tensors.items()}
            yield _with_tensors(alone, one)


def _rounder(case: Case) -> Iterator[Case]:
    """Rounder numbers: whole tensors first, then number by number."""
    tensors = tensors_of(case)
    for name, tensor in tensors.items():
        if name != "mask":
            for rounder in rounder_tensors(tensor):
                yield _with_tensors(case, {**tensors, name: rounder})
    for name, tensor in tensors.items():
        flat = tensor.reshape(-1)
        for index, number in enumerate(flat.tolist()):
            boolean = name == "mask" and case.mask_form == "boolean"
            for simple in (1.0,) * (number == 0) if boolean else rounder_numbers(number):
                changed = flat.clone()
                changed[index] = simple
                yield _with_tensors(case, {**tensors, name: changed.reshape(tensor.shape)})
