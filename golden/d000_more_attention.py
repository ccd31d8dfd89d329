"""Document 000, lines 27 to 532: statements between those of the other modules, on attention by itself."""

import sympy
import torch
from torch import nn

from headcheck.golden.d000_similarity import EXAMPLE, X
from headcheck.golden.derived import Derived, Worked, counted, holds, tensor
from headcheck.golden.exact import contracted, fractions, matrix, product_again, softmax, softmax_rows
from headcheck.golden.ledger import Section
from headcheck.golden.stated import HOLDS, count, exactly, shape
from headcheck.reference import MultiHeadAttention, SingleHeadAttention, attention, sinusoidal, split_heads

START = Section("000", "introduction")
READ = Section("000", "similarity-by-hand")
HAND = Section("000", "projections-by-hand")
PROJECTED = Section("000", "projections-code")
IDEA = Section("000", "scaled-dot-product")
STEPS = Section("000", "scaled-code")
PACKAGED = Section("000", "packaged")
HEADS = Section("000", "multi-head")
BUILT_IN = Section("000", "built-in")
CROSS = Section("000", "cross-attention")
ORDER = Section("000", "order")

BANK_LOAN = "1.0 0.5; 0.2 0.9"
SWAP = "0 1; 1 0"
SWAPPED = Worked(BANK_LOAN, "0.5 1.0; 0.9 0.2", "2.0 1.0; 0.4 1.8")
OTHER_VALUES = Worked(SWAPPED.query, SWAPPED.key, "7 0; 0 7")
STEP = sympy.sqrt(512)
"""A difference of two raw scores of head_dim 512: one deviation."""


def _slope(difference: sympy.Expr) -> sympy.Expr:
    """The derivative of a softmax of two scores so far apart."""
    larger, smaller = softmax([difference, 0])
    return larger * smaller


def _zeros(*axes: int) -> torch.Tensor:
    return torch.zeros(axes)


def _no_longer_the_same_weights() -> bool:
    """The reference's outputs with two sets of values differ, its weights do not."""
    query, key = tensor(SWAPPED.query)[None, None], tensor(SWAPPED.key)[None, None]
    one, other = (
        attention(query, key, tensor(each)[None, None]) for each in (SWAPPED.value, OTHER_VALUES.value)
    )
    return torch.equal(one.weights, other.weights) and not torch.equal(one.output, other.output)


# Lines 27 to 47

START.not_checkable(
    "bottleneck",
    27,
    "squeezed into a single fixed-size hidden vector",
    "A recurrent network presses a paragraph of 500 words into one vector and dilutes its beginning.",
    reason="The vector has one size for every length; what is lost of it depends on weights that are not given.",
)
START.not_checkable(
    "published-in-2017",
    29,
    "In 2017",
    "A team at Google published the transformer in 2017.",
    reason="A fact of history; no derivation decides it.",
)
START.confirmed(
    "every-other-token-at-once",
    29,
    "directly attend to every other token",
    "Every token attends to every other one at once: all nine weights of three tokens are above zero.",
    HOLDS,
    holds(
        lambda: all(each.is_positive for each in EXAMPLE.weights.exact()),
        lambda: all(each > 0 for row in EXAMPLE.weights.again() for each in row),  # type: ignore[misc]
        lambda: bool((EXAMPLE.weights.reference() > 0).all()),  # type: ignore[misc]
    ),
)
START.not_checkable(
    "faster-training",
    29,
    "made training dramatically faster",
    "Transformers train much faster, because GPUs are good at parallel products.",
    reason="A comparison of times, on hardware that is not named.",
)
START.not_checkable(
    "built-on-transformers",
    31,
    "are built on Transformers",
    "GPT, BERT, LLaMA, ViT and DINO are transformers.",
    reason="Facts about published models.",
)
START.not_checkable(
    "two-years",
    33,
    "Within two years",
    "Transformers replaced recurrent networks within two years, and entered vision, audio and other fields.",
    reason="Facts of history; no derivation decides them.",
)
READ.confirmed(
    "biased-toward-the-relevant",
    47,
    'biased toward the most "relevant" ones',
    "A token with a higher score has a larger weight in the output: in each row scores and weights rank alike.",
    HOLDS,
    holds(
        lambda: all(
            (scores[j] > scores[k]) == (weights[j] > weights[k])
            for scores, weights in zip(
                EXAMPLE.scores.exact().tolist(), EXAMPLE.weights.exact().tolist(), strict=True
            )
            for j in range(3)
            for k in range(3)
        ),
        reference=lambda: bool(
            (EXAMPLE.scores.reference().argsort(-1) == EXAMPLE.weights.reference().argsort(-1)).all()  # type: ignore[misc]  # an example has all three ways
        ),
    ),
)

# Lines 132 to 151: one vector in three roles, then two tokens and three matrices

