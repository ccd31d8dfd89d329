"""Autocast, and inputs of two dtypes: what torch documents, as far as every right function must keep it.

torch.autocast makes some operations run in a lower dtype and leaves the others alone, so a function under it may
answer in either dtype, each step rounded to the lower one at worst. Inputs here are float32 tensors that hold
numbers of bfloat16: casting them down loses nothing, and the bound is that of bfloat16.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from headcheck.arithmetic import named
from headcheck.attention import watching
from headcheck.attention.bounds import forward_bounds
from headcheck.attention.given import boolean_mask, no_mask, without
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, LawBroken, NotApplicable, compared_gradients, within
from headcheck.given import one_in, one_of
from headcheck.laws import law

AUTOCAST = "torch.autocast: operations that are eligible run in its dtype, the others in that of their inputs"
LOWER = torch.bfloat16
LEAST_PART = 16
"""Keys, of those that are read in parts."""
_PLAIN = without("alibi", "sinks", "softcap")


def _lowered(tensor: Tensor | None, lower: torch.dtype = LOWER) -> Tensor | None:
    """Numbers of the lower dtype, in float32."""
    if tensor is None or tensor.dtype == torch.bool:
        return tensor
    return tensor.to(lower).float()


def _in_float32(attention: AttentionSubject, x: Inputs, lower: torch.dtype = LOWER) -> Inputs:
    if "float32" not in attention.dtypes:
        raise NotApplicable("takes no float32")
    names = ("query", "key", "value", "attn_mask", "sinks", "alibi_slopes")
    return x.but(**{name: _lowered(getattr(x, name), lower) for name in names}, generic=False)


def _limit(attention: AttentionSubject, y: Inputs, lower: torch.dtype) -> Tensor:
    """The bound, and four roundings for each part of the keys: its share, two products and a sum in the lower dtype.

    Of each part by its own size, which is no larger than the mean of |V|, and of the whole once for each.
    """
    parts, sizes = math.ceil(y.kv_len / LEAST_PART), attention.expected(y.but(value=y.value.abs()))
    return attention.bound(y) + 2 * torch.finfo(lower).eps * (sizes + parts * attention.expected(y).abs())


def _require(attention: AttentionSubject, dtype: str) -> None:
    if dtype not in attention.dtypes:
        raise NotApplicable(f"takes no {dtype}")


@law(
    source=AUTOCAST,
    formula="Q, K, V in float32, under autocast(bfloat16): |O - exact| <= bound of bfloat16",
    guards="A mask that is cast with the rest and added as 0 and 1, a fill that bfloat16 cannot hold, a fixed float16.",
    needs=("autocast",),
    given=(_PLAIN,),
)
def under_autocast_the_output_is_within_the_lower_bound(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Under autocast the output is in the dtype of the inputs or of the region, and as exact as the lower allows."""
    y = _in_float32(attention, x).but(autocast=LOWER)
    return within(attention(y), attention.expected(y), _limit(attention, y, LOWER), "output under autocast")


@law(
    source=AUTOCAST,
    formula="Q, K, V in float32, under autocast(float16): |O - exact| <= bound of float16",
    guards="bfloat16 whatever dtype the region has; a fill of -1e9, which float16 cannot hold.",
    needs=("autocast",),
    given=(_PLAIN, one_in(2, boolean_mask)),
    share=0.5,
)
def under_autocast_to_half_the_output_is_within_its_bound(
    attention: AttentionSubject, x: Inputs
) -> Comparison:
    """Under autocast to float16 the output is in the dtype of the inputs or in float16, and as exact as that allows."""
    if attention.declaration.dtypes and "float16" not in attention.declaration.dtypes:
        raise NotApplicable("takes no float16, as declared")
    y = _in_float32(attention, x, torch.float16).but(autocast=torch.float16)
    try:
        attention(y.but(attn_mask=None, is_causal=False, window=None))
    except SubjectRaised as refusal:
        if attention.declaration.autocast:
            raise
        raise NotApplicable(f"does not compute under autocast to float16: {refusal}") from refusal
    limit = _limit(attention, y, torch.float16)
    # Where a score is beyond float16 in one head, NaN may reach the others: a module mixes its heads at the end.
    beyond = limit.isinf().any(dim=3, keepdim=True).any(dim=1, keepdim=True)
    return within(
        attention(y), attention.expected(y), limit.masked_fill(beyond, torch.inf), "output under autocast"
    )


