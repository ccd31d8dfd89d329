"""What plain calls show of conventions that are not declared: notes for the reader of a verdict, who may declare them.

A hint changes nothing of what is judged. A bug can look like a convention, and only its author knows.
"""

from collections.abc import Callable
from functools import partial, wraps
from itertools import permutations
from typing import Any, Literal

import torch
from torch import Tensor

from headcheck.attention.case import Case
from headcheck.attention.doubles_shown import doubles_note
from headcheck.attention.notes import (
    INPUTS,
    any_keyword_note,
    dropout_note,
    lengths_note,
    overflow_note,
    second_derivatives_note,
    unrecognised_note,
)
from headcheck.attention.readout import reading_the_weights
from headcheck.attention.scale_shown import scale_note
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import PLAIN, attempt, built, is_right
from headcheck.comparison import LawBroken, NotApplicable, failure_of, within
from headcheck.declarations import BASE_2, ONE_QUERY
from headcheck.forks import asked_apart
from headcheck.signatures import not_recognised
from headcheck.verdict import IF_MEANT, Hint

MASKED = PLAIN.but(mask="random", kv_len=5)
HINTS = (
    ("true_means", "block", "boolean", MASKED),
    ("causal", "bottom-right", "is_causal", PLAIN.but(is_causal=True, kv_len=5)),
    ("grouped_heads", "tiled", "grouped_heads", PLAIN.but(heads=4, kv_heads=2)),
)
"""A convention, what it may be instead, the feature that it is of, and a case that tells."""
RECTANGULAR = PLAIN.but(kv_len=5)
"""More keys than queries."""
SIZES_ALIKE = (("rectangular", RECTANGULAR), ("value_dim", PLAIN.but(value_dim=3)))
"""Sizes that may have to be alike, and a case in which they are not."""
AT_THE_END = " --declare causal=bottom-right"
LONG = 48
"""So many tokens show a window of fewer, which every call has."""
KEYS_TURNED = (
    "key is taken with its last two axes exchanged: judge a function around it, "
    "lambda query, key, value: f(query, key.mT, value)"
)
FEWER_KEYS = PLAIN.but(q_len=5, kv_len=2, window=(0, 0))
"""A window that leaves some queries no keys."""
WIDEST = 4096
"""The widest window that is tried since a parameter is named so."""


def hints(trial: AttentionSubject) -> list[str]:
    """Notes on conventions that would make plain calls right, and on parameters that are left alone."""
    told = [
        unrecognised_note(trial),
        any_keyword_note(trial),
        second_derivatives_note(trial),
        overflow_note(trial),
    ]
    layout = _layout_note(trial)  # Where the axes are others, what else is seen says nothing.
    explaining = [layout] if layout else _explaining(trial)
    return [note for note in (*map(Hint, explaining), *told) if note]


def _explaining(trial: AttentionSubject) -> list[str]:
    """The hints, '' where there is none."""
    return [
        scale_note(trial),
        doubles_note(trial),
        *_otherwise(trial),
        _band_note(trial) or _named_window_note(trial) or _causal_note(trial),
        _mask_note(trial),
        _window_note(trial),
        _empty_rows_note(trial),
        _log_sum_exp_note(trial),
        dropout_note(trial),
        lengths_note(trial),
    ]


def _otherwise(trial: AttentionSubject) -> list[str]:
    """What a plain call is right under, and is not as declared."""
    found = [
        f"a plain call is right with --declare {field}={value}, {IF_MEANT}"
        for field, value, feature, each in HINTS
        for case in [_of_one_query(trial, each)]
        if trial.has(feature) and _right_if(trial, case, field, value) and not _right(trial, case)
    ]
    return found or [
        f"a plain call is right with --declare {field}=False, {IF_MEANT}"
        for field, case in SIZES_ALIKE
        if _right_if(trial, case, field, False) and not _right(trial, case)
        if field != "value_dim" or _is_not_answered(trial, case)
    ]


