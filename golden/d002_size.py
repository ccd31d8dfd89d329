"""Document 002, lines 3 and 328 to 342: the history, the shape and the parameters of the encoder, and the wrap-up."""

import torch
from torch import nn

from headcheck.golden.d002 import KEY, QUERY, VALUE
from headcheck.golden.derived import Derived, Worked, same
from headcheck.golden.exact import contracted, matrix, softmax_rows
from headcheck.golden.ledger import Section
from headcheck.golden.pieces import parameters
from headcheck.golden.stated import HOLDS, count, rounded, shape
from headcheck.reference import Embedding, Encoder, LayerConfig

START = Section("002", "introduction")
SIZE = Section("002", "parameters")
END = Section("002", "wrap-up")

EXAMPLE = Worked(QUERY, KEY, VALUE)


def _by_formula(vocab: int, d_model: int, d_ff: int, layers: int, max_len: int) -> int:
    """Two tables, the layers, and a norm at their end; every map has a bias."""
    attention = 4 * (d_model**2 + d_model)
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    norm = 2 * d_model
    return (vocab + max_len) * d_model + layers * (attention + feed_forward + 2 * norm) + norm


def _by_building(vocab: int, d_model: int, heads: int, d_ff: int, layers: int, max_len: int) -> int:
    """The same of torch's own parts, one layer counted for all."""
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(d_model, heads, d_ff)
        rest = nn.ModuleList(
            [nn.Embedding(vocab, d_model), nn.Embedding(max_len, d_model), nn.LayerNorm(d_model)]
        )
    return layers * parameters(layer) + parameters(rest)


def _of_the_reference() -> int:
    """The document's configuration: 30,000 tokens, 512 dims, 8 heads, 6 layers, d_ff 2048, 512 positions."""
    config = LayerConfig(d_model=512, num_heads=8, d_ff=2048, norm_order="pre", activation="gelu")
    with torch.device("meta"):
        embedding = Embedding(30000, 512, scaled=True, positions="learned", max_len=512)
        encoder = Encoder(config, 6, final_norm=True)
    return parameters(embedding) + parameters(encoder)


PARAMETERS = Derived(
    lambda: _by_formula(30000, 512, 2048, 6, 512),
    lambda: _by_building(30000, 512, 8, 2048, 6, 512),
    _of_the_reference,
    inputs={"operation": "parameters", "d_model": "512", "d_ff": "2048", "layers": "6", "vocab": "30000"},
)


# Line 3

START.not_checkable(
    "history",
    3,
    "introduced in 2017",
    "The Transformer was introduced in 2017 and took over within two years.",
    reason="Facts of history; no derivation decides them.",
)

# Lines 328 to 331: the output and the parameters

SIZE.confirmed(
    "shape-of-the-output",
    328,
    "[2, 128, 512]",
    "Two sequences of 128 tokens of 512 dims.",
    shape(2, 128, 512),
    Derived(
        lambda: contracted("bnv,vd->bnd", (2, 128, 30000), (30000, 512)),
        lambda: (
            nn.Embedding(30000, 512, device="meta")(
                torch.zeros(2, 128, dtype=torch.long, device="meta")
            ).shape
        ),
    ),
)
for name, line, place in (
    ("total", 330, "~39M for this config"),
    ("total-again", 331, "39 million parameters"),
):
    SIZE.erratum(
        name,
        line,
        place,
        "The parameters of 30,000 tokens, 512 positions, 6 layers, 512 dims, d_ff 2048.",
        rounded("39", 10**6),
        PARAMETERS,
        slip="The slip cannot be told. The two tables have 15,622,144 and each layer 3,152,384; 39 million would take a "
        "vocabulary of 38,700.",
        formula=r"(30000 + 512) \cdot 512 + 6 \cdot 3152384 + 1024 = 34537472",
    )
SIZE.confirmed(
    "gpt-3",
    331,
    "175 billion",
    "GPT-3 (Brown et al. 2020, table 2.1): 96 layers, 12,288 dims, 50,257 tokens, 2,048 positions.",
    rounded("175", 10**9),
    Derived(
        lambda: _by_formula(50257, 12288, 4 * 12288, 96, 2048),
        lambda: _by_building(50257, 12288, 96, 4 * 12288, 96, 2048),
    ),
    formula=r"96 (12 d^2 + 13 d) + (50257 + 2048) d + 2 d, \quad d = 12288",
)
SIZE.not_checkable(
    "same-architecture",
    331,
    "the difference is scale",
    "The architecture of GPT-3 is that of this encoder.",
    reason="What counts as the same is not said: its layers are; but it is causal (line 245) and ends in a vocabulary.",
)

# Lines 334 to 342

END.confirmed(
    "absorbed-88-percent",
    334,
    "absorb 88%",
    'How much of the value of "cat" is in the output of "The", in percent.',
    rounded("88"),
    EXAMPLE.weights.at(0, 1).map(lambda weight: 100 * weight),
)
END.confirmed(
    "three-tiny-vectors",
    334,
    "three tiny vectors",
    "The words of the example.",
    count(3),
    EXAMPLE.weights.axes().at(0),
)
END.confirmed(
    "equation-again",
    335,
    "Attention(Q, K, V) = softmax(QK",
    "The equation of line 46.",
    HOLDS,
    same(
        lambda: softmax_rows(matrix(QUERY) * matrix(KEY).T / 2) * matrix(VALUE),
        EXAMPLE.output.exact,
        EXAMPLE.output.reference,
    ),
    formula=r"\text{Attention}(Q, K, V) = \text{softmax}(Q K^T / \sqrt{d_k}) V",
)
END.not_checkable(
    "literature",
    337,
    "Vaswani et al. (2017)",
    "Six works with their authors and years.",
    reason="Facts about works that are not given.",
)
