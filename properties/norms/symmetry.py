"""What may be moved, turned or exchanged: no law here needs to know the right output."""

import torch

from headcheck.comparison import Comparison, within
from headcheck.functions.norms import NORMS, NormInputs, NormSubject
from headcheck.given import at_least
from headcheck.laws import law

EACH_ROW = "rows are normalised each by itself"


@law(
    source="a sum does not depend on the order of its terms",
    formula="f(P x, P w, P b) = P f(x, w, b)",
    guards="The last features of a block dropped or counted twice, a weight read in another order than the row.",
    given=(at_least(dim=2),),
    roles=NORMS,
)
def permuting_features_permutes_the_output(norm: NormSubject, x: NormInputs) -> Comparison:
    """Features in another order, with their weights and biases, give the same output in that order."""
    order = x.permutation(x.x.shape[-1])
    moved = x.but(**{name: each[..., order] for name, each in x.tensors.items()})
    return norm.agree(moved, x, back=lambda output: output[..., order.argsort()])


@law(
    source="(-x)^2 = x^2",
    formula="f(-x, w, 0) = -f(x, w, 0)",
    guards="A root or a clamp that looks at the sign of the row.",
    roles=NORMS,
)
def a_row_turned_round_turns_the_output(norm: NormSubject, x: NormInputs) -> Comparison:
    """Rows of the opposite sign give the output of the opposite sign, the bias apart."""
    plain = norm.bare(x).but(weight=x.weight)
    limit = norm.bound(plain) + norm.bound(plain.but(x=-plain.x))
    return within(-norm(plain.but(x=-plain.x)), norm(plain), limit)


@law(
    source=EACH_ROW,
    formula="f([a; b])_a = f(a)",
    guards="Statistics over a whole sequence or batch, rows that share a buffer.",
    given=(at_least(rows=2),),
    roles=NORMS,
)
def a_row_does_not_see_the_others(norm: NormSubject, x: NormInputs) -> Comparison:
    """A row among others has the output that it has alone."""
    row = x.case.seed % x.x.shape[1]
    alone = x.but(x=x.x[:, row : row + 1])
    whole, bound = norm(x)[:, row : row + 1], norm.bound(x)[:, row : row + 1]
    return within(norm(alone), whole, norm.bound(alone) + bound)


@law(
    source=EACH_ROW,
    formula="f(x of batch x rows) = f(x of 1 x batch rows)",
    guards="A kernel that takes its rows from one axis only, or the statistics of the first sequence for all.",
    given=(at_least(batch=2),),
    roles=NORMS,
)
def how_rows_are_grouped_does_not_matter(norm: NormSubject, x: NormInputs) -> Comparison:
    """The rows of a whole batch, one after the other in one sequence, have the same output."""
    flat = x.but(x=x.x.reshape(1, -1, x.x.shape[-1]))
    return norm.agree(flat, x, back=lambda output: output.reshape(x.x.shape))


@law(
    source=EACH_ROW,
    formula="NaN in row a: row b is what it was",
    guards="A statistic over the whole tensor, or a branch taken for all rows at once.",
    given=(at_least(rows=2),),
    roles=NORMS,
)
def a_row_of_nan_spoils_no_other(norm: NormSubject, x: NormInputs) -> Comparison:
    """NaN or an infinity in one row leaves the others as they were."""
    spoiled = x.x.clone()
    spoiled[:, 0] = (torch.nan, torch.inf)[x.case.seed % 2]
    return within(norm(x.but(x=spoiled))[:, 1:], norm(x)[:, 1:], 2 * norm.bound(x)[:, 1:])