def _is_not_answered(trial: AttentionSubject, case: Case) -> bool:
    """Whether a call raises or gives another shape: who gives values of their own width, and wrong ones, means to."""
    return all(
        isinstance(failure_of(trial, built(trial, case.but(dtype=dtype))), LawBroken)
        for dtype in trial.dtypes
    )


def _of_one_query(trial: AttentionSubject, case: Case) -> Case:
    """A case with fewer queries than keys, as the subject takes it."""
    fewer = trial.declaration.rectangular == ONE_QUERY and case.q_len != case.kv_len
    return case.but(q_len=1) if fewer else case


def _causal_note(trial: AttentionSubject) -> str:
    """Whether a function without an argument for it is causal in every call."""
    if trial.has("is_causal") or _right(trial, PLAIN):
        return ""
    causal = trial.but(
        declaration=trial.declaration.but(always={**trial.declaration.always, "is_causal": True})
    )
    if not _right(causal, PLAIN):
        return ""
    longer = _of_one_query(causal, RECTANGULAR)
    at_the_end = not _right(causal, longer) and _right_if(causal, longer, "causal", "bottom-right")
    aligned = AT_THE_END if at_the_end else ""
    return f"a plain call is right with --declare always.is_causal=True{aligned}, {IF_MEANT}"


def _band_note(trial: AttentionSubject) -> str:
    """Whether each query of every call sees a window of keys, and not just those before it, which no argument says."""
    band = band_of_every_call(trial)
    return f"a plain call is right with --declare 'always.window={band}', {IF_MEANT}" if band else ""


def band_of_every_call(trial: AttentionSubject) -> tuple[int | None, int | None] | None:
    """The window that a call of some tokens is right with, and wrong without."""
    case = PLAIN.but(q_len=LONG, kv_len=LONG)
    if trial.has("window") or "window" in trial.declaration.always:
        return None
    # So many tokens may hang it: then a law will say so.
    if not asked_apart(partial(_wrong, trial, case), trial.device):
        return None
    x = reading_the_weights(trial, built(trial, case.but(dtype=trial.dtypes[0])))
    try:
        seen = trial(x)[0, 0, :, : x.kv_len].nonzero()
    except (LawBroken, NotApplicable):
        return None
    if not len(seen):
        return None
    ahead = seen[:, 1] - seen[:, 0]
    left, right = max(0, -int(ahead.min())), max(0, int(ahead.max()))
    band = (None if left + 1 == x.q_len else left, None if right + 1 == x.q_len else right)
    always = {**trial.declaration.always, "window": band}
    return (
        band if band not in ((None, None), (None, 0)) and _right_if(trial, case, "always", always) else None
    )


def _named_window_note(trial: AttentionSubject) -> str:
    """Whether each query of every call sees a window that only the default of a parameter tells."""
    told = band_by_a_default(trial)
    if told is None:
        return ""
    parameter, band = told
    cure = f"--declare 'always.window={band}' if that is what you mean"
    return f"a query sees no more keys than {parameter} says: {cure}"


def band_by_a_default(trial: AttentionSubject) -> tuple[str, tuple[int, int]] | None:
    """A parameter with its default, and the window that it says."""
    if trial.has("window") or "window" in trial.declaration.always or _wrong(trial, PLAIN):
        return None
    for each in not_recognised(trial.declaration.function, trial.arguments.values(), len(INPUTS)):
        width = each.default
        if "window" not in each.name or not isinstance(width, int) or not LONG <= width <= WIDEST:
            continue
        # So many tokens may hang it: then a law will say so.
        if asked_apart(partial(_is_in_a_window, trial, width), trial.device):
            band = _sides(trial, width)
            return None if band is None else (f"{each.name}={width}", band)
    return None


def _is_in_a_window(trial: AttentionSubject, width: int) -> bool:
    return _sides(trial, width) in ((width - 1, 0), (width, 0), (width - 1, width - 1), (width, width))


