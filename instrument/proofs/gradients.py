"""The derivative of attention, written out as a flash kernel computes it."""

from typing import Any

from headcheck.proofs import Equations, Terms, equal, proof

GRADIENTS = "attention/gradients/gradients-are-within-the-bound"


@proof(proves=("attention/gradients/the-bias-gets-its-gradient", GRADIENTS))
def the_gradient_of_the_scores(t: Terms) -> Equations:
    """dS = P (dP - rowsum(P dP)), where dP = dO V^T: of the scores, and of what is added to them."""
    scores, values, cotangent = t.row("s", 3), t.matrix("v", 3, 2), t.row("g", 2)
    weights = t.named("p", t.softmax(scores))
    objective = t.named("L", t.dot(cotangent, weights * values))
    d_weights = t.named("d", cotangent * values.T)
    row_sum = t.dot(weights, d_weights)
    formula = [p * (d - row_sum) for p, d in zip(weights, d_weights, strict=True)]
    yield equal(t.jacobian([objective], scores), t.Matrix([formula]))


@proof()
def the_row_sum_is_the_cotangent_times_the_output(t: Terms) -> Equations:
    """rowsum(P dP) = rowsum(dO O): what a flash backward stores instead of the weights."""
    values, cotangent = t.matrix("v", 3, 2), t.row("g", 2)
    weights = t.named("p", t.softmax(t.row("s", 3)))
    d_weights, output = t.named("d", cotangent * values.T), t.named("o", weights * values)
    yield equal(t.dot(weights, d_weights), t.dot(cotangent, output))


@proof(proves=(GRADIENTS,))
def the_gradients_of_query_key_and_value(t: Terms) -> Equations:
    """dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO, for two queries and two keys."""
    scale = t.number("c")
    query, key, value, cotangent = (t.matrix(name, 2, 1) for name in "qkvg")
    weights = t.named("p", t.attention(query, key, t.sympy.eye(2), scale))
    objective = t.named("L", t.dot(cotangent, weights * value))
    d_weights = t.named("d", cotangent * value.T)
    row_sums = [t.dot(weights.row(i), d_weights.row(i)) for i in range(2)]
    d_scores = t.named(
        r"\delta", t.Matrix(2, 2, lambda i, j: weights[i, j] * (d_weights[i, j] - row_sums[i]))
    )
    yield equal(t.jacobian([objective], query).T, scale * d_scores * key)
    yield equal(t.jacobian([objective], key).T, scale * d_scores.T * query)
    yield equal(t.jacobian([objective], value).T, weights.T * cotangent)


@proof(proves=(GRADIENTS,))
def the_gradient_of_a_sink(t: Terms) -> Equations:
    """The derivative by a sink is minus the sink's share times dO O."""
    scores, values, sink, cotangent = t.row("s", 2), t.row("v", 2), t.number("z"), t.number("g")
    share = t.named("p", t.softmax(t.Matrix([[*scores, sink]]))[2])
    objective = t.named("L", cotangent * t.mean(scores, values, sink))
    yield equal(t.jacobian([objective], [sink])[0], -share * objective)


@proof(proves=("attention/heads/a-key-head-hears-its-whole-group",))
def a_key_head_hears_its_whole_group(t: Terms) -> Equations:
    """The derivative by a key that two query heads read is the sum of those by a key for each."""
    queries, values, other = t.row("q", 2), t.row("v", 2), t.number("k_1")
    shared, copies = t.number("k_0"), t.row("h", 2)

    def output(query: Any, key: Any) -> Any:
        return t.mean(t.Matrix([[query * key, query * other]]), values)

    objective = t.named("L", sum(output(query, shared) for query in queries))
    apart = t.named("M", sum(output(query, key) for query, key in zip(queries, copies, strict=True)))
    by_copies = (t.jacobian([apart], copies) * t.ones(2).T)[0]
    same = dict.fromkeys(copies, shared)
    yield equal(t.jacobian([objective], [shared])[0], t.at(by_copies, same))


@proof()
def the_derivative_of_a_softcap(t: Terms) -> Equations:
    """d(c tanh(s / c)) / ds = 1 - tanh(s / c)^2."""
    cap, score = t.positive("c"), t.number("s")
    yield equal(t.jacobian([t.softcap(score, cap)], [score])[0], 1 - t.tanh(score / cap) ** 2)
