"""What would make right what an encoder or a decoder gives for plain calls: taken where it is left open, or said."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.errors import SubjectError
from headcheck.modules.masks import leaves_open
from headcheck.signatures import not_recognised
from headcheck.verdict import IF_MEANT, Hint

CANDIDATES: tuple[dict[str, Any], ...] = (
    {"true_means": "padding"},
    {"true_means": "real"},
    {"mask_kind": "additive"},
    {"batch_first": False},
    {"causal_mask": True},
)
"""Each is tried alone, and left out where that field is declared, or there is none."""
ALIKE = 1e-3
"""The share of the largest number up to which two answers are alike: a wrong convention moves far more."""


def settled_masks(subject: Any, find: Callable[[Any], Iterable[str]]) -> list[str]:
    """What `find` finds out about the masks; if plain calls are wrong then, what cures them is taken or hinted at.

    What True says is taken where the names of the masks leave it open.
    """
    notes = list(find(subject))
    if _is_right(subject):
        return notes
    for candidate in CANDIDATES:
        ((field, value),) = candidate.items()
        if getattr(subject.declaration, field, "none") is not None:
            continue
        try:
            other = type(subject)(
                subject.declaration.but(**candidate), dtypes=subject.dtypes, device=subject.device
            )
            found = list(find(other))
        except (SubjectError, LawBroken, NotApplicable):
            continue
        given = [(name, place) for name, place in subject.places.items() if place]
        # A mask that is no longer given is not wrong any more, and not right either.
        if not all(other.places[name] for name, _ in given) or not _is_right(other):
            continue
        turned = [place for name, place in given if subject.forms[name] != other.forms[name]]
        if field == "true_means" and all(map(leaves_open, turned)):
            subject.forms = other.forms
            return found
        return [*notes, Hint(f"a plain call is right with --declare {field}={value}, {IF_MEANT}")]
    return notes


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
    unknown = not_recognised(subject.function, subject.places.values(), inputs)
    if not unknown:
        return []
    said = f"parameters not recognised, left at their defaults: {', '.join(each.name for each in unknown)}"
    masks = [name for name, place in subject.places.items() if not place]
    cures = " or ".join(f"--declare arguments.{name}=NAME" for name in masks)
    return [f"{said}; if one is a mask of what is padding, {cures}" if masks else said]


def _is_right(subject: Any) -> bool:
    """Whether sequences do not hear each other, nor padding, in their memory neither, nor a decoder the future."""
    x = subject.plain(3, 5, subject.d_model)
    try:
        if not _alike(subject(x)[:1], subject(x.picked(torch.tensor([0])))):
            return False
        if hasattr(x, "memory") and not _later_unheard(subject, x):
            return False
        own = subject.lacks("is_real") or (_ends_unheard(subject, x) and _begins_unheard(subject, x))
        return bool(own) and (not subject.places.get("memory_is_real") or _memory_ends_unheard(subject, x))
    except (LawBroken, NotApplicable):
        return False


def _later_unheard(subject: Any, x: Any) -> bool:
    """Whether the first state of a decoder does not hear those behind it."""
    other = x.but(x=torch.cat([x.x[:, :1], 1 - x.x[:, 1:]], dim=1))
    return _alike(subject(x)[:, :1], subject(other)[:, :1])


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
    return bool((one - other).abs().max() <= ALIKE * max(float(one.abs().max()), float(other.abs().max())))
