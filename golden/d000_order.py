"""Document 000, lines 512 to 535, and 1277: attention without positions."""

import sympy
import torch

from headcheck.golden.derived import holds
from headcheck.golden.exact import softmax_rows
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import are_near
from headcheck.golden.stated import HOLDS
from headcheck.reference import Embedding, attention, masks, sinusoidal

ORDER = Section("000", "order")

CAT_SAT_MAT = sympy.Matrix([[1, 0], [0, 1], [2, 1]])
"""Three different tokens of our own."""
PLACES = sympy.Matrix([[0, 1], [1, 0], [0, 2]])
"""Positions of our own."""
NOWHERE = sympy.zeros(3, 2)
REVERSED = [2, 1, 0]
"""mat, sat, cat: document 000 exchanges the first and the last token."""


def _attended(tokens: sympy.Matrix, *, causal: bool = False) -> sympy.Matrix:
    """Self-attention with queries, keys and values equal to the tokens; no scale."""
    scores = tokens * tokens.T
    for i in range(scores.rows):
        for j in range(i + 1, scores.cols):
            scores[i, j] = -sympy.oo if causal else scores[i, j]
    return softmax_rows(scores) * tokens


def _turned(rows: sympy.Matrix) -> sympy.Matrix:
    return rows.extract(REVERSED, range(rows.cols))


def _zero(rows: sympy.Matrix) -> bool:
    return bool(sympy.simplify(rows) == sympy.zeros(*rows.shape))


def _pooled(tokens: sympy.Matrix, *, causal: bool) -> list[sympy.Expr]:
    """The sum of the outputs: what does not say in which order they stand."""
    attended = _attended(tokens, causal=causal)
    return [sympy.simplify(sum(attended.col(j))) for j in range(attended.cols)]


def _reference(tokens: list[int], places: sympy.Matrix = NOWHERE, *, causal: bool = False) -> torch.Tensor:
    """The reference on the same tokens, in the order given, with positions added."""
    x = torch.tensor(CAT_SAT_MAT.tolist(), dtype=torch.float64)[tokens][None, None]
    x = x + torch.tensor(places.tolist(), dtype=torch.float64)
    return attention(x, x, x, may_attend=masks.causal(3, 3) if causal else None).output[0, 0]


def _embedding_and_code() -> bool:
    """The reference's embedding of three tokens, against table and code."""
    embedding, tokens = (
        Embedding(3, 4, scaled=False, positions="sinusoidal").double(),
        torch.tensor([[2, 0, 1]]),
    )
    return are_near(embedding(tokens)[0], embedding.table.weight[tokens[0]] + sinusoidal(3, 4))


# Lines 514 to 535

ORDER_SLIP = (
    "Each token's own output is the same, but it stands where the token stands: exchanged tokens have exchanged "
    "outputs. Attention is equivariant, not invariant."
)
for name, line, place in (
    ("same-result", 516, "computes the same result regardless of token order"),
    ("same-output", 529, "same attention output!"),
    ("exact-same-result", 535, "gives the exact same result as"),
):
    ORDER.confirmed(
        f"{name}-for-each-token",
        line,
        place,
        "Without positions, the output of each token is the same wherever it stands.",
        HOLDS,
        holds(
            lambda: _zero(_attended(_turned(CAT_SAT_MAT)) - _turned(_attended(CAT_SAT_MAT))),
            None,
            lambda: are_near(_reference(REVERSED), _reference([0, 1, 2])[REVERSED]),
        ),
        formula=r"\text{attention}(P X) = P \, \text{attention}(X)",
    )
    ORDER.erratum(
        name,
        line,
        place,
        "Without positions, two orders of the same tokens have the same output.",
        HOLDS,
        holds(
            lambda: _zero(_attended(_turned(CAT_SAT_MAT)) - _attended(CAT_SAT_MAT)),
            None,
            lambda: are_near(_reference(REVERSED), _reference([0, 1, 2])),
        ),
        slip=ORDER_SLIP,
        formula=r"P \, \text{attention}(X) \ne \text{attention}(X)",
    )
for name, line, place in (
    ("bag-of-words", 535, "bag-of-words model"),
    ("bags-of-words-in-brief", 1277, "bag-of-words models"),
):
    ORDER.confirmed(
        f"{name}-without-a-mask",
        line,
        place,
        "Without positions and without a causal mask, the sum of the outputs does not tell two orders apart.",
        HOLDS,
        holds(
            lambda: _pooled(CAT_SAT_MAT, causal=False) == _pooled(_turned(CAT_SAT_MAT), causal=False),
            None,
            lambda: are_near(_reference([0, 1, 2]).sum(dim=0), _reference(REVERSED).sum(dim=0)),
        ),
    )
    ORDER.erratum(
        name,
        line,
        place,
        "Without positions no transformer tells two orders apart, one with a causal mask included.",
        HOLDS,
        holds(
            lambda: _pooled(CAT_SAT_MAT, causal=True) == _pooled(_turned(CAT_SAT_MAT), causal=True),
            None,
            lambda: are_near(
                _reference([0, 1, 2], causal=True).sum(dim=0), _reference(REVERSED, causal=True).sum(dim=0)
            ),
        ),
        slip="It is so without a mask. Under a causal mask each token sees those before it, and so the order.",
    )
ORDER.confirmed(
    "with-position",
    530,
    "With position",
    "With positions added, a token's output changes with its place.",
    HOLDS,
    holds(
        lambda: (
            not _zero(_turned(_attended(_turned(CAT_SAT_MAT) + PLACES)) - _attended(CAT_SAT_MAT + PLACES))
        ),
        None,
        lambda: not are_near(_reference(REVERSED, PLACES)[REVERSED], _reference([0, 1, 2], PLACES)),
    ),
)
ORDER.confirmed(
    "added-to-each-token",
    525,
    "input = word_meaning + position_signal",
    "The input of a layer is the embedding plus the code of the position.",
    HOLDS,
    holds(
        lambda: sympy.ones(1, 4) + sympy.Matrix([[0, 1, 0, 1]]) == sympy.Matrix([[1, 2, 1, 2]]),
        None,
        _embedding_and_code,
    ),
)
ORDER.block(
    "compressed",
    529,
    533,
    "A sum in pseudo-code.",
    alone=Run(error="NameError: name 'word_embedding' is not defined"),
)
