"""Rounding that right attention owes to how it puts a row together: what it loses where scores or values are large.

Weights that are exp(score - log-sum-exp) as they come, and not divided by their sum, are softmax, too. The log-sum-exp
of large scores is rounded to their size, and that error stands in every weight: a row of scores near 1,000 sums to one
within 1e-4 in float32, not 1e-7.

Parts that are merged as out - share (out - part), as in ring attention, or by moving a mean, are softmax, too. Where
the first part has the larger values and hardly a share, what the others contribute is rounded beside those values.

Parts whose shares are sigmoids of a difference are exact on the way forward. On the way back autograd takes 1 - share
of a share that is next to one: the gradient of a score of hardly any weight is rounded beside those of the others.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from headcheck.arithmetic import Arithmetic, named
from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import built
from headcheck.comparison import LawBroken, NotApplicable, compared_gradients, within
from headcheck.forks import asked_apart

BY_LOG_SUM_EXP = replace(named("native"), log_sum_exps=2)
"""The model of one that does so, undeclared."""
BY_LOG_SUM_EXP_NOTE = (
    "weights, or the shares of parts, are exp(score - log-sum-exp), not divided by their sum, by what they lose where "
    "scores are large"
)
BY_DIFFERENCES = replace(named("native"), merges=8)
"""The model of one that merges parts by their difference, undeclared."""
BY_DIFFERENCES_NOTE = (
    "parts are merged as out - share (out - part), by what they lose beside large values of hardly any weight"
)
BY_SHARES = replace(named("native"), merges=4)
"""The model of one that merges parts by sigmoids, undeclared."""
BY_SHARES_NOTE = (
    "the gradients of keys of hardly any weight are rounded beside those of the others, as where parts are merged by "
    "sigmoids"
)
ALLOWED = "the bounds allow for it, as if arithmetic={} were declared"
SCORES = tuple(1.171**number for number in range(-6, 53))
"""Each is the one score of all keys of a row, so that only the sum of the weights can be wrong."""
LENGTHS = (3, 17, 33, 65, 130, 514)
"""Of keys: many are read in parts, which are merged by their log-sum-exps (Flash-Decoding)."""
HARDLY = 1.5
"""The weight of a loud value, which is 1 / eps, is eps to this power: all of them together are next to nothing."""
LITTLE = 0.5
"""The weight of a quiet key is eps to this power: it has half of the digits of one."""
NOTHING = 1e-2
"""What they contribute at most. They themselves are rounded to multiples of one."""

_Answer = tuple[Inputs, Tensor, Tensor]


def shown_by_large_numbers(trial: AttentionSubject, dtype: str) -> tuple[Arithmetic, str]:
    """The model of float32 or float64 whose losses a subject shows, and a note of it; the native one, if none.

    Asked in a copy of the process: a subject may hang on many keys, which is for a law to find. Copies are dear, and
    hardly any subject loses anything: whether it loses at all is asked of one.
    """
    losses = (
        (_loses_what_a_log_sum_exp_loses, BY_LOG_SUM_EXP, BY_LOG_SUM_EXP_NOTE),
        (_loses_what_differences_lose, BY_DIFFERENCES, BY_DIFFERENCES_NOTE),
        (_loses_what_shares_lose, BY_SHARES, BY_SHARES_NOTE),
    )
    model, notes = named("native"), []
    if not asked_apart(lambda: any(loses(trial, dtype) for loses, _, _ in losses), trial.device):
        return model, ""
    for loses, loss, note in losses:  # Ring attention shows two of them.
        so_far = trial.but(arithmetic={dtype: model})
        if not model.merges and asked_apart(partial(loses, so_far, dtype), trial.device):
            model = beside(model, loss)
            notes.append(note)
    if not notes:
        return model, ""
    return model, f"{dtype}: {'; and '.join(notes)}; {ALLOWED.format(model)}"


def beside(model: Arithmetic, loss: Arithmetic) -> Arithmetic:
    """A model that also loses what another one does."""
    return replace(
        model, log_sum_exps=model.log_sum_exps or loss.log_sum_exps, merges=model.merges or loss.merges
    )


def in_sixteen_bits_too(
    trial: AttentionSubject, arithmetic: Mapping[str, Arithmetic]
) -> dict[str, Arithmetic]:
    """The models of undeclared 16-bit formats where float32 is found to do so: there only huge numbers would show it."""
    shown = arithmetic.get("float32", named("native"))
    if trial.declares_arithmetic("float32") or not (shown.log_sum_exps or shown.merges):
        return {}
    models = {}
    for dtype in ("bfloat16", "float16"):
        if dtype in arithmetic and not trial.declares_arithmetic(dtype):
            merges = shown.merges * (
                _float32_among(arithmetic[dtype], dtype) if shown.merges == BY_SHARES.merges else 1
            )
            models[dtype] = replace(arithmetic[dtype], log_sum_exps=shown.log_sum_exps, merges=merges)
    return models


def _float32_among(model: Arithmetic, dtype: str) -> float:
    """The rounding of float32, in which shares are computed, by that of the weights as they meet the values."""
    rounding = model.rounding(getattr(torch, dtype))
    return torch.finfo(torch.float32).eps / 2 / max(rounding.softmax.unit, rounding.probabilities.unit)


def _loses_what_a_log_sum_exp_loses(trial: AttentionSubject, dtype: str) -> bool:
    """Whether equal values come back less exactly than weights divided by their sum give them, but not much less."""
    found = _answers(trial, (_equal_values(trial, dtype, length) for length in LENGTHS))
    coarse = trial.but(arithmetic={dtype: BY_LOG_SUM_EXP})
    return _any_broken(found, trial.bound) and not _any_broken(found, coarse.bound)


def _loses_what_differences_lose(trial: AttentionSubject, dtype: str) -> bool:
    """Whether loud values alone make an answer wrong: by more than they contribute, by no more than their rounding."""
    found = _answers(trial, (_with_loud_values(trial, dtype, length, loud=True) for length in LENGTHS))
    if not _any_broken(found, lambda x: trial.bound(x) + NOTHING):
        return False
    if _any_broken(found, lambda x: trial.bound(x) + BY_DIFFERENCES.merges):
        return False
    quiet = [_with_loud_values(trial, dtype, length, loud=False) for length in LENGTHS]
    usual = [_with_scores_near_zero(trial, dtype, length) for length in LENGTHS[:3]]
    return not _any_broken(_answers(trial, [*quiet, *usual]), trial.bound)


def _loses_what_shares_lose(trial: AttentionSubject, dtype: str) -> bool:
    """Whether gradients alone are wrong, where keys have little weight alone, by no more than shares of parts lose."""
    coarse = trial.but(arithmetic={dtype: replace(trial.arithmetic[dtype], merges=BY_SHARES.merges)})
    quiet = [_with_loud_values(trial, dtype, length, loud=False, weight=LITTLE) for length in LENGTHS[:-1]]
    usual = [_with_scores_near_zero(trial, dtype, length) for length in LENGTHS[:3]]
    answers = _answers(trial, [*quiet, *usual])
    if not answers or _any_broken(answers, trial.bound):
        return False
    try:
        lost = any(_gradients_broken(trial, trial, x) for x in quiet)
        return (
            lost
            and not any(_gradients_broken(trial, trial, x) for x in usual)
            and not any(_gradients_broken(trial, coarse, x) for x in quiet)
        )
    except (LawBroken, NotApplicable):
        return False


def _gradients_broken(trial: AttentionSubject, bounded: AttentionSubject, x: Inputs) -> bool:
    found, exact = trial.gradients(x), x.problem.gradients(x.cotangent.double())
    bounds = bounded.gradient_bounds(x).of("query", "key", "value")
    return any(each.broken for each in compared_gradients(found._asdict(), exact._asdict(), bounds))


def _equal_values(trial: AttentionSubject, dtype: str, length: int) -> Inputs:
    x = built(trial, Case(dtype=dtype, q_len=len(SCORES), kv_len=length, head_dim=4, value_dim=4))
    scores = torch.tensor(SCORES, dtype=torch.float64)[torch.arange(x.q_len) % len(SCORES)]
    return _with_scores(
        x, scores[:, None].expand(x.query.shape), torch.ones_like(x.key), torch.ones_like(x.value)
    )


def _with_loud_values(
    trial: AttentionSubject, dtype: str, length: int, *, loud: bool, weight: float = HARDLY
) -> Inputs:
    """In half of the heads the first half of the keys has hardly any weight, in the others the last; and loud values."""
    x = built(trial, Case(dtype=dtype, heads=2, kv_heads=2, q_len=9, kv_len=length, head_dim=4, value_dim=4))
    eps = torch.finfo(x.dtype).eps
    first = torch.arange(x.kv_len) < x.kv_len // 2
    hardly = torch.where(torch.arange(x.key.shape[1])[:, None] % 2 == 0, first, ~first)[..., None]
    key = torch.where(hardly, math.log(eps) * weight, 0.0).expand(x.key.shape)
    size = 1 + torch.rand(x.value.shape, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    value = torch.where(hardly, size / eps, size) if loud else size
    return _with_scores(x, torch.ones_like(x.query), key, value)


def _with_scores_near_zero(trial: AttentionSubject, dtype: str, length: int) -> Inputs:
    """Keys that all have their weight, in which a slip of the scores or of exp shows."""
    x = built(trial, Case(dtype=dtype, heads=2, kv_heads=2, q_len=9, kv_len=length, head_dim=4, value_dim=4))
    spread = torch.rand(x.key.shape, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    return _with_scores(x, torch.ones_like(x.query), spread * 2 - 1, x.value.double())


def _with_scores(x: Inputs, query: Tensor, key: Tensor, value: Tensor) -> Inputs:
    """The call in which the score of a query and a key, each of one number, is their product by the default scale."""
    query = query / x.query.shape[-1] ** 0.5
    return x.but(query=query.to(x.dtype), key=key.to(x.dtype), value=value.to(x.dtype), generic=False)


def _answers(trial: AttentionSubject, calls: Iterable[Inputs]) -> list[_Answer]:
    """The answers and what they are to be; none where one of the calls is not answered."""
    try:
        return [(x, trial(x), trial.expected(x)) for x in calls]
    except (LawBroken, NotApplicable):
        return []


def _any_broken(found: Iterable[_Answer], bound: Callable[[Inputs], Tensor]) -> bool:
    return any(within(output, expected, partial(bound, x)).broken for x, output, expected in found)
