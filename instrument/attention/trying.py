"""One plain call of a subject, and how it goes."""

from functools import partial
from typing import TypeGuard

from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs, build
from headcheck.attention.sizes import sized
from headcheck.attention.subject import AttentionSubject
from headcheck.calling import SubjectRaised, was_raised
from headcheck.comparison import Failure, LawBroken, NotApplicable, failure_of, within

PLAIN = Case(batch=1, heads=2, kv_heads=2, q_len=3, kv_len=3, head_dim=4, value_dim=4)

SIZES = ((3, 4), (1, 16), (16, 64), (128, 128))
"""Length and dim of plain calls: some kernels take whole blocks only."""


def built(trial: AttentionSubject, case: Case) -> Inputs:
    """The inputs of a plain case, in sizes that the subject takes, with a mask of as many axes as it takes."""
    if case.mask_axes not in trial.mask_forms:
        case = case.but(mask_axes=trial.mask_forms[0])
    return build(sized(case, trial.declaration), trial.alignment)


def willing(trial: AttentionSubject, dtype: str) -> Case | None:
    """A plain case, in the first of a few sizes of which it does not refuse the call; None where it refuses all."""
    for length, dim in SIZES:
        case = PLAIN.but(dtype=dtype, q_len=length, kv_len=length, head_dim=dim, value_dim=dim)
        if not isinstance(failure_of(trial, built(trial, case)), NotApplicable):
            return case
    return None


def attempt(trial: AttentionSubject, case: Case) -> str | None:
    """Why a call does not work, in words, or None if it does."""
    failure = failure_of(trial, built(trial, case))
    return None if failure is None else str(failure)


def is_refusal(failure: Failure | None) -> TypeGuard[SubjectRaised]:
    """Whether a call was ended by an exception that says of an argument that it is not taken.

    An operator that is registered with torch says so by a RuntimeError.
    """
    if not isinstance(failure, SubjectRaised):
        return False
    unknown = isinstance(failure.problem, RuntimeError) and "keyword argument" in str(failure.problem)
    return unknown or isinstance(failure.problem, ValueError | TypeError | AssertionError)


def refuses_an_argument(failure: Failure | None, *names: str) -> bool:
    """Whether a call with one argument more was refused: by a raise or an assert, or in words that name the argument,
    as of a keyword that a function underneath does not know. What else goes wrong is for laws to say.

    names: how the argument is called, by all who may speak of it.
    """
    words = {word for name in names for word in name.split("_") if len(word) > 2}
    return is_refusal(failure) and (
        was_raised(failure.problem) or any(word in str(failure.problem) for word in words)
    )


def is_right(trial: AttentionSubject, case: Case, *, if_refused: bool = True, backward: bool = True) -> bool:
    """Whether a call gives the oracle's answer, and, if that is asked, a gradient without NaN where it gives one."""
    return is_right_on(trial, built(trial, case), if_refused=if_refused, backward=backward)


def is_right_on(trial: AttentionSubject, x: Inputs, *, if_refused: bool, backward: bool = True) -> bool:
    """The same of inputs."""
    try:
        if within(trial(x), trial.expected(x), partial(trial.strict_bound, x)).broken:
            return False
    except NotApplicable:
        return if_refused
    except LawBroken:
        return False
    return not backward or _has_finite_gradients(trial, x)


def _has_finite_gradients(trial: AttentionSubject, x: Inputs) -> bool:
    """Whether each gradient is without NaN, where there is one."""
    try:
        found = trial.gradients(x)
    except NotApplicable:
        return True
    except LawBroken:
        return False
    return all(bool(each.isfinite().all()) for each in found if each is not None)
