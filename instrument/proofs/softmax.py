"""Softmax: its sum, its symmetries, its limits and its derivative."""

from itertools import permutations

from headcheck.proofs import Equations, Terms, at_most, equal, proof


@proof(
    proves=(
        "attention/distribution/weights-sum-to-one",
        "softmax/distribution/weights-sum-to-one",
    )
)
def rows_sum_to_one(t: Terms) -> Equations:
    """The weights of a row sum to 1."""
    yield equal(sum(t.softmax(t.row("s", 3))), 1)


@proof(proves=("attention/distribution/weights-are-not-negative",))
def weights_are_not_negative(t: Terms) -> Equations:
    """No weight is below 0."""
    yield at_most(t.zeros(t.row("s", 3)), t.softmax(t.row("s", 3)))


@proof(
    proves=(
        "attention/symmetry/a-common-score-shift-changes-nothing",
        "softmax/symmetry/a-common-shift-changes-nothing",
    )
)
def a_shift_changes_nothing(t: Terms) -> Equations:
    """Adding one number to all scores of a row changes no weight."""
    scores = t.row("s", 3)
    yield equal(t.softmax(scores + t.number("t") * t.ones(3)), t.softmax(scores))


@proof()
def a_shift_moves_the_log_sum_exp(t: Terms) -> Equations:
    """Adding one number to all scores adds it to the log-sum-exp."""
    scores, shift = t.row("s", 3), t.number("t")
    yield equal(t.log_sum_exp(scores + shift * t.ones(3)), t.log_sum_exp(scores) + shift)


@proof(proves=("softmax/symmetry/permuting-entries-permutes-weights",))
def permuted_scores_permute_weights(t: Terms) -> Equations:
    """Scores in another order give the same weights in that order."""
    scores = t.row("s", 3)
    for order in permutations(range(3)):
        moved = t.permutation(order)
        yield equal(t.softmax(scores * moved.T), t.softmax(scores) * moved.T)


@proof(proves=("softmax/distribution/order-is-kept",))
def a_higher_score_has_no_smaller_weight(t: Terms) -> Equations:
    """Raising a score by log(1 + u), u >= 0, above another makes its weight no smaller than the other's."""
    low, other = t.row("s", 2)
    higher = low + t.log(1 + t.nonnegative("u"))
    weights = t.softmax(t.Matrix([[low, higher, other]]))
    yield at_most(weights[0], weights[1])


@proof(proves=("softmax/limits/the-hot-limit-is-even",))
def a_high_temperature_makes_weights_equal(t: Terms) -> Equations:
    """As the temperature T grows, every weight of n goes to 1 / n."""
    temperature = t.positive("T")
    for weight in t.softmax(t.row("s", 3) / temperature):
        yield equal(t.limit(weight, temperature, t.oo), t.Rational(1, 3))


@proof(proves=("softmax/limits/the-cold-limit-picks-the-largest",))
def a_low_temperature_picks_the_highest_score(t: Terms) -> Equations:
    """As the temperature 1 / b falls to 0, the score that is lower by d > 0 loses all its weight."""
    inverse, gap = t.positive("b"), t.positive("d")
    highest, lower = t.softmax(t.Matrix([[0, -inverse * gap]]))
    yield equal(t.limit(highest, inverse, t.oo), 1)
    yield equal(t.limit(lower, inverse, t.oo), 0)


@proof(proves=("softmax/gradients/the-jacobian-is-symmetric",))
def the_jacobian(t: Terms) -> Equations:
    """dp_i / ds_j = p_i (1 if i = j else 0) - p_i p_j."""
    scores = t.row("s", 3)
    weights = t.named("p", t.softmax(scores))
    yield equal(t.jacobian(weights, scores), t.diag(*weights) - weights.T * weights)


@proof(proves=("softmax/gradients/the-gradient-of-a-row-sums-to-zero",))
def rows_of_the_jacobian_sum_to_zero(t: Terms) -> Equations:
    """The derivatives of a weight by all scores sum to 0, and so do those of all weights by a score."""
    scores = t.row("s", 3)
    weights = t.named("p", t.softmax(scores))
    jacobian = t.diag(*weights) - weights.T * weights
    for total in jacobian * t.ones(3).T:
        yield equal(total, 0)
    yield equal(sum(t.jacobian(weights, scores).col(0)), 0)


@proof()
def the_gradient_of_the_log_sum_exp(t: Terms) -> Equations:
    """The derivative of the log-sum-exp by a score is that score's weight."""
    scores = t.row("s", 3)
    yield equal(t.jacobian([t.log_sum_exp(scores)], scores), t.softmax(scores))


@proof(proves=("attention/features/a-sink-takes-its-share",))
def a_sink_takes_what_is_missing(t: Terms) -> Equations:
    """With a sink, the weights sum to 1 less the weight that the sink has among the scores."""
    scores, sink = t.row("s", 3), t.number("z")
    share = t.softmax(t.Matrix([[*scores, sink]]))[3]
    yield equal(sum(t.softmax(scores, sink)), 1 - share)


@proof(proves=("attention/features/a-sink-far-below-takes-nothing",))
def a_sink_far_below_takes_nothing(t: Terms) -> Equations:
    """As a sink falls to minus infinity, the weights become those without it."""
    scores, sink = t.row("s", 2), t.number("z")
    for weight, alone in zip(t.softmax(scores, sink), t.softmax(scores), strict=True):
        yield equal(t.limit(weight, sink, -t.oo), alone)
