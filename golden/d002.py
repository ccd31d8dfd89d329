"""Document 002, lines 25 to 76: why a sequence talks to itself, and the example up to its scores."""

import sympy
import torch
import torch.fx

from headcheck.golden.derived import Derived, Worked, counted, holds, product, same, tensor
from headcheck.golden.exact import fractions, matrix, softmax_rows
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, count, exactly, nested, shape
from headcheck.reference import MultiHeadAttention, number_of_scores

IDEA = Section("002", "why")
CABINET = Section("002", "filing-cabinet")
HAND = Section("002", "scores-by-hand")

X = "1.0 0.0 1.0 0.0; 0.0 2.0 0.0 2.0; 1.0 1.0 1.0 1.0"
W_Q = "1 0 1 0; 0 1 0 1; 1 0 0 1; 0 1 1 0"
W_K = "0 1 1 0; 1 0 0 1; 0 1 0 1; 1 0 1 0"
W_V = "1 0 0 1; 0 1 1 0; 1 1 0 0; 0 0 1 1"
QUERY, KEY, VALUE = "2 0 1 1; 0 4 2 2; 2 2 2 2", "0 2 1 1; 4 0 2 2; 2 2 2 2", "2 1 0 1; 0 2 4 2; 2 2 2 2"
RAW = Worked(QUERY, KEY, VALUE, scaled=False)
PRINTED_SCORES = "2 12 8; 4 8 8; 8 16 16"
SLIPPED = Worked("2 0 1 1; 0 0 2 2; 2 2 2 2", KEY, VALUE, scaled=False)
"""The example with the 4 in the query of "cat" lost: its scores are those that are printed."""
TOKENS = ("The", "cat", "sat")
READ = "It is read off the sentence of line 26."
SENTENCE = ["The", "cat", "sat", "on", "the", "mat", "because", "it", "was", "tired"]


def _hops_of_a_chain(start: str, end: str) -> Derived:
    """Steps from one word of the sentence to another, by their places and by walking."""
    first, last = SENTENCE.index(start), SENTENCE.index(end)
    return Derived(lambda: last - first, lambda: len(SENTENCE[first:last]))


def _pairs(tokens: int) -> Derived:
    """Scores of so many words: n^2, and the sum of the first n odd numbers."""
    return Derived(
        exact=lambda: tokens**2,
        again=lambda: sum(2 * i + 1 for i in range(tokens)),
        reference=lambda: number_of_scores(tokens, tokens),
    )


def _operations() -> int:
    """The operations of the equation as a program, transposing aside, counted in its graph."""
    traced = torch.fx.symbolic_trace(lambda q, k, v: torch.softmax(q @ k.T / 2, dim=-1) @ v)
    return sum(node.op == "call_function" and node.target is not getattr for node in traced.graph.nodes)


def _attended(weights: list[torch.Tensor]) -> torch.Tensor:
    """Attention with projections of the example's words, in torch."""
    query, key, value = (tensor(X) @ w for w in weights)
    return (torch.softmax(query @ key.T / 2, dim=-1) @ value).square().sum()


def _gradients_of_the_projections() -> bool:
    """All three matrices get one, through attention."""
    weights = [tensor(w).requires_grad_() for w in (W_Q, W_K, W_V)]
    return all(bool(grad.any()) for grad in torch.autograd.grad(_attended(weights), weights))


def _projections_matter() -> bool:
    """The output changes with each of the three matrices."""
    weights = [tensor(w) for w in (W_Q, W_K, W_V)]
    changed = [[w + (i == j) * torch.eye(4) for j, w in enumerate(weights)] for i in range(3)]
    return all(bool(_attended(each) != _attended(weights)) for each in changed)


# Lines 27 to 30

