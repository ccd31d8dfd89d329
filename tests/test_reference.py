"""The reference is held to a second oracle of 60 digits, to torch, and to answers found by hand."""

import math
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headcheck.arithmetic import Arithmetic
from headcheck.attention.bounds import ForwardBounds, forward_bounds
from headcheck.attention.gradient_bounds import GradientBounds, gradient_bounds
from headcheck.attention.problem import Problem
from headcheck.comparison import within
from headcheck.reference import attention, attention_gradients, group_heads, log_sum_exp, masks, softmax
from headcheck.reference.canonical import canonical_attention
from headcheck.reference.positions import alibi_bias, alibi_slopes
from tests import exact

NATIVE = Arithmetic()
PROBLEMS = 240
SPREADS = (0.0, 1e-3, 0.3, 1.0, 5.0, 31.0)
"""Query and key of spread 31 have scores up to 1e3 and beyond."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# Problems with every feature combined


@dataclass(frozen=True)
class Posed:
    """One problem: as the reference takes it, and as the second oracle does."""

    question: exact.Question
    problem: Problem
    canonical: dict[str, Any] | None
    """Keywords of the canonical call; None where it cannot express the problem."""


def pose(random: Random) -> Posed:
    """A tiny problem; each feature is there by chance."""
    generator = torch.Generator().manual_seed(random.randrange(2**31))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    batch, kv_heads, group = random.choice((1, 2)), random.choice((1, 2)), random.choice((1, 1, 2, 3))
    heads, q_len, kv_len = kv_heads * group, random.choice((1, 2, 3, 4)), random.choice((0, 1, 2, 3, 4, 5))
    head_dim, value_dim = random.choice((1, 2, 3)), random.choice((1, 2, 3))
    spread = random.choice(SPREADS)
    query, key = (
        spread * normal(batch, heads, q_len, head_dim),
        spread * normal(batch, kv_heads, kv_len, head_dim),
    )
    alignment: masks.Alignment = random.choice(("top-left", "bottom-right"))
    offset = kv_len - q_len if alignment == "bottom-right" else 0
    square = (q_len, kv_len)
    may_attend = torch.ones(square, dtype=torch.bool)
    predicates: list[exact.Predicate] = []
    keywords: dict[str, Any] = {}
    if random.random() < 0.4:
        predicates.append(exact.causal(offset))
        may_attend = may_attend & masks.causal(*square, alignment)
        keywords["is_causal"] = True
    if random.random() < 0.3:
        left, right = random.choice((None, 0, 1, 2)), random.choice((None, 0, 1))
        predicates.append(exact.window(left, right, offset))
        may_attend = may_attend & masks.sliding_window(*square, left, right, alignment)
        keywords["window"] = (left, right)
    keep = bias = None
    whole = (batch, heads, q_len, kv_len)
    if random.random() < 0.5:
        keep = torch.rand(whole, generator=generator) < random.choice((0.3, 0.7))
        may_attend = may_attend & keep
    if random.random() < 0.4:
        bias = random.choice((1.0, 100.0)) * normal(*whole)
    if keep is not None and bias is None:
        keywords["attn_mask"] = keep
    elif bias is not None:
        keywords["attn_mask"] = bias if keep is None else bias.masked_fill(~keep, -torch.inf)
    slopes = [float(slope) for slope in exact.alibi_slopes(heads)]
    if random.random() < 0.3:
        away = [[abs(i + offset - j) for j in range(kv_len)] for i in range(q_len)]
        far = torch.tensor(away, dtype=torch.float64).reshape(square)
        alibi = torch.stack([-slope * far for slope in slopes])
        # One sum of two floats, rounded once: both oracles are given the same bias.
        bias = alibi.expand(whole) if bias is None else bias + alibi
        keywords["alibi_slopes"] = torch.tensor(slopes, dtype=torch.float64)
    features: dict[str, Any] = {
        "scale": random.choice((None, None, 1.0, 0.37, 0.0, -0.8)),
        "softcap": random.choice((None, None, 0.5, 20.0)),
        "sinks": random.choice((None, None, random.choice((1.0, 1000.0)) * normal(heads))),
    }
    value, cotangent = normal(batch, kv_heads, kv_len, value_dim), normal(batch, heads, q_len, value_dim)
    question = exact.Question(
        query, key, value, cotangent, predicates=tuple(predicates), keep=keep, bias=bias, **features
    )
    scale = float(head_dim) ** -0.5 if features["scale"] is None else features["scale"]
    problem = Problem(query, key, value, **{**features, "scale": scale}, may_attend=may_attend, bias=bias)
    anchored = {"is_causal", "window", "alibi_slopes"} & set(keywords)
    expressible = alignment == "top-left" or q_len == kv_len or not anchored
    return Posed(question, problem, {**keywords, **features} if expressible else None)


POSED = [pose(Random(seed)) for seed in range(PROBLEMS)]
EXACT = [exact.answer(posed.question) for posed in POSED]


def arguments(posed: Posed) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    """A problem as `attention` takes it, the default scale left to its default."""
    problem, question = posed.problem, posed.question
    tensors = (problem.query, problem.key, problem.value)
    names = ("may_attend", "bias", "softcap", "sinks")
    return tensors, {"scale": question.scale} | {name: getattr(problem, name) for name in names}


def of_one_party(bounds: Any) -> Any:
    """In float64 a bound allows for the rounding of both parties; the second oracle does not round."""
    return type(bounds)(*(None if each is None else each / 2 for each in bounds))


def bounds_of(posed: Posed) -> ForwardBounds:
    found: ForwardBounds = of_one_party(forward_bounds(posed.problem, NATIVE, torch.float64))
    return found


def gradient_bounds_of(posed: Posed) -> GradientBounds:
    cotangent = posed.question.cotangent
    found: GradientBounds = of_one_party(gradient_bounds(posed.problem, cotangent, NATIVE, torch.float64))
    return found


def require_within(observed: Tensor, true: exact.Exact, bound: Tensor, what: str) -> None:
    """Every element is as close to the exact number as its own bound, and no bound is vacuous."""
    assert bool(bound.isfinite().all()), f"{what}: an infinite bound would prove nothing"
    error = exact.distance(observed, true)
    assert bool((error <= bound).all()), f"{what} is off by {error.tolist()}, allowed {bound.tolist()}"


# The second oracle itself


def test_the_gradient_of_the_second_oracle_is_the_derivative_of_its_output() -> None:
    """Central differences converge to it: with half the step, a quarter of the error."""
    question = next(
        p.question
        for p in POSED
        if p.question.softcap
        and p.question.sinks is not None
        and p.question.key.shape[2] > 2
        and 0 < p.question.query.abs().max() < 10
        and p.question.scale != 0.0
    )
    answer = exact.answer(question)
    parts = {"query": answer.d_query, "key": answer.d_key, "value": answer.d_value, "sinks": answer.d_sinks}

    def objective(**changes: Tensor) -> Any:
        output = exact.flat(exact.answer(exact.Question(**{**vars(question), **changes})).output)
        return exact.mpmath.fdot(output, question.cotangent.reshape(-1).tolist())

    def off(name: str, index: int, step: float) -> tuple[Any, Any]:
        """The error of the difference over a step, and the step that was really made, after rounding."""
        ends = [getattr(question, name).clone() for _ in range(2)]
        for end, sign in zip(ends, (-1, 1), strict=True):
            end.view(-1)[index] += sign * step
        run = exact.mpf(float(ends[1].view(-1)[index])) - exact.mpf(float(ends[0].view(-1)[index]))
        slope = (objective(**{name: ends[1]}) - objective(**{name: ends[0]})) / run
        return abs(slope - exact.flat(parts[name])[index]), run

    with exact.mp.workdps(exact.DIGITS):
        for name in parts:
            for index in range(min(4, getattr(question, name).numel())):
                (coarse, _), (fine, run) = off(name, index, 2.0**-20), off(name, index, 2.0**-21)
                assert fine <= coarse / 3 + exact.OWN_ERROR / run, f"d {name}[{index}]: {coarse}, {fine}"


# The reference against it


def test_the_problems_reach_every_feature_and_their_combinations() -> None:
    """Dead rows, scores of 1e3, both alignments, no keys, grouped heads and all features are there."""
    problems = [posed.problem for posed in POSED]
    dead = [bool((~p.may_attend.any(-1)).any()) for p in problems if p.may_attend is not None]
    reached = {
        "dead rows": sum(dead),
        "scores beyond 1e3": sum(
            bool((p.attended.scores.abs() > 1e3).logical_and(p.attended.scores.isfinite()).any())
            for p in problems
        ),
        "no keys": sum(p.key.shape[2] == 0 for p in problems),
        "more queries than keys": sum(p.query.shape[2] > p.key.shape[2] for p in problems),
        "more keys than queries": sum(p.query.shape[2] < p.key.shape[2] for p in problems),
        "grouped heads": sum(p.key.shape[1] not in (1, p.heads) for p in problems),
        "softcap and sinks and bias": sum(
            p.softcap is not None and p.sinks is not None and p.bias is not None for p in problems
        ),
        "sinks and a dead row": sum(
            p.sinks is not None and bool((~p.may_attend.any(-1)).any()) for p in problems
        ),
        "bottom-right in earnest": sum(posed.canonical is None for posed in POSED),
    }
    assert min(reached.values()) >= 5, reached


@pytest.mark.parametrize("seed", range(0, PROBLEMS, 8))
def test_attention_is_exact_within_its_bound(seed: int) -> None:
    """Output, weights and log-sum-exp are the second oracle's within the bound of one float64 party."""
    for posed, true in zip(POSED[seed : seed + 8], EXACT[seed : seed + 8], strict=True):
        tensors, keywords = arguments(posed)
        found, bound = attention(*tensors, **keywords), bounds_of(posed)
        require_within(found.output, true.output, bound.output, "output")
        require_within(found.weights, true.weights, bound.weights, "weights")
        require_within(found.log_sum_exp, true.log_sum_exp, bound.log_sum_exp, "log-sum-exp")


