"""Document 000, lines 242 to 311: scaled dot-product attention and its scale."""

from dataclasses import replace

import mpmath
import sympy
import torch

from headcheck.golden.derived import Derived, Worked, counted, holds, same
from headcheck.golden.exact import matrix, product_again, q, softmax, softmax_rows, widely
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import variance_of_product
from headcheck.golden.stated import HOLDS, exactly, rounded, shape

IDEA = Section("000", "scaled-dot-product")
CODE = Section("000", "scaled-code")

EXAMPLE = Worked("1 0; 0 2", "1 1; 0 3", "1 2; 3 4")
QUERY, KEY, VALUE = (matrix(each) for each in (EXAMPLE.query, EXAMPLE.key, EXAMPLE.value))
"""Inputs of our own, for statements about every input."""
DEVIATION = sympy.sqrt(512)
"""Of an unscaled score of head_dim 512."""
GAP = (24 / sympy.pi * sympy.atan(sympy.sqrt(2)) - 6) / sympy.sqrt(sympy.pi)
"""Between the two largest of four standard normal numbers, on average."""

D = sympy.Symbol("d", positive=True)
T = sympy.Symbol("t", positive=True)


def _slope() -> sympy.Expr:
    """The derivative of a softmax of two scores that differ by t."""
    weight = 1 / (1 + sympy.exp(-T))
    return sympy.diff(weight, T)


def _variance_by_generating_function() -> sympy.Expr:
    """The second derivative at 0 of E[e^(t q.k)] = (1 - t^2)^(-d/2)."""
    return sympy.diff((1 - T**2) ** (-D / 2), T, 2).subs(T, 0)


def _linear_in_symbols() -> bool:
    a, b = sympy.symbols("a b")
    x, y = (sympy.Matrix([sympy.symbols(f"{name}:2")]) for name in "xy")
    w = sympy.Matrix(2, 2, sympy.symbols("w:4"))
    return bool(((a * x + b * y) * w - a * (x * w) - b * (y * w)).expand() == sympy.zeros(1, 2))


def _mapped(row: list[int]) -> list[int]:
    return list(product_again([row], [[1, 4], [-6, 9]])[0])


def _gradient_of_a_projection() -> torch.Tensor:
    layer = torch.nn.Linear(2, 2, bias=False)
    return torch.autograd.grad((torch.ones(1, 2) @ layer.weight.T).sum(), layer.weight)[0]


def _expected_beyond(score: int) -> sympy.Expr:
    """How many of 16 normal scores of deviation sqrt(512) are expected beyond +-score."""
    return (16 * sympy.erfc(score / (DEVIATION * sympy.sqrt(2)))).evalf(30)


def _gap_of_the_top_two() -> mpmath.mpf:
    """E[first - second] of four standard normal numbers: the integral of 4 F^3 (1 - F); within `widely`."""
    return mpmath.quad(lambda x: 4 * mpmath.ncdf(x) ** 3 * mpmath.ncdf(-x), [-20, -9, -2, 0, 2, 9, 20])


# Lines 248 to 272

