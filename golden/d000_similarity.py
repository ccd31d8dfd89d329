"""Document 000, lines 25 to 126: attention without trainable weights, calculated by hand for token 1."""

from dataclasses import replace

import sympy

from headcheck.golden.derived import Derived, Worked, holds, rows_sum_to_one
from headcheck.golden.exact import cut, matrix, q, softmax, softmax_rows
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, exactly, rounded, shape

HAND = Section("000", "similarity-by-hand")
CODE = Section("000", "similarity-code")

X = "1.0 0.0; 0.8 0.6; 0.0 1.0"
EXAMPLE = Worked(X, X, X, scaled=False)
WEIGHTS = EXAMPLE.weights.at(1)
"""Of token 1 for tokens 0, 1, 2."""
CONTEXT = EXAMPLE.output.at(1)
POWERS = Derived(
    exact=lambda: [sympy.exp(q(score)) for score in ("0.8", "1", "0.6")],
    again=lambda: [sympy.E ** sympy.Rational(fifths, 5) for fifths in (4, 5, 3)],
    inputs={"operation": "exp", "scores": "0.80 1.00 0.60"},
)
FROM_SELF = WEIGHTS.map(lambda w: [w[1] * 8 / 10, w[1] * 6 / 10])
"""What token 1 gives itself, [0.8, 0.6] times its weight."""
CONTEXT_FORMULA = r"z_1 = \sum_j \alpha_{1j} x_j"


def _cuts() -> list[sympy.Rational]:
    """The author's weights: three decimals of e^s, and three of their quotients."""
    powers = [cut(power, 3) for power in POWERS.exact()]
    return [cut(power / sum(powers), 3) for power in powers]


def _self_by_cuts() -> list[sympy.Rational]:
    return [_cuts()[1] * q("0.8"), _cuts()[1] * q("0.6")]


def _context_by_cuts() -> list[sympy.Rational]:
    weights, own = _cuts(), [cut(each, 3) for each in _self_by_cuts()]
    return [weights[0] + own[0], own[1] + weights[2]]


# Lines 43 to 54: the equations and the embeddings

HAND.confirmed(
    "every-token-in-one-step",
    31,
    "every token can directly look at every other token",
    "In one step of attention each token has a positive weight for every token.",
    HOLDS,
    EXAMPLE.weights.at().map(lambda rows: all(each > 0 for row in rows for each in row)),
)
HAND.confirmed(
    "same-direction-scores-most",
    43,
    "their dot product is large",
    "Between vectors of given lengths the dot product is largest where they point in the same direction.",
    HOLDS,
    holds(
        lambda: sympy.maximum(sympy.cos(sympy.Symbol("t")), sympy.Symbol("t")) == sympy.cos(0),
        lambda: max(sympy.cos(sympy.pi * n / 60) for n in range(120)) == 1,
    ),
    formula=r"x_i \cdot x_j = |x_i| |x_j| \cos t",
)
HAND.confirmed(
    "score-formula",
    45,
    r"\omega_{ij} = x_i \cdot x_j",
    "A score is the sum of the products of the components.",
    HOLDS,
    holds(
        lambda: matrix(X) * matrix(X).T == EXAMPLE.scores.exact(),
        lambda: all(
            EXAMPLE.scores.exact()[i, j] == sum(matrix(X)[i, k] * matrix(X)[j, k] for k in range(2))
            for i in range(3)
            for j in range(3)
        ),
    ),
    formula=r"\omega_{ij} = x_i \cdot x_j = \sum_k x_{ik} x_{jk}",
)
HAND.confirmed(
    "softmax-formula",
    45,
    "softmax normalization",
    "The quotients of the exponentials and their sum add up to one.",
    HOLDS,
    replace(
        rows_sum_to_one(EXAMPLE.weights),
        exact=lambda: bool(sympy.simplify(sum(softmax(sympy.symbols("a b c d", real=True)))) == 1),
    ),
    formula=r"\alpha_{ij} = \frac{e^{\omega_{ij}}}{\sum_k e^{\omega_{ik}}}",
)
HAND.confirmed(
    "context-formula",
    45,
    "context vector",
    "The output is the mean of the embeddings, weighted: the formula gives what attention with Q = K = V gives.",
    HOLDS,
    holds(
        lambda: all(
            sympy.simplify(
                EXAMPLE.output.exact()[i, c]
                - sum(EXAMPLE.weights.exact()[i, j] * matrix(X)[j, c] for j in range(3))
            )
            == 0
            for i in range(3)
            for c in range(2)
        ),
        lambda: EXAMPLE.output.exact() == softmax_rows(matrix(X) * matrix(X).T) * matrix(X),
    ),
    formula=r"z_i = \sum_j \alpha_{ij} x_j",
)

HAND.confirmed(
    "embeddings",
    52,
    "3-token sequence with 2-dimensional embeddings",
    "The shape of the embeddings.",
    shape(3, 2),
    Derived(lambda: matrix(X).shape, lambda: (len(X.split(";")), len(X.split(";", maxsplit=1)[0].split()))),
)