@pytest.mark.parametrize("seed", range(0, PROBLEMS, 8))
def test_attention_gradients_are_exact_within_their_bound(seed: int) -> None:
    """All gradients are those of the second oracle within the bound of one float64 party."""
    for posed, true in zip(POSED[seed : seed + 8], EXACT[seed : seed + 8], strict=True):
        tensors, keywords = arguments(posed)
        found = attention_gradients(*tensors, posed.question.cotangent, **keywords)
        bound = gradient_bounds_of(posed)
        require_within(found.query, true.d_query, bound.query, "gradient of query")
        require_within(found.key, true.d_key, bound.key, "gradient of key")
        require_within(found.value, true.d_value, bound.value, "gradient of value")
        require_within(found.bias, true.d_bias, bound.bias, "gradient of bias")
        if found.sinks is not None and bound.sinks is not None:
            require_within(found.sinks, true.d_sinks, bound.sinks, "gradient of sinks")
        assert (found.sinks is None) == (posed.problem.sinks is None)


def test_canonical_attention_is_exact_within_its_bound() -> None:
    """The canonical call in float64 gives the second oracle's output, log-sum-exp and weights."""
    tried = 0
    for posed, true in zip(POSED, EXACT, strict=True):
        if posed.canonical is None:
            continue
        tensors, _ = arguments(posed)
        found = canonical_attention(
            *tensors, **posed.canonical, enable_gqa=True, return_lse=True, return_weights=True
        )
        bound = bounds_of(posed)
        assert isinstance(found, tuple)
        require_within(found[0], true.output, bound.output, "output")
        require_within(found[1], true.log_sum_exp, bound.log_sum_exp, "log-sum-exp")
        require_within(found[2], true.weights, bound.weights, "weights")
        tried += 1
    assert tried > PROBLEMS / 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    scores=st.lists(st.floats(-1e3, 1e3, width=16) | st.just(-math.inf), min_size=0, max_size=6),
    sink=st.none() | st.floats(-1e3, 1e3, width=16),
)
def test_softmax_and_log_sum_exp_of_any_row(scores: list[float], sink: float | None) -> None:
    """A row of any scores, with or without a sink, has the second oracle's weights and log-sum-exp."""
    row = torch.tensor(scores, dtype=torch.float64)[None, None, None]
    finite = torch.where(row.isneginf(), 0.0, row)
    one, nothing = torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, len(scores), 1).double()
    sinks = None if sink is None else torch.tensor([sink], dtype=torch.float64)
    keep = ~row.isneginf()
    question = exact.Question(one, nothing, nothing, one, scale=1.0, keep=keep, bias=finite, sinks=sinks)
    problem = Problem(one, nothing, nothing, 1.0, may_attend=keep, bias=finite, sinks=sinks)
    true, bound = exact.answer(question), of_one_party(forward_bounds(problem, NATIVE, torch.float64))
    row_sinks = None if sinks is None else sinks[None, :, None]
    require_within(softmax(row, row_sinks), true.weights, bound.weights, "softmax")
    require_within(log_sum_exp(row, row_sinks), true.log_sum_exp, bound.log_sum_exp, "log-sum-exp")


