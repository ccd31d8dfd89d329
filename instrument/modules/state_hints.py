"""Whether an encoder or a decoder gives for plain calls what it should, and what may be said of it."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.modules.copying import parts_run
from headcheck.modules.settling import OF_CAUSALITY, OF_PADDING, Candidate
from headcheck.signatures import left_at_defaults, not_recognised
from headcheck.verdict import IF_MEANT, Hint

CANDIDATES: tuple[Candidate, ...] = (*OF_PADDING, {"batch_first": False}, *OF_CAUSALITY)
"""Fields that may cure plain calls, each with a value."""
NORM = "norm"
"""What stands in the name of a norm's class."""
ALIKE, ROUNDED = 1e-3, 8
"""The share of the largest number up to which two answers are alike, so many roundings at least: a wrong convention moves
far more."""


def is_right(subject: Any) -> bool:
    """Whether sequences do not hear each other, nor padding, in their memory neither, nor a decoder the future."""
    x = subject.plain(3, 5, subject.d_model)
    try:
        if not _alike(subject(x)[:1], subject(x.picked(torch.tensor([0])))):
            return False
        if hasattr(x, "memory") and not later_unheard(subject, x):
            return False
        own = subject.lacks("is_real") or (_ends_unheard(subject, x) and _begins_unheard(subject, x))
        return bool(own) and (not subject.places.get("memory_is_real") or _memory_ends_unheard(subject, x))
    except (LawBroken, NotApplicable):
        return False


def limit_hint(subject: Any, of_length: Callable[[int], Any], lengths: Sequence[int]) -> list[Hint]:
    """Where some lengths, the shortest first, work and all above them raise, whatever they raise."""
    other = copy(subject.unused())
    if not other.settle_length(of_length, lengths):
        return []
    most = other.max_length
    said = f"plain calls of up to {most} states work, and all longer ones raise"
    return [Hint(f"{said}: they are right with --declare max_length={most}, {IF_MEANT}")]


def unrecognised(subject: Any, inputs: int) -> list[str]:
    """A note on the parameters after so many inputs that nothing is given to: a mask among them is never tried."""
    unknown = not_recognised(subject.function, [*subject.places.values(), *subject.left_at_none], inputs)
    if not unknown:
        return []
    said = left_at_defaults(unknown)
    masks = [name for name, place in subject.places.items() if not place and name.endswith("is_real")]
    cures = " or ".join(f"--declare arguments.{name}=NAME" for name in masks)
    return [f"{said}; if one is a mask of what is padding, {cures}" if masks else said]


def norm_order_note(subject: Any) -> list[str]:
    """Where nothing says whether norms stand before or behind the sub-layers, how it may be declared; by which part of a
    plain call runs first and last.
    """
    if subject.norm_order or subject.module is None:
        return []
    x = subject.plain(2, 3, subject.d_model)
    try:
        ran = parts_run(subject.module, lambda: subject(x))
    except (LawBroken, NotApplicable):
        return []
    named = dict(subject.module.named_modules())
    leaves = [name for name in ran if not [*named[name].children()]]
    is_norm = [NORM in type(named[name]).__name__.lower() for name in leaves]
    depths = [name.count(".") for name, each in zip(leaves, is_norm, strict=True) if each]
    if is_norm and is_norm[-1] and depths[-1] < max(depths):  # Of the whole stack, behind its last layer.
        is_norm.pop()
    # Norms on both ends: one stands before the first layer, or behind the last one, and nothing tells which.
    if not is_norm or is_norm[0] == is_norm[-1]:
        return []
    order, where = ("pre", "before") if is_norm[0] else ("post", "behind")
    return [f"norms seem to stand {where} the sub-layers: --declare norm_order={order} has that judged, too"]


def causal_hint(subject: Any) -> list[Hint]:
    """A hint where the first state hears none behind it, and the last one hears the first."""
    if subject.declaration.causal:
        return []
    x = subject.plain(2, 5, subject.d_model)
    other = x.but(x=torch.cat([1 - x.x[:, :1], x.x[:, 1:]], dim=1))
    try:
        if not later_unheard(subject, x) or _alike(subject(x)[:, -1:], subject(other)[:, -1:]):
            return []
    except (LawBroken, NotApplicable):
        return []
    return [Hint("no state hears those behind it: where that is meant, --declare causal=True")]


def one_sided_hint(subject: Any) -> list[Hint]:
    """A hint where NaN comes back from padding that stands before a sequence, and none from padding behind it."""
    if (
        subject.lacks("left_padding")
        or subject.lacks("right_padding")
        or subject.declaration.gradients is False
    ):
        return []
    x = subject.plain(2, 3, subject.d_model)
    before, behind = torch.arange(3) > 0, torch.arange(3) < 2
    try:
        if _finite_gradients(subject, x, before) or not _finite_gradients(subject, x, behind):
            return []
    except (LawBroken, NotApplicable):
        return []
    return [
        Hint("gradients are NaN beside padding on the left: where none stands there, --declare padding=right")
    ]


def _finite_gradients(subject: Any, x: Any, real: Tensor) -> bool:
    """Whether the gradient of the states in what they are made of is finite, where padding stands beside them."""
    padded = x.but(is_real=real.expand(x.x.shape[:2]))
    return bool(subject.gradient(padded, padded.is_real).isfinite().all())


def later_unheard(subject: Any, x: Any) -> bool:
    """Whether the first state does not hear those behind it, where calls work."""
    other = x.but(x=torch.cat([x.x[:, :1], 1 - x.x[:, 1:]], dim=1))
    try:
        return _alike(subject(x)[:, :1], subject(other)[:, :1])
    except (LawBroken, NotApplicable):
        return False


def _ends_unheard(subject: Any, x: Any) -> bool:
    """Whether a sequence with padding behind it gives what it gives alone."""
    real = torch.arange(x.length) < 3
    padded = subject(x.but(is_real=real.expand(x.x.shape[:2])))
    return _alike(padded[:, real], subject(x.but(x=x.x[:, real])))


def _begins_unheard(subject: Any, x: Any) -> bool:
    """Whether padding before a sequence may hold other numbers, where numbers come of it at all.

    Padding behind it says nothing of a mask beside a causal one.
    """
    if subject.lacks("left_padding"):
        return True
    real = torch.arange(x.length) > 1
    padded = x.but(is_real=real.expand(x.x.shape[:2]))
    try:
        before, after = (
            subject(each)[:, real] for each in (padded, padded.but(x=x.x.where(real[:, None], 1 - x.x)))
        )
    except (LawBroken, NotApplicable):
        return True
    return not (before.isfinite().all() and after.isfinite().all()) or _alike(before, after)


def _memory_ends_unheard(subject: Any, x: Any) -> bool:
    """Whether a memory with padding behind it gives what it gives alone."""
    real = torch.arange(x.memory_len) < 2
    padded = subject(x.but(memory_is_real=real.expand(x.memory.shape[:2])))
    return _alike(padded, subject(x.but(memory=x.memory[:, real])))


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not (one.isfinite().all() and other.isfinite().all()):
        return False
    share = max(ALIKE, ROUNDED * torch.finfo(one.dtype).eps)
    return bool((one - other).abs().max() <= share * max(float(one.abs().max()), float(other.abs().max())))
