"""Where an error bound is easily too narrow or too wide: each known pitfall is pinned."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headcheck.arithmetic import MODELS, Arithmetic, named
from headcheck.attention import mixture
from headcheck.attention.bounds import forward_bounds
from headcheck.attention.gradient_bounds import gradient_bounds
from tests.bound_cases import (
    Case,
    cases,
    eager,
    every_bound,
    excess,
    normal,
    online,
    opwise,
    output_excess,
    scores_of,
)

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)


def test_the_bound_for_one_key_can_be_checked_by_hand() -> None:
    """One key, score 0: three roundings in each sum, two of the softmax, the weight's, three at the end."""
    case = Case(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
    bounds = forward_bounds(case.problem, named("native"), torch.float32)
    unit = 2.0**-24
    assert bounds.output.item() == pytest.approx((3 * 2 + 2 + 2 + 3) * unit, rel=1e-5)
    assert bounds.log_sum_exp.item() == pytest.approx((64 + 1 + 4 + 3 + 1) * unit, rel=1e-5)


def test_each_key_may_rescale_what_came_before() -> None:
    """64 equal scores: the log-sum-exp may be off by 64 u for exp, and by 4 u for each of 64 rescales."""
    zeros = torch.zeros(1, 1, 64, 1)
    case = Case(zeros[:, :, :1], zeros, zeros)
    unit, log = 2.0**-24, math.log(64)
    exponents, sums, logarithm = 64 + 1 + 4 * 64, 2 * 64 + 1, 1 + (4 + 3 + 3) * log
    bounds = forward_bounds(case.problem, named("native"), torch.float32)
    assert bounds.log_sum_exp.item() == pytest.approx((exponents + sums + logarithm) * unit, rel=1e-3)


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_a_group_of_heads_may_be_added_one_after_the_other(dtype: torch.dtype) -> None:
    """As torch's CPU kernel does, in the format of the output: 32 heads whose gradients have one sign."""
    parts = (0.5 + torch.rand(32, 4096, dtype=torch.float64)).to(dtype)
    total = torch.zeros(4096, dtype=dtype)
    for part in parts:
        total = total + part
    off = ((total.double() - parts.double().sum(dim=0)) / parts.double().sum(dim=0)).abs().max()
    key = torch.zeros(1, 1, 5, 1, dtype=dtype)
    case = Case(torch.zeros(1, 32, 5, 1, dtype=dtype), key, torch.ones_like(key))
    bounds = gradient_bounds(case.problem, torch.ones(1, 32, 5, 1).double(), named("flash"), dtype)
    unit = torch.finfo(dtype).eps / 2
    assert 4 * unit < off < bounds.value.min() / 32 < 64 * unit


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_products_that_cancel_in_a_score_are_bounded_by_their_size(dtype: torch.dtype) -> None:
    """The error of q.k is relative to |q|.|k|, also where q.k itself is small."""
    plain = normal(dtype, dim=16)
    half = 2e4 * plain.query[..., :8]
    query = torch.cat([half, -half], dim=-1)
    key = torch.cat([plain.key[..., :8], plain.key[..., :8]], dim=-1)
    key[..., 0] *= 1 + 2.0**-12
    case = replace(plain, query=query, key=key)
    shuffled = torch.randperm(16)
    mixed = replace(case, query=query[..., shuffled], key=key[..., shuffled])
    for implementation in (lambda x: online(x, 16), eager, opwise):
        assert output_excess(case, implementation(mixed), named("native")) <= 1


def test_products_that_cancel_in_a_gradient_are_bounded_by_their_size() -> None:
    """The error of dO.v is relative to |dO|.|v|, also where dO.v itself is small."""
    plain = normal(torch.float32, dim=64, spread=0.1)
    value = 1000 + 0.001 * plain.value
    cotangent = torch.where(torch.arange(64) % 2 == 0, 1.0, -1.0).expand(1, 2, 5, 64)
    query, key = plain.query.clone().requires_grad_(), plain.key.clone().requires_grad_()
    case = replace(plain, query=query, key=key, value=value)
    gradients = torch.autograd.grad(eager(case), [query, key], cotangent)
    exact = case.problem.gradients(cotangent.double())
    bounds = gradient_bounds(case.problem, cotangent.double(), named("native"), torch.float32)
    assert excess(gradients[0], exact.query, bounds.query) <= 1
    assert excess(gradients[1], exact.key, bounds.key) <= 1


@pytest.mark.parametrize("dtype", HALVES)
def test_a_maximum_left_to_autograd_passes_the_errors_on(dtype: torch.dtype) -> None:
    """exp(s - max s) returns -sum dS, all rounding errors, to the top score: here a sink, and its gradient.

    Values of 1e-6 make each dS vanish in float16, and what vanishes adds up.
    """
    for seed in range(20):
        torch.manual_seed(seed)
        sinks = torch.full((2,), 0.5, dtype=dtype).requires_grad_()
        case = normal(dtype, q_len=9, kv_len=130, dim=4, spread=1e-3, sinks=sinks)
        case = replace(case, value=case.value * 1e-6)
        cotangent = torch.randn(1, 2, 9, 4).to(dtype)
        (gradient,) = torch.autograd.grad(opwise(case), [sinks], cotangent)
        exact = case.problem.gradients(cotangent.double()).sinks
        bounds = gradient_bounds(case.problem, cotangent.double(), named("opwise"), dtype).sinks
        assert exact is not None and bounds is not None
        assert excess(gradient, exact, bounds) <= 1, seed


def test_operands_rounded_to_tfloat32_have_to_be_declared() -> None:
    """float32 on tensor cores: outside native, inside once inputs and weights are declared tfloat32."""

    def rounded(x: Tensor) -> Tensor:
        return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    case = normal(torch.float32, spread=3.0)
    scores = rounded(case.query) @ rounded(case.key).mT * case.resolved_scale
    observed = rounded(scores.softmax(-1)) @ rounded(case.value)
    wide = {"accumulate", "scaled", "scores", "softmax", "rescale", "output"}
    exact_elsewhere = Arithmetic(inputs="tfloat32", probabilities="tfloat32")
    for field in wide:
        exact_elsewhere = replace(exact_elsewhere, **{field: "float32"})  # type: ignore[arg-type]
    assert output_excess(case, observed, named("native")) > 1
    assert output_excess(case, observed, exact_elsewhere) <= 1


def test_a_weight_that_vanishes_in_float16_takes_its_value_along() -> None:
    """exp(-17.5) is below half the smallest number of float16: its value may be lost, as the bound says."""
    bias = torch.tensor([0.0, -17.5])[None, None, None]
    zeros = torch.zeros(1, 1, 2, 1)
    case = Case(zeros[:, :, :1], zeros, torch.tensor([0.0, 6e4])[None, None, :, None], bias=bias)
    case = replace(case.to(torch.float16), bias=bias)
    assert online(case, 1).item() == 0 != case.problem.attended.output.item()
    assert output_excess(case, online(case, 1), named("flash")) <= 1
    assert output_excess(case, online(case, 1), named("wide")) > 1


def test_on_ties_correct_code_may_leave_the_generic_tier() -> None:
    """Equal weights are rounded alike: with values of matching sign errors add up, as on ties."""
    heavy, light = 1.0, 1 - 2.0**-9  # the second lies half way between two numbers of bfloat16
    bias = torch.zeros(1, 1, 1, 4096)
    bias[..., ::2] = math.log(light)
    sign = torch.where(torch.arange(4096) % 2 == 0, heavy, -light)[None, None, :, None]
    zeros = torch.zeros(1, 1, 4096, 1)
    case = Case(zeros[:, :, :1], zeros, sign, bias=bias).to(torch.bfloat16)
    case = replace(case, bias=bias)
    observed = online(case, 64)
    assert output_excess(case, observed, named("flash")) <= 1
    assert output_excess(case, observed, named("flash"), generic=True) > 1


def test_truncating_accumulators_have_no_generic_tier() -> None:
    """Errors of one sign do not average out: with accumulate_ulps 2 both tiers are the worst case."""
    case = normal(torch.bfloat16)
    truncating = replace(named("flash"), accumulate_ulps=2)
    worst, generic = (forward_bounds(case.problem, truncating, case.dtype, generic=g) for g in (False, True))
    assert torch.equal(worst.output, generic.output)
    assert (worst.output > forward_bounds(case.problem, named("flash"), case.dtype).output).all()


def test_scores_beyond_float16_make_the_bound_infinite() -> None:
    """Where q.k leaves float16 anything may come out of eager, while float32 scores keep a finite bound."""
    case = normal(torch.float16, spread=1.0)
    case = replace(case, query=case.query * 1000, key=case.key * 100, scale=1e-4)
    overflowing = (case.query.abs() @ case.key.abs().mT).isinf().any(dim=-1)
    assert overflowing.any() and not eager(case).isfinite().all()
    eager_bound = forward_bounds(case.problem, named("eager"), case.dtype).output
    assert eager_bound[overflowing].isinf().all()
    assert forward_bounds(case.problem, named("flash"), case.dtype).output.isfinite().all()
    cotangent = torch.ones_like(case.problem.attended.output)
    masked = replace(case, may_attend=torch.arange(33).expand(5, 33) > 0)
    gradients = gradient_bounds(masked.problem, cotangent, named("eager"), case.dtype)
    assert gradients.value.isinf().all()


def test_a_row_whose_scores_all_vanish_has_an_infinite_bound() -> None:
    """finfo.min added to negative scores of float16 leaves a row of -inf: that row may be anything."""
    lowest = torch.zeros(1, 1, 2, 7, dtype=torch.float16)
    lowest[:, :, 0] = torch.finfo(torch.float16).min
    plain = normal(torch.float16, q_len=2, kv_len=7, bias=lowest)
    case = replace(plain, query=plain.query.abs() * 100, key=-plain.key.abs())
    assert scores_of(case)[:, :, 0].isneginf().all()
    bound = forward_bounds(case.problem, named("eager"), torch.float16).output
    assert bound[:, :, 0].isinf().all() and bound[:, :, 1].isfinite().all()


def test_a_large_negative_bias_keeps_the_bound_finite_and_sharp() -> None:
    """finfo.min as a mask value costs nothing: the bound is that of the keys that are left."""
    short = normal(torch.float16)
    lowest = torch.zeros(1, 1, 5, 40, dtype=torch.float16)
    lowest[..., 33:] = torch.finfo(torch.float16).min
    more = torch.randn(2, 1, 2, 7, 8).half()
    padded = replace(
        short, key=torch.cat([short.key, more[0]], 2), value=torch.cat([short.value, more[1]], 2), bias=lowest
    )
    for model in ("flash", "eager"):
        one, other = (forward_bounds(c.problem, named(model), c.dtype).output for c in (short, padded))
        assert other.isfinite().all() and (other <= 1.5 * one).all()


def test_masked_keys_enter_nowhere() -> None:
    """What stands in a masked slot, even NaN, does not change a bound."""
    mask = torch.ones(5, 33, dtype=torch.bool)
    mask[:, 7] = False
    clean = normal(torch.float32, may_attend=mask)
    key, value = clean.key.clone(), clean.value.clone()
    key[:, :, 7], value[:, :, 7] = math.nan, math.inf
    poisoned = replace(clean, key=key, value=value)
    value = clean.value.clone()
    value[:, :, 7] = 1e30
    for other in (poisoned, replace(clean, value=value)):
        for one, two in zip(
            every_bound(clean, named("flash"), False),
            every_bound(other, named("flash"), False),
            strict=True,
        ):
            assert torch.allclose(one, two, rtol=1e-12, atol=0)


def test_a_row_that_attends_to_nothing_has_bound_zero() -> None:
    """Zeros for a dead row are exact: output, weights and log-sum-exp have bound 0."""
    mask = torch.ones(5, 33, dtype=torch.bool)
    mask[2] = False
    case = normal(torch.bfloat16, may_attend=mask)
    assert case.problem.attended.log_sum_exp[:, :, 2].isneginf().all()
    for model in MODELS.values():
        bounds = forward_bounds(case.problem, model, case.dtype)
        for bound in (bounds.output, bounds.weights, bounds.log_sum_exp):
            assert not bound[:, :, 2].any() and bound[:, :, 3].all()


def test_a_dead_row_has_no_bound_where_its_scores_overflow() -> None:
    """A mask of -inf that is added to an infinite score gives NaN; where no score overflows the row is exact."""
    ones = torch.ones(1, 1, 1, 1, dtype=torch.float16)
    for size, bound in ((10.0, 0.0), (1000.0, math.inf)):
        case = Case(size * ones, size * ones, ones, may_attend=torch.zeros(1, 1, 1, 1, dtype=torch.bool))
        assert forward_bounds(case.problem, named("native"), torch.float16).output.item() == bound


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 7), (5, 0), (0, 0)])
def test_nothing_to_attend_to_has_bound_zero(q_len: int, kv_len: int) -> None:
    """Without queries or keys all bounds have the shapes of the answers, and are 0."""
    case = normal(torch.float32, q_len=q_len, kv_len=kv_len, sinks=torch.zeros(2))
    attended = case.problem.attended
    bounds = forward_bounds(case.problem, named("native"), case.dtype)
    assert bounds.output.shape == attended.output.shape and not bounds.output.any()
    assert bounds.log_sum_exp.shape == attended.log_sum_exp.shape and not bounds.log_sum_exp.any()
    gradients = gradient_bounds(case.problem, torch.zeros_like(attended.output), named("native"), case.dtype)
    assert gradients.key.shape == case.key.shape and not gradients.key.any()