def test_alibi_slopes_are_those_of_the_second_oracle() -> None:
    """For every number of heads up to 40 the slopes are the authors', to the last bit but one."""
    for heads in range(1, 41):
        found, true = alibi_slopes(heads), exact.alibi_slopes(heads)
        # 2^x by libm: within one unit in the last place; the exponent is rounded, and counts times ln 2.
        bound = 2.0**-52 * (1 + 8 * math.log(2)) * found
        require_within(found, true, bound, f"slopes of {heads} heads")


# The reference against torch


def torch_answer(posed: Posed, *tensors: Tensor) -> Tensor:
    """torch's own attention on the same problem; the mask as one additive bias."""
    problem = posed.problem
    shape = (*problem.query.shape[:3], problem.key.shape[2])
    bias = torch.zeros(shape, dtype=torch.float64) if problem.bias is None else problem.bias.expand(shape)
    if problem.may_attend is not None:
        bias = bias.masked_fill(~problem.may_attend, -torch.inf)
    return scaled_dot_product_attention(*tensors, attn_mask=bias, scale=posed.question.scale, enable_gqa=True)


def plain(posed: Posed) -> bool:
    """Whether torch's attention can be asked: no softcap, no sinks, at least one key, no dead row."""
    problem = posed.problem
    alive = problem.may_attend is None or bool(problem.may_attend.any(-1).all())
    return problem.softcap is None and problem.sinks is None and problem.key.shape[2] > 0 and alive


