"""Whether weights are divided by their sum, or are exp(score - log-sum-exp) as they come.

Both are softmax. The log-sum-exp of large scores is rounded to their size, and without a division by the sum
that error stands in every weight: a row of scores near 1,000 sums to one within 1e-4 in float32, not 1e-7.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from headcheck.arithmetic import Arithmetic, named
from headcheck.attention.case import Case
from headcheck.attention.sizes_shown import asked_apart
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import built
from headcheck.comparison import LawBroken, NotApplicable, within

BY_LOG_SUM_EXP = replace(named("native"), log_sum_exps=2)
"""The model of one that does so, undeclared."""
BY_LOG_SUM_EXP_NOTE = (
    "{dtype}: weights, or the shares of parts, are exp(score - log-sum-exp), not divided by their sum, by what they lose "
    "where scores are large; the bounds allow for it, as if arithmetic={model} were declared"
)
SCORES = tuple(1.171**number for number in range(-6, 53))
"""Each is the one score of all keys of a row, so that only the sum of the weights can be wrong."""
LENGTHS = (3, 17, 33, 65, 130, 514)
"""Of keys: many are read in parts, which are merged by their log-sum-exps (Flash-Decoding)."""


def normalises_by_log_sum_exp(trial: AttentionSubject, dtype: str) -> bool:
    """Whether equal values come back less exactly than weights divided by their sum give them, but not much less.

    Asked in a copy of the process: a subject may hang on many keys, which is for a law to find.
    """
    return asked_apart(lambda: _loses_what_a_log_sum_exp_loses(trial, dtype), trial.device)


def _loses_what_a_log_sum_exp_loses(trial: AttentionSubject, dtype: str) -> bool:
    coarse = AttentionSubject(
        trial.declaration, dtypes=trial.dtypes, arithmetic={dtype: BY_LOG_SUM_EXP}, device=trial.device
    )
    plain = Case(dtype=dtype, q_len=len(SCORES), head_dim=4, value_dim=4)
    found = []
    try:
        for x in [built(trial, plain.but(kv_len=length)) for length in LENGTHS]:
            scores = torch.tensor(SCORES, dtype=torch.float64)[torch.arange(x.q_len) % len(SCORES)]
            by_default_scale = scores / x.query.shape[-1] ** 0.5
            query = by_default_scale[:, None].expand(x.query.shape)
            key, value = torch.ones_like(x.key), torch.ones_like(x.value)
            y = x.but(query=query.to(x.dtype), key=key, value=value, generic=False)
            found.append((y, trial(y), trial.expected(y)))
    except (LawBroken, NotApplicable):
        return False

    def any_broken(subject: AttentionSubject) -> bool:
        return any(within(output, expected, subject.bound(y)).broken for y, output, expected in found)

    return any_broken(trial) and not any_broken(coarse)


def in_sixteen_bits_too(
    trial: AttentionSubject, arithmetic: Mapping[str, Arithmetic]
) -> dict[str, Arithmetic]:
    """The models of undeclared 16-bit formats where float32 is found to do so: there only huge scores would show it."""
    if arithmetic.get("float32") != BY_LOG_SUM_EXP:
        return {}
    return {
        dtype: replace(arithmetic[dtype], log_sum_exps=BY_LOG_SUM_EXP.log_sum_exps)
        for dtype in ("bfloat16", "float16")
        if dtype in arithmetic and not trial.declares_arithmetic(dtype)
    }