for name, line, place, what, row in (
    (
        "as-a-query",
        132,
        r"\omega_{10}, \omega_{11}, \omega_{12}",
        "Token 1 asks: its row of scores (one of them against itself).",
        Derived(
            lambda: EXAMPLE.scores.exact().row(1).tolist()[0],
            lambda: EXAMPLE.scores.again()[1],  # type: ignore[misc]
        ),
    ),
    (
        "as-a-key",
        133,
        r"\omega_{01} = x_0 \cdot x_1",
        "Token 1 is asked: its column of scores.",
        Derived(
            lambda: EXAMPLE.scores.exact().col(1).T.tolist()[0],
            lambda: [sum(a * b for a, b in zip(each, fractions(X)[1], strict=True)) for each in fractions(X)],
        ),
    ),
):
    HAND.confirmed(name, line, place, what, exactly("0.80 1.00 0.60"), row)
HAND.confirmed(
    "as-a-value",
    134,
    "term inside every $z_i$",
    "Token 1 is summed: it has a weight above zero in every output.",
    HOLDS,
    holds(
        lambda: all(each.is_positive for each in EXAMPLE.weights.exact().col(1)),
        lambda: all(row[1] > 0 for row in EXAMPLE.weights.again()),  # type: ignore[misc]
        lambda: bool((EXAMPLE.weights.reference()[:, 1] > 0).all()),  # type: ignore[misc]
    ),
    formula=r"z_i = ... + \alpha_{i1} x_1 + ...",
)

HAND.confirmed(
    "one-matrix-three-jobs",
    136,
    "One matrix, three jobs",
    "With the embeddings in all three places, the two products of the code are attention without a scale.",
    HOLDS,
    holds(
        lambda: (
            sympy.simplify(
                softmax_rows(matrix(X) * matrix(X).T) * matrix(X) - EXAMPLE.output.exact()
            ).is_zero_matrix
        ),
        None,
        lambda: torch.allclose(
            torch.softmax(tensor(X) @ tensor(X).T, dim=-1) @ tensor(X),
            EXAMPLE.output.reference(),  # type: ignore[misc]
            rtol=0,
            atol=64 * 2**-53,
        ),
    ),
)
HAND.confirmed(
    "matching-apart-from-content",
    142,
    "while retrieving different information (V)",
    "What is attended to depends on queries and keys alone: other values change the output and not the weights.",
    HOLDS,
    holds(
        lambda: (
            SWAPPED.weights.exact() == OTHER_VALUES.weights.exact()
            and SWAPPED.output.exact() != OTHER_VALUES.output.exact()
        ),
        None,
        _no_longer_the_same_weights,
    ),
)
for name, place, what, text in (
    ("two-tokens", "2 tokens with 2-dimensional embeddings", "Two tokens of two dims.", BANK_LOAN),
    ("two-by-two", r"$2\times2$ weight matrices", "The matrices are of 2 x 2.", SWAP),
):
    HAND.confirmed(
        name,
        147,
        place,
        what,
        shape(2, 2),
        Derived(
            lambda text=text: matrix(text).shape,  # type: ignore[misc]
            lambda text=text: (len(fractions(text)), len(fractions(text)[0])),  # type: ignore[misc]
        ),
    )
HAND.confirmed(
    "scores-became-equal",
    199,
    "the scores became equal here",
    "With the keys swapped, both scores of token 0 are the same, and without projections they were not.",
    HOLDS,
    holds(
        lambda: (
            SWAPPED.scores.exact()[0, 0] == SWAPPED.scores.exact()[0, 1]
            and (matrix(BANK_LOAN) * matrix(BANK_LOAN).T)[0, 0]
            != (matrix(BANK_LOAN) * matrix(BANK_LOAN).T)[0, 1]
        ),
        lambda: (
            len(set(product_again(fractions(SWAPPED.query), [*zip(*fractions(SWAPPED.key), strict=True)])[0]))
            == 1
        ),
    ),
    formula=r"q_0 \cdot k_0 = q_0 \cdot k_1 = 1, \quad x_0 \cdot x_0 = 1.25, \quad x_0 \cdot x_1 = 0.65",
)
PROJECTED.behaviour(
    "trained-by-backpropagation",
    209,
    "The three matrices are parameters, and each gets a gradient.",
    blocks=("learnable-projections",),
    probe="""
output.sum().backward()
print(*(isinstance(each, nn.Parameter) and bool(each.grad.any()) for each in (W_Q, W_K, W_V)))
""",
    prints="True True True",
)
PROJECTED.behaviour(
    "same-embeddings-as-before",
    214,
    "The embeddings are those of the first code block.",
    blocks=("000/similarity-code/attention",),
    probe="""
print(torch.equal(embeddings, torch.tensor(
    [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64], [0.22, 0.58, 0.33]]
)))
""",
    prints="True",
)

# Lines 262 to 347: the formula and its scale