def test_torch_agrees_with_the_reference() -> None:
    """torch's scaled_dot_product_attention and its autograd stand within the bound of two float64 parties."""
    tried = 0
    for posed in filter(plain, POSED):
        tensors = [x.clone().requires_grad_() for x in arguments(posed)[0]]
        output = torch_answer(posed, *tensors)
        bound = forward_bounds(posed.problem, NATIVE, torch.float64)
        assert not within(output, posed.problem.attended.output, bound.output).broken
        gradients = torch.autograd.grad(output, tensors, posed.question.cotangent)
        limits = gradient_bounds(posed.problem, posed.question.cotangent, NATIVE, torch.float64)
        true = posed.problem.gradients(posed.question.cotangent)
        for found, name in zip(gradients, ("query", "key", "value"), strict=True):
            assert not within(found, getattr(true, name), getattr(limits, name), name).broken
        tried += 1
    assert tried >= 30


def test_autograd_of_the_reference_gives_its_written_gradients() -> None:
    """Autograd through `attention` gives what `attention_gradients` writes out, sinks included."""
    for posed in POSED:
        tensors, keywords = arguments(posed)
        leaves = [x.clone().requires_grad_() for x in tensors]
        if keywords["sinks"] is not None:
            keywords["sinks"] = keywords["sinks"].clone().requires_grad_()
            leaves.append(keywords["sinks"])
        output = attention(*leaves[:3], **keywords).output
        found = torch.autograd.grad(output, leaves, posed.question.cotangent, allow_unused=True)
        true = posed.problem.gradients(posed.question.cotangent)
        limits = gradient_bounds(posed.problem, posed.question.cotangent, NATIVE, torch.float64)
        for each, name in zip(found, ("query", "key", "value", "sinks")[: len(leaves)], strict=True):
            wanted = getattr(true, name)
            got = torch.zeros_like(wanted) if each is None else each
            assert not within(got, wanted, getattr(limits, name), name).broken


# Answers that can be checked by hand

E = math.e
ROOT_2 = math.sqrt(2)


def by_hand(
    query: list[list[float]], key: list[list[float]], value: list[list[float]], **features: Any
) -> Any:
    """`attention` of one head on numbers written as rows."""
    tensors = [torch.tensor(x, dtype=torch.float64)[None, None] for x in (query, key, value)]
    return attention(*tensors, **features)


def test_the_known_answer() -> None:
    """q = [[0, sqrt 2]] against K = V = I gives [1, e] / (1 + e), to the last bit but one."""
    identity = [[1.0, 0.0], [0.0, 1.0]]
    found = by_hand([[0.0, ROOT_2]], identity, identity).output[0, 0, 0]
    want = [1 / (1 + E), E / (1 + E)]
    problem = Problem(
        *(torch.tensor(x, dtype=torch.float64)[None, None] for x in ([[0.0, ROOT_2]], identity, identity)),
        scale=2**-0.5,
    )
    bound = forward_bounds(problem, NATIVE, torch.float64).output
    assert not within(
        found[None, None, None], torch.tensor(want, dtype=torch.float64)[None, None, None], bound
    ).broken


