"""Which declaration would make right what an encoder or a decoder gives for plain calls, where it is wrong as it is."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.errors import SubjectError
from headcheck.verdict import IF_MEANT, Hint

CANDIDATES: tuple[dict[str, Any], ...] = (
    {"true_means": "padding"},
    {"true_means": "real"},
    {"mask_kind": "additive"},
    {"batch_first": False},
)
"""Each is tried alone, and left out where that field is declared."""
ALIKE = 1e-3
"""The share of the largest number up to which two answers are alike: a wrong convention moves far more."""


def hints(subject: Any, find: Callable[[Any], Iterable[str]]) -> list[Hint]:
    """At most one. find: what finds out the form of the masks of a subject, which has to be used up."""
    if _is_right(subject):
        return []
    for candidate in CANDIDATES:
        ((field, value),) = candidate.items()
        if getattr(subject.declaration, field) is not None:
            continue
        try:
            other = type(subject)(
                subject.declaration.but(**candidate), dtypes=subject.dtypes, device=subject.device
            )
            list(find(other))
        except (SubjectError, LawBroken, NotApplicable):
            continue
        if _is_right(other):
            return [Hint(f"a plain call is right with --declare {field}={value}, {IF_MEANT}")]
    return []


def _is_right(subject: Any) -> bool:
    """Whether sequences do not hear each other, nor what is padding behind them."""
    x = subject.plain(3, 5, subject.d_model)
    first = torch.arange(5) < 3
    try:
        if not _alike(subject(x)[:1], subject(x.picked(torch.tensor([0])))):
            return False
        if subject.lacks("is_real"):
            return True
        padded = subject(x.but(is_real=first.expand(3, 5)))
        return _alike(padded[:, first], subject(x.but(x=x.x[:, first])))
    except (LawBroken, NotApplicable):
        return False


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not (one.isfinite().all() and other.isfinite().all()):
        return False
    return bool((one - other).abs().max() <= ALIKE * max(float(one.abs().max()), float(other.abs().max())))
