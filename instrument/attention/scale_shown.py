"""Which scale an attention function has where it is not the default one: what plain calls show, for the reader."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs
from headcheck.attention.notes import centred, logs_of_weights, normalised_note
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import PLAIN, built
from headcheck.comparison import LawBroken, NotApplicable, within

SCALES: Mapping[str, Callable[[Inputs], float]] = {
    "1": lambda x: 1.0,
    "1 / head_dim": lambda x: 1 / x.head_dim,
    "1 / sqrt(heads * head_dim)": lambda x: (x.heads * x.head_dim) ** -0.5,
}
"""What a default scale is instead."""
WIDER = {"head_dim": 8, "value_dim": 8}
OTHER_SIZES = (WIDER, {"head_dim": 16, "value_dim": 16}, {"q_len": 5, "kv_len": 5})
"""In which a scale that is measured in a plain call has to be right as well."""


def scale_note(trial: AttentionSubject) -> str:
    """Which scale a plain call has instead of the default one; in float32 where float64 tells nothing."""
    formats: list[str] = [name for name in ("float64", "float32") if name in trial.dtypes] or list(
        trial.dtypes[:1]
    )
    plain = (PLAIN, PLAIN.but(**WIDER))  # A scale that is fixed may be the default one of the first.
    wrong = next(
        (each for each in plain if _is_wrong(trial, built(trial, each.but(dtype=formats[-1])))), None
    )
    if wrong is None:
        return ""
    found = (other_scale(trial, wrong.but(dtype=each)) for each in formats)
    other = next(filter(None, found), None)
    return other.note if other else normalised_note(trial, built(trial, wrong.but(dtype=formats[0])))


@dataclass(frozen=True)
class OtherScale:
    """A scale that explains plain calls of several sizes."""

    name: str
    number: float | None
    """What it is whatever head_dim is, as `always` declares it; None where it depends on the sizes."""

    @property
    def note(self) -> str:
        if self.number is None:
            return f"a plain call is right for a scale of {self.name}, and wrong for 1 / sqrt(head_dim)"
        cure = f"--declare always.scale={self.number!r} if that is what you mean"
        return f"a plain call is right for a scale of {self.name}, whatever head_dim is: {cure}"


def other_scale(trial: AttentionSubject, plain: Case) -> OtherScale | None:
    """The scale for which this call, and others of other sizes, are right; None where there is none, or no answer."""
    x, others = built(trial, plain), [built(trial, plain.but(**sizes)) for sizes in OTHER_SIZES]
    if not _is_wrong(trial, x):
        return None  # A call that raises is right for any scale, and says nothing.
    for name, scale in SCALES.items():
        if not any(_is_wrong(trial, each, scale=scale(each)) for each in (x, *others)):
            return OtherScale(name, 1.0 if name == "1" else None)
    for measured in _measured_scales(trial, x):
        if not any(_is_wrong(trial, each, scale=measured) for each in (x, *others)):
            return OtherScale(f"{measured:.6g}", measured)
    return None


def _is_wrong(trial: AttentionSubject, x: Inputs, **meant: float) -> bool:
    """Whether a call gives another answer than x asks for, or x with what is meant instead; not so where it raises."""
    asked = x.but(**meant)
    try:
        return within(trial(x), trial.expected(asked), trial.strict_bound(asked)).broken
    except (LawBroken, NotApplicable):
        return False


def _measured_scales(trial: AttentionSubject, x: Inputs) -> list[float]:
    """What the logarithms of the weights are of the products, as a number or root that a person would write."""
    logs = logs_of_weights(trial, x)
    if logs is None:
        return []
    products = centred(x.query.double() @ x.key.double().mT)
    scale = float((logs * products).sum() / products.square().sum())
    if not (math.isfinite(scale) and scale):
        return []
    powers = (1.0, -1.0, 2.0, -2.0) if scale > 0 else (1.0, -1.0)
    written = {float(f"{scale**power:.6g}") ** (1 / power) for power in powers}
    return sorted(written, key=lambda each: abs(each - scale))