IDEA.confirmed(
    "linear-projection",
    262,
    r"q_i = x_i \cdot W_Q",
    "A row times the matrix is the row of the product of all: the key of token 1 of line 169.",
    HOLDS,
    holds(
        lambda: matrix(BANK_LOAN).row(1) * matrix(SWAP) == (matrix(BANK_LOAN) * matrix(SWAP)).row(1),
        lambda: (
            product_again([fractions(BANK_LOAN)[1]], fractions(SWAP))[0]
            == product_again(fractions(BANK_LOAN), fractions(SWAP))[1]
        ),
    ),
    formula=r"q_i = x_i W_Q",
)
STEPS.confirmed(
    "four-tokens-of-eight",
    277,
    "4 tokens, each with 8 dimensions",
    "Queries, keys and values are of four tokens and eight dims.",
    shape(4, 8),
    counted(
        lambda: contracted("nd,de->ne", (4, 3), (3, 8)),
        lambda: SingleHeadAttention(3, 8, 8).w_q(_zeros(4, 3)).shape,
    ),
)
SLOPES = holds(
    lambda: bool(
        _slope(STEP) < sympy.Rational(1, 10**9) and _slope(sympy.Integer(1)) > sympy.Rational(19, 100)
    ),
    lambda: bool(1 / (2 + 2 * sympy.cosh(STEP)) < 1e-9 and 1 / (2 + 2 * sympy.cosh(1)) > 0.19),
)
SLOPES_SAID = (
    "Of two scores of 512 dims that lie one deviation apart, the unscaled softmax has a derivative below 1e-9, the "
    "scaled one above 0.19."
)
SLOPE_FORMULA = r"\alpha (1 - \alpha) = \frac{1}{2 + 2 \cosh t}, \quad t = \sqrt{512}, \; 1"
STEPS.confirmed(
    "scale-keeps-the-gradient",
    291,
    "to prevent vanishing gradients",
    SLOPES_SAID,
    HOLDS,
    SLOPES,
    formula=SLOPE_FORMULA,
)
IDEA.confirmed(
    "winner-takes-all", 311, "destroys gradient flow", SLOPES_SAID, HOLDS, SLOPES, formula=SLOPE_FORMULA
)
PACKAGED.confirmed(
    "shape-of-the-demonstration",
    347,
    "batch of 2 sequences, 1 head, 5 tokens, 16 dims",
    "The shape of queries, keys and values.",
    shape(2, 1, 5, 16),
    counted(
        lambda: (2, 1, 5, 16 * 1),
        lambda: _zeros(2, 5, 16).view(2, 5, 1, 16).transpose(1, 2).shape,
        lambda: split_heads(_zeros(2, 5, 16), 1).shape,
    ),
)

# Lines 364 to 506: heads, torch's own module, two sequences

HEADS.not_checkable(
    "one-type-at-a-time",
    364,
    "can only focus on one type of relationship",
    "One head sees one type of relationship at a time.",
    reason="What counts as a type of relationship is not said; one head has one row of weights for each token.",
)
HEADS.confirmed(
    "one-representation-per-token",
    376,
    "merged into one rich representation per token",
    "After eight heads each of 10 tokens has one vector of 64 dims: the shape.",
    shape(2, 10, 64),
    counted(
        lambda: contracted("bnd,de->bne", (2, 10, 8 * 8), (64, 64)),
        lambda: nn.MultiheadAttention(64, 8, batch_first=True)(*[_zeros(2, 10, 64)] * 3)[0].shape,
        lambda: MultiHeadAttention(64, 8)(_zeros(2, 10, 64)).shape,
    ),
)
BUILT_IN.behaviour(
    "returns-output-and-weights",
    463,
    "The call returns two things: the output and the weights.",
    blocks=("module",),
    probe="print(*(tuple(each.shape) for each in mha(query=x, key=x, value=x)))",
    prints="(2, 10, 64) (2, 10, 10)",
)
CROSS.confirmed(
    "keys-from-elsewhere",
    478,
    "key/value come from a different source",
    "Eight queries of one sequence and ten keys of another have 8 x 10 weights.",
    shape(8, 10),
    Worked("; ".join(["1 0"] * 8), "; ".join(["0 1"] * 10), "; ".join(["1 1"] * 10)).weights.axes(),
)
for name, line, place, number in (
    ("source-tokens", 487, "10-token source", 10),
    ("target-tokens", 497, "8-token target", 8),
    ("source-tokens-again", 498, "10-token source", 10),
):
    CROSS.confirmed(
        name,
        line,
        place,
        "How many tokens the sequence has: the rows of self-attention over it.",
        count(number),
        counted(
            lambda number=number: contracted("bnd,de->bne", (2, number, 64), (64, 64))[1],  # type: ignore[misc]
            None,
            lambda number=number: MultiHeadAttention(64, 8)(_zeros(2, number, 64)).shape[1],  # type: ignore[misc]
        ),
    )
ORDER.confirmed(
    "unique-vector",
    532,
    "a unique position vector",
    "The vectors of positions are unique: already the first two dims, a point of the unit circle at the angle "
    "of a whole number, are never the same, for pi is irrational.",
    HOLDS,
    holds(
        lambda: sympy.pi.is_irrational,
        lambda: len({(sympy.cos(p), sympy.sin(p)) for p in range(100)}) == 100,
        lambda: len(set(map(tuple, sinusoidal(100, 4).tolist()))) == 100,
    ),
)
