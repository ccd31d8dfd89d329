"""Whether float64 is off by what float32 rounds where float32 is right, as of a constant in it: a note for the reader."""

import torch

from headcheck.arithmetic import named
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import PLAIN, built, is_right_on
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.verdict import IN_FLOAT32

WIDER = PLAIN.but(head_dim=8, value_dim=8)
"""By the root of its dim nothing is divided exactly, as it is by that of a plain call, which has another note."""
SEEDS = 3


def doubles_note(trial: AttentionSubject) -> str:
    """Whether plain calls are right in float32, and in float64 off by no more than it rounds."""
    if "float64" not in trial.dtypes or trial.declaration.dtypes or trial.declares_arithmetic("float64"):
        return ""
    native = dict.fromkeys(("float32", "float64"), named("native"))
    if not all(_is_of_float32(trial.but(arithmetic=native), seed) for seed in range(SEEDS)):
        return ""
    return IN_FLOAT32


def _is_of_float32(trial: AttentionSubject, seed: int) -> bool:
    """Whether the plainest call is right, and a wider one off, but not where its inputs are of float32."""
    plain, x = (built(trial, case.but(dtype="float64", seed=seed)) for case in (PLAIN, WIDER))
    single = x.cast(torch.float32)
    try:
        output, exact = trial(x), trial.expected(x)
        off, coarsely = (within(output, exact, trial.strict_bound(each)).broken for each in (x, single))
    except (LawBroken, NotApplicable):
        return False
    return (
        off and not coarsely and all(is_right_on(trial, each, if_refused=False) for each in (plain, single))
    )
