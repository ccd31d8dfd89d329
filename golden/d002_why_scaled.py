"""Document 002, lines 77 to 99: why the scores are divided by sqrt(d_k)."""

from typing import Any

import sympy

from headcheck.golden.d002 import RAW
from headcheck.golden.derived import Derived, tensor
from headcheck.golden.exact import fractions, q, softmax, softmax_again, widely
from headcheck.golden.ledger import Section
from headcheck.golden.stated import HOLDS, exactly, nested, rounded, wide
from headcheck.reference import softmax as reference_softmax

WHY = Section("002", "why-scaled")

D, T = sympy.symbols("d t", positive=True)


def softmax_of(scores: str) -> Derived:
    """The softmax of a row of printed scores."""
    return Derived(
        exact=lambda: softmax([q(each) for each in scores.split()]),
        again=widely(lambda: softmax_again([wide(each) for each in fractions(scores)[0]])),
        reference=lambda: reference_softmax(tensor(scores))[0],
        inputs={"operation": "softmax", "scores": scores},
    )


def _variance() -> sympy.Expr:
    """d E[q^2] E[k^2] of independent standard normal components, by integration."""
    x = sympy.Symbol("x", real=True)
    density = sympy.exp(-(x**2) / 2) / sympy.sqrt(2 * sympy.pi)
    return D * sympy.integrate(x**2 * density, (x, -sympy.oo, sympy.oo)) ** 2


def _variance_again() -> sympy.Expr:
    """The second derivative at 0 of E[e^(t q.k)] = (1 - t^2)^(-d/2)."""
    return sympy.diff((1 - T**2) ** (-D / 2), T, 2).subs(T, 0)


def _deviation(head_dim: int) -> Derived:
    """Of an unscaled score."""
    return Derived(
        lambda: sympy.sqrt(_variance().subs(D, head_dim)),
        lambda: sympy.sqrt(_variance_again().subs(D, head_dim)),
    )


def _largest_slope(weights: list[Any]) -> Any:
    """The largest entry of the Jacobian of a softmax: a_i (1 - a_i)."""
    return max(each * (1 - each) for each in weights)


# Lines 79 to 84

WHY.not_checkable(
    "frozen-model",
    79,
    "a model that learns and a model that's frozen",
    "Without the scale a model does not learn.",
    reason="It depends on a training that is not given.",
)
for name, line, place in (
    ("variance", 80, "has a variance of d_k"),
    ("variance-again", 86, "Variance of raw dot product: d_k"),
):
    WHY.confirmed(
        name,
        line,
        place,
        "The dot product of standard normal vectors has variance d_k: divided by d_k it is 1.",
        exactly("1"),
        Derived(lambda: _variance() / D, lambda: _variance_again() / D),
        formula=r"\text{Var}(q \cdot k) = d_k",
    )
for name, place, head_dim, said in (
    ("deviation-4", "= 2. Our", 4, "2"),
    ("deviation-64", "= 8. Scores", 64, "8"),
):
    WHY.confirmed(
        name,
        81,
        place,
        f"The deviation of a dot product of standard normal vectors of {head_dim} dims.",
        exactly(said),
        _deviation(head_dim),
        formula=rf"\sqrt{{d_k}} = \sqrt{{{head_dim}}}",
    )
WHY.confirmed(
    "range-of-the-scores",
    81,
    "scores range from 2 to 16",
    "The smallest and the largest score of the example.",
    exactly("2 16"),
    RAW.scores.map(lambda rows: [min(map(min, nested(rows))), max(map(max, nested(rows)))]),
)
WHY.not_checkable(
    "range-with-64-dims",
    81,
    "might range from -20 to +25",
    "With 64 dims scores might range from -20 to +25.",
    reason="What might be: the two lie 2.5 and 3.1 deviations from the mean.",
)
for number, printed in enumerate(("1.000", "0.000", "0.000")):
    WHY.confirmed(
        f"saturated-{number}",
        83,
        "[1.000, 0.000, 0.000]",
        f"Weight {number} of the scores 20, 1, -15.",
        rounded(printed),
        softmax_of("20 1 -15").at(number),
    )
WHY.confirmed(
    "gradient-is-vanishing",
    84,
    "vanishingly small",
    "No derivative of the softmax at these scores exceeds 1e-8; evenly spread weights have 2/9.",
    HOLDS,
    softmax_of("20 1 -15").map(lambda weights: bool(_largest_slope(nested(weights)) < 1e-8)),
    formula=r"\frac{\partial \alpha_i}{\partial s_i} = \alpha_i (1 - \alpha_i) < 10^{-8}",
)
WHY.not_checkable(
    "stuck",
    84,
    "stuck in whatever pattern",
    "A saturated model keeps the pattern into which it fell early in training.",
    reason="It depends on a training that is not given.",
)

# Lines 85 to 88

for name, line, place in (
    ("variance-after-scaling", 85, "back to approximately 1"),
    ("variance-after-scaling-again", 87, "d_k / d_k = 1"),
):
    WHY.confirmed(
        name,
        line,
        place,
        "Divided by sqrt(d_k), the dot product has variance 1, whatever d_k.",
        exactly("1"),
        Derived(
            lambda: _variance() / sympy.sqrt(D) ** 2,
            lambda: sympy.diff((1 - T**2 / D) ** (-D / 2), T, 2).subs(T, 0),
        ),
        formula=r"\text{Var}(q \cdot k / \sqrt{d_k}) = d_k / d_k",
    )
WHY.confirmed(
    "positions-share",
    88,
    "multiple positions can share attention",
    "Divided by sqrt(64), the scores 20, 1, -15 leave each position more than 1%.",
    HOLDS,
    softmax_of("2.5 0.125 -1.875").map(lambda weights: bool(min(nested(weights)) > 0.01)),
)


# Line 99

WHY.not_checkable(
    "catastrophic",
    99,
    "the effect without scaling is catastrophic",
    "In real models of 64 or 128 dims the effect of no scale is catastrophic.",
    reason="Catastrophic is no measure; the models are not given.",
)
WHY.not_checkable(
    "quotation",
    99,
    "We suspect that for large values of d_k",
    "The paper suspects that large dot products push the softmax to where its gradients are small.",
    reason="A quotation, word for word from section 3.2.1 of the paper; no derivation decides a suspicion.",
)
