"""Document 004, lines 48 to 53: the future-blind mask, and the configuration behind 169,933 parameters."""

from fractions import Fraction

import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, count, exactly, shape
from headcheck.reference import Decoder, Embedding, Encoder, LayerConfig, Seq2Seq, attention, masks

MASK = Section("004", "future-blind-mask")
MODEL = Section("004", "parameters")

STATED = 169_933
TRIANGLE = "1 0 0 0 0; 1 1 0 0 0; 1 1 1 0 0; 1 1 1 1 0; 1 1 1 1 1"


def _sees(query: int, key: int) -> int:
    return int(int(key) <= int(query))


def _with_padding() -> list[list[int]]:
    """A target of five tokens, the last two of them padding: causal, and never to padding."""
    return [[_sees(query, key) * (key < 3) for key in range(5)] for query in range(5)]


def _weights_under(may_attend: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros(1, 1, 5, 2, dtype=torch.float64)
    return attention(zeros, zeros, zeros, may_attend=may_attend).weights[0, 0]


FUTURE_BLIND = Derived(
    exact=lambda: sympy.Matrix(5, 5, _sees),
    again=lambda: torch.tril(torch.ones(5, 5, dtype=torch.int64)),
    reference=lambda: masks.causal(5, 5).int(),
    inputs={"operation": "causal mask", "length": "5"},
)

# Lines 49 to 51

MASK.block(
    "line",
    50,
    50,
    "One line. Nothing of it has been defined.",
    levels="0",
    alone=Run(error="NameError: name 'torch' is not defined"),
)
MASK.confirmed(
    "lower-triangular",
    49,
    "a lower-triangular boolean mask matrix",
    "The mask is one on the diagonal and below it.",
    exactly(TRIANGLE),
    FUTURE_BLIND,
    formula=r"M_{ij} = [j \le i]",
)
MASK.confirmed(
    "blind-to-the-future",
    49,
    "must be blind to future tokens",
    "Under the mask every weight above the diagonal is zero, and every other one is not.",
    HOLDS,
    holds(
        lambda: all(bool(_sees(i, j)) == (j <= i) for i in range(5) for j in range(5)),
        None,
        lambda: torch.equal(_weights_under(masks.causal(5, 5)) > 0, masks.causal(5, 5)),
    ),
)
MASK.confirmed(
    "five-by-five",
    51,
    "this produces a 5x5 matrix",
    "The mask of a target of length 5.",
    shape(5, 5),
    FUTURE_BLIND.axes(),
)
for position, place in ((0, "position 0 can only see position 0"), (1, "position 1 can see positions 0-1")):
    MASK.confirmed(
        f"position-{position}",
        51,
        place,
        f"What position {position} sees.",
        exactly(TRIANGLE.split("; ")[position]),
        FUTURE_BLIND.at(position),
    )
MASK.confirmed(
    "and-so-on",
    51,
    "and so on",
    "How many positions each of the five sees.",
    exactly("1 2 3 4 5"),
    FUTURE_BLIND.at().map(lambda rows: [sum(row) for row in rows]),
)
MASK.confirmed(
    "both-masks",
    51,
    "respects both causality and sequence boundaries",
    "Both masks together: no weight on the future, none on padding at the end, and no row is dead.",
    HOLDS,
    holds(
        lambda: (
            all(sum(row) > 0 for row in _with_padding())
            and all(not row[j] for i, row in enumerate(_with_padding()) for j in range(5) if j > i or j >= 3)
        ),
        None,
        lambda: torch.equal(
            _weights_under(masks.causal(5, 5) & masks.padding(torch.tensor([3]), 5)) > 0,
            torch.tensor(_with_padding()).bool(),
        ),
    ),
    formula=r"M_{ij} = [j \le i] \cdot [j < \text{length}]",
)
MASK.confirmed(
    "padding-is-zeroed",
    51,
    "zeros out attention to <PAD> tokens",
    "The padding mask alone gives padding a weight of exactly zero.",
    HOLDS,
    holds(
        lambda: sympy.exp(-sympy.oo) == 0,
        None,
        lambda: not _weights_under(masks.padding(torch.tensor([3]), 5))[:, 3:].any(),
    ),
)
MASK.confirmed(
    "masks-broadcast",
    51,
    "broadcast correctly across the batch and head dimensions",
    "A mask (5, 5) and padding masks (2, 1, 1, 5) of 2 sequences make (2, 1, 5, 5).",
    shape(2, 1, 5, 5),
    Derived(
        exact=lambda: tuple(max(pair) for pair in zip((1, 1, 5, 5), (2, 1, 1, 5), strict=True)),
        again=lambda: (torch.ones(5, 5) * torch.ones(2, 1, 1, 5)).shape,
        reference=lambda: (masks.causal(5, 5) & masks.padding(torch.tensor([3, 5]), 5)).shape,
    ),
)

# Line 53. d_model = 64 and 4 heads are those of line 38; the rest was found: 2 + 2 layers, d_ff = 128, 13 tokens
# (ten digits and three for padding, start and end), biases everywhere, no norm after the last layer, three
# embeddings of their own (source, target, output), fixed positions.


def _by_formula(d_model: int, d_ff: int, layers: int, source: int, target: int) -> int:
    attention_layer = 4 * (d_model**2 + d_model)
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    norm = 2 * d_model
    encoder = attention_layer + feed_forward + 2 * norm
    decoder = 2 * attention_layer + feed_forward + 3 * norm
    return layers * (encoder + decoder) + (source + target) * d_model + target * (d_model + 1)


def _by_building() -> int:
    """The same model out of torch's layers."""
    with torch.device("meta"):
        encoder = nn.TransformerEncoderLayer(64, 4, 128)
        decoder = nn.TransformerDecoderLayer(64, 4, 128)
        model = nn.ModuleList(
            [
                nn.Embedding(13, 64),
                nn.Embedding(13, 64),
                nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False),
                nn.TransformerDecoder(decoder, 2),
                nn.Linear(64, 13),
            ]
        )
    return sum(parameter.numel() for parameter in model.parameters())