def test_a_constant_value_costs_only_the_sums() -> None:
    """Errors of the scores cancel when all values agree, however large the logits."""
    case = normal(torch.float32, spread=1000.0)
    case = replace(case, value=torch.full_like(case.value, 1.0))
    bound = forward_bounds(case.problem, named("native"), case.dtype).output
    assert bound.max() < 4 * (2 * 33 + 9) * 2.0**-24


def test_a_one_hot_softmax_costs_only_the_output_rounding() -> None:
    """With the top score far above the rest an error of the scores moves nothing."""
    plain = normal(torch.bfloat16, dim=4, heads=1, kv_heads=1)
    key = torch.zeros_like(plain.key)
    key[..., 0] = 100 * (torch.arange(33) == 5)
    case = replace(plain, query=torch.ones_like(plain.query), key=key)
    problem = case.problem
    size = problem.attended.output.abs()
    bound = forward_bounds(problem, named("flash"), case.dtype).output
    assert (bound <= 4 * 2.0**-8 * size).all()


def test_a_large_error_common_to_all_scores_costs_nothing() -> None:
    """The top score may be off by more than 1 where its distance to the rest is larger still."""
    zeros = torch.zeros(1, 1, 3, 1)
    value = torch.tensor([1.0, 2.0, 3.0])[None, None, :, None]
    bias = torch.tensor([30000.0, 10000.0, 5000.0])[None, None, None]
    case = replace(Case(zeros[:, :, :1], zeros, value).to(torch.bfloat16), bias=bias)
    bound = forward_bounds(case.problem, named("eager"), case.dtype).output
    assert bound.item() <= 4 * 2.0**-8


