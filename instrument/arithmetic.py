"""How an implementation of attention rounds: the declared arithmetic from which every error bound follows.

An `Arithmetic` names the floating-point format of each step. The formats are those of `FORMATS`, or

    "input"     the format of the inputs, after `inputs` has rounded them
    "float32+"  float32, or the format of the inputs where that is wider

Five models have names, narrowest bound first; for float32 and float64 inputs they are one and the same.

    name    what it declares                                  who computes so
    wide    everything in float32, output rounded             torch SDPA math (upcasts), reference kernels
    flash   + weights rounded before they meet the values     torch CPU flash, FlashAttention-type kernels
    eager   + each score stored in the input's format         matmul, softmax (in float32 or not), matmul
    opwise  + max, exp, sum and division stored likewise      softmax written as separate tensor operations
    native  + sums accumulated in the input's format          any float32 or float64 code; accumulators of
                                                              bfloat16 or float16 (a last resort: vacuous
                                                              beyond some 64 keys of bfloat16)

`dataclasses.replace` modifies a model:

    replace(named("flash"), scaled="input")             the query is scaled first and stored
    replace(named("wide"), exp_error=2048)              a cubic polynomial for exp2
    replace(named("flash"), accumulate_ulps=2)          matrix units that truncate
    replace(named("native"), inputs="float32")          float64 inputs silently computed in float32
    replace(named("native"), log_sum_exps=1)            weights exp(score - log-sum-exp)
    replace(named("wide"), merges=7)                    eight parts, merged as out - share (out - part)
    replace(named("native"), inputs="tfloat32", accumulate="float32", scaled="float32", scores="float32",
            softmax="float32", rescale="float32", output="float32")     float32 on tensor cores
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import torch


class Format(NamedTuple):
    """A binary floating-point format."""

    unit_roundoff: float
    """Half the distance from 1 to the next number."""
    smallest_subnormal: float
    smallest_normal: float
    largest: float


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "bfloat16": Format(2.0**-8, 2.0**-133, 2.0**-126, (2 - 2.0**-7) * 2.0**127),
        "float16": Format(2.0**-11, 2.0**-24, 2.0**-14, 65504.0),
        "tfloat32": Format(2.0**-11, 2.0**-136, 2.0**-126, (2 - 2.0**-10) * 2.0**127),
        "float32": Format(2.0**-24, 2.0**-149, 2.0**-126, (2 - 2.0**-23) * 2.0**127),
        "float64": Format(2.0**-53, 2.0**-1074, 2.0**-1022, (2 - 2.0**-52) * 2.0**1023),
    }
)
OF_A_MERGE = 8.0
"""Roundings of out - share x (out - part), relative to the values: five of the share, and one of each operation."""
OF_A_SHARE = 4.0
"""Roundings of the log-sum-exps of two parts and of their difference, relative to the larger one."""
_RELATIVE = ("input", "float32+")
_FORMAT_FIELDS = ("inputs", "scaled", "accumulate", "scores", "softmax", "rescale", "probabilities", "output")


@dataclass(frozen=True)
class Arithmetic:
    """The format of each step, and how well each step rounds. The default is `native`."""

    inputs: str = "input"
    """query, key, value, bias, sinks and cotangent are rounded to it before anything else."""
    scaled: str = "input"
    """The query times the scale (or query and key, each times its root)."""
    accumulate: str = "input"
    """Dot products and sums; also bias, softcap and the log-sum-exp."""
    scores: str = "input"
    """The score, stored after the product, the scale and the bias."""
    softmax: str = "input"
    """score - max, exp, its sum, the division."""
    rescale: str = "input"
    """The factors exp(old max - new max) of an online softmax."""
    probabilities: str = "input"
    """The weights as they meet the values; in the backward pass also dP and dS."""
    output: str = "input"

    accumulate_ulps: float = 1
    """Error of one addition, in unit roundoffs: 2 for a unit that truncates. Then no generic tier holds,
    since truncation errors do not average out (Fasi et al. 2021, PeerJ CS 330)."""
    exp_error: float = 64
    """Of exp, in unit roundoffs of float32 (of float64 there). 4: libm; 40: 20 ulp, torch's CPU flash."""
    rescale_error: float = 4
    """Of each rescale factor, likewise; the default at `block` 1 covers 64 at blocks of 16 or more keys."""
    tanh_error: float = 8
    """Of the tanh of a softcap, likewise. 8192: the tanh.approx instruction of NVIDIA."""
    block: int = 1
    """Fewest keys between two rescales of an online softmax."""
    fan: int = 1
    """Partial sums over keys that surely run in parallel: a chain of n additions is ceil(n / fan) + fan."""
    lag: float = 0.0
    """How far the number taken from the scores before exp may stand from their maximum."""
    log_sum_exps: float = 0.0
    """Weights that are exp(score - log-sum-exp), and not divided by their own sum: through so many log-sum-exps,
    2 where parts are merged by theirs. Its rounding, which grows with the scores, counts in full then."""
    merges: float = 0.0
    """Outputs of parts that are merged as out - share x (out - part), so many times: what a small weight contributes is
    rounded beside the largest value each time, and may be lost (ring attention, with a sigmoid for the share)."""
    flush_to_zero: tuple[str, ...] = ("bfloat16", "tfloat32", "float32", "float64")
    """Formats in which a result below the smallest normal may become zero.
    Not float16 by default: its smallest normal, 6e-5, would hide real errors."""

    def __post_init__(self) -> None:
        for field in _FORMAT_FIELDS:
            _require_format(field, getattr(self, field))
        for name in self.flush_to_zero:
            _require_format("flush_to_zero", name)
        for field, least in {
            "accumulate_ulps": 1,
            "block": 1,
            "fan": 1,
            "log_sum_exps": 0,
            "merges": 0,
        }.items():
            if getattr(self, field) < least:
                raise ValueError(f"{field}={getattr(self, field)!r}: must be at least {least}")

    @property
    def has_generic_tier(self) -> bool:
        """Whether rounding errors have no preferred sign, so that on generic inputs they average out."""
        return self.accumulate_ulps <= 1

    def rounding(self, dtype: torch.dtype) -> "Rounding":
        """The model in numbers, for inputs of one dtype."""
        return _rounding(self, dtype)

    def __str__(self) -> str:
        """The name, or the name of the nearest model and what differs from it: fit to be pasted."""

        def changes(name: str) -> list[str]:
            base = MODELS[name]
            return [
                f"{field.name}={getattr(self, field.name)!r}"
                for field in fields(self)
                if getattr(self, field.name) != getattr(base, field.name)
            ]

        nearest = min(MODELS, key=lambda name: len(changes(name)))
        changed = changes(nearest)
        return f"replace(named({nearest!r}), {', '.join(changed)})" if changed else nearest


