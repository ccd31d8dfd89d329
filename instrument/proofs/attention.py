"""Attention of one query, or of a few: what may be exchanged, moved, merged or scaled."""

from itertools import permutations

from headcheck.proofs import Equations, Terms, at_most, equal, proof


@proof(proves=("attention/symmetry/permuting-keys-changes-nothing",))
def permuting_keys_changes_nothing(t: Terms) -> Equations:
    """Keys in another order, their values with them, give the same output."""
    scores, values = t.row("s", 3), t.row("v", 3)
    for order in permutations(range(3)):
        moved = t.permutation(order).T
        yield equal(t.mean(scores * moved, values * moved), t.mean(scores, values))


@proof(proves=("attention/symmetry/permuting-queries-permutes-rows",))
def permuting_queries_permutes_rows(t: Terms) -> Equations:
    """Queries in another order give the same rows in that order."""
    query, key, value = (t.matrix(name, 2, 1) for name in "qkv")
    swap = t.permutation((1, 0))
    yield equal(t.attention(swap * query, key, value), swap * t.attention(query, key, value))


@proof(proves=("multi-head-attention/symmetry/permuting-tokens-permutes-the-output",))
def self_attention_permutes_with_its_tokens(t: Terms) -> Equations:
    """Tokens in another order give the same rows in that order: without positions there is no order."""
    tokens, swap = t.matrix("x", 2, 1), t.permutation((1, 0))
    yield equal(
        t.attention(swap * tokens, swap * tokens, swap * tokens), swap * t.attention(tokens, tokens, tokens)
    )


@proof(proves=("attention/distribution/output-stays-in-the-hull",))
def the_output_stays_in_the_hull(t: Terms) -> Equations:
    """If values are a, a + u, a + u + w with u, w >= 0, in any order, the output lies between a and a + u + w."""
    scores, lowest = t.row("s", 3), t.number("a")
    middle = lowest + t.nonnegative("u")
    highest = middle + t.nonnegative("w")
    output = t.mean(scores, t.Matrix([[lowest, middle, highest]]))
    yield at_most(lowest, output)
    yield at_most(output, highest)


@proof(proves=("attention/distribution/constant-values-come-back",))
def constant_values_come_back(t: Terms) -> Equations:
    """If every value is v, the output is v."""
    value = t.number("v")
    yield equal(t.mean(t.row("s", 3), value * t.ones(3)), value)


@proof(proves=("attention/distribution/one-key-gives-its-value",))
def one_key_gives_its_value(t: Terms) -> Equations:
    """With a single key the output is its value."""
    weights, values = t.named("p", t.softmax(t.row("s", 1))), t.row("v", 1)
    yield equal(t.dot(weights, values), values[0])


@proof(
    proves=(
        "attention/distribution/equal-scores-give-the-mean",
        "attention/accuracy/equal-scores-count-every-key",
    )
)
def equal_scores_give_the_mean(t: Terms) -> Equations:
    """If all scores are equal, the output is the mean of the values."""
    weights, values = t.named("p", t.softmax(t.number("s") * t.ones(3))), t.row("v", 3)
    yield equal(t.dot(weights, values), t.average(values))


@proof(proves=("attention/symmetry/linear-in-the-values",))
def linear_in_the_values(t: Terms) -> Equations:
    """The output of a v + w is a times that of v, plus that of w."""
    scores, values, others, factor = t.row("s", 3), t.row("v", 3), t.row("w", 3), t.number("a")
    yield equal(
        t.mean(scores, factor * values + others), factor * t.mean(scores, values) + t.mean(scores, others)
    )


@proof(proves=("attention/symmetry/parts-merge-to-the-whole",))
def parts_merge_by_log_sum_exp(t: Terms) -> Equations:
    """Attention over two parts of the keys, weighted by exp(lse of the part - lse), is attention over all."""
    scores, values = t.row("s", 3), t.row("v", 3)
    for cut in (1, 2):
        parts = [(scores[:, :cut], values[:, :cut]), (scores[:, cut:], values[:, cut:])]
        sizes = [t.exp(t.log_sum_exp(part)) for part, _ in parts]
        yield equal(t.log(sum(sizes)), t.log_sum_exp(scores))
        merged = t.dot(sizes, (t.mean(*part) for part in parts)) / sum(sizes)
        yield equal(merged, t.mean(scores, values))


