"""Document 000, lines 128 to 240: queries, keys and values from three projections, by hand and in code."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import mpmath
import sympy
import torch

from headcheck.golden.derived import Derived, Worked, holds, product, simplified, tensor
from headcheck.golden.exact import contracted, fractions, matrix, product_again, softmax_again
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, exactly, rounded, shape
from headcheck.reference import SingleHeadAttention

HAND = Section("000", "projections-by-hand")
CODE = Section("000", "projections-code")

X = "1.0 0.5; 0.2 0.9"
MATRICES = W_Q, W_K, W_V = "1 0; 0 1", "0 1; 1 0", "2 0; 0 2"
QUERY, KEY, VALUE = "1.0 0.5; 0.2 0.9", "0.5 1.0; 0.9 0.2", "2.0 1.0; 0.4 1.8"
EXAMPLE = Worked(QUERY, KEY, VALUE)


def _projected(name: str) -> torch.Tensor:
    """The queries, keys or values of the reference, given the three matrices."""
    layer = SingleHeadAttention(2, 2, 2, bias=False).double()
    layer.load_state_dict({f"w_{each}.weight": tensor(w).T for each, w in zip("qkv", MATRICES, strict=True)})
    found: torch.Tensor = getattr(layer, f"w_{name}")(tensor(X)).detach()
    return found


NAMES = {"q": "query", "k": "key", "v": "value"}
ZEROS = "0 0; 0 0; 0 0; 0 0"
AB = sympy.Matrix([sympy.symbols("a b")])
PROJECTED = {
    name: replace(product(X, weights), reference=partial(_projected, name))
    for name, weights in (("q", W_Q), ("k", W_K), ("v", W_V))
}

PRODUCTS = Derived(
    exact=lambda: [
        [a * b for a, b in zip(matrix(QUERY).row(0), row, strict=True)] for row in matrix(KEY).tolist()
    ],
    again=lambda: [[a * b for a, b in zip(fractions(QUERY)[0], row, strict=True)] for row in fractions(KEY)],
)
"""The summands of the dot products of token 0 with tokens 0 and 1."""


def _maps_as_said(weights: str) -> Derived:
    """Whether the matrix maps every [a, b], and the two embeddings, as its name says."""
    maps: dict[str, Callable[[Any, Any], list[Any]]] = {
        W_Q: lambda a, b: [a, b],
        W_K: lambda a, b: [b, a],
        W_V: lambda a, b: [2 * a, 2 * b],
    }
    said, (a, b) = maps[weights], sympy.symbols("a b")
    return holds(
        lambda: list(sympy.Matrix([[a, b]]) * matrix(weights)) == said(a, b),
        lambda: product_again(fractions(X), fractions(weights)) == [said(*row) for row in fractions(X)],
    )


# Lines 130 to 157: the three roles and the three matrices

HAND.confirmed(
    "one-vector-three-roles",
    130,
    "played all three roles simultaneously",
    "Without projections query, key and value are one matrix: attention is softmax(X X^T) X.",
    HOLDS,
    holds(
        lambda: matrix(X) * sympy.eye(2) == matrix(X),
        lambda: product_again(fractions(X), fractions(W_Q)) == fractions(X),
    ),
    formula=r"Q = K = V = X",
)
HAND.confirmed(
    "projections",
    140,
    "Q = XW_Q",
    "Query, key and value are products with three matrices, which turn the embeddings into those of the example.",
    HOLDS,
    holds(
        lambda: [matrix(X) * matrix(w) for w in (W_Q, W_K, W_V)] == [matrix(x) for x in (QUERY, KEY, VALUE)],
        lambda: (
            [product_again(fractions(X), fractions(w)) for w in (W_Q, W_K, W_V)]
            == [fractions(x) for x in (QUERY, KEY, VALUE)]
        ),
    ),
    formula=r"Q = X W_Q, \quad K = X W_K, \quad V = X W_V",
)
HAND.confirmed(
    "matrix-shapes",
    153,
    r"2 \times 2$",
    "A weight matrix has d_in rows and d_k columns.",
    shape(2, 2),
    Derived(lambda: matrix(W_Q).shape, lambda: (matrix(X).cols, matrix(QUERY).cols)),
    formula=r"d_{in} \times d_k",
)
HAND.confirmed(
    "what-the-matrices-do",
    157,
    "is the identity (queries = raw embeddings)",
    "W_Q leaves a vector as it is, W_K swaps its components, W_V doubles it.",
    HOLDS,
    holds(
        lambda: [list(AB * matrix(w)) for w in MATRICES] == [list(AB), [AB[1], AB[0]], list(2 * AB)],
        lambda: [product_again([[3, 7]], fractions(w)) for w in MATRICES] == [[[3, 7]], [[7, 3]], [[6, 14]]],
    ),
    formula=r"[a, b] W_Q = [a, b], \quad [a, b] W_K = [b, a], \quad [a, b] W_V = [2a, 2b]",
)
HAND.confirmed(
    "impossible-with-one-matrix",
    157,
    "impossible to achieve with one shared matrix",
    "The three matrices differ from each other: no single one can stand for all.",
    HOLDS,
    holds(lambda: len({tuple(matrix(w)) for w in MATRICES}) == 3, lambda: len({QUERY, KEY, VALUE}) == 3),
)

# Lines 159 to 175: steps 1 to 3

for letter, line, rows in (("q", 163, QUERY), ("k", 169, KEY), ("v", 175, VALUE)):
    for token, row in enumerate(rows.split("; ")):
        HAND.confirmed(
            f"{letter}-{token}",
            line,
            f"= [{row.replace(' ', chr(92) + ' ').replace(chr(92), ',' + chr(92))}]",
            f"The {NAMES[letter]} of token {token}.",
            exactly(row),
            PROJECTED[letter].at(token),
            formula=rf"{letter}_{token} = x_{token} W_{letter.upper()}",
        )

for name, line, place, what, w in (
    (
        "queries-are-embeddings",
        161,
        "each query equals the raw embedding",
        "The query of a token is its embedding.",
        W_Q,
    ),
    (
        "keys-are-swapped",
        167,
        "the second input feature becomes the first output",
        "The key is the swapped embedding.",
        W_K,
    ),
    (
        "values-are-doubled",
        173,
        "scales every dimension by 2",
        "The value of a token is twice its embedding.",
        W_V,
    ),
):
    HAND.confirmed(name, line, place, what, HOLDS, _maps_as_said(w))

# Lines 177 to 181: scores

HAND.confirmed(
    "scale",
    179,
    r"\sqrt{2} \approx 1.414",
    "The divisor of the scores, the root of d_k = 2.",
    rounded("1.414"),
    Derived(lambda: sympy.sqrt(2), lambda: sympy.exp(sympy.log(2) / 2)),
    formula=r"\sqrt{d_k} = \sqrt{2}",
)
for token, parts, place in (
    (0, "0.50 0.50", r"\frac{0.50 + 0.50}{1.414} = \frac{1.00}{1.414} \approx 0.707"),
    (1, "0.90 0.10", r"\frac{0.90 + 0.10}{1.414} = \frac{1.00}{1.414} \approx 0.707"),
):
    HAND.confirmed(
        f"summands-0-{token}",
        181,
        place[6:17],
        f"The products in the score of token 0 against token {token}.",
        exactly(parts),
        PRODUCTS.at(token),
    )
    HAND.confirmed(
        f"dot-0-{token}",
        181,
        place[19:],
        f"The dot product of token 0 with token {token}, before it is scaled.",
        exactly("1.00"),
        Worked(QUERY, KEY, VALUE, scaled=False).scores.at(0, token),
        formula=rf"q_0 \cdot k_{token}",
    )
    HAND.confirmed(
        f"score-0-{token}",
        181,
        place[-14:],
        f"The scaled score of token 0 against token {token}.",
        rounded("0.707"),
        EXAMPLE.scores.at(0, token),
        formula=rf"s_{{0{token}}} = \frac{{q_0 \cdot k_{token}}}{{\sqrt{{2}}}}",
    )

# Lines 183 to 197: weights and context

HAND.confirmed(
    "exponential",
    187,
    r"e^{0.707} \approx 2.028",
    "The exponential of the score.",
    rounded("2.028"),
    EXAMPLE.scores.at(0, 0).map(sympy.exp),
    formula=r"e^{1 / \sqrt{2}}",
)
HAND.confirmed(
    "row-sum",
    187,
    "2.028 + 2.028 = 4.056",
    "The sum of the two exponentials.",
    rounded("4.056"),
    EXAMPLE.scores.at(0).map(lambda row: sum(sympy.exp(score) for score in row)),
)
for token in (0, 1):
    HAND.confirmed(
        f"weight-0-{token}",
        187,
        rf"\alpha_{{0{token}}} = \frac{{2.028}}{{4.056}} = 0.50",
        f"The weight of token 0 for token {token}.",
        exactly("0.50"),
        simplified(EXAMPLE.weights).at(0, token),
        formula=rf"\alpha_{{0{token}}} = \frac{{e^{{s}}}}{{2 e^{{s}}}}",
    )
HAND.confirmed(
    "equal-attention",
    189,
    "because both scores are identical",
    "Both scores of token 0 are the same, and so are its weights.",
    HOLDS,
    EXAMPLE.scores.at(0).map(lambda row: bool(row[0] == row[1])),
    formula=r"s_{00} = s_{01}",
)
HAND.confirmed(
    "context-parts",
    195,
    r"z_0 = [1.00,\ 0.50] + [0.20,\ 0.90]",
    "The two halves of the output of token 0.",
    exactly("1.00 0.50; 0.20 0.90"),
    Derived(lambda: matrix(VALUE) / 2, lambda: [[each / 2 for each in row] for row in fractions(VALUE)]),
    formula=r"0.5 v_0, \quad 0.5 v_1",
)
for name, line, place in (
    ("context", 195, r"= [1.20,\ 1.40]$$"),
    ("context-again", 197, r"$z_0 = [1.2, 1.4]$"),
):
    HAND.confirmed(
        name,
        line,
        place,
        "The output of token 0.",
        exactly("1.20 1.40"),
        simplified(EXAMPLE.output).at(0),
        formula=r"z_0 = \frac{1}{2} v_0 + \frac{1}{2} v_1",
    )
HAND.confirmed(
    "a-larger-score-takes-all",
    197,
    "pulling the weight toward 1.0",
    "As one score outgrows the other, its weight goes to one.",
    HOLDS,
    holds(
        lambda: sympy.limit(1 / (1 + sympy.exp(-sympy.Symbol("t"))), sympy.Symbol("t"), sympy.oo) == 1,
        lambda: all(1 - softmax_again([t, 0])[0] < mpmath.exp(-t) for t in range(1, 60)),
    ),
    formula=r"\frac{e^{t}}{e^{t} + 1} \to 1",
)

# Line 199: one shared matrix

UNPROJECTED = Worked(X, X, X, scaled=False)
HAND.confirmed(
    "own-score-without-weights",
    199,
    "= 1.25$",
    "Without projections, the score of token 0 against itself.",
    exactly("1.25"),
    UNPROJECTED.scores.at(0, 0),
    formula=r"1.0^2 + 0.5^2",
)
HAND.confirmed(
    "other-score-without-weights",
    199,
    "= 0.65$",
    "Without projections, the score of token 0 against token 1.",
    exactly("0.65"),
    UNPROJECTED.scores.at(0, 1),
    formula=r"1.0 \cdot 0.2 + 0.5 \cdot 0.9",
)
HAND.confirmed(
    "more-to-itself",
    199,
    "is always larger than",
    "Of these two tokens, token 0 attends more to itself.",
    HOLDS,
    UNPROJECTED.weights.at(0).map(lambda w: bool(w[0] > w[1])),
    formula=r"x_0 \cdot x_0 = 1.25 > x_0 \cdot x_1 = 0.65",
)
HAND.confirmed(
    "steered-arbitrarily",
    199,
    "can be steered arbitrarily",
    "With separate projections the two scores of token 0 can be given any values: its key map is invertible.",
    HOLDS,
    holds(
        lambda: (
            len(sympy.solve(list(_steered() - sympy.Matrix([sympy.symbols("s t")])), sympy.symbols("a b")))
            == 2
        ),
        lambda: matrix(X).det() != 0,
    ),
    formula=r"q_0 \cdot k_0 = s, \quad q_0 \cdot k_1 = t",
)


def _steered() -> sympy.Matrix:
    """The scores of token 0 where the first column of W_K is (a, b) and q_0 is (1, 0)."""
    a, b = sympy.symbols("a b")
    return (matrix(X) * sympy.Matrix([a, b])).T


# The code, lines 201 to 238

CODE.block(
    "learnable-projections",
    201,
    238,
    "Scaled attention of four tokens with random projections.",
    alone=Run(
        prints=(
            "Q shape: torch.Size([4, 2])",
            "K shape: torch.Size([4, 2])",
            "V shape: torch.Size([4, 2])",
            "Attention output shape: torch.Size([4, 2])",
        )
    ),
)
for name, line, place in (
    ("q", 227, "[4, 2]"),
    ("k", 228, "[4, 2]"),
    ("v", 229, "[4, 2]"),
    ("q-comment", 223, "[4, 2]"),
    ("k-comment", 224, "[4, 2]"),
    ("v-comment", 225, "[4, 2]"),
):
    CODE.confirmed(
        f"shape-{name}",
        line,
        place,
        f"The shape of every {NAMES[name[0]]}: four tokens, projected from 3 to 2.",
        shape(4, 2),
        Derived(
            lambda: (sympy.zeros(4, 3) * sympy.zeros(3, 2)).shape,
            lambda: (torch.zeros(4, 3) @ torch.zeros(3, 2)).shape,
            lambda: SingleHeadAttention(3, 2, 2).w_q(torch.zeros(4, 3)).shape,
        ),
    )
CODE.confirmed(
    "shape-output",
    237,
    "[4, 2]",
    "The shape of the output.",
    shape(4, 2),
    Worked(ZEROS, ZEROS, ZEROS).output.axes(),
)
CODE.confirmed(
    "dimensions-may-differ",
    207,
    "can differ from input",
    "The projected dimension may differ from the embedding's.",
    HOLDS,
    holds(
        lambda: (sympy.zeros(4, 3) * sympy.zeros(3, 2)).shape == (4, 2),
        lambda: contracted("ni,ik->nk", (4, 3), (3, 2)) == (4, 2),
    ),
)
CODE.confirmed(
    "exactly-the-formula",
    240,
    "exactly the Scaled Dot-Product Attention formula",
    "The code computes softmax(Q K^T / sqrt(d_k)) V.",
    HOLDS,
    holds(
        lambda: sympy.Integer(2) ** sympy.Rational(1, 2) == sympy.sqrt(2),
        lambda: EXAMPLE.scores.exact() == matrix(QUERY) * matrix(KEY).T / sympy.sqrt(2),
    ),
    formula=r"d_k^{0.5} = \sqrt{d_k}",
)
