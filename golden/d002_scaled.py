"""Document 002, lines 89 to 107: the example from its scaled scores to its output."""

from itertools import product as pairs
from typing import Any

import sympy

from headcheck.golden.d002 import KEY, LOST, PRINTED_SCORES, QUERY, RAW, SLIPPED, TOKENS, VALUE, W_V, X
from headcheck.golden.d002_why_scaled import softmax_of
from headcheck.golden.derived import Derived, Worked, holds, product, rows_sum_to_one
from headcheck.golden.exact import fractions, matrix, q, softmax
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, exactly, nested, rounded

HAND = Section("002", "attention-by-hand")

EXAMPLE = Worked(QUERY, KEY, VALUE)
WEIGHTS = "0.006 0.880 0.114; 0.035 0.483 0.483; 0.002 0.499 0.499"
OUTPUT = "0.24 1.99 3.75 1.99; 1.04 1.97 2.90 1.97; 1.00 2.00 3.00 2.00"
"""Both as printed."""
BETWEEN = ((0, 2), (1, 2), (0, 4), (1, 2))
"""The smallest and the largest value of each dimension."""


def _blend(token: int) -> list[Any]:
    """The output of a token from the weights that are printed for it; of "sat", from one half and one half."""
    weights = matrix(WEIGHTS).row(token) if token < 2 else matrix("0 0.5 0.5")
    return list(weights * matrix(VALUE))


def _slope(weights: Any) -> Any:
    """How the weight of "The" for "sat" answers its score."""
    weight = nested(weights)[0][2]
    return weight * (1 - weight)


# Lines 89 to 92: the scaled scores

HAND.confirmed(
    "scale",
    89,
    "= scores / 2",
    "The root of d_k = 4.",
    exactly("2"),
    Derived(lambda: sympy.sqrt(4), lambda: matrix(QUERY).cols / sympy.Integer(2)),
    formula=r"\sqrt{d_k} = \sqrt{4}",
)
HAND.block(
    "scaled-in-words",
    89,
    89,
    "The scaled scores as an equation: no code.",
    levels="0",
    alone=Run(error="SyntaxError: invalid character '√' (U+221A) (<block>, line 1)"),
)
for i, (line, said) in enumerate(((90, "1.0 6.0 4.0"), (91, "2.0 4.0 4.0"), (92, "4.0 8.0 8.0"))):
    for j, printed in enumerate(said.split()):
        name, what = f"scaled-{i}-{j}", f'The scaled score of "{TOKENS[i]}" against "{TOKENS[j]}".'
        place, formula = said.replace(" ", ", "), rf"s_{{{i}{j}}} = \frac{{q_{i} \cdot k_{j}}}{{2}}"
        if (i, j) in {(1, 0), (1, 2)}:
            HAND.erratum(
                name,
                line,
                place,
                what,
                exactly(printed),
                EXAMPLE.scores.at(i, j),
                slip=f"It is half of the wrong score of line 74. {LOST}",
                gives=SLIPPED.scores.at(i, j).map(lambda score: score / 2).exact,
                formula=formula,
            )
        else:
            HAND.confirmed(
                name, line, place, what, exactly(printed), EXAMPLE.scores.at(i, j), formula=formula
            )
HAND.confirmed(
    "scaled-from-printed",
    91,
    "[2.0, 4.0, 4.0]",
    'The scaled scores of "cat", from the scores that line 74 prints.',
    exactly("2.0 4.0 4.0"),
    Derived(
        lambda: matrix(PRINTED_SCORES).row(1) / 2, lambda: [[each / 2 for each in fractions("4 8 8")[0]]]
    ).at(0),
)

# Lines 93 to 97: the weights

HAND.confirmed(
    "rows-sum-to-one",
    93,
    "sums to 1",
    "Each row of weights is positive and sums to one.",
    HOLDS,
    rows_sum_to_one(EXAMPLE.weights),
    formula=r"\sum_j \frac{e^{s_j}}{\sum_k e^{s_k}} = 1",
)
HAND.block(
    "weights",
    94,
    94,
    "The softmax by a name that nothing has defined.",
    levels="0",
    alone=Run(error="NameError: name 'softmax' is not defined"),
)
UNTOLD = (
    "The slip cannot be told: 403.43 and 54.60, e^6 and e^4, of e + e^6 + e^4 = 460.74 are 0.876 and 0.118.",
    f"{LOST} Even of the printed 2, 4, 4 the weights would be 0.063, 0.468, 0.468.",
    "The slip cannot be told: division by sqrt(2) instead of sqrt(4) would give it, but not the other rows.",
)
RIGHT_WEIGHTS = {(0, 0)}


