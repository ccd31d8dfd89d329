"""What happens at the ends: cold and hot, huge and equal."""

import torch

from headcheck.comparison import Comparison, within
from headcheck.functions.softmax import SoftmaxInputs, SoftmaxSubject
from headcheck.given import at_least, having
from headcheck.laws import law

TEMPERATURE = "Hinton et al. 2015, section 2: softmax(x / T)"


@law(
    source=TEMPERATURE,
    formula="softmax(x / T) -> the mean over the largest entries, as T -> 0",
    guards="exp of a large number: inf / inf = NaN.",
    given=(at_least(length=2),),
)
def the_cold_limit_picks_the_largest(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """Where the largest entries stand far above all others, they share the whole weight."""
    top = x.x == x.x.amax(dim=-1, keepdim=True)
    cold = x.but(x=torch.where(top, 8000.0, -8000.0).to(x.dtype))
    exact = top.double() / top.sum(dim=-1, keepdim=True)
    return within(softmax(cold), exact, softmax.bound(cold))


@law(
    source=TEMPERATURE,
    formula="softmax(x / T) -> 1 / n, as T -> inf; softmax(c, ..., c) = 1 / n",
    guards="A constant row far from zero: exp overflows, or the sum is rounded away.",
    given=(having(hidden=0),),
)
def the_hot_limit_is_even(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """A row of one and the same number, however large, gives each entry the same weight."""
    size = (0.0, 1.0, -90.0, 100.0, 30000.0, -30000.0)[x.case.seed % 6]
    even = x.but(x=torch.full_like(x.x, size))
    exact = torch.full(even.x.shape, 1 / even.x.shape[-1], dtype=torch.float64)
    return within(softmax(even), exact, softmax.bound(even))


@law(
    source="log p_i = x_i - log sum_j exp(x_j)",
    formula="log(p_i / p_j) = x_i - x_j",
    guards="A base other than e, a temperature left in, a polynomial for exp that drifts.",
    given=(at_least(length=2), having(hidden=0)),
)
def the_odds_are_the_exponent_of_the_difference(softmax: SoftmaxSubject, x: SoftmaxInputs) -> Comparison:
    """The ratio of two weights is exp of the difference of their entries."""
    weights, bound = softmax(x).double().cpu(), softmax.bound(x)
    place = x.x.argmax(dim=-1, keepdim=True)
    ratio = torch.exp(x.x.double() - x.x.double().gather(-1, place))
    top, top_bound = weights.gather(-1, place), bound.gather(-1, place)
    return within(weights, top * ratio, bound + top_bound * ratio, "weight")
