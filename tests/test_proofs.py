"""The algebra on which laws and bounds stand, proved for symbols."""

from itertools import permutations

import pytest
import sympy
from sympy import Expr, Matrix, Symbol, exp, log, symbols, tanh

KEYS = 3
SCORES = symbols("s:3", real=True)
VALUES = symbols("v:3", real=True)
SHIFT = Symbol("t", real=True)


def softmax(scores: tuple[Expr, ...] | list[Expr], sink: Expr | None = None) -> list[Expr]:
    """exp(s_j) / sum exp(s), without a maximum: the definition."""
    total = sum(map(exp, scores)) + (0 if sink is None else exp(sink))
    return [exp(s) / total for s in scores]


def mean(scores: tuple[Expr, ...] | list[Expr], values: tuple[Expr, ...] | list[Expr]) -> Expr:
    """Attention of one query, one value dim."""
    return sum(p * v for p, v in zip(softmax(scores), values, strict=True))


def log_sum_exp(scores: tuple[Expr, ...] | list[Expr]) -> Expr:
    return log(sum(map(exp, scores)))


def is_zero(expression: Expr) -> bool:
    return bool(sympy.simplify(sympy.powsimp(sympy.expand(sympy.together(expression)))) == 0)


def test_the_prover_tells_a_wrong_identity() -> None:
    """What is not zero is not proved to be: the tests below can fail."""
    assert not is_zero(softmax(SCORES)[0] - softmax(SCORES)[1])
    assert not is_zero(mean(SCORES, VALUES) - sum(VALUES) / KEYS)


def test_weights_sum_to_one() -> None:
    """The weights of a row sum to 1."""
    assert is_zero(sum(softmax(SCORES)) - 1)


def test_a_sink_takes_what_is_missing() -> None:
    """With a sink, the weights sum to 1 less the sink's own share."""
    sink = Symbol("z", real=True)
    share = exp(sink) / (sum(map(exp, SCORES)) + exp(sink))
    assert is_zero(sum(softmax(SCORES, sink)) - (1 - share))


def test_a_common_shift_changes_no_weight() -> None:
    """Adding one number to all scores of a row changes no weight."""
    for moved, still in zip(softmax([s + SHIFT for s in SCORES]), softmax(SCORES), strict=True):
        assert is_zero(moved - still)


def test_a_common_shift_moves_the_log_sum_exp() -> None:
    """Adding one number to all scores adds it to the log-sum-exp."""
    moved = log_sum_exp([s + SHIFT for s in SCORES])
    assert is_zero(exp(moved) - exp(log_sum_exp(SCORES) + SHIFT))


@pytest.mark.parametrize("order", list(permutations(range(KEYS))))
def test_permuting_keys_with_values_changes_nothing(order: tuple[int, ...]) -> None:
    """Keys in another order, their values with them, give the same output and permuted weights."""
    scores, values = [SCORES[i] for i in order], [VALUES[i] for i in order]
    assert is_zero(mean(scores, values) - mean(SCORES, VALUES))
    weights = softmax(SCORES)
    assert all(is_zero(p - weights[i]) for p, i in zip(softmax(scores), order, strict=True))


@pytest.mark.parametrize("first", [1, 2])
def test_parts_merge_by_log_sum_exp(first: int) -> None:
    """Attention over two parts, weighted by exp(lse), is attention over the whole."""
    left = mean(SCORES[:first], VALUES[:first]), log_sum_exp(SCORES[:first])
    right = mean(SCORES[first:], VALUES[first:]), log_sum_exp(SCORES[first:])
    merged = log(exp(left[1]) + exp(right[1]))
    output = exp(left[1] - merged) * left[0] + exp(right[1] - merged) * right[0]
    assert is_zero(exp(merged) - exp(log_sum_exp(SCORES)))
    assert is_zero(output - mean(SCORES, VALUES))


def test_a_bias_of_log_two_is_a_key_twice() -> None:
    """Raising one score by log 2 does what giving that key twice does."""
    raised = mean([SCORES[0] + log(2), *SCORES[1:]], VALUES)
    assert is_zero(raised - mean([SCORES[0], *SCORES], [VALUES[0], *VALUES]))


def test_duplicating_every_key_changes_nothing() -> None:
    """All keys given twice give the same output."""
    assert is_zero(mean(SCORES * 2, VALUES * 2) - mean(SCORES, VALUES))


def test_constant_values_come_back() -> None:
    """If every value is v, the output is v."""
    assert is_zero(mean(SCORES, [VALUES[0]] * KEYS) - VALUES[0])