def test_a_query_of_zeros_takes_the_mean() -> None:
    """Four equal scores give the mean of four values, exactly."""
    found = by_hand([[0.0]], [[1.0], [2.0], [3.0], [4.0]], [[1.0], [2.0], [3.0], [10.0]])
    assert found.output.item() == 4.0
    assert found.weights.flatten().tolist() == [0.25] * 4


def test_the_log_sum_exp_of_zeros_is_the_log_of_their_number() -> None:
    """n scores of zero have the log-sum-exp log n."""
    for n in (1, 2, 3, 7):
        assert log_sum_exp(torch.zeros(n, dtype=torch.float64)).item() == math.log(n)


def test_a_sink_of_zero_beside_a_score_of_zero_takes_half() -> None:
    """One key of score 0 and a sink of 0: the key has a weight of 1/2, and the log-sum-exp is log 2."""
    found = by_hand([[0.0]], [[1.0]], [[6.0]], sinks=torch.zeros(1, dtype=torch.float64))
    assert (found.output.item(), found.weights.item(), found.log_sum_exp.item()) == (3.0, 0.5, math.log(2))


def test_a_softcap_acts_after_the_scale_and_before_the_bias() -> None:
    """score = c tanh(scale q.k / c) + bias: 2 tanh(3 * 4 / 2) + 5."""
    bias = torch.full((1, 1, 1, 1), 5.0, dtype=torch.float64)
    found = by_hand([[3.0]], [[8.0]], [[1.0]], scale=0.5, softcap=2.0, bias=bias)
    assert found.scores.item() == 2.0 * math.tanh(6.0) + 5.0


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    """A dead row has output 0, weights 0, log-sum-exp -inf and gradients 0; a sink changes only its lse."""
    nothing = torch.zeros((1, 2), dtype=torch.bool)
    numbers: tuple[Any, ...] = ([[1.0]], [[1.0], [2.0]], [[3.0], [4.0]])
    dead = by_hand(*numbers, may_attend=nothing)
    assert (dead.output.item(), dead.weights.flatten().tolist(), dead.log_sum_exp.item()) == (
        0,
        [0, 0],
        -math.inf,
    )
    with_sink = by_hand(*numbers, may_attend=nothing, sinks=torch.tensor([0.5], dtype=torch.float64))
    assert (with_sink.output.item(), with_sink.log_sum_exp.item()) == (0.0, 0.5)
    tensors = [torch.tensor(x, dtype=torch.float64)[None, None] for x in numbers]
    gradients = attention_gradients(*tensors, torch.ones(1, 1, 1, 1).double(), may_attend=nothing)
    assert all(not each.any() for each in gradients if each is not None)


def test_no_keys_give_zeros() -> None:
    """kv_len = 0: the output is 0 and the log-sum-exp is -inf."""
    query, none = torch.ones(1, 2, 3, 4).double(), torch.ones(1, 2, 0, 4).double()
    found = attention(query, none, none)
    assert found.output.shape == (1, 2, 3, 4)
    assert not found.output.any()
    assert bool(found.log_sum_exp.isneginf().all())


@pytest.mark.parametrize("poisoned", ["query", "key", "value"])
def test_nan_that_is_seen_is_shown(poisoned: str) -> None:
    """NaN in a query, a visible key or a visible value gives NaN, not a row of zeros."""
    tensors = {name: torch.ones(1, 1, 2, 1).double() for name in ("query", "key", "value")}
    tensors[poisoned][0, 0, 0] = math.nan
    output = attention(**tensors).output[0, 0, :, 0]
    assert output.isnan().tolist() == ([True, False] if poisoned == "query" else [True, True])


def test_grouped_heads_interleave() -> None:
    """Of six query heads on two key heads, the first three read key head 0 and the last three key head 1."""
    key = torch.tensor([10.0, 20.0]).reshape(1, 2, 1, 1)
    assert group_heads(key, 6).flatten().tolist() == [10, 10, 10, 20, 20, 20]


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (8, [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (1, [2**-8]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (3, [2**-4, 2**-8, 2**-2]),
    ],
)
def test_alibi_slopes_of_the_paper(heads: int, slopes: list[float]) -> None:
    """Eight heads have the slopes 1/2 to 1/256; other counts borrow every second slope of the power above."""
    assert alibi_slopes(heads).tolist() == slopes


def test_canonical_attention_refuses_fewer_key_heads_without_being_told() -> None:
    """Grouped heads need enable_gqa=True."""
    query, key = torch.ones(1, 2, 1, 1), torch.ones(1, 1, 1, 1)
    with pytest.raises(ValueError, match="enable_gqa=True"):
        canonical_attention(query, key, key)
    output = canonical_attention(query, key, key, enable_gqa=True)
    assert isinstance(output, Tensor)
    assert output.flatten().tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_canonical_attention_rounds_half_precision_once(dtype: torch.dtype) -> None:
    """bfloat16 and float16 are the float32 answer, rounded once."""
    tensors = [
        torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(0)).to(dtype) for _ in range(3)
    ]
    wide = canonical_attention(*(x.float() for x in tensors))
    assert isinstance(wide, Tensor)
    assert torch.equal(canonical_attention(*tensors), wide.to(dtype))  # type: ignore[arg-type]


