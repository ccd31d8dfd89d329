"""Linear attention for any positive features, and windows."""

from headcheck.proofs import Equations, Terms, at_most, equal, proof


@proof()
def summing_the_keys_first_changes_nothing(t: Terms) -> Equations:
    """phi(q) (phi(K)^T V) / phi(q) (phi(K)^T 1) is the mean of the values by the kernel phi(q).phi(k)."""
    query, key, value = t.matrix("q", 1, 2), t.matrix("k", 2, 2), t.matrix("v", 2, 1)
    yield equal(t.linear_attention(query, key, value), t.kernel_attention(query, key, value))


@proof()
def token_by_token_is_all_at_once(t: Terms) -> Equations:
    """The state after each token answers as linear attention over the keys up to it does."""
    query, key, value = t.matrix("q", 3, 2), t.matrix("k", 3, 2), t.matrix("v", 3, 1)
    state = t.empty_state(key, value)
    for i in range(3):
        state = t.linear_step(state, key.row(i), value.row(i))
        past = slice(0, i + 1)
        yield equal(
            t.read(query.row(i), state), t.linear_attention(query.row(i), key[past, :], value[past, :])
        )


@proof()
def a_feature_is_positive_and_smooth(t: Terms) -> Equations:
    """elu(x) + 1 is above 0 on both sides, and its two branches meet at 0 with the same value and slope."""
    x, above = t.number("x"), t.nonnegative("u")
    yield at_most(0, t.elu_plus_one(x, "below"))
    yield at_most(1, t.elu_plus_one(above, "above"))
    branches = [t.elu_plus_one(x, side) for side in ("above", "below")]
    yield equal(*(t.limit(branch, x, 0) for branch in branches))
    yield equal(*(t.limit(t.jacobian([branch], [x])[0], x, 0) for branch in branches))


@proof()
def layers_of_windows_reach_layers_times_the_window(t: Terms) -> Equations:
    """The k-th power of a band is nowhere outside the band k times as wide, and everywhere inside it."""
    length, left, right = 8, 2, 1
    for layers in (2, 3):
        paths = t.band(length, left, right) ** layers
        reached = t.band(length, layers * left, layers * right)
        outside = t.ones(length).T * t.ones(length) - reached
        yield equal(paths.multiply_elementwise(outside), 0 * outside)
        yield at_most(reached, paths)
