"""Document 003, lines 154 to 278: self-attention and its causal form."""

import sympy
import torch

from headcheck.golden.d003_attention import zeros
from headcheck.golden.derived import Derived, Worked, counted, holds
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, count, exactly, rounded, shape
from headcheck.reference import SingleHeadAttention, attention, masks, reachable

SELF = Section("003", "self-attention")
CAUSAL = Section("003", "causal")

TRIANGLE = "1 0 0 0; 1 1 0 0; 1 1 1 0; 1 1 1 1"
VALUES = "1 2; 3 4; 5 5; 0 7"
"""Of our own."""
MASKED = Worked("1 0; 0 2; 1 1; 2 0", "1 1; 0 3; 2 0; 1 2", VALUES, may_attend=TRIANGLE)
FREE = Worked(MASKED.query, MASKED.key, VALUES)


def _layer(name: str, batch: int, length: int, d_model: int, d_v: int) -> Derived:
    """The shape of the output or the weights of a layer with d_k = d_model."""
    query, value = (batch, 1, length, d_model), (batch, 1, length, d_v)
    labels = "bhqd,bhkd,bhkv->" + ("bqv" if name == "output" else "bqk")
    return counted(
        lambda: contracted(labels, query, query, value),
        lambda: torch.einsum(labels, zeros(*query), zeros(*query), zeros(*value)).shape,
        lambda: (
            getattr(SingleHeadAttention(d_model, d_model, d_v)(torch.zeros(batch, length, d_model)), name)[
                :, 0
            ].shape
        ),
    )


def _hears(may_attend: torch.Tensor) -> list[int]:
    """How many tokens each token hears through one layer."""
    heard: list[int] = reachable(may_attend, 1).sum(dim=1).tolist()
    return heard


def _chain(length: int) -> int:
    """The steps that a state takes from the first token to the last, one token at a time."""
    steps, position = 0, 1
    while position < length:
        steps, position = steps + 1, position + 1
    return steps


def _first_for_the_last(length: int) -> bool:
    """The last of so many tokens gives the first the same weight as its neighbour, with equal keys."""
    weights = attention(*(zeros(1, 1, n, 2) for n in (1, length, length))).weights[0, 0, 0]
    return bool(weights[0] > 0) and bool(weights[0] == weights[-2])


# Lines 154 to 218

SELF.confirmed(
    "with-every-other",
    156,
    "directly interact with every other position",
    "In one layer each of 6 tokens hears 6.",
    exactly("6 6 6 6 6 6"),
    Derived(
        lambda: [sum(1 for _ in range(6)) for _ in range(6)],
        lambda: [int((torch.softmax(zeros(6, 6), -1)[i] > 0).sum()) for i in range(6)],
        lambda: _hears(torch.ones(6, 6, dtype=torch.bool)),
    ),
)
SELF.confirmed(
    "one-operation",
    156,
    "attend to position 1000 in a single operation",
    "Through one layer of 1000 tokens the last hears the first, as much as its neighbour where their keys are equal.",
    HOLDS,
    holds(lambda: sympy.Rational(1, 1000) > 0, None, lambda: _first_for_the_last(1000)),
)
SELF.confirmed(
    "sequential-bottleneck",
    156,
    "without the sequential bottleneck of RNNs",
    "A recurrent state takes 999 steps from position 1 to position 1000, attention one.",
    HOLDS,
    holds(lambda: 1000 - 1 > 1, lambda: _chain(1000) == 999),
)
SELF.confirmed(
    "one-sequence-for-all",
    158,
    "the same input sequence is used to generate all three components",
    "Queries, keys and values of 6 tokens are 6 each: a square of weights.",
    shape(1, 6, 6),
    _layer("weights", 1, 6, 4, 4),
)
for name, place, axes, may_attend in (
    ("bidirectional", "bidirectional context (in encoders)", "4 4 4 4", torch.ones(4, 4, dtype=torch.bool)),
    ("causal-context", "causal context (in decoders)", "1 2 3 4", masks.causal(4, 4)),
):
    worked = FREE if name == "bidirectional" else MASKED
    SELF.confirmed(
        name,
        158,
        place,
        f"How many of four tokens each hears, {'with' if worked is MASKED else 'without'} a causal mask.",
        exactly(axes),
        Derived(
            lambda worked=worked: [  # type: ignore[misc]
                sum(1 for weight in row if weight > 0) for row in worked.weights.exact().tolist()
            ],
            lambda worked=worked: [  # type: ignore[misc]
                sum(1 for weight in row if weight > 0) for row in worked.weights.again()
            ],
            lambda may_attend=may_attend: _hears(may_attend),  # type: ignore[misc]
        ),
    )
