"""Each row is a distribution: weights that are not negative and sum to one."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, holds, same, within
from headcheck.functions.softmax import SoftmaxInputs, SoftmaxSubject
from headcheck.given import at_least, having
from headcheck.laws import law

LOW = 4e4
"""By so much numbers of every format may be lower, and be finite."""
BOLTZMANN = "the definition: exp(x_i) / sum_j exp(x_j); Bridle 1990"


@law(
    source=BOLTZMANN,
    formula="0 <= p_i <= 1 + bound",
    guards="A sign, a polynomial for exp that turns negative, a denominator that misses a term.",
)
def weights_are_neither_negative_nor_above_one(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """No weight is negative, and none is above one by more than rounding."""
    weights = softmax(x)
    within_one = (weights >= 0) & (weights <= 1 + softmax.bound(x).to(weights.device))
    return holds(within_one, weights, "weight", softmax.expected(x))


@law(
    source=BOLTZMANN,
    formula="sum_i p_i = 1",
    guards="The wrong axis (labml 146), a denominator with padding in it or a block left out.",
)
def weights_sum_to_one(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """The weights of each row sum to one."""
    sums = softmax(x).double().sum(dim=-1).cpu()
    return within(sums, torch.ones_like(sums), softmax.bound(x).sum(dim=-1), "sum of the weights")


@law(
    source=BOLTZMANN,
    formula="x_i > x_j implies p_i >= p_j; x_i = x_j implies p_i = p_j",
    guards="A block whose maximum is not the row's; a tie broken by the place in a vector register.",
    given=(at_least(length=2),),
)
def order_is_kept(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Iterator[Comparison]:
    """A larger number has no smaller weight, and equal numbers have equal weights, within rounding."""
    order = x.x.argsort(dim=-1)
    sorted_x = x.x.gather(-1, order)
    weights = softmax(x).double().cpu().gather(-1, order)
    bound = softmax.bound(x).gather(-1, order)
    fall = (weights[..., :-1] - weights[..., 1:]).clamp(min=0.0)
    yield within(fall, torch.zeros_like(fall), bound[..., :-1] + bound[..., 1:], "fall of the weight")
    tied = sorted_x[..., :-1] == sorted_x[..., 1:]
    apart = torch.where(tied, (weights[..., :-1] - weights[..., 1:]).abs(), 0.0)
    yield within(
        apart, torch.zeros_like(apart), bound[..., :-1] + bound[..., 1:], "difference of tied weights"
    )


@law(
    source=BOLTZMANN,
    formula="x_i = -inf implies p_i = 0",
    guards="A mask that leaves something behind, NaN where a whole block is -inf (flashinfer 1178); -inf taken for -1e4 "
    "beside numbers as low.",
    given=(at_least(length=2), lambda case: case if case.hidden else case.but(hidden=case.length // 2)),
)
def minus_infinity_has_no_weight(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Iterator[Comparison]:
    """An entry of minus infinity has a weight of exactly zero, however low the others are."""
    hidden, lowest = x.x.isneginf(), torch.finfo(x.x.dtype).min
    for less, where in ((0.0, ""), (LOW, " among low numbers")):
        lower = torch.where(hidden, x.x, (x.x - less).clamp(min=lowest))
        seen = torch.where(hidden, softmax(x.but(x=lower)).cpu(), 0.0)
        yield same(seen, torch.zeros_like(seen), f"weight of -inf{where}")


@law(
    source="exp(-inf) = 0: such an entry is no part of the sum",
    formula="softmax([x, -inf]) = [softmax(x), 0]",
    guards="A length rounded up to a block, its rest counted with a weight.",
    given=(having(hidden=0),),
)
def appended_minus_infinity_changes_nothing(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """A row made longer by minus infinities keeps its weights."""
    more = 1 + x.case.seed % 33
    longer = torch.nn.functional.pad(x.x, (0, more), value=-torch.inf)
    length = x.x.shape[-1]
    return softmax.agree(x.but(x=longer), x, back=lambda weights: weights[..., :length])