# Masks, each by its predicate

LENGTHS = [(1, 1), (1, 4), (4, 1), (3, 3), (2, 5), (5, 2), (3, 0), (0, 3)]
ALIGNMENTS: tuple[masks.Alignment, ...] = ("top-left", "bottom-right")


def table(q_len: int, kv_len: int, predicate: exact.Predicate) -> Tensor:
    rows = [[predicate(i, j) for j in range(kv_len)] for i in range(q_len)]
    return torch.tensor(rows, dtype=torch.bool).reshape(q_len, kv_len)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_the_causal_mask(q_len: int, kv_len: int, alignment: masks.Alignment) -> None:
    """(i, j) is kept if j <= i, or, bottom-right, if j <= i + kv_len - q_len."""
    offset = {"top-left": 0, "bottom-right": kv_len - q_len}[alignment]
    assert torch.equal(masks.causal(q_len, kv_len, alignment), table(q_len, kv_len, exact.causal(offset)))


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_the_window_mask(q_len: int, kv_len: int, alignment: masks.Alignment) -> None:
    """(i, j) is kept if j is at most `left` before and `right` after the query; None is unbounded."""
    offset = {"top-left": 0, "bottom-right": kv_len - q_len}[alignment]
    for left, right in product((None, 0, 1, 3), (None, 0, 1)):
        found = masks.sliding_window(q_len, kv_len, left, right, alignment)
        assert torch.equal(found, table(q_len, kv_len, exact.window(left, right, offset))), (left, right)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_the_prefix_mask(q_len: int, kv_len: int, alignment: masks.Alignment) -> None:
    """(i, j) is kept if j is in the prefix or not in the future."""
    offset = {"top-left": 0, "bottom-right": kv_len - q_len}[alignment]
    for length in range(kv_len + 2):
        found = masks.prefix(q_len, kv_len, length, alignment)
        assert torch.equal(found, table(q_len, kv_len, exact.prefix(length, offset))), length


def test_the_padding_mask() -> None:
    """(b, j) is kept if j < lengths[b], for every query and head."""
    lengths = [0, 1, 3, 4]
    found = masks.padding(torch.tensor(lengths), 4)
    assert found.shape == (4, 1, 1, 4)
    assert found[:, 0, 0].tolist() == [[j < n for j in range(4)] for n in lengths]


def test_the_document_mask() -> None:
    """(b, i, j) is kept if query i and key j of sequence b bear the same id."""
    query_ids, key_ids = [[0, 0, 1], [2, 1, 2]], [[0, 1], [2, 2]]
    found = masks.document(torch.tensor(query_ids), torch.tensor(key_ids))
    want = [
        [[a == b for b in keys] for a in queries] for queries, keys in zip(query_ids, key_ids, strict=True)
    ]
    assert found.shape == (2, 1, 3, 2)
    assert found[:, 0].tolist() == want


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_additive_form_of_a_mask(dtype: torch.dtype) -> None:
    """0 where a query may attend, -inf where it may not."""
    found = masks.additive(torch.tensor([True, False]), dtype)
    assert found.dtype == dtype
    assert found.tolist() == [0.0, -math.inf]


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_the_alibi_bias(alignment: masks.Alignment) -> None:
    """Entry (h, i, j) is -slope_h |position(i) - j|, exactly."""
    slopes, q_len, kv_len = [0.5, 0.25, 3.0], 3, 5
    offset = {"top-left": 0, "bottom-right": 2}[alignment]
    found = alibi_bias(torch.tensor(slopes, dtype=torch.float64), q_len, kv_len, alignment)
    want = [[[-s * abs(i + offset - j) for j in range(kv_len)] for i in range(q_len)] for s in slopes]
    assert found.tolist() == want