# Lines 58 to 64: raw scores

for other, place, printed, formula in (
    (0, r"+ (0.6)(0.0) = 0.80", "0.80", r"\omega_{10} = 0.8 \cdot 1 + 0.6 \cdot 0"),
    (1, r"= 0.64 + 0.36 = 1.00", "1.00", r"\omega_{11} = 0.8^2 + 0.6^2"),
    (2, r"+ (0.6)(1.0) = 0.60", "0.60", r"\omega_{12} = 0.8 \cdot 0 + 0.6 \cdot 1"),
):
    HAND.confirmed(
        f"score-1-{other}",
        62,
        place,
        f"The score of token 1 against token {other}.",
        exactly(printed),
        EXAMPLE.scores.at(1, other),
        formula=formula,
    )
HAND.confirmed(
    "score-1-1-summands",
    62,
    "0.64 + 0.36",
    "The two products in the score of token 1 against itself.",
    exactly("0.64 0.36"),
    Derived(lambda: [q("0.8") ** 2, q("0.6") ** 2], lambda: [sympy.Rational(16, 25), sympy.Rational(9, 25)]),
)
HAND.confirmed(
    "scores-of-token-1",
    64,
    "itself (score 1.00), then to token 0 (0.80)",
    "The scores against tokens 1, 0, 2, repeated.",
    exactly("1.00 0.80 0.60"),
    EXAMPLE.scores.at(1).map(lambda s: [s[1], s[0], s[2]]),
)
HAND.confirmed(
    "order-of-attention",
    64,
    "token 1 attends most to itself",
    "Token 1 attends most to itself, then to token 0, then to token 2.",
    HOLDS,
    WEIGHTS.map(lambda w: bool(w[1] > w[0] > w[2])),
    formula=r"\omega_{11} > \omega_{10} > \omega_{12}",
)
HAND.confirmed(
    "directions-of-token-1",
    64,
    "points closest to",
    "The direction of x1 is closer to that of x0 than to that of x2: all are unit vectors.",
    HOLDS,
    holds(
        lambda: (
            all(sum(each**2 for each in matrix(X).row(i)) == 1 for i in range(3))
            and EXAMPLE.scores.exact()[1, 0] > EXAMPLE.scores.exact()[1, 2]
        ),
        lambda: sympy.atan2(q("0.6"), q("0.8")) < sympy.pi / 4,
    ),
    formula=r"\cos(x_1, x_0) = 0.8 > \cos(x_1, x_2) = 0.6",
)

# Lines 66 to 72: softmax

for number, (place, printed) in enumerate(
    (
        (r"e^{0.80} \approx 2.226", "2.226"),
        (r"e^{1.00} \approx 2.718", "2.718"),
        (r"e^{0.60} \approx 1.822", "1.822"),
    )
):
    HAND.confirmed(
        f"exponential-{number}",
        70,
        place,
        f"The exponential of the score against token {number}.",
        rounded(printed),
        POWERS.at(number),
    )
HAND.confirmed(
    "sum-of-exponentials",
    70,
    "2.226 + 2.718 + 1.822 = 6.766",
    "The sum of the three exponentials.",
    rounded("6.766"),
    POWERS.map(sum),
    formula=r"e^{0.8} + e + e^{0.6}",
)
for number, (place, printed) in enumerate(
    (
        (r"\frac{2.226}{6.766} \approx 0.329", "0.329"),
        (r"\frac{2.718}{6.766} \approx 0.402", "0.402"),
        (r"\frac{1.822}{6.766} \approx 0.269", "0.269"),
    )
):
    HAND.confirmed(
        f"weight-1-{number}",
        70,
        place,
        f"The weight of token 1 for token {number}.",
        rounded(printed),
        WEIGHTS.at(number),
        formula=rf"\alpha_{{1{number}}} = \frac{{e^{{\omega_{{1{number}}}}}}}{{e^{{0.8}} + e + e^{{0.6}}}}",
    )
HAND.confirmed(
    "weights-are-positive",
    72,
    "All three weights are positive",
    "All weights are positive.",
    HOLDS,
    WEIGHTS.map(lambda w: all(each > 0 for each in w)),
)
HAND.confirmed(
    "weights-sum-to-one",
    72,
    "sum to exactly 1.0",
    "The weights sum to exactly one.",
    exactly("1.0"),
    replace(WEIGHTS.map(sum), exact=lambda: sympy.simplify(sum(WEIGHTS.exact()))),
    formula=r"\alpha_{10} + \alpha_{11} + \alpha_{12} = 1 \quad 0.329 + 0.402 + 0.269 = 1",
)

# Lines 74 to 78: the context vector