@law(
    source=f"{AUTOCAST}; backward operations run in the dtype that autocast chose for the forward ones",
    formula="Q, K, V in float32, forward under autocast(bfloat16): |dQ - exact| <= bound of bfloat16, and dK, dV",
    guards="A backward of one's own that meets what was cast and what was not (flash-linear-attention 70).",
    needs=("autocast",),
    given=(_PLAIN,),
    share=0.5,
)
def under_autocast_gradients_are_within_the_lower_bound(
    attention: AttentionSubject, x: Inputs
) -> Iterator[Comparison]:
    """Gradients of a forward pass under autocast are as exact as the lower dtype allows."""
    y = _in_float32(attention, x).but(autocast=LOWER)
    attention.require_specified_gradients(y)
    cotangent = y.cotangent.to(LOWER).float()
    found, exact = attention.gradients(y, cotangent), y.problem.gradients(cotangent.double())
    bounds = attention.gradient_bounds(y, cotangent).of()
    yield from compared_gradients(found._asdict(), exact._asdict(), bounds, ", forward under autocast")


@law(
    source="torch.no_grad: a call in it is forgotten once it is over",
    formula="f(x) under no_grad and autocast, then df of the same tensors: the gradients",
    guards="A tensor that was cast without gradients, kept for the call that needs them (pytorch 112583).",
    needs=("autocast",),
    given=(_PLAIN,),
    share=0.3,
)
def a_call_without_gradients_takes_none_away(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Tensors that were given under no_grad before have the gradients that they have without that call."""
    y = _in_float32(attention, x).but(autocast=LOWER)
    attention.require_specified_gradients(y)
    cotangent = y.cotangent.to(LOWER).float()
    exact, bounds = y.problem.gradients(cotangent.double()), attention.gradient_bounds(y, cotangent).of()
    found = watching.after_a_call_without_gradients(attention, y, cotangent)
    yield from compared_gradients(found, exact._asdict(), bounds, ", after a call under no_grad")


@law(
    source=AUTOCAST,
    formula="Q, K, V in bfloat16: O under autocast(bfloat16) = O, as far as both bounds allow",
    guards="float16 whatever dtype the region has: large numbers of bfloat16 become infinite (pytorch 87979).",
    needs=("autocast",),
    given=(_PLAIN, one_of("values", "large", "normal")),
    share=0.5,
)
def inputs_in_the_dtype_of_autocast_are_left_alone(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Inputs that are in the dtype of the region already give under autocast what they give without it."""
    _require(attention, "bfloat16")
    names = ("query", "key", "value", "attn_mask")
    lowered = {name: _lowered(getattr(x, name)) for name in names}
    y = x.but(
        **{n: t if t is None or t.dtype == torch.bool else t.to(LOWER) for n, t in lowered.items()},
        generic=False,
    )
    return attention.agree(y.but(autocast=LOWER), y)


@law(
    source="torch.autocast, op eligibility: float64 is not eligible, autocast or not",
    formula="Q, K, V in float64: O under autocast = O, in float64",
    guards="Every tensor of floating point cast down by hand, double precision too.",
    needs=("autocast",),
    given=(_PLAIN,),
    share=0.3,
)
def float_sixty_four_is_left_alone(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Under autocast, inputs in float64 give what they give without it, in float64."""
    _require(attention, "float64")
    y = x.cast(torch.float64)
    output, limit = attention(y.but(autocast=LOWER)), attention.apart(y, y)
    if output.dtype != torch.float64:
        raise LawBroken(f"output under autocast has dtype {output.dtype}, expected torch.float64")
    if attention.arithmetic["float64"].inputs != "input":
        raise NotApplicable("computes float64 in a narrower dtype, which autocast may lower")
    return within(output, attention(y), limit, "output in float64, under autocast")


@law(
    source="IEEE 754: binary64 has 53 digits; the arithmetic of an undeclared subject is that of its inputs",
    formula="Q, K, V in float64: |O - exact| <= bound of float64",
    guards="Doubles that are computed in single precision, which only a declaration may say.",
    share=0.5,
)
def doubles_are_computed_as_doubles(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Inputs in float64 are answered with the precision of float64, unless another arithmetic is declared."""
    _require(attention, "float64")
    if attention.declares_arithmetic("float64"):
        raise NotApplicable("declares how float64 is computed")
    y = x.cast(torch.float64)
    found = attention.arithmetic["float64"]
    native = replace(named("native"), log_sum_exps=found.log_sum_exps, merges=found.merges)
    exact, limit = y.problem.attended.output, forward_bounds(y.problem, native, torch.float64).output
    special = attention.special_rows(y)[..., None]
    return within(attention(y), exact, torch.where(special, torch.inf, limit), "output in float64")


@law(
    source="torch.autocast, enabled=False: a region inside of another in which nothing is cast",
    formula="f(x) in a disabled region inside of an enabled one, and after both = f(x)",
    guards="A region of one's own inside of the function, what was cast kept for the next call, a flag read once.",
    needs=("autocast",),
    share=0.5,
)
def a_disabled_region_changes_nothing(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Where autocast is disabled, and once it is over, the same call gives the same as without it."""
    kind = torch.device(attention.device).type
    alone, limit = attention(x), attention.apart(x, x)
    with torch.autocast(kind, LOWER):
        attention((_in_float32(attention, x) if x.dtype == torch.float16 else x).but(autocast=LOWER))
        with torch.autocast(kind, enabled=False):
            disabled = attention(x)
    yield within(disabled, alone, limit, "output where autocast is disabled")
    yield within(attention(x), alone, limit, "output once autocast is over")


@law(
    source="torch.nn.functional.scaled_dot_product_attention refuses inputs of several dtypes; torch.promote_types",
    formula="Q in one dtype, K or V in another: refused, or |O - exact| <= bound of the narrower",
    guards="The memory of one dtype read as another's: both have 16 bits, and the numbers are others.",
    given=(no_mask, _PLAIN, one_of("values", "normal", "integers")),
    share=0.3,
)
def inputs_of_two_dtypes_are_refused_or_right(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Query, key and value of two dtypes are refused or promoted, never read as what they are not."""
    one, other = _two_dtypes(attention, x.case.seed)
    common = {
        name: getattr(x, name).clamp(-8, 8).to(torch.float16).to(LOWER) for name in ("query", "key", "value")
    }
    dtypes = ((one, other, other), (one, one, other), (one, other, one))[x.case.seed // 7 % 3]
    tensors = {name: part.to(dtype) for (name, part), dtype in zip(common.items(), dtypes, strict=True)}
    y = x.but(**tensors, generic=False)
    try:
        output = attention(y)
    except SubjectRaised as refusal:
        raise NotApplicable(f"inputs of two dtypes are refused: {refusal}") from refusal
    # bfloat16 is the narrower of the two by its digits, float16 by its range.
    vanished = (
        8 * (1 + x.kv_len) * torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps
    )
    limit = attention.bound(y) + (vanished if torch.float16 in y.dtypes else 0.0)
    return within(output, attention.expected(y), limit, "output of inputs of two dtypes")


def _two_dtypes(attention: AttentionSubject, seed: int) -> tuple[torch.dtype, torch.dtype]:
    """NotApplicable: it is declared for some dtypes alone, and bfloat16 with another is none of them."""
    declared = attention.declaration.dtypes or ("float32", "bfloat16", "float16")
    others = [getattr(torch, each) for each in ("float32", "float16") if each in declared]
    if "bfloat16" not in declared or not others:
        raise NotApplicable("is not declared for bfloat16 and another of float32 and float16")
    pairs = [pair for other in others for pair in ((other, torch.bfloat16), (torch.bfloat16, other))]
    return pairs[seed % len(pairs)]