def test_nearly_tied_large_scores_are_bounded_by_the_hull() -> None:
    """Where two top scores are closer than their errors any mixture of the two values is within the bound."""
    zeros = torch.zeros(1, 1, 3, 1)
    value = torch.tensor([1.0, -1.0, 0.0])[None, None, :, None]
    bias = torch.tensor([28032.0123, 27970.7585, 0.0])[None, None, None]
    case = replace(Case(zeros[:, :, :1], zeros, value).to(torch.bfloat16), bias=bias)
    assert case.problem.attended.weights[0, 0, 0, 0] == 1
    bounds = forward_bounds(case.problem, named("eager"), case.dtype)
    either = torch.tensor([0.5, 0.5, 0.0]).double()
    assert (bounds.weights[0, 0, 0] >= (either - case.problem.attended.weights[0, 0, 0]).abs()).all()
    assert bounds.output[0, 0, 0, 0] >= 1


def test_a_mask_that_scatters_the_keys_scatters_the_rescales() -> None:
    """Four keys in four blocks mean four rescales, not one."""
    mask = torch.zeros(1, 64, dtype=torch.bool)
    mask[:, ::16] = True
    scattered = normal(torch.float32, q_len=1, kv_len=64, may_attend=mask)
    together = replace(scattered, key=scattered.key[:, :, ::16], value=scattered.value[:, :, ::16])
    blocks = replace(named("native"), block=16)
    apart = forward_bounds(scattered.problem, blocks, torch.float32).output
    beside = forward_bounds(replace(together, may_attend=None).problem, blocks, torch.float32).output
    each = forward_bounds(scattered.problem, named("native"), torch.float32).output
    assert (apart > beside).all() and torch.equal(apart, each)