def _sides(trial: AttentionSubject, width: int) -> tuple[int, int] | None:
    """How far behind it a query sees the first key, and ahead of it the last, of two more tokens than that."""
    x = built(trial, PLAIN.but(heads=1, kv_heads=1, q_len=width + 2, kv_len=width + 2, dtype=trial.dtypes[0]))
    value = torch.zeros_like(x.value)
    value[..., 0, 0] = value[..., -1, 1] = 1.0
    try:
        first, last = (trial(x.but(value=value))[0, 0, :, :2] != 0).unbind(dim=-1)
    except (LawBroken, NotApplicable):
        return None
    return int(first.sum()) - 1, int(last.sum()) - 1


def _empty_rows_note(trial: AttentionSubject) -> str:
    """What a query without keys gives, of a function that takes windows and no masks: a law asks it of masks."""
    value = given_in_an_empty_window(trial)
    said = f"a window that leaves a query no keys is right with --declare empty_rows={value}, {IF_MEANT}"
    return said if value else ""


def given_in_an_empty_window(trial: AttentionSubject) -> Literal["nan", "mean", ""]:
    """What such a query gives; '' where it is zero, or another law asks for it."""
    masks = trial.has("boolean") or trial.has("additive")
    if (
        trial.declaration.empty_rows is not None
        or masks
        or not trial.has("window")
        or _right(trial, FEWER_KEYS)
    ):
        return ""
    values: tuple[Literal["nan", "mean"], ...] = ("nan", "mean")
    for value in values:
        meant = trial.but(declaration=trial.declaration.but(empty_rows=value))
        fewer = FEWER_KEYS.but(dtype=trial.dtypes[0])
        if is_right(meant, fewer, if_refused=False, backward=False):
            return value
    return ""


def _log_sum_exp_note(trial: AttentionSubject) -> str:
    """Whether a returned log-sum-exp is right as that of base 2, or with its axes in another order."""
    if not trial.has("log_sum_exp"):
        return ""
    if _right_log_sum_exp(trial):
        return _empty_log_sum_exp_note(trial)
    if _right_log_sum_exp(trial, log_sum_exp=BASE_2):
        return f"the log-sum-exp is divided by log 2: --declare log_sum_exp={BASE_2} if that is what you mean"
    for axes in permutations(axis for axis in "bhs" if axis in trial.declaration.layout):
        if _right_log_sum_exp(trial, log_sum_exp_layout="".join(axes)):
            return f"the axes of the log-sum-exp are in another order: --declare log_sum_exp_layout={''.join(axes)}"
    return ""


def _empty_log_sum_exp_note(trial: AttentionSubject) -> str:
    """Whether a log-sum-exp that is right elsewhere is +inf where there are no keys."""
    # No keys at all may end it: then a law will say so.
    if not asked_apart(partial(is_inf_without_keys, trial), trial.device):
        return ""
    return "the log-sum-exp of no keys is inf: --declare empty_log_sum_exp=inf if that is what you mean"


def is_inf_without_keys(trial: AttentionSubject) -> bool:
    """Whether the log-sum-exp of no keys is +inf."""
    x = built(trial, PLAIN.but(dtype=trial.dtypes[0]))
    try:
        found = trial.log_sum_exp(x.but(key=x.key[:, :, :0], value=x.value[:, :, :0]))
    except (LawBroken, NotApplicable):
        return False
    return bool(found.isposinf().all())


def _right_log_sum_exp(trial: AttentionSubject, **conventions: str) -> bool:
    """Whether that of a plain call is, with these conventions."""
    subject = trial.but(declaration=trial.declaration.but(**conventions))
    x = built(subject, PLAIN.but(dtype=subject.dtypes[0]))
    try:
        found = subject.log_sum_exp(x)
    except (LawBroken, NotApplicable):
        return False
    return not within(found, x.problem.attended.log_sum_exp, subject.forward_bounds(x).log_sum_exp).broken