SELF.not_checkable(
    "sophisticated-understanding",
    158,
    "sophisticated understanding of language structure",
    "What a trained model understands.",
    reason="No model is trained, and no measure is named.",
)
SELF.block(
    "module",
    160,
    218,
    "Single-head self-attention, and six tokens.",
    alone=Run(
        prints=(
            "Input shape: torch.Size([1, 6, 256])",
            "Output shape: torch.Size([1, 6, 256])",
            "Attention matrix shape: torch.Size([1, 6, 6])",
            "Attention from position 0 to all positions:",
        )
    ),
)
SELF.confirmed(
    "six-tokens",
    209,
    "The cat sat on the mat",
    "The words of the sentence.",
    count(6),
    Derived(
        lambda: len(["The", "cat", "sat", "on", "the", "mat"]),
        lambda: "The cat sat on the mat".count(" ") + 1,
    ),
)
for name, line, place, what, sizes, given in (
    ("query", 190, "(batch, seq_len, d_k)", "output", (2, 3, 5), (2, 3, 4, 5)),
    ("key", 191, "(batch, seq_len, d_k)", "output", (2, 3, 5), (2, 3, 4, 5)),
    ("value", 192, "(batch, seq_len, d_v)", "output", (2, 3, 5), (2, 3, 4, 5)),
    ("output", 215, "Same as input", "output", (1, 6, 256), (1, 6, 256, 256)),
    ("weights", 216, "(1, 6, 6)", "weights", (1, 6, 6), (1, 6, 256, 256)),
):
    SELF.confirmed(
        f"shape-{name}",
        line,
        place,
        f"The shape of the {name}, here of (batch, seq_len, d_model, {'d_k' if line < 192 else 'd_v'}) = {given}.",
        shape(*sizes),
        _layer(what, *given),
    )
SELF.confirmed(
    "row-of-token-0",
    218,
    "How much token 0 attends to each token",
    "Row 0 of the weights is what token 0 gives each token, together one.",
    exactly("1"),
    FREE.weights.at(0).map(
        lambda row: sympy.simplify(sum(row)) if isinstance(row[0], sympy.Basic) else sum(row)
    ),
)
SELF.behaviour(
    "not-the-input-shape-in-general",
    215,
    "The output has the shape of the input because d_v is d_model there: with another d_v it has not.",
    blocks=("module",),
    probe="print(tuple(SelfAttention(4, 2, 2)(torch.zeros(1, 3, 4))[0].shape))",
    prints="(1, 3, 2)",
)
SELF.latent_fault(
    "zero-means-d-model",
    170,
    "A d_k or d_v of 0 is not refused and taken for d_model.",
    blocks=("module",),
    probe="layer = SelfAttention(4, 0, 0)\nprint(layer.d_k, layer.d_v)",
    prints="4 4",
    fault="scale/zero-taken-for-none",
)
SELF.latent_fault(
    "dead-row",
    198,
    "A query whose keys are all masked gives NaN, in the output and in the weights.",
    blocks=("module",),
    probe="print(*(each.item() for each in SelfAttention(1)(torch.ones(1, 1, 1), torch.zeros(1, 1))))",
    prints="nan nan",
    fault="dead_rows/plain",
)
SELF.latent_fault(
    "additive-mask",
    198,
    "An additive mask, 0 keeps and -inf drops, is read the wrong way round: 0 drops.",
    blocks=("module",),
    probe="print(SelfAttention(1)(torch.ones(1, 2, 1), torch.tensor([0.0, -torch.inf]))[1][0, 0].tolist())",
    prints="[0.0, 1.0]",
    fault="documents/zero-drops-in-every-mask",
)
SELF.latent_fault(
    "padding-meets-queries",
    198,
    "A padding mask (batch, seq_len) is laid along the queries when batch = seq_len: query 1 of sequence 0 sees key 1, "
    "which is padding for it.",
    blocks=("module",),
    probe="print(SelfAttention(1)(torch.ones(2, 2, 1), torch.tensor([[1, 0], [1, 1]]))[1][0].tolist())",
    prints="[[1.0, 0.0], [0.5, 0.5]]",
    fault="documents/padding-meets-queries",
)
SELF.latent_fault(
    "four-axes-multiply-the-batch",
    198,
    "A padding mask (batch, 1, 1, seq_len), the form for heads, gives the output another axis: each sequence under the "
    "mask of each, 2 x 2 of them.",
    blocks=("module",),
    probe="print(*(tuple(each.shape) for each in SelfAttention(1)(torch.ones(2, 1, 1), torch.ones(2, 1, 1, 1))))",
    prints="(2, 2, 1, 1) (2, 2, 1, 1)",
    fault="multi_head_attention/MasksMultiplyTheBatch",
)

# Lines 220 to 278

for name, line, place in (
    ("previous-and-itself", 222, "previous positions (including itself)"),
    ("position-i", 278, "position i only attends to positions 0..i"),
    ("earlier-positions", 272, "positions can only see themselves and earlier positions"),
):
    CAUSAL.confirmed(
        name,
        line,
        place,
        "Under the mask a weight is above zero on and below the diagonal, and nowhere else.",
        exactly(TRIANGLE),
        MASKED.weights.map(
            lambda rows: [
                [int(bool(weight > 0)) for weight in row]
                for row in (rows if isinstance(rows, list) else rows.tolist())
            ]
        ),
        formula=r"\alpha_{ij} > 0 \iff j \le i",
    )