IDEA.not_checkable(
    "spanish-pronouns",
    27,
    "the pronoun has to agree in gender",
    "In Spanish the pronoun agrees in gender with what it refers to.",
    reason="A fact of a language; no derivation decides it.",
)
IDEA.confirmed(
    "six-words-back",
    28,
    "six words back",
    'How many words "cat" stands before "it".',
    count(6),
    _hops_of_a_chain("cat", "it"),
)
IDEA.confirmed(
    "two-words-back",
    28,
    "two words back",
    'How many words "mat" stands before "it".',
    count(2),
    _hops_of_a_chain("mat", "it"),
)
IDEA.confirmed(
    "words-between",
    28,
    "travels forward through",
    'The words listed between "cat" and "it" are all that stand there.',
    HOLDS,
    holds(lambda: SENTENCE[2:7] == ["sat", "on", "the", "mat", "because"], one_way=READ),
)
IDEA.not_checkable(
    "faint-signal",
    28,
    "six words back is faint",
    "In a recurrent network the signal of the word six steps back is faint.",
    reason="It depends on the weights of a network that is not given.",
)
IDEA.erratum(
    "words-of-the-sentence",
    29,
    '"soft,"',
    "The words that are listed as looked at are words of the sentence.",
    HOLDS,
    holds(lambda: {"cat", "mat", "sat", "soft"} <= set(SENTENCE), one_way=READ),
    slip='"soft" is not in the sentence of line 26.',
)
IDEA.confirmed(
    "one-hop",
    29,
    "One hop.",
    "In one step every word gets something of every other: all weights are positive, whatever the distance.",
    HOLDS,
    RAW.weights.map(lambda weights: all(each > 0 for row in nested(weights) for each in row)),
    formula=r"\alpha_{ij} > 0",
)
IDEA.confirmed(
    "fully-connected",
    30,
    "fully-connected graph",
    "Every pair of words is compared: of the ten words of the sentence, 100 pairs, against 9 steps of a chain.",
    HOLDS,
    holds(
        lambda: len(SENTENCE) ** 2 == 100 and len(SENTENCE) - 1 == 9,
        lambda: len([(i, j) for i in SENTENCE for j in SENTENCE]) == 100,
        lambda: number_of_scores(10, 10) == 100,
    ),
)

# Lines 33 to 43

CABINET.confirmed(
    "weighted-mix",
    34,
    "a weighted mix of the contents",
    "The output is a weighted mean of the values: a value that all keys share comes back.",
    exactly("5 7; 5 7; 5 7"),
    Derived(
        lambda: sympy.simplify(softmax_rows(matrix(PRINTED_SCORES)) * matrix("5 7; 5 7; 5 7")),
        Worked(QUERY, KEY, "5 7; 5 7; 5 7").output.again,
        Worked(QUERY, KEY, "5 7; 5 7; 5 7").output.reference,
    ),
)
CABINET.confirmed(
    "three-views-of-one-word",
    37,
    'creates a different "view"',
    'Three matrices make three different vectors of the one embedding of "cat".',
    HOLDS,
    holds(
        lambda: len({tuple(matrix(X).row(1) * matrix(w)) for w in (W_Q, W_K, W_V)}) == 3,
        lambda: len({str(fractions(each)[1]) for each in (QUERY, KEY, VALUE)}) == 3,
    ),
    formula=r"q = x W_Q, \quad k = x W_K, \quad v = x W_V",
)
CABINET.block(
    "three-versions",
    39,
    41,
    "Three products in words: no code.",
    levels="000",
    alone=Run(error="SyntaxError: invalid character '×' (U+00D7) (<block>, line 1)"),
)
for name, line, place, weight, printed in (
    ("q-cat", 39, "q_cat = x_cat", W_Q, QUERY),
    ("k-cat", 40, "k_cat = x_cat", W_K, KEY),
    ("v-cat", 41, "v_cat = x_cat", W_V, VALUE),
):
    CABINET.confirmed(
        name,
        line,
        place,
        f"The {name[0]} of a word is its embedding times a matrix: with the numbers below.",
        exactly(printed.split("; ")[1]),
        product(X, weight).at(1),
        formula=rf"{name[0]}_{{cat}} = x_{{cat}} W_{name[0].upper()}",
    )
