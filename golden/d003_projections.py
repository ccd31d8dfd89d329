"""Document 003, lines 93 to 152: queries, keys and values, and what weights are said to mean."""

import torch

from headcheck.golden.d003_attention import EXAMPLE, zeros
from headcheck.golden.derived import Derived, Worked, counted, same
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, count, exactly, shape
from headcheck.reference import SingleHeadAttention

PROJECTIONS = Section("003", "projections")
READING = Section("003", "interpretation")


def _projected(length: int, line_width: int, width: int, batch: int = 4) -> Derived:
    """The shape of a sequence of 512 dims after a linear layer, by labels, in torch, and in the reference."""
    return counted(
        lambda: contracted("bnd,de->bne", (batch, length, line_width), (line_width, width)),
        lambda: (
            torch.nn.Linear(line_width, width, device="meta")(
                torch.zeros(batch, length, line_width, device="meta")
            ).shape
        ),
        lambda: (
            SingleHeadAttention(line_width, width, width).w_q(torch.zeros(batch, length, line_width)).shape
        ),
    )


def _weights_of(q_len: int, kv_len: int) -> Derived:
    """The shape of the weights of so many queries on so many keys; as many of both is self-attention."""

    def reference() -> tuple[int, ...]:
        query, key = torch.zeros(1, q_len, 4), torch.zeros(1, kv_len, 4)
        attended = SingleHeadAttention(4, 2, 2)(query, None if q_len == kv_len else key)
        return tuple(attended.weights.shape)

    return counted(
        lambda: contracted("bhqd,bhkd->bhqk", (1, 1, q_len, 2), (1, 1, kv_len, 2)),
        lambda: (zeros(1, 1, q_len, 2) @ zeros(1, 1, 2, kv_len)).shape,
        reference,
    )


# Lines 93 to 141

PROJECTIONS.confirmed(
    "compares-with-all-keys",
    95,
    "compares the query against all keys",
    "A query has as many scores as there are keys: 7.",
    count(7),
    _weights_of(1, 7).at(-1),
)
PROJECTIONS.confirmed(
    "three-matrices",
    97,
    "three separate learned weight matrices",
    "Query, key and value have a weight matrix each.",
    count(3),
    counted(
        lambda: len({"W_q", "W_k", "W_v"}),
        None,
        lambda: sum(each.ndim == 2 for each in SingleHeadAttention(4, 2, 2).parameters()),
    ),
)
PROJECTIONS.confirmed(
    "matching-against-content",
    97,
    "different representations for matching (Q and K) versus content (V)",
    "The weights depend on queries and keys alone: other values leave them as they are.",
    HOLDS,
    same(
        EXAMPLE.weights.exact,
        Worked(EXAMPLE.query, EXAMPLE.key, "7 7; 0 1; 2 9").weights.exact,
        Worked(EXAMPLE.query, EXAMPLE.key, "7 7; 0 1; 2 9").weights.reference,
    ),
)
PROJECTIONS.block(
    "module",
    99,
    141,
    "The three projections as a module, for one sequence and for two.",
    alone=Run(
        prints=(
            "Query shape: torch.Size([4, 20, 64])",
            "Key shape: torch.Size([4, 20, 64])",
            "Value shape: torch.Size([4, 20, 64])",
            "Cross-attention Query: torch.Size([4, 10, 64])",
            "Cross-attention Key: torch.Size([4, 30, 64])",
            "Cross-attention Value: torch.Size([4, 30, 64])",
        )
    ),
)
for name, line, place, length in (
    ("query", 130, "(4, 20, 64)", 20),
    ("key", 131, "(4, 20, 64)", 20),
    ("value", 132, "(4, 20, 64)", 20),
    ("cross-query", 139, "(4, 10, 64) - from decoder", 10),
    ("cross-key", 140, "(4, 30, 64) - from encoder", 30),
    ("cross-value", 141, "(4, 30, 64) - from encoder", 30),
):
    PROJECTIONS.confirmed(
        f"shape-{name}",
        line,
        place,
        f"The shape of 4 sequences of {length} tokens after a projection from 512 dims to 64.",
        shape(4, length, 64),
        _projected(length, 512, 64),
    )
for name, line, place, lengths in (
    ("self-attention", 97, "all three come from the same input sequence", (5, 5)),
    ("self-attention-docstring", 113, "x_query = x_key = x_value = input", (5, 5)),
    ("cross-attention", 97, "Q comes from the decoder while K and V come from the encoder output", (2, 5)),
    ("cross-attention-docstring", 114, "x_query = decoder, x_key = x_value = encoder", (2, 5)),
):
    PROJECTIONS.confirmed(
        f"{name}-weights",
        line,
        place,
        f"The weights of {lengths[0]} queries on {lengths[1]} keys.",
        shape(1, 1, *lengths),
        _weights_of(*lengths),
    )
PROJECTIONS.behaviour(
    "biases",
    107,
    "Each projection has a bias beside its matrix: 3 x (4 x 2 + 2) parameters.",
    blocks=("module",),
    probe="print(sum(each.numel() for each in QKVProjection(4, 2, 2).parameters()))",
    prints="30",
)

# Lines 147 to 152

for name, line, place in (
    ("focus", 147, 'input positions the model "focuses on"'),
    ("high-weight", 149, "pronoun attending to its antecedent"),
    ("early-layers", 150, "common in early layers"),
    ("later-layers", 151, "later layers often show grammatical structure"),
    ("diagonals", 152, "Position-sensitive features"),
):
    READING.not_checkable(
        name,
        line,
        place,
        "What a pattern of weights means, or where in a trained model it is common.",
        reason="An interpretation of trained models; the document shows none.",
    )
READING.confirmed(
    "uniform-weights",
    150,
    "Global context aggregation",
    "With uniform weights the output is the mean of all values.",
    exactly("3 4"),
    Worked("0 0", "1 1; 0 3; 2 0", "1 2; 3 4; 5 6").output.at(0),
    formula=r"\alpha_j = \frac{1}{n} \Rightarrow o = \frac{1}{n} \sum_j v_j",
)
READING.confirmed(
    "diagonal-is-itself",
    152,
    "(local context)",
    "Weights on the diagonal alone give each token its own value.",
    exactly("1 2; 3 4; 5 5"),
    Worked(EXAMPLE.key, EXAMPLE.key, EXAMPLE.value, may_attend="1 0 0; 0 1 0; 0 0 1").output,
)
