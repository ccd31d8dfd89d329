"""How an attention function rounds, undeclared: the narrowest model of arithmetic that explains a few calls."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from random import Random

import torch
from torch import Tensor

from headcheck.arithmetic import Arithmetic, named
from headcheck.attention.case import Case
from headcheck.attention.drawing import draw, fit
from headcheck.attention.inputs import Inputs, build
from headcheck.attention.merging import beside, shown_by_large_numbers
from headcheck.attention.subject import DEAD_ROWS, AttentionSubject
from headcheck.attention.trying import PLAIN, built
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.declarations import LOW_PRECISION
from headcheck.inference import TRIES, narrowest, told
from headcheck.reference.attention import Gradients
from headcheck.verdict import Hint

INFERRED = (
    named("wide"),
    named("flash"),
    named("eager"),
    replace(named("eager"), scaled="input"),
    replace(named("opwise"), scaled="input"),
)
"""The models that an undeclared low-precision subject is fitted to, the narrowest first."""
IN_FLOAT32 = replace(named("native"), inputs="float32")
"""The model of one that computes float64 in float32, undeclared."""
OPPOSED, TELLING_DIM = 2, 20
"""Of three cases the one with sums of large products, and its dim, by whose root nothing is divided exactly."""
ROUND_THE_SUM_ONCE = INFERRED[2:4]
IN_FLOAT32_NOTE = (
    "float64 is computed in float32: the law dtypes/doubles-are-computed-as-doubles says so, the others allow it; "
    "where it is meant, declare dtypes without float64: --declare dtypes={}; or in Python arithmetic="
    "{{'float64': replace(named('native'), inputs='float32')}}"
)
IN_16_BITS_NOTE = (
    "float32 is computed in {0}: rounding its inputs to {0} changes no bit of the output; compute in float32, or where "
    "it is meant, declare dtypes without it: --declare dtypes={1}"
)
HALF = 0.5
"""Between what eager code shows on constant values, at most 0.37 of its bound, and opwise code, at least 0.56."""
COARSE = 2.0**-4
"""Of the largest number of an output: far more than rounding to 16 bits takes."""
SINK = 5.3
"""A score far above those of normal numbers, beside which the weights are no subnormal numbers of float16."""


def arithmetic_of(
    trial: AttentionSubject, dtype: str, seed: int, in_float32: Arithmetic | None
) -> tuple[Arithmetic, str]:
    """How a subject rounds in one dtype, as declared or as found out, and a note, or ''.

    in_float32: how it does there, where that is known.
    """
    declared = trial.declaration.arithmetic
    if isinstance(declared, str | Arithmetic):
        declared = {dtype: declared}
    if declared and dtype in declared:
        model = declared[dtype]
        return (named(model) if isinstance(model, str) else model), ""
    if dtype == "float64" and computes_in_float32(trial):
        others = ",".join(each for each in trial.dtypes if each != "float64")
        return beside(IN_FLOAT32, in_float32 or IN_FLOAT32), Hint(IN_FLOAT32_NOTE.format(others or "float32"))
    if dtype == "float32" and (narrow := _format_of_float32(trial)):
        others = ",".join(each for each in trial.dtypes if each in LOW_PRECISION)
        return named("native"), Hint(IN_16_BITS_NOTE.format(narrow, others or narrow))
    if dtype not in LOW_PRECISION:
        return shown_by_large_numbers(trial, dtype)
    model, ratio = infer_arithmetic(trial, dtype, seed, in_float32)
    if ratio == 0.0:  # Even what is rounded once is off by something: no case was answered.
        widest = INFERRED[-1]
        return widest, f"{dtype}: no call that tells its arithmetic was answered; held to {widest}"
    return model, told(dtype, model, ratio)


def computes_in_float32(trial: AttentionSubject) -> bool:
    """Whether float64 is answered as float32 would be: off by more than its own rounding, by no more than that."""
    coarse = trial.but(arithmetic={"float64": IN_FLOAT32})
    calls = [built(trial, PLAIN.but(dtype="float64", seed=seed)) for seed in range(3)]
    try:
        found = [(x, trial(x)) for x in calls]
    except (LawBroken, NotApplicable):
        return False
    off, as_float32 = (
        [within(output, trial.expected(x), bound(x)).broken for x, output in found]
        for bound in (trial.bound, coarse.bound)
    )
    return all(off) and not any(as_float32)


def _format_of_float32(trial: AttentionSubject) -> str:
    """The format of 16 bits that float32 inputs are rounded to, and the output with them; '' where there is none."""
    x = built(trial, PLAIN.but(dtype="float32", seed=1))
    with suppress(LawBroken, NotApplicable):
        output, exact = trial(x), trial.expected(x)
        if bool(((output - exact).abs() > COARSE * exact.abs().max()).any()):
            return ""  # It is wrong by more than such rounding, which is for laws to say.
        for name in LOW_PRECISION:
            narrow = getattr(torch, name)
            rounded = {each: getattr(x, each).to(narrow).float() for each in ("query", "key", "value")}
            if torch.equal(output, output.to(narrow).float()) and torch.equal(
                trial(x.but(**rounded)), output
            ):
                return name
    return ""


def infer_arithmetic(
    trial: AttentionSubject, dtype: str, seed: int, in_float32: Arithmetic | None = None
) -> tuple[Arithmetic, float]:
    """The narrowest model within which the subject stays on drawn cases, and its largest error over bound.

    A case on which no model fits says nothing about rounding; a law will say what is wrong with it. The ratio
    is infinite where none fits on any case. in_float32: how the subject rounds there, where it takes float32: a
    case that asks for a wide model counts if it is right in float32.
    """
    cases = [_telling(trial, dtype, f"{seed}/arithmetic/{dtype}/{number}", number) for number in range(TRIES)]
    answered = cache(partial(_answered, trial))
    model, ratio, unexplained = _fitted(answered, dtype, INFERRED, cases, in_float32)
    backward = True
    if unexplained:  # Wrong gradients say nothing of how the output is rounded.
        models = INFERRED[INFERRED.index(model) :]
        by_outputs, of_outputs, _ = _fitted(answered, dtype, models, unexplained, in_float32, backward=False)
        if of_outputs <= 1:
            worst = max(ratio, of_outputs) if ratio <= 1 else of_outputs
            model, ratio, backward = by_outputs, worst, False
    if ratio <= 1 and model in ROUND_THE_SUM_ONCE and _rounds_more(trial, dtype, model, backward=backward):
        return _fitted(answered, dtype, INFERRED[-1:], cases, in_float32, backward=backward)[:2]
    return model, ratio


def _fitted(
    answered: Callable[..., "_Answered"],
    dtype: str,
    models: Sequence[Arithmetic],
    cases: Sequence[Case],
    in_float32: Arithmetic | None,
    *,
    backward: bool = True,
) -> tuple[Arithmetic, float, list[Case]]:
    """The narrowest model that fits, the largest error over bound, and the cases on which none did."""
    explained: set[Case] = set()

    def ratio(case: Case, model: Arithmetic) -> float:
        found = answered(case, dtype, backward=backward).ratio(model)
        if found <= 1:
            explained.add(case)
        return found

    def tells(case: Case) -> bool:
        single = case.but(dtype="float32")
        if in_float32 is None:
            return True
        return answered(single, "float32", backward=backward).ratio(in_float32) <= 1

    model, worst = narrowest(models, cases, ratio, tells)
    return model, worst, [case for case in cases if case not in explained]


def _telling(trial: AttentionSubject, dtype: str, seed: str, number: int) -> Case:
    """A drawn case; large scores, and such that are sums of large products, show how scores are rounded.

    In every other one the default scale is given, so that a wrong default does not stand for rounding.
    """
    case = draw(Random(seed), trial).but(dtype=dtype, strides="contiguous")
    if number % 3 == OPPOSED:
        case = fit(case.but(head_dim=TELLING_DIM, scale=None, kv_len=max(case.kv_len, 8)), trial)
    if number % 2 and case.scale is None and trial.has("scale"):
        case = case.but(scale=1 / math.sqrt(case.head_dim))
    return case.but(values=("large", "opposed")[number % 3 - 1]) if number % 3 else case


def _rounds_the_sum_more_than_once(
    trial: AttentionSubject, dtype: str, model: Arithmetic, *, backward: bool
) -> bool:
    """Whether constant values come back with more than the output's own rounding, which is half of the bound.

    opwise stays within eager's bound but for one element in thousands; here it shows in each case.
    """
    cases = [
        Case(dtype=dtype, batch=2, heads=2, kv_heads=2, q_len=33, kv_len=33, values="constant", seed=number)
        for number in range(3)
    ]
    return any(
        _ratio(trial, fit(case.but(head_dim=8, value_dim=8), trial), dtype, model, backward=backward) > HALF
        for case in cases
    )


def _rounds_more(trial: AttentionSubject, dtype: str, model: Arithmetic, *, backward: bool) -> bool:
    """Whether cases that are made for it show more roundings than drawn ones do."""
    if _rounds_the_sum_more_than_once(trial, dtype, model, backward=backward):
        return True
    return trial.has("sinks") and _takes_off_a_sink(trial, dtype, model)


def _takes_off_a_sink(trial: AttentionSubject, dtype: str, model: Arithmetic) -> bool:
    """Whether scores lose what they do where the largest of them, a sink, is taken off in 16 bits (gpt-oss).

    A sink far above the scores shows it in each case, one as drawn in one of thousands.
    """
    case = Case(dtype=dtype, batch=4, heads=2, kv_heads=2, q_len=33, kv_len=3, values="normal", sinks=True)
    cases = [fit(case.but(head_dim=1, value_dim=1, seed=number), trial) for number in range(3)]
    sinks = torch.full((cases[0].heads,), SINK, dtype=getattr(torch, dtype))
    calls = [build(case, trial.alignment).but(sinks=sinks) for case in cases]

    def worst(under: Arithmetic) -> float:
        subject = trial.but(dtypes=(dtype,), arithmetic={dtype: under})
        return max(within(subject(x), subject.expected(x), subject.bound(x)).ratio for x in calls)

    try:
        return worst(model) > 1 >= worst(INFERRED[-1])
    except (LawBroken, NotApplicable):
        return False  # A law will say what is wrong.


def _ratio(
    trial: AttentionSubject, case: Case, dtype: str, model: Arithmetic, *, backward: bool = True
) -> float:
    """The largest error over bound of one case under a model; 0 where it cannot be said.

    backward: of gradients too.
    """
    return _answered(trial, case, dtype, backward=backward).ratio(model)


@dataclass(frozen=True)
class _Answered:
    """One case as the subject answered it, which every model is asked to explain."""

    trial: AttentionSubject
    x: Inputs
    output: Tensor | None = None
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    parts: int = 1
    """Into how many parts, added up in 16 bits, a gradient falls."""

    def ratio(self, model: Arithmetic) -> float:
        """The largest error over bound under a model; 0 where nothing was answered."""
        if self.output is None:
            return 0.0
        x = self.x
        subject = self.trial.but(arithmetic=dict.fromkeys(self.trial.dtypes, model))
        ratios = [within(self.output, subject.expected(x), subject.bound(x)).ratio]
        if self.gradients:
            bounds = subject.gradient_bounds(x, parts=self.parts)
            ratios += [
                within(found, getattr(self._exact, name), getattr(bounds, name)).ratio
                for name, found in self.gradients.items()
            ]
        return max(ratios)

    @cached_property
    def _exact(self) -> Gradients:
        return self.x.problem.gradients(self.x.cotangent.double())


def _answered(trial: AttentionSubject, case: Case, dtype: str, *, backward: bool) -> _Answered:
    """The output, and the gradients where they are asked for and specified; what else is wrong, a law will say."""
    subject = trial.but(dtypes=(dtype,), arithmetic={dtype: named("native")})
    x = build(case, trial.alignment, dead_rows=DEAD_ROWS not in trial.avoids)
    answered = _Answered(subject, x)
    with suppress(LawBroken, NotApplicable):
        answered = replace(answered, output=subject(x))
        if backward:
            found = subject.gradients(x)
            if subject.claims_gradients(x):
                given = {name: getattr(found, name) for name in ("query", "key", "value")}
                given = {name: each for name, each in given.items() if each is not None}
                answered = replace(answered, gradients=given, parts=subject.parts_of_gradients(x))
    return answered
