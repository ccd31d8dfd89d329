"""What may be moved or exchanged: no law here needs to know the right output."""

import torch

from headcheck.comparison import Comparison, within
from headcheck.functions.softmax import SoftmaxInputs, SoftmaxSubject
from headcheck.given import at_least, having, one_in, one_of
from headcheck.laws import law

SHIFT = "exp(x + c) = exp(c) exp(x): the common factor cancels"


@law(
    source=SHIFT,
    formula="softmax(x + c) = softmax(x) for every c",
    guards="exp without the maximum taken out: overflow, underflow, or digits lost far from zero; the maximum of "
    "another row, in a vector of several (pytorch 156379).",
    given=(one_in(4, one_of("rows", 33, 65), one_of("dim", 0, 1), one_of("dtype", "bfloat16", "float16")),),
)
def a_common_shift_changes_nothing(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """Adding one whole number to a row of small whole numbers, which is exact, changes no weight; a row has its own."""
    whole = x.but(x=torch.where(x.x.isneginf(), x.x, x.x.round().clamp(-8, 8)))
    shifts = torch.tensor((16, -16, 64, -64, 96, -96, 200, -200), dtype=x.dtype).roll(x.case.seed)
    by = shifts.repeat(x.x.shape[1])[:: 5 if x.case.seed % 2 else 8][: x.x.shape[1], None]
    return softmax.agree(whole.but(x=whole.x + by), whole)


@law(
    source="a sum does not depend on the order of its terms",
    formula="softmax(P x) = P softmax(x)",
    guards="The last entries of a block dropped, or the first ones counted twice.",
    given=(at_least(length=2),),
)
def permuting_entries_permutes_weights(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """Entries in another order have the same weights in that order."""
    order = x.permutation(x.x.shape[-1])
    return softmax.agree(x.but(x=x.x[..., order]), x, back=lambda weights: weights[..., order.argsort()])


@law(
    source="rows are computed each by itself",
    formula="softmax([a; b])_a = softmax(a)",
    guards="A maximum or a sum taken over the whole tensor; rows that share a buffer.",
    given=(at_least(rows=2),),
)
def a_row_does_not_see_the_others(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """A row among others has the weights that it has alone."""
    row = x.case.seed % x.x.shape[1]
    alone = x.but(x=x.x[:, row : row + 1])
    whole = softmax(x)[:, row : row + 1]
    return within(softmax(alone), whole, softmax.bound(alone) + softmax.bound(x)[:, row : row + 1])


@law(
    source="rows are computed each by itself",
    formula="NaN in row a: row b is what it was",
    guards="A maximum over the whole tensor, or a branch taken for all rows at once.",
    given=(at_least(rows=2), having(hidden=0)),
)
def a_row_of_nan_spoils_no_other(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """NaN or an infinity in one row leaves the others as they were."""
    spoiled = x.x.clone()
    spoiled[:, 0] = (torch.nan, torch.inf)[x.case.seed % 2]
    return within(softmax(x.but(x=spoiled))[:, 1:], softmax(x)[:, 1:], 2 * softmax.bound(x)[:, 1:])


@law(
    source="dim names the axis of the rows",
    formula="softmax(x^T, other dim) = softmax(x)^T",
    guards="A dim that is ignored, or negative ones counted wrongly.",
    needs=("dim",),
    given=(one_of("dim", 0, 1, 2, -2),),
)
def every_dim_is_the_last_one_turned(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """Along any axis the weights are those of the same rows along the last one."""
    return softmax.agree(x, x.but(dim=-1))


@law(
    source="Milakov & Gimelshein 2018: partial results merge by their maxima and sums",
    formula="softmax([a, b])_a = softmax(a) sum_a p",
    guards="A long row split into parts that are merged with the wrong weight.",
    given=(at_least(length=2), having(hidden=0)),
)
def a_part_of_a_row_keeps_its_proportions(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """The weights of a row's first part are those of that part alone, times its share."""
    half = x.x.shape[-1] // 2
    part = x.but(x=x.x[..., :half])
    share = softmax(x)[..., :half].double().cpu()
    total = share.sum(dim=-1, keepdim=True)
    limit = softmax.bound(x)[..., :half]
    alone = softmax(part).double().cpu()
    allowed = limit + softmax.bound(part) * (total + limit.sum(dim=-1, keepdim=True))
    return within(alone * total, share, allowed + alone * limit.sum(dim=-1, keepdim=True))