CABINET.confirmed(
    "learned-by-backpropagation",
    42,
    "Through backpropagation",
    "Each of the three matrices gets a gradient through attention.",
    HOLDS,
    holds(_gradients_of_the_projections, _projections_matter),
)
CABINET.confirmed(
    "nothing-but-projections-and-a-dot-product",
    42,
    "learned linear projections plus a dot product",
    "All that attention learns are its projections; the scale and the softmax of line 46 have no weights.",
    HOLDS,
    holds(
        lambda: all("proj" in name for name, _ in torch.nn.MultiheadAttention(4, 2).named_parameters()),
        lambda: not [*torch.nn.Softmax(dim=-1).parameters()],
        lambda: all(name.startswith("w_") for name, _ in MultiHeadAttention(4, 2).named_parameters()),
    ),
)

# Lines 46 to 52: the equation and the inputs

HAND.confirmed(
    "equation",
    46,
    "Attention(Q, K, V) = softmax(",
    "Attention is softmax(Q K^T / sqrt(d_k)) V: the reference computes the equation.",
    HOLDS,
    same(
        lambda: softmax_rows(matrix(QUERY) * matrix(KEY).T / sympy.sqrt(4)) * matrix(VALUE),
        Worked(QUERY, KEY, VALUE).output.exact,
        Worked(QUERY, KEY, VALUE).output.reference,
    ),
    formula=r"\text{Attention}(Q, K, V) = \text{softmax}(Q K^T / \sqrt{d_k}) V",
)
HAND.confirmed(
    "four-operations",
    47,
    "Four operations",
    "The equation has a product, a division, a softmax and a product.",
    count(4),
    counted(lambda: len(("Q K^T", "/ sqrt(d_k)", "softmax", "... V")), _operations),
)
HAND.confirmed(
    "shape-of-the-input",
    48,
    "three rows (one per word) and four columns",
    "Three words of four dimensions.",
    shape(3, 4),
    Derived(lambda: matrix(X).shape, lambda: (len(fractions(X)), len(fractions(X)[0]))),
)
HAND.block(
    "input",
    49,
    51,
    "A matrix with arrows and words beside it: no code.",
    levels="000",
    alone=Run(error="SyntaxError: invalid character '←' (U+2190) (<block>, line 1)"),
)
HAND.confirmed(
    "shape-of-the-weights",
    52,
    "each 4",
    "The matrices that are given are square, of four rows.",
    exactly("4 4; 4 4; 4 4"),
    Derived(
        lambda: [matrix(w).shape for w in (W_Q, W_K, W_V)],
        lambda: [(len(fractions(w)), len(fractions(w)[0])) for w in (W_Q, W_K, W_V)],
    ),
)
HAND.block("projections", 53, 60, "The inputs, and three products.", levels="0" * 8, alone=Run())

# Lines 61 to 70: queries, keys, values

for letter, weight, printed, lines, said in (
    ("q", W_Q, QUERY, (62, 63, 64), "is asking this question"),
    ("k", W_K, KEY, (65, 66, 67), "advertises this"),
    ("v", W_V, VALUE, (68, 69, 70), "will provide this"),
):
    for token, line in enumerate(lines):
        row = printed.split("; ")[token]
        HAND.confirmed(
            f"{letter}-{TOKENS[token].lower()}",
            line,
            f"[{row.replace(' ', ', ')}]",
            f'The {letter} of "{TOKENS[token]}", which {said}.',
            exactly(row),
            product(X, weight).at(token),
            formula=rf"{letter}_{token} = x_{token} W_{letter.upper()}",
        )
HAND.behaviour(
    "projections-at-run-time",
    61,
    "The code gives the matrices that are printed.",
    blocks=("projections",),
    probe="""
print(Q.tolist() == [[2, 0, 1, 1], [0, 4, 2, 2], [2, 2, 2, 2]])
print(K.tolist() == [[0, 2, 1, 1], [4, 0, 2, 2], [2, 2, 2, 2]])
print(V.tolist() == [[2, 1, 0, 1], [0, 2, 4, 2], [2, 2, 2, 2]])
""",
    prints="True\nTrue\nTrue",
)

