"""The smoothed loss and its minimum, the schedule and its peak, clipping."""

from headcheck.proofs import Equations, Terms, at_most, equal, proof


@proof()
def smoothed_targets_sum_to_one(t: Terms) -> Equations:
    """A smoothed target is a distribution."""
    yield equal(sum(t.smoothed(0, 3, t.positive("epsilon"))), 1)


@proof()
def the_gradient_of_the_loss(t: Terms) -> Equations:
    """The derivative of the loss by the logits is softmax(logits) - target."""
    logits = t.row("z", 3)
    target = t.named("q", t.smoothed(0, 3, t.positive("epsilon")))
    loss = t.named("L", t.cross_entropy(logits, target))
    yield equal(t.jacobian([loss], logits), t.named("p", t.softmax(logits)) - target)


@proof()
def the_loss_is_least_at_the_smoothed_target(t: Terms) -> Equations:
    """Where the logits are the logarithm of the target, the loss is its entropy, and the derivative is 0."""
    share, logits = t.positive("u"), t.row("z", 2)
    smoothing = 1 / (1 + share)  # Any number between 0 and 1.
    target = t.named("q", t.smoothed(0, 2, smoothing))
    best = target.applyfunc(t.log)
    yield equal(t.softmax(best), target)
    yield equal(t.cross_entropy(best, target), -t.dot(target, best))
    slope = t.jacobian([t.named("L", t.cross_entropy(logits, target))], logits)
    yield equal(t.at(slope, dict(zip(logits, best, strict=True))), t.zeros(best))


@proof()
def the_loss_is_convex(t: Terms) -> Equations:
    """Its second derivative along any direction is a sum of p_i p_j (x_i - x_j)^2: where the first is 0, it is least."""
    weights, along = t.named("p", t.softmax(t.row("z", 3))), t.row("x", 3)
    curvature = t.diag(*weights) - weights.T * weights
    pairs = [(0, 1), (0, 2), (1, 2)]
    squares = sum(weights[i] * weights[j] * (along[i] - along[j]) ** 2 for i, j in pairs)
    yield equal((along * curvature * along.T)[0], squares)
    logits = t.row("z", 2)
    slope = t.jacobian(
        [t.named("L", t.cross_entropy(logits, t.smoothed(0, 2, t.positive("epsilon"))))], logits
    )
    p = t.named("p", t.softmax(logits))
    yield equal(t.jacobian(slope, logits), t.diag(*p) - p.T * p)


@proof()
def equal_logits_cost_the_logarithm_of_the_vocabulary(t: Terms) -> Equations:
    """A model that says the same of every word has the loss log V, however labels are smoothed."""
    yield equal(t.cross_entropy(t.number("z") * t.ones(3), t.smoothed(0, 3, t.positive("epsilon"))), t.log(3))


@proof()
def the_schedule_is_continuous_at_its_peak(t: Terms) -> Equations:
    """Rise and fall meet at the warm-up, with the rate 1 / sqrt(d_model warmup)."""
    warmup, d_model = t.positive("w"), t.positive("d")
    yield equal(t.rise(warmup, d_model, warmup), t.fall(warmup, d_model))
    yield equal(t.fall(warmup, d_model), 1 / t.sqrt(d_model * warmup))


@proof()
def the_schedule_is_highest_at_the_warmup(t: Terms) -> Equations:
    """Rise over fall is (step / warmup)^(3 / 2): the rise is the smaller before; it grows, and the fall falls."""
    step, warmup, d_model = t.positive("s"), t.positive("w"), t.positive("d")
    rise, fall = t.rise(step, d_model, warmup), t.fall(step, d_model)
    yield equal(rise / fall, (step / warmup) ** t.Rational(3, 2))
    yield at_most(0, t.jacobian([rise], [step])[0])
    yield at_most(t.jacobian([fall], [step])[0], 0)


@proof()
def a_clipped_gradient_has_the_norm_allowed(t: Terms) -> Equations:
    """g c / |g| has the norm c."""
    gradient, most = t.row("g", 3), t.positive("c")
    yield equal(t.norm(gradient * most / t.norm(gradient)), most)


@proof()
def tied_weights_add_their_gradients(t: Terms) -> Equations:
    """The derivative by a weight used in two places is the sum of the derivatives by each use."""
    tied, first, second, token = (t.number(name) for name in ("w", "a", "b", "x"))
    apart = t.softmax(t.Matrix([[first * second * token, second]]))[0]
    together = t.at(apart, {first: tied, second: tied})
    by_use = (t.jacobian([apart], [first, second]) * t.ones(2).T)[0]
    yield equal(t.jacobian([together], [tied])[0], t.at(by_use, {first: tied, second: tied}))
