"""Windows equal their bands, sparse patterns hold what they say, and linear attention's forms are one function."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from headcheck.arithmetic import Arithmetic
from headcheck.attention.bounds import forward_bounds
from headcheck.attention.gradient_bounds import gradient_bounds
from headcheck.attention.problem import Problem
from headcheck.comparison import within
from headcheck.reference import masks
from headcheck.reference.efficient import (
    LinearState,
    causal_linear_attention,
    empty_state,
    feature_map,
    global_tokens,
    kernel_attention,
    linear_attention,
    number_of_scores,
    random_keys,
    reachable,
    receptive_field,
    recurrent_linear_attention,
    sliding_window_attention,
    sparse,
)

NATIVE = Arithmetic()
UNIT = torch.finfo(torch.float64).eps / 2
SIDES = (None, 0, 1, 2, 6)
LENGTHS = (0, 1, 2, 3, 5)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def qkv(q_len: int, kv_len: int, heads: int = 2, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return (
        normal(2, heads, q_len, 3, seed=1),
        normal(2, kv_heads, kv_len, 3, seed=2),
        normal(2, kv_heads, kv_len, 4, seed=3),
    )


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Sliding windows


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("q_len", "kv_len"), list(product(LENGTHS, LENGTHS)))
def test_a_window_equals_its_band(q_len: int, kv_len: int, alignment: masks.Alignment) -> None:
    """Window by window gives what all scores under the banded mask give, within the rounding of float64."""
    query, key, value = qkv(q_len, kv_len)
    for left, right in product(SIDES, SIDES):
        band = masks.sliding_window(q_len, kv_len, left, right, alignment)
        problem = Problem(query, key, value, 3**-0.5, may_attend=band)
        found = sliding_window_attention(query, key, value, left=left, right=right, alignment=alignment)
        bound = forward_bounds(problem, NATIVE, torch.float64).output
        assert not within(found, problem.attended.output, bound).broken, (left, right)


def test_a_window_has_the_gradient_of_its_band() -> None:
    """The gradients of query, key and value too are those of the banded mask, grouped heads included."""
    query, key, value = (x.requires_grad_() for x in qkv(5, 6, heads=4))
    cotangent = normal(2, 4, 5, 4, seed=4)
    found = sliding_window_attention(query, key, value, left=2, right=1, scale=0.4)
    grads = torch.autograd.grad(found, (query, key, value), cotangent)
    detached = (x.detach() for x in (query, key, value))
    problem = Problem(*detached, scale=0.4, may_attend=masks.sliding_window(5, 6, 2, 1))
    exact = problem.gradients(cotangent)
    bounds = gradient_bounds(problem, cotangent, NATIVE, torch.float64)
    for name, grad in zip(("query", "key", "value"), grads, strict=True):
        assert not within(grad, getattr(exact, name), getattr(bounds, name), name).broken


def test_a_query_computes_no_score_outside_its_window() -> None:
    """NaN outside the window does not reach the output: nothing there was read."""
    query, key, value = qkv(6, 6)
    key[:, :, 5], value[:, :, 5] = torch.nan, torch.nan
    found = sliding_window_attention(query, key, value, left=2, right=1)
    assert found[:, :, :4].isfinite().all()
    assert found[:, :, 4:].isnan().all()


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_the_number_of_scores_is_that_of_the_band(length: int) -> None:
    """It counts the True of the banded mask, and all pairs without a window."""
    for left, right in product(SIDES, SIDES):
        band = masks.sliding_window(length, length, left, right)
        assert number_of_scores(length, length, left, right) == band.sum()
    assert number_of_scores(length, length + 3) == length * (length + 3)


def test_the_numbers_of_scores_of_the_documents() -> None:
    """512 tokens have 262,144 scores, 8192 have 67,108,864; windows of 256 on each side 513 for each token."""
    assert number_of_scores(3, 3) == 9
    assert number_of_scores(512, 512) == 262_144
    assert number_of_scores(8192, 8192) == 67_108_864
    missing_at_the_ends = 256 * 257
    assert number_of_scores(4096, 4096, 256, 256) == 4096 * 513 - missing_at_the_ends


@pytest.mark.parametrize(("left", "right"), [(1, 1), (2, 0), (0, 3), (2, 1)])
@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_layers_of_windows_reach_layers_times_the_window(layers: int, left: int, right: int) -> None:
    """Stacked windows are one window whose sides are layers times as long: by hops, and by gradients."""
    length = 13
    far = masks.sliding_window(length, length, *receptive_field(layers, left, right))
    assert torch.equal(reachable(masks.sliding_window(length, length, left, right), layers), far)
    x = normal(1, 1, length, 2).requires_grad_()
    hidden = x
    for _ in range(layers):
        hidden = hidden + sliding_window_attention(hidden, hidden, hidden, left=left, right=right)
    moved = [torch.autograd.grad(row.sum(), x, retain_graph=True)[0][0, 0].any(-1) for row in hidden[0, 0]]
    assert torch.equal(torch.stack(moved), far)


# Sparse patterns


def test_global_tokens_see_all_and_are_seen_by_all() -> None:
    """Rows and columns of the first tokens are True, and nothing else is."""
    pattern = global_tokens(6, 2)
    assert pattern[:2].all()
    assert pattern[:, :2].all()
    assert not pattern[2:, 2:].any()
    assert not global_tokens(6, 0).any()


def test_random_keys_are_so_many_for_each_query() -> None:
    """Each query has exactly as many keys as asked for, drawn by the seed, and not the same for all."""
    pattern = random_keys(16, 3, generator())
    assert (pattern.sum(dim=-1) == 3).all()
    assert torch.equal(pattern, random_keys(16, 3, generator()))
    assert not torch.equal(pattern, random_keys(16, 3, generator(1)))
    assert len(pattern.unique(dim=0)) > 8
    assert random_keys(4, 4, generator()).all()
    assert not random_keys(4, 0, generator()).any()


def test_random_keys_are_drawn_evenly() -> None:
    """Over many draws no key is preferred: each count is within Hoeffding's bound at 1e-12."""
    drawn, count, length = 2000, 2, 5
    pattern = random_keys(length, count, generator()).double()
    for seed in range(1, drawn // length):
        pattern += random_keys(length, count, generator(seed)).double()
    slack = math.sqrt(drawn * math.log(2e12) / 2)
    assert ((pattern.sum(dim=0) - drawn * count / length).abs() <= slack).all()


def test_more_random_keys_than_tokens_are_refused() -> None:
    """There are not so many different keys."""
    with pytest.raises(ValueError, match="5 random keys of 4: there are not so many"):
        random_keys(4, 5, generator())


def test_a_sparse_pattern_is_window_and_global_and_random() -> None:
    """Every allowed pair has one of the three reasons; without random keys it is Longformer's pattern."""
    pattern = sparse(12, radius=1, global_count=1, random_count=2, generator=generator())
    fixed = masks.sliding_window(12, 12, 1, 1) | global_tokens(12, 1)
    assert torch.equal(pattern, fixed | random_keys(12, 2, generator()))
    assert torch.equal(sparse(12, radius=1, global_count=1, random_count=0, generator=generator()), fixed)
    assert pattern.sum() <= 12 * (3 + 2) + 2 * 12


def test_a_global_token_connects_all_in_two_layers() -> None:
    """With one global token everybody hears from everybody after two layers; with the window alone not."""
    window = masks.sliding_window(20, 20, 1, 1)
    assert not reachable(window, 2).all()
    assert not reachable(window | global_tokens(20, 1), 1).all()
    assert reachable(window | global_tokens(20, 1), 2).all()


# Linear attention


def linear_bound(query: Tensor, key: Tensor, value: Tensor, may_attend: Tensor | None = None) -> Tensor:
    """What rounding explains between two forms: features are positive, so that no sum of them cancels.

    Each form has a numerator off by at most (d + n + 1) u sum sim |v| and a denominator off by (d + n) u, and
    divides once; the second power of u, and one underflow, are covered by the 8.
    """
    size = kernel_attention(query, key, value.abs(), may_attend=may_attend)
    return 2 * (2 * (query.shape[-1] + key.shape[-2]) + 8) * UNIT * size


def test_the_feature_map_is_elu_plus_one() -> None:
    """phi(x) = elu(x) + 1 as torch computes elu, within the rounding of its sum."""
    x = torch.linspace(-30, 30, 241, dtype=torch.float64)
    expected = torch.nn.functional.elu(x) + 1
    assert ((feature_map(x) - expected).abs() <= 2 * UNIT * (1 + expected)).all()
    assert feature_map(torch.tensor(0.0)) == 1


def test_the_feature_map_is_positive_and_keeps_gradients() -> None:
    """Far below zero, where elu(x) + 1 is rounded to 0, it is exp(x); its gradient is finite on both sides."""
    x = torch.tensor([-700.0, -40.0, 0.0, 800.0], dtype=torch.float64, requires_grad=True)
    assert (torch.nn.functional.elu(x) + 1)[0] == 0
    assert (feature_map(x) > 0).all()
    (gradient,) = torch.autograd.grad(feature_map(x).sum(), x)
    assert torch.equal(gradient, torch.tensor([-700.0, -40.0, 0.0, 0.0], dtype=torch.float64).exp())


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (3, 5), (5, 3), (4, 0), (0, 4)])
def test_linear_attention_equals_its_kernel_form(q_len: int, kv_len: int) -> None:
    """Summing the keys first gives what the similarities of all pairs give; without keys it gives zeros."""
    inputs = qkv(q_len, kv_len)
    found, expected = linear_attention(*inputs), kernel_attention(*inputs)
    assert ((found - expected).abs() <= linear_bound(*inputs)).all()
    assert found.shape == (2, 2, q_len, 4)
    if kv_len == 0:
        assert not found.any()


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_the_causal_forms_are_one_function(length: int) -> None:
    """All at once, token by token, and by all pairs under the causal mask: the same outputs."""
    inputs, past = qkv(length, length), masks.causal(length, length)
    expected = kernel_attention(*inputs, may_attend=past)
    bound = linear_bound(*inputs, may_attend=past)
    for found in (causal_linear_attention(*inputs), recurrent_linear_attention(*inputs)[0]):
        assert ((found - expected).abs() <= bound).all()


