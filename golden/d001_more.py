"""Document 001, lines 30 to 224: statements between those of the other modules."""

import sympy
import torch

from headcheck.golden.d001 import EXAMPLE, SWAPPED
from headcheck.golden.derived import counted, holds
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Section
from headcheck.golden.stated import HOLDS, all_near, count, shape
from headcheck.reference import MultiHeadAttention, merge_heads

IDEA = Section("001", "core-concepts")
HEADS = Section("001", "multi-head")
PLACE = Section("001", "positions")
LAYER = Section("001", "encoder-layer")
END = Section("001", "reflections")


def _two_heads() -> torch.Tensor:
    """2 sequences of 3 tokens in 2 heads of 2 dims."""
    return torch.arange(24.0).view(2, 2, 3, 2)


def _projected_by_head() -> bool:
    """The columns of one projection, head by head, are the projections by the columns of each head."""
    x, w = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(3, 4)
    return torch.equal(x @ w, torch.cat([x @ part for part in w.chunk(2, dim=1)], dim=1))


IDEA.confirmed(
    "all-steps-at-once",
    30,
    "information from all time steps to be used at once",
    "Every token's value has a weight above zero in every output.",
    HOLDS,
    holds(
        lambda: all(each.is_positive for each in EXAMPLE.weights.exact()),
        lambda: all(each > 0 for row in EXAMPLE.weights.again() for each in row),  # type: ignore[misc]
        lambda: bool((EXAMPLE.weights.reference() > 0).all()),  # type: ignore[misc]
    ),
)
HEADS.confirmed(
    "separate-projections",
    90,
    "with separate linear projections",
    "Each head has projections of its own: its columns of the one matrix for all heads.",
    HOLDS,
    holds(
        lambda: (
            sympy.Matrix.hstack(*[sympy.MatrixSymbol("X", 2, 3).as_explicit() * w for w in _halves()])
            == sympy.MatrixSymbol("X", 2, 3).as_explicit() * sympy.Matrix.hstack(*_halves())
        ),
        _projected_by_head,
    ),
    formula=r"X [W_1, W_2] = [X W_1, X W_2]",
)
HEADS.confirmed(
    "four-projections",
    92,
    "learned projections `Wq, Wk, Wv` and an output projection `Wo`",
    "How many matrices the module learns.",
    count(4),
    counted(
        lambda: len(sympy.symbols("W_q W_k W_v W_o")),
        lambda: torch.nn.MultiheadAttention(4, 2).in_proj_weight.shape[0] // 4 + 1,
        lambda: sum(each.dim() == 2 for each in MultiHeadAttention(4, 2).parameters()),
    ),
)
HEADS.confirmed(
    "shape-mask-of-heads",
    134,
    "Expand mask to match the number of heads",
    "A mask (2, 3, 3), repeated for each of 2 heads, has the batch and head axes of line 129 in one.",
    shape(4, 3, 3),
    counted(
        lambda: (2 * 2, 3, 3),
        lambda: torch.ones(2, 3, 3).repeat_interleave(2, dim=0).shape,
    ),
)
HEADS.behaviour(
    "a-mask-for-each-head",
    134,
    "The mask of a sequence goes to each of its heads: with that of sequence 1 alone closed to key 1, so are both of "
    "its heads.",
    blocks=("001/scaled-dot-product/function", "module"),
    probe="""
mask = torch.ones(2, 2, 2)
mask[1, :, 1] = 0
_, weights = MultiHeadAttention(4, 2)(*[torch.ones(2, 2, 4)] * 3, mask)
print((weights[:, :, 1] > 0).all(dim=-1).tolist())
""",
    prints="[True, True, False, False]",
)
HEADS.confirmed(
    "shape-concatenated",
    140,
    "Concatenate heads",
    "Two heads of 2 dims side by side.",
    shape(2, 3, 4),
    counted(
        lambda: (2, 3, 2 * 2),
        lambda: torch.cat(list(_two_heads().unbind(dim=1)), dim=-1).shape,
        lambda: merge_heads(_two_heads()).shape,
    ),
)
PLACE.confirmed(
    "no-notion-of-order",
    153,
    "Pure attention has no notion of order",
    "If the tokens change places, so do their outputs, and nothing else changes.",
    HOLDS,
    holds(
        lambda: EXAMPLE.output.exact().row(0) == SWAPPED.output.exact().row(1),
        lambda: all_near(EXAMPLE.output.again()[0], SWAPPED.output.again()[1]),  # type: ignore[misc]
    ),
)
PLACE.not_checkable(
    "sinusoids-of-the-paper",
    153,
    "The original paper used fixed sinusoidal encodings",
    "The paper has fixed sinusoids.",
    reason="A fact about a paper that is not given: its section 3.5 has them.",
)
PLACE.confirmed(
    "shape-embeddings",
    175,
    "(batch, seq_len, d_model)",
    "The shape of what the encoding is added to, here 2 sequences of 3 tokens and 4 dims, is that of the sum.",
    shape(2, 3, 4),
    counted(
        lambda: contracted("bnd,nd->bnd", (2, 3, 4), (3, 4)),
        lambda: (torch.zeros(2, 3, 4) + torch.zeros(1, 3, 4)).shape,
    ),
)
PLACE.latent_fault(
    "table-ends",
    177,
    "The table ends: a sequence longer than max_len, 5000 unless said otherwise, is refused by an error about sizes.",
    blocks=("module",),
    probe="try:\n    PositionalEncoding(2, 2)(torch.zeros(1, 3, 2))\nexcept RuntimeError:\n    print('RuntimeError')",
    prints="RuntimeError",
    why_no_fault="It is refused with an error, and no law of attention sees it.",
)
PLACE.latent_fault(
    "table-of-one-position",
    177,
    "With max_len = 1 a longer sequence is not refused: the one row is broadcast, and every token is at position 0.",
    blocks=("module",),
    probe="print(PositionalEncoding(2, 1)(torch.zeros(1, 2, 2)).tolist())",
    prints="[[[0.0, 1.0], [0.0, 1.0]]]",
    why_no_fault="An encoding is added to the embeddings: no law of attention sees it.",
)
PLACE.latent_fault(
    "half-becomes-single",
    177,
    "The table stays in float32: embeddings in float16 come back in float32.",
    blocks=("module",),
    probe="print(PositionalEncoding(2)(torch.zeros(1, 1, 2).half()).dtype)",
    prints="torch.float32",
    why_no_fault="An encoding is added to the embeddings: no law of attention sees it.",
)
LAYER.behaviour(
    "layers-stack",
    224,
    "Layers can be stacked: the output of one is an input of the next.",
    blocks=("001/scaled-dot-product/function", "001/multi-head/module", "module"),
    probe="print(tuple(nn.Sequential(*[EncoderLayer(4, 2, 8) for _ in range(6)])(torch.ones(2, 3, 4)).shape))",
    prints="(2, 3, 4)",
)


def _halves() -> list[sympy.Matrix]:
    """Two matrices of three rows and two columns."""
    return [sympy.MatrixSymbol(name, 3, 2).as_explicit() for name in ("V", "W")]