def _weight(name: str, line: int, place: str, i: int, j: int) -> None:
    """The claim on one printed weight."""
    printed = WEIGHTS.split("; ")[i].split()[j]
    what = f'The weight of "{TOKENS[i]}" for "{TOKENS[j]}".'
    formula = rf"\alpha_{{{i}{j}}} = \frac{{e^{{s_{{{i}{j}}}}}}}{{\sum_k e^{{s_{{{i}k}}}}}}"
    stated, derived = rounded(printed), EXAMPLE.weights.at(i, j)
    if (i, j) in RIGHT_WEIGHTS:
        HAND.confirmed(name, line, place, what, stated, derived, formula=formula)
        return
    by_root_of_2 = softmax([score / sympy.sqrt(2) for score in (8, 16, 16)])
    HAND.erratum(
        name,
        line,
        place,
        what,
        stated,
        derived,
        slip=UNTOLD[i],
        gives=(lambda: by_root_of_2[j]) if i == 2 else None,
        formula=formula,
    )


for i, j in pairs(range(3), range(3)):
    _weight(f"weight-{i}-{j}", 95 + i, WEIGHTS.split("; ")[i].replace(" ", ", "), i, j)
HAND.erratum(
    "weights-1-from-printed-scores",
    96,
    "0.035, 0.483, 0.483",
    'The weights of "cat", from the scaled scores 2, 4, 4 that are printed for it.',
    rounded("0.035 0.483 0.483"),
    softmax_of("2.0 4.0 4.0"),
    slip="The slip cannot be told: 0.035 and 0.483 belong to scores that differ by 2.62 instead of 2.",
)
HAND.confirmed(
    "the-88-percent",
    95,
    "puts 88% on",
    'The weight of "The" for "cat" in percent.',
    rounded("88"),
    EXAMPLE.weights.at(0, 1).map(lambda weight: 100 * weight),
)
for name, line, place in (
    ("the-11-percent", 95, '11% on "sat"'),
    ("meaningful-11-percent", 98, "meaningful 11%"),
):
    HAND.erratum(
        name,
        line,
        place,
        'The weight of "The" for "sat" in percent.',
        rounded("11"),
        EXAMPLE.weights.at(0, 2).map(lambda weight: 100 * weight),
        slip="It is the wrong weight 0.114 in percent.",
        gives=lambda: 100 * q("0.114"),
    )
HAND.erratum(
    "cat-splits-evenly",
    96,
    "splits evenly between itself",
    '"cat" gives itself and "sat" the same weight.',
    HOLDS,
    EXAMPLE.weights.at(1).map(lambda row: bool(row[1] == row[2])),
    slip=f'{LOST} In truth it gives itself 1.6% and "sat" 86.7%.',
    gives=SLIPPED.scores.at(1).map(lambda row: bool(row[1] == row[2])).exact,
)
HAND.confirmed(
    "sat-splits-evenly",
    97,
    "splits evenly between",
    '"sat" gives "cat" and itself the same weight.',
    HOLDS,
    EXAMPLE.weights.at(2).map(lambda row: bool(row[1] == row[2])),
)

# Lines 98 and 99: the same without the scale

for number, printed in enumerate(("0.00005", "0.982", "0.018")):
    what = f'Without the scale, the weight of "The" for "{TOKENS[number]}".'
    derived = RAW.weights.at(0, number)
    if number:
        HAND.confirmed(f"unscaled-{number}", 98, "0.982, 0.018", what, rounded(printed), derived)
    else:
        HAND.erratum(
            "unscaled-0",
            98,
            "0.00005",
            what,
            rounded(printed),
            derived,
            slip="The ratio to the largest weight, e^(2 - 12) = 0.0000454, rounds to it; the share of three does not.",
            gives=lambda: sympy.exp(2 - 12),
        )