def _mask_note(trial: AttentionSubject) -> str:
    """Of which kind the masks are, where those of the other kind have another effect."""
    other = _misread(trial)
    if other is None:
        return ""
    kind, words = ("boolean", "an additive") if other == "additive" else ("additive", "a boolean")
    return f"{words} attn_mask has another effect than torch's: if none is meant, --declare masks={kind}"


def _window_note(trial: AttentionSubject) -> str:
    """Whether a window is no pair to the function."""
    if not trial.has("window") or "window" not in trial.arguments:
        return ""
    why = attempt(trial, PLAIN.but(dtype=trial.dtypes[0], window=(1, 1)))
    if why is None or not why.startswith("raised TypeError"):
        return ""
    return "a window is given as (left, right); where one width is meant, put a function around (docs/adapting.md)"


def _misread(trial: AttentionSubject) -> Literal["boolean", "additive"] | None:
    """The kind of masks that have another effect than torch's, where those of the other kind do not."""
    if trial.declaration.masks is not None or not (trial.has("boolean") and trial.has("additive")):
        return None

    def is_read(case: Case, true_means: str | None = trial.declaration.true_means) -> bool:
        subject = trial.but(declaration=trial.declaration.but(true_means=true_means))
        return is_right(subject, case.but(dtype=trial.dtypes[0]), if_refused=False, backward=False)

    boolean = is_read(MASKED) or is_read(MASKED, "block")
    additive = is_read(MASKED.but(mask_form="bias"))
    if boolean is additive:
        return None
    return "additive" if boolean else "boolean"


def read_as_the_other(trial: AttentionSubject) -> Literal["boolean", "additive"] | None:
    """The kind of masks that is read as if it were the other: booleans added as 0 and 1, or numbers taken for true.

    Where a kind has yet another effect, a law will say so.
    """
    kind = _misread(trial)
    if kind is None:
        return None
    x = built(trial, MASKED.but(dtype=trial.dtypes[0]))
    assert x.attn_mask is not None
    odd = (torch.arange(x.kv_len) % 2 == 1).expand(x.attn_mask.shape)
    numbers = x.but(attn_mask=odd.to(x.dtype), generic=False)
    given = x.but(attn_mask=odd, generic=False) if kind == "boolean" else numbers
    meant = [numbers] if kind == "boolean" else [x.but(attn_mask=keep, generic=False) for keep in (odd, ~odd)]
    try:
        output = trial(given)
    except (LawBroken, NotApplicable):
        return None
    explained = (not within(output, trial.expected(each), trial.strict_bound(each)).broken for each in meant)
    return kind if any(explained) else None


def _right_if(trial: AttentionSubject, case: Case, field: str, value: object) -> bool:
    """Whether a call is right under another convention."""
    return _right(trial.but(declaration=trial.declaration.but(**{field: value})), case)


def _right(trial: AttentionSubject, case: Case) -> bool:
    return is_right(trial, case.but(dtype=trial.dtypes[0]), if_refused=False)


def _wrong(trial: AttentionSubject, case: Case) -> bool:
    return not _right(trial, case)


def _layout_note(trial: AttentionSubject) -> str:
    """Which other layout a call works in that does not as declared: all axes but the batch differ in length."""
    case = PLAIN.but(dtype=trial.dtypes[0], kv_len=5)
    of_all_axes = set(trial.declaration.layout) == set("bhsd")
    if not of_all_axes or attempt(trial, case) is None:
        return ""
    for field in ("layout", "output_layout"):
        for layout in ("bhsd", "bshd", "sbhd"):
            if attempt(trial.but(declaration=trial.declaration.but(**{field: layout})), case) is None:
                return f"the shapes are those of another layout: --declare {field}={layout}"
    turned = trial.but(
        declaration=trial.declaration.but(function=_with_keys_turned(trial.declaration.function))
    )
    return KEYS_TURNED if _right(turned, case) else ""


def _with_keys_turned(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, given key with its last two axes exchanged."""

    @wraps(function)
    def turned(query: Tensor, key: Tensor, *others: Any, **named: Any) -> Any:
        return function(query, key.mT, *others, **named)

    return turned