for name, line, place in (
    ("lower-triangular", 222, "The causal mask is a lower-triangular matrix"),
    ("lower-triangular-docstring", 230, "(lower triangular)"),
    ("ones-and-zeros", 231, "1s for positions we can attend to, 0s for positions to mask"),
):
    CAUSAL.confirmed(
        name,
        line,
        place,
        "The mask of four positions: one on the diagonal and below it, zero above.",
        exactly(TRIANGLE),
        Derived(
            lambda: [[int(j <= i) for j in range(4)] for i in range(4)],
            lambda: torch.tril(torch.ones(4, 4, dtype=torch.int64)),
            lambda: masks.causal(4, 4).int(),
            inputs={"operation": "causal mask", "length": "4"},
        ),
        formula=r"M_{ij} = [j \le i]",
    )
CAUSAL.erratum(
    "weights-of-minus-infinity",
    222,
    "sets attention weights to negative infinity",
    "The weight that a masked position gets: of token 0 for token 1.",
    rounded("-inf"),
    MASKED.weights.at(0, 1),
    slip="It is the scores that are set to minus infinity; their weights become 0, as the end of the sentence says.",
    gives=lambda: MASKED.scores.exact()[0, 1],
    formula=r"s_{ij} = -\infty \Rightarrow \alpha_{ij} = e^{-\infty} = 0",
)
CAUSAL.confirmed(
    "zero-probability",
    222,
    "ensuring zero probability after softmax",
    "The weights of all later positions, in row 0 of the example.",
    exactly("0 0 0"),
    MASKED.weights.at(0).map(lambda row: row[1:]),
    formula=r"e^{-\infty} = 0",
)
CAUSAL.confirmed(
    "no-cheating",
    222,
    'prevents "cheating"',
    "Another value in the last position changes no earlier output.",
    HOLDS,
    holds(
        lambda: MASKED.output.exact()[:3, :] == _with_another_future().output.exact()[:3, :],
        lambda: MASKED.output.again()[:3] == _with_another_future().output.again()[:3],  # type: ignore[misc]
        lambda: torch.equal(*(each.output.reference()[:3] for each in (MASKED, _with_another_future()))),  # type: ignore[misc]
    ),
)
CAUSAL.block(
    "module",
    224,
    278,
    "Causal self-attention with its mask in a buffer, and eight tokens.",
    alone=Run(prints=("Causal attention weights (batch 0):",)),
)
CAUSAL.confirmed(
    "shape-of-the-example",
    273,
    "batch=2, seq_len=8",
    "The shape of the output of 2 sequences of 8 tokens and 256 dims.",
    shape(2, 8, 256),
    _layer("output", 2, 8, 256, 256),
)
CAUSAL.behaviour(
    "triangle-at-run-time",
    278,
    "Of the example's weights those above the diagonal are zero, in both sequences; the other 36 of each are not.",
    blocks=("module",),
    probe="print(bool(weights.triu(1).any()), (weights > 0).sum(dim=(1, 2)).tolist())",
    prints="False [36, 36]",
)
CAUSAL.behaviour(
    "buffer-not-parameter",
    246,
    "The mask is a buffer and no parameter.",
    blocks=("module",),
    probe="print([name for name, _ in causal_attn.named_buffers()], len(list(causal_attn.parameters())))",
    prints="['causal_mask'] 6",
)
CAUSAL.latent_fault(
    "beyond-the-mask",
    261,
    "A sequence longer than max_seq_len is refused by an error about sizes.",
    blocks=("module",),
    probe="try:\n    CausalSelfAttention(1, max_seq_len=2)(torch.ones(1, 3, 1))\n"
    "except RuntimeError:\n    print('RuntimeError')",
    prints="RuntimeError",
    fault="multi_head_attention/CausalTableEnds",
)
CAUSAL.latent_fault(
    "mask-of-one-position",
    261,
    "With max_seq_len = 1 a longer sequence is not refused: the one entry of the mask is broadcast, and token 0 sees the "
    "future.",
    blocks=("module",),
    probe="print(CausalSelfAttention(1, max_seq_len=1)(torch.ones(1, 2, 1))[1].tolist())",
    prints="[[[0.5, 0.5], [0.5, 0.5]]]",
    fault="multi_head_attention/CausalTableOfOne",
)
CAUSAL.latent_fault(
    "mask-is-saved",
    248,
    "The mask is saved with the weights: 262,144 numbers beside 197,376 parameters, and a module of another max_seq_len "
    "cannot load them.",
    blocks=("module",),
    probe="print(causal_attn.causal_mask.numel(), sum(each.numel() for each in causal_attn.parameters()))\n"
    "try:\n    CausalSelfAttention(256, 511).load_state_dict(causal_attn.state_dict())\n"
    "except RuntimeError:\n    print('RuntimeError')",
    prints="262144 197376\nRuntimeError",
    why_no_fault="The output is right; no law saves and loads a module.",
)


def _with_another_future() -> Worked:
    return Worked(MASKED.query, MASKED.key, VALUES.replace("0 7", "1000 1000"), may_attend=TRIANGLE)