def test_the_last_causal_row_is_full_linear_attention() -> None:
    """The last token sees all keys, as linear attention without a mask does."""
    inputs = qkv(6, 6)
    difference = causal_linear_attention(*inputs)[:, :, -1] - linear_attention(*inputs)[:, :, -1]
    assert (difference.abs() <= linear_bound(*inputs)[:, :, -1]).all()


@pytest.mark.parametrize("cut", range(7))
def test_a_sequence_may_be_cut_anywhere(cut: int) -> None:
    """The state of the first part continues the sequence, bit for bit."""
    inputs = qkv(6, 6)
    whole, last = recurrent_linear_attention(*inputs)
    first, state = recurrent_linear_attention(*(x[:, :, :cut] for x in inputs))
    second, final = recurrent_linear_attention(*(x[:, :, cut:] for x in inputs), state)
    assert torch.equal(torch.cat([first, second], dim=2), whole)
    assert all(map(torch.equal, final, last))


def test_the_state_is_the_sum_over_the_keys() -> None:
    """s = phi(K)^T V and z = phi(K)^T 1, of a size that does not grow with the length."""
    query, key, value = qkv(9, 9)
    _, state = recurrent_linear_attention(query, key, value)
    features = feature_map(key)
    expected = LinearState(features.mT @ value, features.sum(dim=2))
    sizes = LinearState(features.mT @ value.abs(), expected.normaliser)
    for found, true, size in zip(state, expected, sizes, strict=True):
        assert ((found - true).abs() <= 2 * (9 + 1) * UNIT * size).all()
    assert [x.shape for x in state] == [x.shape for x in empty_state(query, value)]


