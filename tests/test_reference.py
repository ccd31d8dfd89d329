"""The reference is held to a second oracle of 60 digits, to torch, and to answers found by hand."""

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headcheck.arithmetic import Arithmetic
from headcheck.attention.bounds import ForwardBounds, forward_bounds
from headcheck.attention.gradient_bounds import GradientBounds, gradient_bounds
from headcheck.attention.problem import Problem
from headcheck.comparison import within
from headcheck.reference import attention, attention_gradients, log_sum_exp, masks, softmax
from headcheck.reference.canonical import canonical_attention
from headcheck.reference.positions import alibi_slopes
from tests import exact

NATIVE = Arithmetic()
PROBLEMS = 240
SPREADS = (0.0, 1e-3, 0.3, 1.0, 5.0, 31.0)
"""Query and key of spread 31 have scores up to 1e3 and beyond."""


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


def of_one_party(problem: Problem) -> ForwardBounds:
    """In float64 a bound allows for the rounding of both parties; the second oracle does not round."""
    bounds = forward_bounds(problem, NATIVE, torch.float64)
    return ForwardBounds(problem, bounds.parties[:1])


def bounds_of(posed: Posed) -> ForwardBounds:
    return of_one_party(posed.problem)


def gradient_bounds_of(posed: Posed) -> GradientBounds:
    """The half of it likewise."""
    bounds = gradient_bounds(posed.problem, posed.question.cotangent, NATIVE, torch.float64)
    return GradientBounds(*(None if each is None else each / 2 for each in bounds))


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
    true, bound = exact.answer(question), of_one_party(problem)
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


# The annotations


@pytest.mark.parametrize(
    ("name", "shape"), [("key", (2, 3, 5, 3)), ("may_attend", (2, 1, 4, 5)), ("value", (2, 3, 4, 4))]
)
def test_a_tensor_of_another_shape_than_annotated_is_refused_in_tests(
    name: str, shape: tuple[int, ...]
) -> None:
    """Each call of the reference is held to its annotations, so that they cannot say what is not so."""
    x = torch.randn(2, 3, 5, 4)
    given = {"query": x, "key": x, "value": x, "may_attend": torch.ones(2, 1, 1, 5, dtype=torch.bool)}
    attention(**given)
    with pytest.raises(TypeCheckError, match=f"parameter '{name}'"):
        attention(**{**given, name: torch.ones(shape, dtype=given[name].dtype)})
