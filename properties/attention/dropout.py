"""Dropout acts on the weights: each is dropped by chance or scaled up, independently."""

import math
import re
from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import pad

from headcheck.attention import watching
from headcheck.attention.given import (
    blind_to_order,
    equal_heads,
    grouped,
    live_rows,
    masked,
    no_mask,
    without,
)
from headcheck.attention.gradient_bounds import of_the_mask
from headcheck.attention.inputs import Inputs
from headcheck.attention.readout import reading_the_weights
from headcheck.attention.subject import AttentionSubject
from headcheck.calling import REFUSALS, SubjectRaised
from headcheck.comparison import Comparison, LawBroken, NotApplicable, compared_gradients, none, same, within
from headcheck.given import alternately, at_least, at_most, having, one_in, one_of
from headcheck.laws import law
from headcheck.library import seeded
from headcheck.signatures import parameters_of

SRIVASTAVA = "Srivastava et al. 2014; Vaswani et al. 2017, section 5.4"
RATES = (0.2, 0.5, 0.03, 0.8)
UNLIKELY = 1e-12
"""The chance at which a right implementation would be failed, for each comparison of counts."""

_ANY = (
    one_of("mask", "none", "random", "causal", "padding"),
    one_of("mask_form", "boolean", "additive"),
    at_least(q_len=8, kv_len=16),
)
"""Enough weights to count."""
_MANY = (*_ANY, without("window", "alibi", "sinks"))
"""And none of them far below the others."""
_EVEN = (*_MANY, equal_heads)
_WIDE = (*_EVEN, at_most(q_len=16, kv_len=65))
"""And as many dims as keys to read them out."""
_FEW = at_most(batch=2, heads=2, kv_heads=2)
_BRIEF = (at_most(q_len=16, kv_len=33),)
_SOME = at_most(batch=2, heads=4, kv_heads=2, head_dim=64, value_dim=30)
_ONE = having(batch=1, heads=2, kv_heads=2)
OF_A_SEED = re.compile("seed|generator|rng", re.IGNORECASE)
"""In the name of a parameter that says what is drawn: left at its default, it may say the same in every call."""
_WIDTH = 64
"""Of values beside unit vectors: as wide as any kernel takes."""
_TILES = alternately(
    (having(q_len=66, kv_len=66), _FEW),
    (having(q_len=16, kv_len=160), _FEW),
    (having(q_len=160, kv_len=33), _FEW),
    *[_BRIEF] * 4,
)
"""Sometimes more queries or keys than a tile holds: patterns are drawn tile by tile."""


def _rate(x: Inputs) -> float:
    return RATES[x.case.seed % len(RATES)]


def _improbable(share: float, chance: float, trials: int) -> bool:
    """Whether so large or so small a share of hits is rarer than UNLIKELY (Chernoff: exp(-n KL), on both sides)."""
    surprise = sum(
        seen * math.log(seen / expected)
        for seen, expected in ((share, chance), (1 - share, 1 - chance))
        if seen > 0
    )
    return trials * surprise > math.log(2 / UNLIKELY)


def _even(attention: AttentionSubject, x: Inputs) -> Inputs:
    """Values that read out the weights, and scores so even that no weight is zero of itself."""
    y = x.but(
        query=0.1 * x.normal_like(x.query, "query"),
        key=x.normal_like(x.key, "key"),
        dropout_p=_rate(x),
        scale=None,
        strides="contiguous",
        generic=False,
    )
    return reading_the_weights(attention, y)


def _weights(attention: AttentionSubject, x: Inputs) -> tuple[Tensor, Inputs]:
    """The weights after dropout, and the inputs that gave them."""
    y = _even(attention, x)
    with seeded(x.case.seed):
        return attention(y).cpu().double(), y


OF_THE_RATE = re.compile(r"dropout\w*( probability)? (<|must|should|has to)")
"""What code in C says of a rate that it does not take, as torch's flash kernel on a GPU: Expected p_dropout < 1.f."""


@law(
    source=SRIVASTAVA,
    formula="each weight is 0 or p_ij / (1 - rate)",
    guards="No rescaling, dropout before the softmax or before the sum (nki-samples 80), dropout of the output.",
    needs=("dropout",),
    given=_WIDE,
    share=0.5,
)
def a_weight_is_dropped_or_scaled_up(attention: AttentionSubject, x: Inputs) -> Comparison:
    """With dropout, each weight is either zero or its exact value divided by the chance to be kept."""
    weights, y = _weights(attention, x)
    kept = 1 - _rate(x)
    exact = attention.expected(y) / kept
    limit = (attention.bound(y) + 4 * torch.finfo(x.dtype).eps * attention.expected(y)) / kept
    return within(weights, torch.where(weights == 0, 0.0, exact), limit, "weight")