def _by_reference() -> int:
    """The same model out of the reference's layers."""
    config = LayerConfig(d_model=64, num_heads=4, d_ff=128, norm_order="post", activation="relu")
    source, target = (Embedding(13, 64, scaled=True, positions="sinusoidal") for _ in range(2))
    encoder, decoder = Encoder(config, 2, final_norm=False), Decoder(config, 2, final_norm=False)
    model = Seq2Seq(source, target, encoder, decoder, tied=False, output_bias=True)
    return sum(parameter.numel() for parameter in model.parameters())


def _configurations() -> list[tuple[int, ...]]:
    """Every d_ff, depth and pair of vocabularies of the usual sizes that has the stated number."""
    return [
        (d_ff, layers, source, target)
        for d_ff in (64, 128, 192, 256, 512, 1024, 2048)
        for layers in range(1, 7)
        for target in range(3, 1000)
        for source in [_vocabulary_left(d_ff, layers, target)]
        if source
    ]


def _vocabulary_left(d_ff: int, layers: int, target: int) -> int:
    """The source vocabulary that makes up the stated number; 0 where none does."""
    left = STATED - _by_formula(64, d_ff, layers, 0, target)
    return left // 64 if left > 0 and left % 64 == 0 else 0


def _shared_vocabularies() -> list[tuple[int, int, int]]:
    """The same where both vocabularies are one: the number is a + 193 v, of which a is counted on built layers."""
    found = []
    for d_ff in (64, 128, 192, 256, 512, 1024, 2048):
        with torch.device("meta"):
            parts = [nn.TransformerEncoderLayer(64, 4, d_ff), nn.TransformerDecoderLayer(64, 4, d_ff)]
        layer = sum(parameter.numel() for part in parts for parameter in part.parameters())
        words = {layers: Fraction(STATED - layers * layer, 64 + 64 + 65) for layers in range(1, 7)}
        found += [(d_ff, layers, int(v)) for layers, v in words.items() if v.denominator == 1 and v > 2]
    return found


MODEL.confirmed(
    "total",
    53,
    "all 169,933 parameters",
    "The parameters of a model of d_model 64, 4 heads, 2 + 2 layers, d_ff 128 and 13 tokens.",
    count(STATED),
    counted(lambda: _by_formula(64, 128, 2, 13, 13), _by_building, _by_reference),
    formula=r"2 (33472 + 50240) + 2 \cdot 13 \cdot 64 + 13 \cdot 65 = 169933",
)
MODEL.confirmed(
    "configuration",
    53,
    "all 169,933 parameters",
    "With d_model 64 and one vocabulary for both sides, no other usual d_ff and depth have this number of parameters.",
    HOLDS,
    holds(
        lambda: [each for each in _configurations() if each[2] == each[3]] == [(128, 2, 13, 13)],
        lambda: _shared_vocabularies() == [(128, 2, 13)],
    ),
)
MODEL.not_checkable(
    "compiles-and-runs",
    53,
    "The model compiles and runs",
    "The whole model runs.",
    reason="Of the model only attention is printed.",
)