def test_the_gradients_of_the_causal_forms_agree() -> None:
    """Token by token, the gradients are those of all pairs under the causal mask."""
    inputs = tuple(x.requires_grad_() for x in qkv(5, 5))
    cotangent = normal(2, 2, 5, 4, seed=5)
    forms = [
        kernel_attention(*inputs, may_attend=masks.causal(5, 5)),
        causal_linear_attention(*inputs),
        recurrent_linear_attention(*inputs)[0],
    ]
    expected, *others = [torch.autograd.grad(form, inputs, cotangent) for form in forms]
    for grads in others:
        for found, true in zip(grads, expected, strict=True):
            # Two passes of some hundred roundings each, in sums of numbers up to the size of the largest gradient.
            torch.testing.assert_close(found, true, rtol=0, atol=1e3 * UNIT * float(true.abs().max()))


def test_linear_attention_by_hand() -> None:
    """q = 0, k = (0, 1), v = (3, 6): phi(q) = 1, phi(k) = (1, 2), so (3 + 2 x 6) / 3 = 5; causally 3, then 5."""
    query = torch.zeros(1, 1, 2, 1)
    key, value = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1), torch.tensor([3.0, 6.0]).view(1, 1, 2, 1)
    assert linear_attention(query, key, value).flatten().tolist() == [5, 5]
    assert causal_linear_attention(query, key, value).flatten().tolist() == [3, 5]
    assert recurrent_linear_attention(query, key, value)[0].flatten().tolist() == [3, 5]
