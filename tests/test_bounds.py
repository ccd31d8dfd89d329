"""The error bounds: a narrower model has the narrower bound, correct code is within, wrong is outside."""

import math
from dataclasses import replace
from itertools import pairwise

import mpmath
import pytest
import torch
from torch import Tensor

from headcheck.arithmetic import FORMATS, MODELS, Arithmetic, named
from headcheck.attention.bounds import forward_bounds
from headcheck.attention.gradient_bounds import gradient_bounds
from tests.bound_cases import (
    CORRECT,
    Case,
    cases,
    eager,
    every_bound,
    excess,
    normal,
    online,
    output_excess,
    scores_of,
    softmax_in_float32,
    softmax_weights,
    structured,
    supports,
    wider,
)

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)


# What an arithmetic is.


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    """An unknown model is an error that lists the names, narrowest first."""
    with pytest.raises(ValueError, match="'fash'; the names are wide, flash, eager, opwise, native"):
        named("fash")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scores", "float8", "scores='float8': a format is one of input, float32\\+, bfloat16"),
        ("flush_to_zero", ("half",), "flush_to_zero='half'"),
        ("block", 0, "block=0: must be at least 1"),
    ],
)
def test_an_arithmetic_that_makes_no_sense_is_refused(field: str, value: object, message: str) -> None:
    """A format that does not exist, or fewer than one key per block, is an error that says so."""
    with pytest.raises(ValueError, match=message):
        replace(named("wide"), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
def test_formats_are_those_of_torch(dtype: torch.dtype) -> None:
    """Unit roundoff, smallest numbers and largest number of each format are those torch reports."""
    name = str(dtype).removeprefix("torch.")
    information = torch.finfo(dtype)
    unit, subnormal, normal_, largest = FORMATS[name]
    assert (2 * unit, normal_, largest) == (information.eps, information.tiny, information.max)
    assert subnormal == information.tiny * information.eps


@pytest.mark.parametrize(
    "arithmetic", [*MODELS.values(), replace(named("eager"), scaled="input", block=64)], ids=str
)
def test_an_arithmetic_prints_as_what_makes_it(arithmetic: Arithmetic) -> None:
    """str() of an arithmetic is a name, or an expression that makes it again."""
    text = str(arithmetic)
    again = named(text) if text in MODELS else eval(text, {"replace": replace, "named": named})
    assert again == arithmetic


# Order among the bounds.


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_narrower_model_has_the_narrower_bound(dtype: torch.dtype, generic: bool) -> None:
    """Each named model allows, element by element, whatever the one before it allows."""
    for name, case in [*cases(dtype), *structured(dtype)]:
        bounds = [list(every_bound(case, model, generic)) for model in MODELS.values()]
        for narrow, wide in pairwise(bounds):
            assert all((a <= b * (1 + 1e-12)).all() for a, b in zip(narrow, wide, strict=True)), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_generic_tier_is_within_the_worst_case(dtype: torch.dtype) -> None:
    """The generic bound never exceeds the worst-case bound."""
    for name, case in [*cases(dtype), *structured(dtype)]:
        for model in (named("flash"), named("native")):
            generic, worst = every_bound(case, model, True), every_bound(case, model, False)
            assert all((a <= b * (1 + 1e-12)).all() for a, b in zip(generic, worst, strict=True)), name


def test_the_models_of_float32_are_one() -> None:
    """For float32 inputs all named models give the same bound."""
    case = normal(torch.float32)
    bounds = [forward_bounds(case.problem, model, case.dtype).output for model in MODELS.values()]
    assert all(torch.equal(bound, bounds[0]) for bound in bounds)


# Correct implementations are within.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", CORRECT)
def test_a_correct_output_is_within_the_bound(implementation: str, dtype: torch.dtype) -> None:
    """No correct implementation leaves the worst-case bound, nor on normal inputs the generic one."""
    function, model = CORRECT[implementation]
    arithmetic = named(model)
    if implementation == "softmax in float32" and dtype == torch.float64:
        arithmetic = replace(arithmetic, softmax="float32")
    for name, case in cases(dtype):
        if supports(implementation, case):
            observed = function(case)
            for generic in (False, True):
                assert output_excess(case, observed, arithmetic, generic) <= 1, (name, generic)
    for name, case in structured(dtype):
        assert output_excess(case, function(case), arithmetic) <= 1, name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", ["torch math", "torch flash", "upcast", "eager", "opwise"])
def test_correct_gradients_are_within_the_bound(implementation: str, dtype: torch.dtype) -> None:
    """Gradients by autograd, for a cotangent of normal numbers, stay within both tiers."""
    function, model = CORRECT[implementation]
    for name, plain in cases(dtype):
        if not supports(implementation, plain):
            continue
        leaves = {
            field: getattr(plain, field).clone().requires_grad_()
            for field in ("query", "key", "value", "sinks")
            if getattr(plain, field) is not None
        }
        case = replace(plain, **leaves)
        output = function(case)
        cotangent = torch.randn(output.shape).to(dtype)
        gradients = torch.autograd.grad(output, list(leaves.values()), cotangent)
        problem, exact_cotangent = case.problem, cotangent.double()
        exact = problem.gradients(exact_cotangent)
        for generic in (False, True):
            bounds = gradient_bounds(problem, exact_cotangent, named(model), dtype, generic=generic)
            for field, gradient in zip(leaves, gradients, strict=True):
                found = excess(gradient, getattr(exact, field), getattr(bounds, field))
                assert found <= 1, (name, field, generic)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_correct_gradient_of_the_bias_is_within_the_bound(dtype: torch.dtype) -> None:
    """The gradient of a bias that is not broadcast is bounded element by element."""
    bias = torch.randn(1, 2, 5, 33).to(dtype).requires_grad_()
    case = normal(dtype, bias=bias)
    output = eager(case)
    cotangent = torch.randn(output.shape).to(dtype)
    (gradient,) = torch.autograd.grad(output, [bias], cotangent)
    bounds = gradient_bounds(case.problem, cotangent.double(), named("eager"), dtype)
    assert excess(gradient, case.problem.gradients(cotangent.double()).bias, bounds.bias) <= 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_gradient_of_a_part_of_hardly_any_weight_is_within_the_bound(dtype: torch.dtype) -> None:
    """A part is weighed by exp(s - lse), off by the size of its scores; autograd adds what cancels against it."""
    size, dim = 200, 6
    bias = torch.tensor([[-55.1, -55.2, 0.0]], dtype=dtype) - torch.rand(size, 1, dtype=dtype)
    bias = bias[None, None].requires_grad_()
    value = torch.tensor([0.0, 4.0, 0.0], dtype=dtype)[:, None].expand(1, 1, 3, dim)
    case = Case(
        torch.zeros(1, 1, size, 1, dtype=dtype), torch.zeros(1, 1, 3, 1, dtype=dtype), value, bias=bias
    )
    little, rest = scores_of(case).split([2, 1], dim=-1)
    shares = torch.cat([little.logsumexp(-1, keepdim=True), rest], dim=-1).softmax(-1)
    output = shares[..., :1] * (little.softmax(-1) @ value[..., :2, :]) + shares[..., 1:] * value[..., 2:, :]
    cotangent = torch.ones_like(output)
    (gradient,) = torch.autograd.grad(output, [bias], cotangent)
    problem, cotangent = case.problem, cotangent.double()
    bound = gradient_bounds(problem, cotangent, named("native"), dtype, generic=True).bias
    assert excess(gradient, problem.gradients(cotangent).bias, bound) <= 1


@pytest.mark.parametrize("first", [0, -299], ids=["from the first key", "from the last"])
def test_alibi_of_the_key_alone_is_within_the_bound_that_counts_the_lift(first: int) -> None:
    """Slope x j rounds by the key's position, not by the distance; without the lift the bound misses it."""
    case = normal(torch.float32, q_len=300, kv_len=300, dim=4)
    position = torch.arange(300)
    slopes = torch.tensor([3.0, 2.0]).sqrt()[:, None, None]
    scores = scores_of(case) + slopes * (position + first)
    weights = scores.masked_fill(position[:, None] < position, -math.inf).softmax(dim=-1)
    exact = replace(
        case.problem,
        bias=-slopes.double() * (position[:, None] - position).abs(),
        may_attend=position[:, None] >= position,
    )
    found = {}
    for lifted in (None, slopes.double() * torch.maximum(position, 299 - position)[:, None]):
        bound = forward_bounds(
            replace(exact, lifted=lifted), named("native"), case.dtype, generic=True
        ).weights
        found[lifted is None] = excess(weights, exact.attended.weights, bound)
    assert found[False] < 0.5 and found[True] > 1


def test_merges_by_differences_widen_the_output_and_not_what_they_do_not_touch() -> None:
    """In ring attention's merge the log-sum-exp and the weights of each part stay as they are."""
    problem = normal(torch.float32).problem
    alone, merged = (
        forward_bounds(problem, replace(named("wide"), merges=merges), torch.float32) for merges in (0, 7)
    )
    assert (merged.output > alone.output).all()
    assert torch.equal(merged.log_sum_exp, alone.log_sum_exp)
    assert torch.equal(merged.weights, alone.weights)


@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_weights_and_log_sum_exp_are_within_the_bound(dtype: torch.dtype) -> None:
    """Weights of an eager implementation and its log-sum-exp stay within their bounds."""
    for name, case in [*cases(dtype), *structured(dtype)]:
        wide, problem = case.to(wider(dtype)), case.problem
        bounds = forward_bounds(problem, named("wide"), dtype)
        weights = softmax_weights(wide, lambda s: s.softmax(-1)).to(dtype)
        assert excess(weights, problem.attended.weights, bounds.weights) <= 1, name
        scores = scores_of(wide)
        if case.sinks is not None:
            sink = wide.sinks[:, None, None].expand(*scores.shape[:-1], 1)  # type: ignore[index]
            scores = torch.cat([scores, sink], dim=-1)
        log_sum_exp = torch.logsumexp(scores, dim=-1).to(dtype)
        assert excess(log_sum_exp, problem.attended.log_sum_exp, bounds.log_sum_exp) <= 1, name


def test_the_oracle_of_float64_is_within_its_half_of_the_bound() -> None:
    """Sixty digits of mpmath: the float64 oracle takes less than half of the bound for float64 subjects."""
    case = normal(torch.float64, heads=1, kv_heads=1, q_len=3, kv_len=9, dim=3, spread=10.0)
    with mpmath.workdps(60):
        rows = [_exact_row(case, row) for row in range(3)]
    problem = case.problem
    bound = forward_bounds(problem, named("native"), torch.float64).output[0, 0]
    for row, exact in enumerate(rows):
        for column, number in enumerate(exact):
            error = abs(mpmath.mpf(problem.attended.output[0, 0, row, column].item()) - number)
            assert error <= mpmath.mpf(bound[row, column].item()) / 2


def _exact_row(case: Case, row: int) -> list[mpmath.mpf]:
    def exact(x: Tensor) -> list[list[mpmath.mpf]]:
        return [[mpmath.mpf(number) for number in vector] for vector in x[0, 0].tolist()]

    query, key, value = exact(case.query)[row], exact(case.key), exact(case.value)
    raised = [mpmath.exp(mpmath.mpf(case.resolved_scale) * mpmath.fdot(query, k)) for k in key]
    total = mpmath.fsum(raised)
    return [mpmath.fdot(raised, column) / total for column in zip(*value, strict=True)]


# Wrong implementations are outside.


def _with_fault(case: Case, fault: str) -> Tensor:
    """An online softmax in float32 with one fault."""
    if fault == "scale":
        return online(replace(case, scale=case.resolved_scale * 1.01), 16)
    if fault == "missing key":
        return online(replace(case, key=case.key[:, :, :-1], value=case.value[:, :, :-1]), 16)
    if fault == "mask value":
        assert case.may_attend is not None
        fill = torch.where(case.may_attend, 0.0, -10.0).to(case.dtype)
        return online(replace(case, may_attend=None, bias=fill), 16)
    if fault == "coarse exp":
        return (softmax_weights(case.to(torch.float32), _coarse) @ case.value.float()).to(case.dtype)
    assert fault == "mean of the values"
    return case.value.mean(dim=2, keepdim=True).expand_as(case.query)


def _coarse(scores: Tensor) -> Tensor:
    """2^x by a straight line between powers of two: up to 6 % off."""
    exponent = (scores - scores.amax(dim=-1, keepdim=True)) * math.log2(math.e)
    raised = torch.exp2(exponent.floor()) * (1 + exponent - exponent.floor())
    return raised / raised.sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fault", ["scale", "missing key", "mask value", "coarse exp", "mean of the values"])
def test_a_wrong_output_is_outside_the_bound(fault: str, dtype: torch.dtype) -> None:
    """A fault of one per cent or one key in 33 breaks the bound of the model that computes so."""
    mask = torch.ones(64, 33, dtype=torch.bool)
    mask[:, 30:] = False
    case = normal(dtype, q_len=64, spread=3.0, may_attend=mask if fault == "mask value" else None)
    assert output_excess(case, online(case, 16), named("flash")) <= 1
    assert output_excess(case, _with_fault(case, fault), named("flash")) > 1


@pytest.mark.parametrize("dtype", HALVES)
def test_a_narrow_accumulator_is_outside_the_bound_of_wide(dtype: torch.dtype) -> None:
    """Sums in float16 or bfloat16 break every model that declares sums in float32."""
    case = normal(dtype, kv_len=513, spread=0.1)
    weights = softmax_weights(case.to(torch.float32), lambda s: s.softmax(-1))
    parts = (weights[..., None] * case.value[:, :, None].float()).to(dtype)
    total = torch.zeros_like(parts[..., 0, :])
    for index in range(parts.shape[-2]):
        total = total + parts[..., index, :]
    assert output_excess(case, total, named("native"), generic=True) <= 1
    assert output_excess(case, total, named("wide")) > 1
    assert output_excess(case, total, named("eager"), generic=True) > 1


@pytest.mark.parametrize("dtype", HALVES)
def test_a_wider_declaration_than_the_truth_is_found_out(dtype: torch.dtype) -> None:
    """Eager attention in 16 bits is within its own model, and outside flash and wide."""
    case = normal(dtype, q_len=64, spread=10.0)
    observed = eager(case)
    found = [output_excess(case, observed, model) <= 1 for model in MODELS.values()]
    assert found == [False, False, True, True, True]


def test_a_softmax_in_float32_for_float64_inputs_has_to_be_declared() -> None:
    """float64 computed in float32 is outside native, and inside once the arithmetic says so."""
    case = normal(torch.float64)
    downcast = eager(case.to(torch.float32)).double()
    assert output_excess(case, downcast, named("native")) > 1e3
    assert output_excess(case, downcast, replace(named("native"), inputs="float32")) <= 1
    for offset in (0.0, 1e3, 1e5):
        large = normal(torch.float64, bias=offset + torch.randn(1, 2, 5, 33).double())
        within = softmax_in_float32(large)
        assert output_excess(large, within, named("native")) > 1e3
        assert output_excess(large, within, replace(named("native"), softmax="float32")) <= 1


def test_a_wrong_gradient_is_outside_the_bound() -> None:
    """A gradient without the scale, or without the mean taken off, breaks the bound."""
    case = normal(torch.float32)
    problem, cotangent = case.problem, torch.randn(1, 2, 5, 8).double()
    exact, bounds = (
        problem.gradients(cotangent),
        gradient_bounds(problem, cotangent, named("native"), case.dtype),
    )
    weights = problem.attended.weights
    uncentred = problem.scale * (weights * (cotangent @ problem.value.mT)) @ problem.key
    assert excess(exact.query / problem.scale, exact.query, bounds.query) > 1
    assert excess(uncentred, exact.query, bounds.query) > 1
    assert excess(exact.value * (1 + 1e-3), exact.value, bounds.value) > 1