@law(
    source=SRIVASTAVA,
    formula="the number dropped is binomial: n trials at the rate",
    guards="1 - rate in place of the rate, dropout that is accepted and never applied, or not beside a mask.",
    needs=("dropout",),
    given=_WIDE,
    share=0.5,
)
def the_rate_is_kept(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The share of dropped weights is the rate, as far as chance allows (Chernoff's bound at 1e-12), in autocast too."""
    if x.case.seed % 4 == 0 and x.dtype == torch.float32 and attention.has("autocast"):
        x = x.but(autocast=torch.bfloat16)
    weights, _ = _weights(attention, x)
    dropped = (weights[..., : x.kv_len] == 0)[x.may_attend].double()
    share, rate = float(dropped.mean()) if dropped.numel() else 0.0, _rate(x)
    if _improbable(share, rate, dropped.numel()):
        raise LawBroken(f"{share:.2%} of {dropped.numel():,} weights are dropped, at a rate of {rate:.0%}")
    return none("rates that chance does not explain")


@law(
    source=SRIVASTAVA,
    formula="V' = [V, I]: O' = [W V, W], each W_ij 0 or p_ij / (1 - rate); scale, bias and V as drawn",
    guards="A path for dropout that lacks the scale or a bias, reads the values of another head, or drops nothing where "
    "keys are many.",
    needs=("dropout",),
    given=(
        one_in(2, grouped),
        live_rows,
        one_in(2, masked, one_of("mask_form", "bias", "boolean")),
        having(values="normal"),
        alternately((having(q_len=3, kv_len=1100, head_dim=8, value_dim=8), _ONE), *[(*_BRIEF, _SOME)] * 5),
    ),
    share=0.5,
)
def the_output_is_what_the_dropped_weights_make_of_the_values(
    attention: AttentionSubject, x: Inputs
) -> Iterator[Comparison]:
    """Values beside unit vectors show both in one call: the weights that are left, and what they make of the values."""
    read = torch.randperm(x.kv_len, generator=x.generator("keys read"))[: _WIDTH - x.value_dim]
    shown = slice(x.value_dim, x.value_dim + len(read))
    value = torch.zeros(*x.value.shape[:3], _WIDTH, dtype=x.dtype)
    value[:, :, read, : x.value_dim] = x.value[:, :, read]
    value[:, :, read, torch.arange(x.kv_len)[: len(read)] + x.value_dim] = 1
    y = x.but(value=value, dropout_p=_rate(x), strides="contiguous", generic=False)
    if attention.declaration.value_dim is False:
        wider = (0, _WIDTH - x.head_dim)
        y = y.but(query=pad(x.query, wider), key=pad(x.key, wider))
    with seeded(x.case.seed):
        output = attention(y).cpu().double()
    made, weights, kept, eps = (
        output[..., : x.value_dim],
        output[..., shown],
        1 - _rate(x),
        torch.finfo(x.dtype).eps,
    )
    exact, bound = attention.expected(y)[..., shown], attention.bound(y)[..., shown]
    limit = (bound + 4 * eps * exact) / kept
    yield within(weights, torch.where(weights == 0, 0.0, exact / kept), limit, "weight")
    of_heads = x.value[:, :, read].double().repeat_interleave(x.group, dim=1)
    # The weights are the same in both: a product, a sum and what is stored round once more, by no more than eps each;
    # the values, where the arithmetic says that inputs are rounded.
    narrowed = 2 * attention.arithmetic_for(x).rounding(x.dtype).inputs.unit
    rounding = ((x.kv_len + 8) * eps + narrowed) * (weights.abs() @ of_heads.abs())
    lost = torch.finfo(x.dtype).tiny * of_heads.abs().sum(dim=-2, keepdim=True) / kept
    yield within(made, weights @ of_heads, rounding + lost)


@law(
    source=SRIVASTAVA,
    formula="the pattern of one head, batch, query or key is not that of another",
    guards="One pattern drawn and repeated: over heads, over batches, over rows, over tiles of keys.",
    needs=("dropout",),
    given=(
        *_EVEN,
        no_mask,
        blind_to_order,
        at_least(batch=2, heads=2, kv_heads=2, kv_len=33),
        _TILES,
        one_in(2, grouped),
    ),
    share=0.5,
)
def weights_are_dropped_one_by_one(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """Heads, batches, rows and keys drop their weights independently: no more pairs agree than chance allows."""
    dropped = _weights(attention, x)[0][..., : x.kv_len] == 0
    for axis, name in enumerate(("batches", "heads")):
        for (i, one), (j, other) in combinations(enumerate(dropped.unbind(axis)), 2):
            _require_independent(one, other, x, f"{name} {i} and {j}")
    for step in (16, 32, 64, 96, 128):
        for first in _links(dropped.shape[2], 1):
            one, other = dropped[:, :, first, step:], dropped[:, :, first + 1, :-step]
            _require_independent(one, other, x, f"a query, and the next one {step} keys earlier,")
    for axis, name in ((2, "queries"), (3, "keys")):
        for step in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128):
            for first in _links(dropped.shape[axis], step):
                one, other = dropped.index_select(axis, first), dropped.index_select(axis, first + step)
                _require_independent(one, other, x, f"{name} {step} apart")
    return none("agreements that chance does not explain")


@law(
    source=SRIVASTAVA,
    formula="beside a window, sinks, ALiBi or a cap, and where more is returned: each weight is 0 or p_ij / (1 - rate)",
    guards="A kernel of its own for a feature, or for a returned log-sum-exp, that lacks dropout.",
    needs=("dropout",),
    given=(*_ANY, equal_heads, at_most(q_len=16, kv_len=33)),
    share=0.5,
)
def no_feature_keeps_dropout_away(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Whatever else a call asks for, its weights are dropped at the rate, and the others scaled up."""
    extras = [name for name in ("log_sum_exp", "weights") if attention.has(name)]
    features = (x.window, x.sinks, x.alibi_slopes, x.softcap)
    if not extras and all(each is None for each in features):
        raise NotApplicable("this call has no feature")
    y = _even(attention, x)
    asked = {extras[x.case.seed % len(extras)]: True} if extras and x.case.seed % 3 else {}
    with seeded(x.case.seed):
        weights = attention.answer(y, **asked).output.cpu().double()
    exact, bound, kept = attention.expected(y), attention.bound(y), 1 - _rate(x)
    counted = exact > 4 * bound
    share = float((weights == 0)[counted].double().mean()) if counted.any() else _rate(x)
    if _improbable(share, _rate(x), int(counted.sum())):
        beside = ", ".join(asked) or "what this call asks for"
        raise LawBroken(
            f"{share:.2%} of {int(counted.sum()):,} weights are dropped beside {beside}, at {_rate(x):.0%}"
        )
    limit = (bound + 4 * torch.finfo(x.dtype).eps * exact) / kept
    return within(weights, torch.where(weights == 0, 0.0, exact / kept), limit, "weight")


def _links(length: int, step: int) -> Iterator[Tensor]:
    """Where pairs `step` apart begin, in two groups: no two pairs of a group share an element."""
    first = torch.arange(max(0, length - step))
    for group in (0, 1):
        yield first[first // step % 2 == group]


def _require_independent(one: Tensor, other: Tensor, x: Inputs, name: str) -> None:
    """As many elements agree as in patterns that were drawn apart, as far as chance allows."""
    rate = _rate(x)
    agreeing = float((one == other).double().mean()) if one.numel() else 0.0
    if one.numel() and _improbable(agreeing, rate**2 + (1 - rate) ** 2, one.numel()):
        raise LawBroken(
            f"{name} do not drop their weights independently: {agreeing:.1%} are dropped or kept alike"
        )


@law(
    source="torch.manual_seed: the same seed gives the same numbers, and two draws differ",
    formula="same seed: same pattern; the next call: another pattern",
    guards="A pattern fixed at the first call, or drawn from a generator that no seed reaches.",
    needs=("dropout",),
    given=(*_WIDE, no_mask, blind_to_order),
    share=0.5,
)
def the_seed_decides_what_is_dropped(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The same seed drops the same weights, and two calls in a row drop different ones."""
    y = _even(attention, x)
    with seeded(x.case.seed):
        first, second = (attention(y).cpu()[..., : x.kv_len] for _ in range(2))
    if not any(OF_A_SEED.search(name) for name in parameters_of(attention.declaration.function) or ()):
        _require_independent(first == 0, second == 0, x, "two calls in a row")
    with seeded(x.case.seed):
        again = attention(y).cpu()[..., : x.kv_len]
    return same((again == 0).double(), (first == 0).double(), "dropped, under the same seed")


@law(
    source=f"{SRIVASTAVA}: the backward pass sees the pattern of the forward pass",
    formula="V = I, O = P D: dV = O^T dO; dQ, dK and that of a mask are those of the cotangent D dO / (1 - rate)",
    guards="A pattern drawn again in backward (pytorch 190717), or by another number of heads; gradients of the "
    "undropped weights (nki-samples 81).",
    needs=("dropout",),
    given=(*_ANY, _TILES, alternately((equal_heads,), (equal_heads,), (at_least(batch=2), grouped))),
    share=0.5,
)
def the_gradient_uses_the_same_pattern(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """The gradients are those of the weights as they were dropped in this very call."""
    y = _even(attention, x)
    cotangent = y.normal_like(torch.empty(x.batch, x.heads, x.q_len, y.value_dim, dtype=x.dtype))
    with seeded(x.case.seed):
        output, found = attention.output_and_gradients(y, cotangent)
    # With the identity as values, scaling the cotangent by what dropout did is dropout.
    scaled = torch.where(output == 0, 0.0, cotangent.double() / (1 - _rate(y)))
    plain = y.but(dropout_p=None)
    exact = plain.problem.gradients(scaled)._asdict()
    names = ("query", "key", *(("sinks",) if x.sinks is not None else ()))
    bounds = attention.gradient_bounds(plain, scaled).of(*names, times=2)
    exact["value"], bounds["value"] = _value_gradient(attention, y, output.double(), cotangent.double())
    mask = y.attn_mask
    if mask is not None and mask.is_floating_point() and attention.declaration.mask_gradient:
        of_scores = attention.gradient_bounds(plain, scaled).bias
        exact["bias"], bounds["bias"] = of_the_mask(mask, exact["bias"], 2 * of_scores, y.dtype)
    yield from compared_gradients(found._asdict(), exact, bounds)


def _value_gradient(
    attention: AttentionSubject, y: Inputs, weights: Tensor, cotangent: Tensor
) -> tuple[Tensor, Tensor]:
    """dV = W^T dO for the weights W that this very call showed, and its bound: each product and sum rounds once more."""
    unit = torch.finfo(y.dtype).eps
    off = 2 * attention.bound(y) / (1 - _rate(y)) + (y.q_len + 6) * unit * weights.abs()
    weights, off = weights[..., : y.kv_len], off[..., : y.kv_len]

    def per_key_head(each: Tensor) -> Tensor:
        return each.reshape(y.batch, y.kv_heads, y.group, *each.shape[2:]).sum(dim=2)

    expected, size = per_key_head(weights.mT @ cotangent), per_key_head(weights.abs().mT @ cotangent.abs())
    limit = per_key_head(off.mT @ cotangent.abs())
    return expected, limit + y.group * unit * size


@law(
    source="a backward pass draws nothing",
    formula="the state of torch's generator: the same before and after the backward pass",
    guards="The generator set back to where forward drew from it, and left there (flash-attention 166).",
    needs=("dropout",),
    share=0.3,
)
def backward_leaves_the_generator_alone(attention: AttentionSubject, x: Inputs) -> Comparison:
    """After the backward pass of a call with dropout, the global generator stands where forward left it."""
    y = x.but(dropout_p=_rate(x))
    attention.require_specified_gradients(y)
    with seeded(x.case.seed):
        before, after = watching.generator_around_backward(attention, y)
    return same(after.double(), before.double(), "state of the global generator")


@law(
    source=f"{SRIVASTAVA}; torch.nn.functional.dropout at p = 1",
    formula="dropout_p = 1: O = 0",
    guards="Zero times one over zero: NaN when everything is dropped.",
    needs=("dropout",),
    share=0.3,
)
def dropping_everything_gives_zeros(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A rate of one drops all weights, and the output is zero; or it is refused in so many words."""
    try:
        with seeded(x.case.seed):
            output = attention(x.but(dropout_p=1.0))
    except SubjectRaised as raised:
        of_torch = type(raised.problem) is RuntimeError and OF_THE_RATE.search(str(raised.problem))
        if isinstance(raised.problem, REFUSALS) or of_torch:
            raise NotApplicable(f"a rate of one is refused: {raised}") from raised
        raise
    return same(output, torch.zeros_like(output))


@law(
    source="dropout_p = 0 is no dropout",
    formula="f(x, dropout_p = 0) = f(x), bit for bit",
    guards="A default rate that is applied in evaluation (pytorch 124464, timm 1978); a rate of zero "
    "that is said, taken for the default.",
    needs=("dropout",),
    share=0.3,
)
def a_rate_of_zero_drops_nothing(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A rate of zero, given or left out, is no dropout at all."""
    with seeded(x.case.seed):
        return attention.unchanged(attention(x.but(dropout_p=0.0)), attention(x), x, "output")


@law(
    source=f"{SRIVASTAVA}; torch.nn.functional.dropout, argument training",
    formula="f(x, dropout_p = p, training = False) = f(x), but for rounding",
    guards="A rate that is applied wherever it is given, as training is not handed on.",
    needs=("dropout",),
    given=(one_of("dtype", "float32", "float64"),),
    share=0.3,
)
def nothing_is_dropped_out_of_training(attention: AttentionSubject, x: Inputs) -> Comparison:
    """With training off a rate of dropout changes nothing."""
    with seeded(x.case.seed):
        evaluated = watching.out_of_training(attention, x.but(dropout_p=_rate(x)))
        return within(evaluated, attention(x), attention.apart(x, x), "output out of training")