IDEA.confirmed(
    "formula",
    250,
    "softmax(Q",
    "Attention is softmax(Q K^T / sqrt(d_k)) V: the reference computes the formula.",
    HOLDS,
    same(
        lambda: softmax_rows(QUERY * KEY.T / sympy.sqrt(2)) * VALUE,
        EXAMPLE.output.exact,
        EXAMPLE.output.reference,
    ),
    formula=r"\text{Attention}(Q, K, V) = \text{softmax}(Q K^T / \sqrt{d_k}) V",
)
IDEA.confirmed(
    "scale-is-the-root",
    252,
    "the square root of the key dimension",
    "The divisor is the root of the dimension of the keys.",
    HOLDS,
    holds(
        lambda: EXAMPLE.scores.exact()[1, 1] == 6 / sympy.sqrt(2),
        lambda: abs(EXAMPLE.scores.exact()[1, 1].evalf(40) ** 2 - 18) < 1e-30,
    ),
    formula=r"s = \frac{q \cdot k}{\sqrt{d_k}}",
)
IDEA.confirmed(
    "dot-products-grow",
    252,
    "the dot products grow very large",
    "Unscaled, the variance of a dot product is d_k: here of d_k = 512.",
    exactly("512"),
    Derived(lambda: 512 * variance_of_product(), lambda: _variance_by_generating_function().subs(D, 512)),
    formula=r"\text{Var}(q \cdot k) = d_k",
)
IDEA.confirmed(
    "gradients-are-tiny",
    252,
    "its gradients are tiny",
    "As one score outgrows the others, the derivative of the softmax goes to zero.",
    HOLDS,
    holds(lambda: sympy.limit(_slope(), T, sympy.oo) == 0, lambda: _slope().subs(T, 100).evalf(30) < 1e-40),
    formula=r"\frac{\partial \alpha}{\partial s} = \alpha (1 - \alpha) \to 0",
)
IDEA.confirmed(
    "variance-is-one",
    252,
    "the variance of the dot products at approximately 1",
    "Of independent standard normal components, the scaled dot product has variance 1 whatever d_k.",
    exactly("1"),
    Derived(lambda: D * variance_of_product() / D, lambda: _variance_by_generating_function() / D),
    formula=r"\text{Var}(q \cdot k) = d_k, \quad \text{Var}(q \cdot k / \sqrt{d_k}) = 1",
)
IDEA.confirmed(
    "projection-is-linear",
    260,
    "the mapping respects addition and scaling",
    "x W respects addition and scaling.",
    HOLDS,
    holds(
        _linear_in_symbols,
        lambda: (
            _mapped([16, 5])
            == [3 * a + 2 * b for a, b in zip(_mapped([2, -3]), _mapped([5, 7]), strict=True)]
        ),
    ),
    formula=r"(a x + b y) W = a \, x W + b \, y W",
)
IDEA.confirmed(
    "projection-shapes",
    264,
    r"\in \mathbb{R}^{d_k}$",
    "A row of d_in numbers times a matrix of d_in rows and d_k columns has d_k numbers: here of 3 and 2.",
    shape(1, 2),
    counted(
        lambda: (sympy.zeros(1, 3) * sympy.zeros(3, 2)).shape,
        lambda: (torch.zeros(1, 3) @ torch.zeros(3, 2)).shape,
    ),
    formula=r"q_i = x_i W_Q, \quad x_i \in R^{d_{in}}, \quad W_Q \in R^{d_{in} \times d_k}",
)
IDEA.confirmed(
    "weight-is-transposed",
    272,
    ".weight.T",
    "The weight of a linear layer from d_in to d_k has d_k rows: transposed, it is W_Q.",
    shape(3, 2),
    counted(lambda: (3, 2), lambda: torch.nn.Linear(3, 2, bias=False).weight.T.shape),
)
IDEA.confirmed(
    "projection-is-learnable",
    272,
    "gradients flow back through the matrix multiplication",
    "The projection gets a gradient.",
    HOLDS,
    holds(
        lambda: sympy.diff((sympy.Matrix([[2, 3]]) * sympy.Matrix([D, D**2]))[0], D) != 0,
        lambda: _gradient_of_a_projection().any(),
    ),
    formula=r"\frac{\partial (x W)_j}{\partial W_{ij}} = x_i",
)

# Lines 274 to 304

