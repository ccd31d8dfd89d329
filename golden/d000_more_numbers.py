"""Document 000, lines 179 to 613: numbers of the worked examples where they are printed again, and a usage."""

from headcheck.golden.d000_projections import EXAMPLE, PROJECTED
from headcheck.golden.derived import simplified
from headcheck.golden.ledger import Section
from headcheck.golden.stated import exactly

HAND = Section("000", "projections-by-hand")
ENCODER = Section("000", "encoder-block")

HAND.confirmed(
    "q-0-again",
    179,
    "$q_0 = [1.0, 0.5]$",
    "The query of token 0.",
    exactly("1.0 0.5"),
    PROJECTED["q"].at(0),
    formula=r"q_0 = x_0 W_Q",
)
HAND.confirmed(
    "weights-in-the-sum",
    195,
    r"0.50 \cdot [2.0,\ 1.0] + 0.50 \cdot [0.4,\ 1.8]",
    "The weights of token 0 as they enter its output.",
    exactly("0.50 0.50"),
    simplified(EXAMPLE.weights).at(0),
)
HAND.confirmed(
    "values-in-the-sum",
    195,
    r"[2.0,\ 1.0] + 0.50 \cdot [0.4,\ 1.8]",
    "The values as they enter the output of token 0.",
    exactly("2.0 1.0; 0.4 1.8"),
    PROJECTED["v"],
)
ENCODER.not_checkable(
    "six-to-twelve-again",
    613,
    "Repeat 6-12 times",
    "Blocks are stacked 6 to 12 times.",
    reason="A usage; line 630 itself speaks of 96 layers and more.",
)