HAND.confirmed(
    "weights-again",
    76,
    r"z_1 = 0.329 \cdot [1.0,\ 0.0]",
    "The three weights as they enter the sum.",
    rounded("0.329 0.402 0.269"),
    WEIGHTS,
)
for name, line, place in (
    ("from-token-0", 76, r"[0.329,\ 0.000]}_{\text{from"),
    ("from-token-0-again", 80, r'"The" contributes $[0.329,\ 0.000]$'),
):
    HAND.confirmed(
        name,
        line,
        place,
        "What token 0 contributes to the output of token 1.",
        rounded("0.329 0.000"),
        WEIGHTS.map(lambda w: [w[0], 0 * w[0]]),
        formula=r"\alpha_{10} [1, 0]",
    )
for name, line, place in (
    ("from-itself", 76, r"[0.322,\ 0.241]}_{\text{from"),
    ("from-itself-again", 81, r'"cat" contributes $[0.322,\ 0.241]$'),
):
    HAND.rounding(
        name,
        line,
        place,
        "What token 1 contributes to its own output.",
        rounded("0.322 0.241"),
        FROM_SELF,
        chain=_self_by_cuts,
        formula=r"\alpha_{11} [0.8, 0.6], \quad 0.402 \cdot 0.8 = 0.3216",
    )
for name, line, place in (
    ("from-token-2", 76, r"[0.000,\ 0.269]}_{\text{from"),
    ("from-token-2-again", 82, r'"sat" contributes $[0.000,\ 0.269]$'),
):
    HAND.confirmed(
        name,
        line,
        place,
        "What token 2 contributes to the output of token 1.",
        rounded("0.000 0.269"),
        WEIGHTS.map(lambda w: [0 * w[2], w[2]]),
        formula=r"\alpha_{12} [0, 1]",
    )
for name, line, place in (
    ("context", 76, r"$$z_1 = [0.651,\ 0.510]$$"),
    ("context-again", 78, r"output $z_1 = [0.651,\ 0.510]$"),
    ("context-once-more", 89, r"$z_1 = [0.651, 0.510]$"),
):
    HAND.rounding(
        name,
        line,
        place,
        "The output of token 1.",
        rounded("0.651 0.510"),
        CONTEXT,
        chain=_context_by_cuts,
        formula=CONTEXT_FORMULA + r", \quad 0.329 + 0.322 = 0.651",
    )

# The code, lines 93 to 126

E = "0.43 0.15 0.89; 0.55 0.87 0.66; 0.57 0.85 0.64; 0.22 0.58 0.33"
TOKENS = Worked(E, E, E, scaled=False)

CODE.block(
    "attention",
    93,
    125,
    "Attention of four tokens without trainable weights.",
    alone=Run(
        prints=(
            "        [0.9540, 1.4950, 1.4750, 0.8430],",
            "        [0.1890, 0.3240, 0.3180, 0.1690],",
            "Row sums: tensor([1.0000, 1.0000, 1.0000, 1.0000])",
            "        [0.4780, 0.6790, 0.6410],",
            "'cat' attends to 'sat' with weight: 0.318",
            "'cat' attends to 'down' with weight: 0.169",
        )
    ),
)
CODE.confirmed(
    "embeddings",
    96,
    "4 tokens, each represented by a 3-dimensional",
    "The shape of the embeddings.",
    shape(4, 3),
    Derived(lambda: matrix(E).shape, lambda: (len(E.split(";")), len(E.split(";", maxsplit=1)[0].split()))),
)
CODE.confirmed(
    "scores-shape",
    107,
    "[4, 4]",
    "The scores of four tokens against four.",
    shape(4, 4),
    TOKENS.scores.axes(),
)
CODE.confirmed(
    "context-shape",
    118,
    "[4, 3]",
    "The context vectors of four tokens.",
    shape(4, 3),
    TOKENS.output.axes(),
)
CODE.confirmed(
    "rows-sum-to-one",
    111,
    "weights sum to 1",
    "Each row of weights sums to one.",
    exactly("1 1 1 1"),
    replace(
        TOKENS.weights.at().map(lambda rows: [sum(row) for row in rows]),
        exact=lambda: [sympy.simplify(sum(row)) for row in TOKENS.weights.exact().tolist()],
    ),
)
CODE.confirmed(
    "similar-tokens-attend",
    123,
    "they attend strongly to each other",
    "Apart from itself, cat attends most to sat, and sat to cat.",
    HOLDS,
    TOKENS.weights.at().map(lambda w: w[1][2] > max(w[1][0], w[1][3]) and w[2][1] > max(w[2][0], w[2][3])),
)
CODE.confirmed(
    "sat-above-down",
    126,
    'attends more strongly to "sat"',
    "Cat attends more strongly to sat than to down.",
    HOLDS,
    TOKENS.weights.at(1).map(lambda w: bool(w[2] > w[3])),
    formula=r"0.318 > 0.169",
)
CODE.not_checkable(
    "usual-dimensions",
    97,
    "embeddings are 512-1024 dims",
    "In practice embeddings have 512 to 1024 dimensions.",
    reason="A usage, and models differ: none is named.",
)