HAND.confirmed(
    "gradient-flows-with-scale",
    98,
    "the gradient now flows to that position too",
    'The weight of "sat" answers its raw score more with the scale, which halves the score, than without.',
    HOLDS,
    holds(
        lambda: _slope(EXAMPLE.weights.exact()) / 2 > _slope(RAW.weights.exact()),
        lambda: _slope(EXAMPLE.weights.again()) / 2 > _slope(RAW.weights.again()),  # type: ignore[misc]
        lambda: _slope(EXAMPLE.weights.reference()) / 2 > _slope(RAW.weights.reference()),  # type: ignore[misc]
    ),
    formula=r"\frac{1}{2} \alpha_{02} (1 - \alpha_{02}) > \alpha'_{02} (1 - \alpha'_{02})",
)

# Lines 100 to 107: the output

HAND.block(
    "output",
    101,
    101,
    "Weights times values. The weights are those that the line above failed to make.",
    levels="0",
    alone=Run(error="NameError: name 'weights' is not defined"),
)
HAND.confirmed(
    "weighted-blend",
    100,
    "a weighted blend of all the value vectors",
    "No output lies beyond the smallest and the largest value of its dimension.",
    HOLDS,
    EXAMPLE.output.map(
        lambda rows: all(
            low <= each <= high
            for row in nested(rows)
            for each, (low, high) in zip(row, BETWEEN, strict=True)
        )
    ),
    formula=r"o_i = \sum_j \alpha_{ij} v_j",
)
for i, line in ((0, 102), (1, 104)):
    for j, printed in enumerate(WEIGHTS.split("; ")[i].split()):
        _weight(f"blend-weight-{i}-{j}", line, printed, i, j)
    HAND.confirmed(
        f"blend-values-{i}",
        line,
        "[2,1,0,1]",
        "The vectors that are blended are the values.",
        exactly(VALUE),
        product(X, W_V),
    )
OF_WEIGHTS = (
    "It follows from the wrong weights 0.880 and 0.114.",
    f"It follows from the wrong weights 0.035, 0.483, 0.483. {LOST}",
    "It follows from weights of 0, one half and one half; the wrong printed ones give 2.99 in dim 2.",
)


def _output(name: str, line: int, i: int, dim: int) -> None:
    """The claim on one printed number of an output."""
    row = OUTPUT.split("; ")[i]
    place, stated, derived = row.replace(" ", ", "), rounded(row.split()[dim]), EXAMPLE.output.at(i, dim)
    what, formula = (
        f'Dim {dim} of the output of "{TOKENS[i]}".',
        rf"o_{{{i}{dim}}} = \sum_j \alpha_{{{i}j}} v_{{j{dim}}}",
    )
    if i == 0 and dim in {1, 3}:
        HAND.confirmed(name, line, place, what, stated, derived, formula=formula)
        return
    HAND.erratum(
        name,
        line,
        place,
        what,
        stated,
        derived,
        slip=OF_WEIGHTS[i],
        gives=lambda: _blend(i)[dim],
        formula=formula,
    )


for i, dim in pairs(range(3), range(4)):
    _output(f"output-{i}-{dim}", (103, 105, 106)[i], i, dim)
for dim in range(4):
    _output(f"output-0-{dim}-again", 107, 0, dim)
HAND.confirmed(
    "started-as",
    107,
    "[1, 0, 1, 0]",
    'The embedding of "The".',
    exactly("1 0 1 0"),
    Derived(lambda: list(matrix(X).row(0)), lambda: fractions(X)[0]),
)
HAND.confirmed(
    "blended-88-percent",
    107,
    "88% of",
    'How much of the value of "cat" is in the output of "The", in percent.',
    rounded("88"),
    EXAMPLE.weights.at(0, 1).map(lambda weight: 100 * weight),
)
HAND.confirmed(
    "blend-of-the-entire-sentence",
    107,
    "a blend of the entire sentence",
    "Every word has a positive weight in the output of the first.",
    HOLDS,
    EXAMPLE.weights.at(0).map(lambda row: all(each > 0 for each in nested(row))),
)
HAND.behaviour(
    "output-at-run-time",
    101,
    "What the code's own scores give, scaled by its own numbers: the output that should have been printed.",
    blocks=("002/scores-by-hand/projections", "002/scores-by-hand/scores"),
    probe="out = torch.softmax(scores / math.sqrt(4), dim=-1) @ V\n"
    "print([[round(each, 2) for each in row] for row in out.tolist()])",
    prints="[[0.25, 1.99, 3.74, 1.99], [1.97, 1.88, 1.8, 1.88], [1.01, 1.99, 2.97, 1.99]]",
)
