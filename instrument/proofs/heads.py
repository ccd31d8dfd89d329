"""Several heads: what concatenation and the output projection do."""

from headcheck.proofs import Equations, Terms, equal, proof


@proof(proves=("multi-head-attention/heads/what-the-heads-give-adds-up",))
def the_output_projection_sums_over_heads(t: Terms) -> Equations:
    """Concatenated heads times W equal the sum of each head times its own rows of W."""
    heads, weight = [t.matrix(name, 2, 2) for name in "ab"], t.matrix("w", 4, 2)
    yield equal(t.concatenated(heads) * weight, heads[0] * weight[:2, :] + heads[1] * weight[2:, :])


@proof(proves=("multi-head-attention/heads/permuting-heads-with-the-output-projection-changes-nothing",))
def heads_may_change_places(t: Terms) -> Equations:
    """Heads in another order, the rows of the output projection with them, give the same output."""
    heads, weight = [t.matrix(name, 2, 2) for name in "ab"], t.matrix("w", 4, 2)
    moved = t.concatenated([weight[2:, :].T, weight[:2, :].T]).T
    yield equal(t.concatenated(heads[::-1]) * moved, t.concatenated(heads) * weight)


@proof()
def one_projection_is_that_of_each_head(t: Terms) -> Equations:
    """x times the concatenated projections is the concatenation of x times each."""
    tokens, projections = t.matrix("x", 2, 2), [t.matrix(name, 2, 2) for name in "ab"]
    yield equal(tokens * t.concatenated(projections), t.concatenated([tokens * each for each in projections]))
