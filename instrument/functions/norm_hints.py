"""What plain calls of a norm show of conventions that are not declared: notes for the reader of a verdict."""

import torch

from headcheck.arithmetic import named
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.functions.norm_bounds import Row
from headcheck.functions.norms import NormInputs, NormSubject
from headcheck.functions.rounding import units
from headcheck.verdict import Hint

EPS_BESIDE = (
    "eps is added outside of the root, x / (root + eps), as found; the laws expect it inside, and break"
)
LESS_ONE = "the variance is divided by n - 1, which is the default of torch.std; that of a layer norm is divided by n"
SQUARES_OVERFLOW = (
    "float16: entries of 300 are not normalised, as their squares overflow; an arithmetic that stores each step "
    "allows for it"
)
FIRST_OF_MORE = "a tuple is returned: its first tensor is judged"
AS_THE_OTHER = "a plain call is right for {}, and wrong for {}: say --role {}, if that is what is meant"


def notes(subject: NormSubject, x: NormInputs, other: tuple[str, str, str]) -> list[str]:
    """What the subject, called plainly with x, turns out to be. other: the other norm in words, this one, its role."""
    found = [SQUARES_OVERFLOW] if _squares_overflow(subject) else []
    found += [Hint(AS_THE_OTHER.format(*other))] if _is_right_as_the_other(subject, x) else []
    found += [FIRST_OF_MORE] if subject.returns_more else []
    found += [Hint(LESS_ONE)] if _divides_by_one_less(subject) else []
    if subject.own_eps is None:
        found += [EPS_BESIDE] if _adds_eps_to_the_root(subject) else []
    elif subject.declaration.eps is None:
        found += [f"eps: {subject.own_eps:.8g}, measured (it is no argument, and not declared)"]
    return found


def _is_right_as_the_other(subject: NormSubject, x: NormInputs) -> bool:
    """Whether a plain call is wrong, and is right as the norm that takes the mean out, or that does not."""
    x = x.but(x=x.x + 2)  # Far from a mean of zero.
    try:
        output, expected, bound = subject(x), subject.expected(x), subject.bound(x)
    except (LawBroken, NotApplicable):
        return False
    other = Row(x.x.double(), x.eps, units(named("native"), x.dtype), centring=not subject.CENTRING)
    as_it = subject.multiplied(x, other.normalised) + (0.0 if x.bias is None else x.bias.double())
    return within(output, expected, bound).broken and not within(output, as_it, bound).broken


def _divides_by_one_less(subject: NormSubject) -> bool:
    """Whether of n numbers a row (t, -t, ...), far above eps, comes back shrunk by sqrt((n - 1) / n)."""
    n = subject.width(2)
    size, first = subject.first_of(1.0)
    return subject.CENTRING and abs(first - ((n - 1) / n) ** 0.5 / size) < 1e-3


def _adds_eps_to_the_root(subject: NormSubject) -> bool:
    """Whether a row (t, -t, ...) with t = eps comes back as t / (root + eps), a half or so."""
    t = eps = 0.25
    size, first = subject.first_of(t, eps=eps)
    return abs(first - t / (size + eps)) < 1e-3


def _squares_overflow(subject: NormSubject) -> bool:
    """Whether a row (300, -300, ...) of float16, whose squares it has no number for, does not come back as ones."""
    if "float16" not in subject.dtypes or subject.declaration.arithmetic is not None:
        return False
    _, first = subject.first_of(300.0, dtype=torch.float16)
    return not 0.5 < first < 2