CODE.block(
    "steps",
    274,
    304,
    "The four steps on random queries, keys and values.",
    alone=Run(
        prints=(
            "Raw scores shape: torch.Size([4, 4])",
            "Row sums: tensor([1., 1., 1., 1.])",
            "Output shape: torch.Size([4, 8])",
        )
    ),
)
ZEROS = "; ".join(["0 0 0 0 0 0 0 0"] * 4)
FOUR = Worked(ZEROS, ZEROS, ZEROS)
for name, line, axes, derived in (
    ("query", 282, (4, 8), counted(lambda: (4, 8), lambda: torch.zeros(4, 8).shape)),
    ("key", 283, (4, 8), counted(lambda: (4, 8), lambda: torch.zeros(4, 8).shape)),
    ("value", 284, (4, 8), counted(lambda: (4, 8), lambda: torch.zeros(4, 8).shape)),
    ("scores", 287, (4, 4), FOUR.scores.axes()),
    ("output", 302, (4, 8), FOUR.output.axes()),
):
    CODE.confirmed(f"shape-{name}", line, str([*axes]), f"The shape of the {name}.", shape(*axes), derived)
for name, line, place in (
    ("rows-sum-to-one", 296, "rows sum to 1"),
    ("rows-sum-to-one-again", 298, "rows sum to 1"),
):
    CODE.confirmed(
        name,
        line,
        place,
        "Each row of weights sums to one.",
        exactly("1"),
        replace(
            FOUR.weights.at(0).map(sum),
            exact=lambda: sympy.simplify(sum(softmax(sympy.symbols("a b c d", real=True)))),
        ),
        formula=r"\sum_j \frac{e^{s_j}}{\sum_k e^{s_k}} = 1",
    )

# Lines 306 to 311

CODE.confirmed(
    "sixty-percent",
    306,
    "token 0 pays 60% of its attention to token 1",
    "Of the weights 0.1, 0.6, 0.2, 0.1, the share of token 1 in percent.",
    exactly("60"),
    Derived(lambda: 100 * q("0.6") / (q("0.1") + q("0.6") + q("0.2") + q("0.1")), lambda: 100 - 40),
)
CODE.confirmed(
    "forty-percent",
    306,
    "the remaining 40%",
    "Of the weights 0.1, 0.6, 0.2, 0.1, the share of the others in percent.",
    exactly("40"),
    Derived(lambda: 100 * (q("0.1") + q("0.2") + q("0.1")), lambda: 100 - 60),
)
CODE.confirmed(
    "weighted-average",
    306,
    "a weighted average of all value vectors",
    "The output is a mean of the values: it gives back a value that all keys share.",
    rounded("5 7; 5 7"),
    Worked("1 0; 0 2", "1 1; 0 3", "5 7; 5 7").output,
    formula=r"o_i = \sum_j \alpha_{ij} v_j, \quad \sum_j \alpha_{ij} = 1",
)
CODE.confirmed(
    "unscaled-scores-of-512",
    311,
    "(around",
    "Of 16 scores of head_dim 512 and deviation 22.6, more than one is expected beyond 30 and fewer beyond 60.",
    HOLDS,
    holds(
        lambda: _expected_beyond(30) > 1 > _expected_beyond(60),
        lambda: mpmath.erfc(30 / mpmath.sqrt(1024)) * 16 > 1 > mpmath.erfc(60 / mpmath.sqrt(1024)) * 16,
    ),
    formula=r"16 \cdot \text{erfc}(30 / \sqrt{2 \cdot 512}) = 2.96",
)
CODE.confirmed(
    "unscaled-softmax-saturates",
    311,
    "softmax saturates",
    "The largest of four unscaled scores leads the next by 16.6 on average: the next weight prints as 0.0.",
    rounded("0.0"),
    Derived(
        lambda: sympy.exp(-DEVIATION * GAP),
        widely(lambda: mpmath.exp(-mpmath.sqrt(512) * _gap_of_the_top_two())),
    ),
    formula=r"e^{-22.63 \cdot 0.732}",
)
CODE.confirmed(
    "scaled-scores-stay-near-zero",
    311,
    "With scaling, the scores stay near zero",
    "The scaled score of head_dim 512 has deviation 1.",
    exactly("1"),
    Derived(lambda: DEVIATION / sympy.sqrt(512), lambda: sympy.sqrt(512 * variance_of_product()) / DEVIATION),
)
