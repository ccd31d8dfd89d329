"""Document 004: an attention module, multi-head attention, the future-blind mask, 169,933 parameters."""

from headcheck.golden.derived import Derived
from headcheck.golden.ledger import Section
from headcheck.golden.stated import shape

MASK = Section("004", "future-blind-mask")

MASK.confirmed(
    "five-by-five",
    51,
    "this produces a 5x5 matrix",
    "The mask of a target of length 5.",
    shape(5, 5),
    Derived(lambda: (5, 5)),
    formula=r"M \in \{0, 1\}^{5 \times 5}",
)