class Step(NamedTuple):
    """A result x is stored as x (1 + d) + e with |d| <= unit, |e| <= underflow, if |x| <= largest."""

    unit: float
    underflow: float
    largest: float


class Rounding(NamedTuple):
    """An `Arithmetic` for inputs of one dtype."""

    inputs: Step
    scaled: Step
    accumulate: Step
    scores: Step
    softmax: Step
    rescale: Step
    probabilities: Step
    output: Step
    exp: float
    """Relative error of one exp, its storing included."""
    tanh: float
    rescale_factor: float
    lost_by_merges: float
    """Of each weight as it meets the values, whatever its size."""
    shares_of_merges: float
    """Relative error of the share by which a part is merged, for each unit of the log-sum-exps that it is made of."""


@lru_cache(maxsize=256)
def _rounding(arithmetic: Arithmetic, dtype: torch.dtype) -> Rounding:
    given = str(dtype).removeprefix("torch.")
    if given not in FORMATS:
        raise ValueError(f"no error bound for {dtype}: the formats are {', '.join(FORMATS)}")
    asked = _resolve(arithmetic.inputs, given)
    loses = FORMATS[asked].unit_roundoff > FORMATS[given].unit_roundoff
    base = asked if loses else given
    steps = {field: _step(_resolve(getattr(arithmetic, field), base), arithmetic) for field in _FORMAT_FIELDS}
    accumulate, softmax, rescale = steps["accumulate"], steps["softmax"], steps["rescale"]
    steps["accumulate"] = accumulate._replace(unit=arithmetic.accumulate_ulps * accumulate.unit)
    if not loses:
        flushed = FORMATS[given].smallest_normal if given in arithmetic.flush_to_zero else 0.0
        steps["inputs"] = Step(unit=0.0, underflow=flushed, largest=math.inf)
    # A score enters the softmax and a weight leaves it: a wider format elsewhere brings no digits back.
    for field in ("scores", "probabilities"):
        if steps["softmax"].unit > steps[field].unit:
            steps[field] = steps["softmax"]
    return Rounding(
        **steps,
        exp=arithmetic.exp_error * _at_most_float32(softmax.unit) + softmax.unit,
        tanh=arithmetic.tanh_error * _at_most_float32(accumulate.unit) + accumulate.unit,
        rescale_factor=arithmetic.rescale_error * _at_most_float32(rescale.unit)
        + (rescale.unit if rescale.unit > FORMATS["float32"].unit_roundoff else 0.0),
        lost_by_merges=OF_A_MERGE * arithmetic.merges * max(softmax.unit, steps["probabilities"].unit),
        shares_of_merges=OF_A_SHARE * arithmetic.merges * max(softmax.unit, accumulate.unit),
    )


def _at_most_float32(unit: float) -> float:
    """Functions of 16-bit formats are computed in float32 and then rounded."""
    return min(unit, FORMATS["float32"].unit_roundoff)


def _step(name: str, arithmetic: Arithmetic) -> Step:
    unit, subnormal, normal, largest = FORMATS[name]
    return Step(unit, normal if name in arithmetic.flush_to_zero else subnormal / 2, largest)


def _resolve(name: str, given: str) -> str:
    if name == "float32+":
        return min("float32", given, key=lambda each: FORMATS[each].unit_roundoff)
    return given if name == "input" else name


def _require_format(field: str, name: str) -> None:
    if name not in FORMATS and name not in _RELATIVE:
        raise ValueError(f"{field}={name!r}: a format is one of {', '.join((*_RELATIVE, *FORMATS))}")


_NATIVE = Arithmetic()
_OPWISE = replace(_NATIVE, accumulate="float32+", scaled="float32+", rescale="float32+")
_EAGER = replace(_OPWISE, softmax="float32+")
_FLASH = replace(_EAGER, scores="float32+")
_WIDE = replace(_FLASH, probabilities="float32+")

MODELS: Mapping[str, Arithmetic] = MappingProxyType(
    {"wide": _WIDE, "flash": _FLASH, "eager": _EAGER, "opwise": _OPWISE, "native": _NATIVE}
)
"""Narrowest bound first: each model allows whatever the one before it allows."""


def named(name: str) -> Arithmetic:
    """The model of that name."""
    if name not in MODELS:
        raise ValueError(f"no arithmetic is named {name!r}; the names are {', '.join(MODELS)}")
    return MODELS[name]