@proof(proves=("attention/masks/a-bias-of-log-two-counts-a-key-twice",))
def a_bias_of_log_two_is_a_key_twice(t: Terms) -> Equations:
    """Raising one score by log 2 does what giving that key twice does."""
    scores, values = t.row("s", 3), t.row("v", 3)
    twice = (t.Matrix([[x[0], *x]]) for x in (scores, values))
    yield equal(t.mean(scores + t.Matrix([[t.log(2), 0, 0]]), values), t.mean(*twice))


@proof(proves=("attention/symmetry/duplicated-keys-change-nothing",))
def duplicated_keys_change_nothing(t: Terms) -> Equations:
    """All keys given twice give the same output."""
    scores, values = t.row("s", 3), t.row("v", 3)
    yield equal(t.mean(*(t.Matrix([[*x, *x]]) for x in (scores, values))), t.mean(scores, values))


@proof(proves=("attention/masks/padding-equals-truncation", "attention/distribution/masked-weights-are-zero"))
def a_masked_key_is_no_key(t: Terms) -> Equations:
    """As the bias on a key falls to minus infinity, its weight goes to 0 and the output to that without it."""
    scores, values, bias = t.row("s", 3), t.row("v", 3), t.number("b")
    masked = scores + t.Matrix([[0, 0, bias]])
    yield equal(t.limit(t.softmax(masked)[2], bias, -t.oo), 0)
    yield equal(t.limit(t.mean(masked, values), bias, -t.oo), t.mean(scores[:, :2], values[:, :2]))


@proof()
def deviations_from_the_output_cancel(t: Terms) -> Equations:
    """The weighted deviations from the output sum to 0: the reason why the error bound may be centred."""
    scores, values = t.row("s", 3), t.row("v", 3)
    output = t.named("o", t.mean(scores, values))
    yield equal(t.dot(t.softmax(scores), values - output * t.ones(3)), 0)


@proof(proves=("attention/symmetry/changing-the-basis-changes-nothing",))
def an_orthogonal_change_of_basis_keeps_the_scores(t: Terms) -> Equations:
    """(R q).(R k) = q.k for a rotation and for a reflection."""
    query, key = t.row("q", 2).T, t.row("k", 2).T
    rotation = t.rotation(t.number("a"))
    for change in (rotation, rotation * t.diag(1, -1)):
        yield equal(t.dot(change * query, change * key), t.dot(query, key))


@proof(proves=("attention/symmetry/scale-trades-with-query-and-key",))
def scale_trades_with_query_and_key(t: Terms) -> Equations:
    """A factor may stand on the query, on the key, or on the scale."""
    query, key, value = t.matrix("q", 1, 2), t.matrix("k", 2, 2), t.matrix("v", 2, 1)
    factor, scale = t.number("a"), t.number("c")
    on_query = t.attention(factor * query, key, value, scale)
    yield equal(on_query, t.attention(query, factor * key, value, scale))
    yield equal(on_query, t.attention(query, key, value, factor * scale))


@proof()
def the_variance_of_a_dot_product(t: Terms) -> Equations:
    """q.k of independent entries of mean 0 and variance 1 has the variance d, and 1 after division by sqrt(d)."""
    for dims in (1, 2, 3):
        product = t.dot(t.row("q", dims), t.row("k", dims))
        yield equal(t.variance(product), dims)
        yield equal(t.variance(product / t.sqrt(dims)), 1)


@proof()
def the_known_answer(t: Terms) -> Equations:
    """q = (0, sqrt 2) against the keys of the identity gives the weights (1, e) / (1 + e)."""
    query, identity = t.Matrix([[0, t.sqrt(2)]]), t.sympy.eye(2)
    weights = t.Matrix([[1, t.exp(1)]]) / (1 + t.exp(1))
    yield equal(t.attention(query, identity, identity, 1 / t.sqrt(2)), weights)