def test_deviations_from_the_output_cancel() -> None:
    """sum p_i (v_i - o) = 0: the reason why the bound may be centred."""
    output = mean(SCORES, VALUES)
    deviations = (p * (v - output) for p, v in zip(softmax(SCORES), VALUES, strict=True))
    assert is_zero(sum(deviations))


def test_the_gradient_of_the_scores() -> None:
    """dS = P (dP - rowsum(P dP)), where dP = dO V^T."""
    seed = symbols("g:2", real=True)
    values = Matrix(KEYS, 2, symbols("w:6", real=True))
    weights = softmax(SCORES)
    objective = sum(weights[k] * values[k, c] * seed[c] for k in range(KEYS) for c in range(2))
    d_weights = [sum(seed[c] * values[k, c] for c in range(2)) for k in range(KEYS)]
    row_sum = sum(p * d for p, d in zip(weights, d_weights, strict=True))
    for k in range(KEYS):
        assert is_zero(sympy.diff(objective, SCORES[k]) - weights[k] * (d_weights[k] - row_sum))


def test_the_row_sum_is_the_cotangent_times_the_output() -> None:
    """rowsum(P dP) = rowsum(dO O): what a flash backward stores instead of the weights."""
    seed = symbols("g:2", real=True)
    values = Matrix(KEYS, 2, symbols("w:6", real=True))
    weights = softmax(SCORES)
    d_weights = [sum(seed[c] * values[k, c] for c in range(2)) for k in range(KEYS)]
    output = [sum(weights[k] * values[k, c] for k in range(KEYS)) for c in range(2)]
    row_sum = sum(p * d for p, d in zip(weights, d_weights, strict=True))
    assert is_zero(row_sum - sum(g * o for g, o in zip(seed, output, strict=True)))


def test_the_gradients_of_query_key_and_value() -> None:
    """dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO, for two queries and two keys."""
    scale = Symbol("c", real=True)
    query, key = Matrix(2, 1, symbols("q:2", real=True)), Matrix(2, 1, symbols("k:2", real=True))
    value, seed = Matrix(2, 1, symbols("v:2", real=True)), Matrix(2, 1, symbols("g:2", real=True))
    scores = scale * query * key.T
    weights = Matrix([softmax(list(scores.row(i))) for i in range(2)])
    objective = (seed.T * weights * value)[0]
    d_weights = seed * value.T
    row_sums = [sum(weights[i, k] * d_weights[i, k] for k in range(2)) for i in range(2)]
    d_scores = Matrix(2, 2, lambda i, k: weights[i, k] * (d_weights[i, k] - row_sums[i]))
    for wrt, formula in (
        (query, scale * d_scores * key),
        (key, scale * d_scores.T * query),
        (value, weights.T * seed),
    ):
        for index in range(2):
            assert is_zero(sympy.diff(objective, wrt[index]) - formula[index])


def test_the_gradient_of_a_sink() -> None:
    """d sum(g o) / d sink = -p_sink rowsum(P dP)."""
    sink, seed = Symbol("z", real=True), Symbol("g", real=True)
    weights = softmax(SCORES, sink)
    output = sum(p * v for p, v in zip(weights, VALUES, strict=True))
    share = exp(sink) / (sum(map(exp, SCORES)) + exp(sink))
    assert is_zero(sympy.diff(seed * output, sink) + share * seed * output)


def test_the_derivative_of_a_softcap() -> None:
    """d(c tanh(s / c)) / ds = 1 - tanh(s / c)^2."""
    cap, score = Symbol("c", positive=True), SCORES[0]
    assert is_zero(sympy.diff(cap * tanh(score / cap), score) - (1 - tanh(score / cap) ** 2))


def test_an_orthogonal_change_of_basis_keeps_the_scores() -> None:
    """(R q).(R k) = q.k for a rotation and for a reflection."""
    angle = Symbol("a", real=True)
    query, key = Matrix(2, 1, symbols("q:2", real=True)), Matrix(2, 1, symbols("k:2", real=True))
    rotation = Matrix([[sympy.cos(angle), -sympy.sin(angle)], [sympy.sin(angle), sympy.cos(angle)]])
    for change in (rotation, rotation * Matrix([[1, 0], [0, -1]])):
        assert sympy.simplify(((change * query).T * (change * key))[0] - (query.T * key)[0]) == 0


def test_the_known_answer() -> None:
    """q = (0, sqrt 2) against the keys of the identity gives (1, e) / (1 + e)."""
    query = Matrix([0, sympy.sqrt(2)])
    weights = softmax(list(query / sympy.sqrt(2)))
    assert weights == [1 / (1 + sympy.E), sympy.E / (1 + sympy.E)]