# Lines 71 to 76: scores

HAND.confirmed(
    "shape-of-the-scores",
    71,
    "matrix where entry (i, j)",
    "Three queries and three keys have 3 x 3 scores.",
    shape(3, 3),
    RAW.scores.axes(),
)
HAND.confirmed(
    "entry-i-j",
    71,
    "the dot product of word i's query with word j's key",
    "Entry (i, j) of Q K^T is the dot product of query i and key j.",
    HOLDS,
    same(
        lambda: [
            [sum(a * b for a, b in zip(q, k, strict=True)) for k in fractions(KEY)] for q in fractions(QUERY)
        ],
        RAW.scores.exact,
        RAW.scores.reference,
    ),
    formula=r"(Q K^T)_{ij} = q_i \cdot k_j",
)
HAND.block(
    "scores",
    72,
    72,
    "The scores. Queries and keys are those of the block before.",
    levels="0",
    alone=Run(error="NameError: name 'Q' is not defined"),
    in_order=Run(),
)
LOST = (
    "The 4 in the query of cat, [0, 4, 2, 2], was lost on the way: with [0, 0, 2, 2] its scores are 4, 8, 8."
)
for i, (line, said) in enumerate(zip((73, 74, 75), PRINTED_SCORES.split("; "), strict=True)):
    for j, printed in enumerate(said.split()):
        name, what = f"score-{i}-{j}", f'The score of "{TOKENS[i]}" against "{TOKENS[j]}".'
        place, formula = said.replace(" ", ", "), rf"s_{{{i}{j}}} = q_{i} \cdot k_{j}"
        if (i, j) in {(1, 0), (1, 2)}:
            HAND.erratum(
                name,
                line,
                place,
                what,
                exactly(printed),
                RAW.scores.at(i, j),
                slip=LOST,
                gives=SLIPPED.scores.at(i, j).exact,
                formula=formula,
            )
        else:
            HAND.confirmed(name, line, place, what, exactly(printed), RAW.scores.at(i, j), formula=formula)
HAND.behaviour(
    "scores-at-run-time",
    72,
    'The code gives other scores for "cat" than line 74 prints.',
    blocks=("projections", "scores"),
    probe="print(scores.int().tolist())",
    prints="[[2, 12, 8], [12, 8, 16], [8, 16, 16]]",
)
HAND.confirmed(
    "the-matches-cat-most",
    73,
    'matched strongly with "cat" (12)',
    '"The" scores most with "cat".',
    HOLDS,
    RAW.scores.at(0).map(lambda row: bool(row[1] == 12 and row[1] == max(row))),
)
HAND.erratum(
    "cat-matches-equally",
    74,
    'matched equally with "cat" and "sat"',
    '"cat" scores the same with "cat" and with "sat".',
    HOLDS,
    RAW.scores.at(1).map(lambda row: bool(row[1] == row[2])),
    slip=f"{LOST} In truth it is 8 against 16.",
    gives=SLIPPED.scores.at(1).map(lambda row: bool(row[1] == row[2])).exact,
)
HAND.confirmed(
    "sat-matches-both",
    75,
    'matched very strongly with "cat" and "sat"',
    '"sat" scores 16 with "cat" and with "sat", which no other score exceeds.',
    HOLDS,
    RAW.scores.map(lambda rows: nested(rows)[2][1:] == [max(map(max, nested(rows)))] * 2),
)
for name, place, tokens, number in (
    ("nine-scores", "three words means nine scores", 3, 9),
    ("million-scores", "one million scores", 1_000, 10**6),
    ("ten-billion-scores", "ten billion", 100_000, 10**10),
):
    HAND.confirmed(
        name,
        76,
        place,
        f"The scores of {tokens:,} words.",
        count(number),
        _pairs(tokens),
        formula=rf"n^2, \quad n = {tokens}",
    )