def test_results_that_are_flushed_to_zero_are_within_the_bound() -> None:
    """float32 code that flushes subnormals is correct by default; flush_to_zero=() says that it must not."""
    case = normal(torch.float32, kv_len=7)
    case = replace(case, value=case.value * 1e-38)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        observed = eager(case)
    finally:
        torch.set_flush_denormal(False)
    assert output_excess(case, observed, named("native")) <= 1
    assert output_excess(case, observed, replace(named("native"), flush_to_zero=())) > 1


def test_the_bound_for_float64_is_that_of_the_subject_and_the_oracle() -> None:
    """float64 is compared with float64: both may err, so both bounds are added."""
    case = normal(torch.float64)
    bound = forward_bounds(case.problem, named("native"), torch.float64).output
    single = forward_bounds(case.problem, named("native"), torch.float32).output * 2.0**-29
    assert (bound > 1.9 * single).all() and (bound < 2.1 * single).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("generic", [False, True])
def test_the_bound_by_norms_holds_as_well(
    dtype: torch.dtype, generic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For large inputs Cauchy and Schwarz replace the centred sum: never below, seldom far above."""
    for name, case in cases(dtype):
        arithmetic = named("eager")
        exact = forward_bounds(case.problem, arithmetic, dtype, generic=generic).output
        with monkeypatch.context() as patch:
            patch.setattr(mixture, "CENTRED_SUM_LIMIT", 0)
            norms = forward_bounds(case.problem, arithmetic, dtype, generic=generic).output
        assert (norms >= exact * (1 - 1e-9)).all(), name
        if name.startswith("spread"):
            assert (norms / exact).median() < 3, name


def test_fewer_roundings_declared_mean_a_narrower_bound() -> None:
    """block, fan and exp_error tighten the bound; lag, a scaled query and a hardware tanh widen it."""
    case = normal(torch.bfloat16, kv_len=513, softcap=30.0)
    flash = named("flash")
    wide = named("wide")

    def bound(arithmetic: Arithmetic, dtype: torch.dtype = torch.float32) -> Tensor:
        return forward_bounds(case.problem, arithmetic, dtype).output

    for narrower in (replace(wide, block=64), replace(wide, fan=16), replace(wide, exp_error=4)):
        assert (bound(narrower) < bound(wide)).all(), narrower
    for wider in (replace(wide, lag=8.0), replace(wide, tanh_error=8192), replace(wide, exp_error=2048)):
        assert (bound(wider) > bound(wide)).all(), wider
    scaled = replace(flash, scaled="input")
    assert (bound(scaled, case.dtype) > bound(flash, case.dtype)).all()
