"""Document 000, lines 969 to 1051: padding masks, and both masks together."""

import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import random_weights
from headcheck.golden.stated import HOLDS, count, exactly, shape
from headcheck.reference import masks

PADDING = Section("000", "padding-mask")
BOTH = Section("000", "combined-masks")

PADDED = "0 0 0 0 1 1; 0 0 0 0 0 0; 0 0 1 1 1 1"
LENGTHS = torch.tensor([4, 6, 2])
"""Real tokens of the three sequences of lines 984 to 988."""
TOKENS = ((5, 12, 8, 3, 0, 0), (7, 1, 9, 4, 6, 2), (11, 3, 0, 0, 0, 0))
"""Of lines 985 to 987."""
TARGETS = ((1, 5, 8, 3, 0, 0), (2, 7, 4, 6, 9, 1))
"""Of lines 1029 and 1030."""


def _torch_own(length: int) -> torch.Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length)


def _padding_seen(lengths: list[int], length: int) -> set[tuple[int, int]]:
    """Pairs of a real token and a padding token that it sees under the causal mask alone."""
    return {(i, j) for real in lengths for i in range(real) for j in range(real, length) if j <= i}


def _real_tokens_agree() -> bool:
    """The reference's weights of real tokens, with and without the padding mask."""
    causal, lengths = masks.causal(6, 6), torch.tensor([4, 6, 6])
    both = random_weights(causal & masks.padding(lengths, 6))
    alone = random_weights(causal.expand(3, 1, 6, 6))
    return all(torch.equal(both[b, :real], alone[b, :real]) for b, real in enumerate(lengths.tolist()))


def _real_and_padding(tokens: tuple[int, ...]) -> Derived:
    return Derived(
        exact=lambda: [len(tokens) - tokens.count(0), tokens.count(0)],
        again=lambda: [int(torch.tensor(tokens).count_nonzero()), tokens.count(0)],
    )


def _shape_of_three(axes: tuple[int, ...]) -> Derived:
    """Of the three sequences, and of 32 numbers for each token."""
    return counted(
        lambda: (len(TOKENS), len(TOKENS[0]), *axes[2:]),
        lambda: nn.functional.one_hot(torch.tensor(TOKENS), 32).shape[: len(axes)],
    )


IS_PADDING = Derived(
    exact=lambda: sympy.Matrix(3, 6, lambda b, j: int(int(j) >= (4, 6, 2)[int(b)])),
    again=lambda: [[0] * 4 + [1] * 2, [0] * 6, [0] * 2 + [1] * 4],
    reference=lambda: 1 - masks.padding(LENGTHS, 6)[:, 0, 0].int(),
    inputs={"operation": "padding mask, 1 is padding", "lengths": "4 6 2", "length": "6"},
)

# Lines 969 to 1005

PADDING.block(
    "function",
    973,
    1003,
    "The mask of three sequences, given to torch's module.",
    alone=Run(
        prints=(
            "tensor([[0, 0, 0, 0, 1, 1],",
            "        [0, 0, 0, 0, 0, 0],",
            "        [0, 0, 1, 1, 1, 1]], dtype=torch.int32)",
            "Output shape: torch.Size([3, 6, 32])",
        )
    ),
)
for row, (real, place) in enumerate(
    ((4, "4 real tokens + 2 padding"), (6, "6 real tokens (no padding)"), (2, "2 real tokens + 4 padding"))
):
    PADDING.confirmed(
        f"real-tokens-{row + 1}",
        981 + row,
        place,
        f"Real tokens and padding of sequence {row + 1}.",
        exactly(f"{real} {6 - real}"),
        _real_and_padding(TOKENS[row]),
    )
    PADDING.confirmed(
        f"row-{row}",
        994 + row,
        str([int(each) for each in PADDED.split("; ")[row].split()]),
        f"Row {row} of the mask; 1 is padding.",
        exactly(PADDED.split("; ")[row]),
        IS_PADDING.at(row),
    )
PADDING.erratum(
    "as-printed",
    996,
    "[0, 0, 1, 1, 1, 1]])",
    "The printed mask ends with the brackets.",
    HOLDS,
    holds(
        lambda: str((torch.tensor(TOKENS) == 0).int()).endswith("]])"),
        lambda: (torch.tensor(TOKENS) == 0).int().dtype == torch.tensor([[0]]).dtype,
    ),
    slip="print adds dtype=torch.int32, which .int() gives and which is not torch's default.",
)
for name, line, place, axes in (
    ("mask", 978, "[batch, seq_len]", (3, 6)),
    ("mask-again", 1005, "shape [batch, seq_len]", (3, 6)),
    ("input", 1000, "batch=3, seq_len=6, d_model=32", (3, 6, 32)),
    ("output", 1002, "[3, 6, 32]", (3, 6, 32)),
):
    PADDING.confirmed(
        f"shape-{name}",
        line,
        place,
        f"The shape of the {name.removesuffix('-again')}.",
        shape(*axes),
        _shape_of_three(axes),
    )
for name, line, place in (
    ("no-weight-on-padding", 1003, "near-zero attention weights"),
    ("none-attends-to-padding", 1005, "no token attends to padding positions"),
    ("padding-is-ignored", 971, "so attention can ignore them"),
):
    PADDING.confirmed(
        name,
        line,
        place,
        "The weight of padding is exactly zero, as long as a sequence has a real token.",
        HOLDS,
        holds(
            lambda: sympy.exp(-sympy.oo) == 0,
            None,
            lambda: torch.equal(
                random_weights(masks.padding(LENGTHS, 6).expand(3, 1, 6, 6)) == 0,
                ~masks.padding(LENGTHS, 6)[:, 0].expand(3, 6, 6),
            ),
        ),
    )
PADDING.confirmed(
    "without-it",
    1005,
    "as meaningful content",
    "Without the mask, padding has a weight.",
    HOLDS,
    holds(
        lambda: sympy.exp(sympy.Symbol("s", real=True)).is_positive,
        None,
        lambda: bool((random_weights(torch.ones(3, 1, 6, 6, dtype=torch.bool)) > 0).all()),
    ),
)
PADDING.behaviour(
    "weights-on-padding",
    1003,
    "The weights on padding are zero, not nearly zero; padding itself still attends.",
    blocks=("function",),
    probe="hidden = padding_mask[:, None].expand(3, 6, 6)\n"
    "print(weights[hidden].abs().max().item(), weights[0, 5].sum().round().item())",
    prints="0.0 1.0",
)
PADDING.latent_fault(
    "only-padding",
    1001,
    "A sequence that is all padding gives NaN.",
    blocks=("function",),
    probe="x, none = torch.ones(1, 1, 32), create_padding_mask(torch.tensor([[0]]))\n"
    "print(mha(x, x, x, key_padding_mask=none)[0].isnan().all().item())",
    prints="True",
    fault="dead_rows/plain",
)

# Lines 1007 to 1051

BOTH.block(
    "function",
    1011,
    1049,
    "Both masks, given to torch's decoder layer. It warns: one is of floats, the other of truth values.",
    alone=Run(
        warnings=("UserWarning",),
        prints=(
            "Causal mask shape: torch.Size([6, 6])",
            "Padding mask shape: torch.Size([2, 6])",
            "Decoder output shape: torch.Size([2, 6, 32])",
        ),
    ),
)
for row, (real, place) in enumerate(((4, "4 real tokens"), (6, "6 real tokens"))):
    BOTH.confirmed(
        f"real-tokens-{row + 1}",
        1029 + row,
        place,
        f"Real tokens of target {row + 1}.",
        count(real),
        _real_and_padding(TARGETS[row]).at(0),
    )
for name, line, place, axes, derived in (
    (
        "causal",
        1034,
        "[6, 6]",
        (6, 6),
        counted(lambda: (6, 6), lambda: _torch_own(6).shape, lambda: masks.causal(6, 6).shape),
    ),
    (
        "causal-in-words",
        1019,
        "[seq_len, seq_len]",
        (6, 6),
        counted(lambda: (6, 6), lambda: _torch_own(6).shape, lambda: masks.causal(6, 6).shape),
    ),
    (
        "padding",
        1035,
        "[2, 6]",
        (2, 6),
        counted(lambda: (len(TARGETS), len(TARGETS[0])), lambda: (torch.tensor(TARGETS) == 0).shape),
    ),
    (
        "padding-in-words",
        1022,
        "[batch, seq_len]",
        (2, 6),
        counted(lambda: (len(TARGETS), len(TARGETS[0])), lambda: (torch.tensor(TARGETS) == 0).shape),
    ),
    (
        "output",
        1049,
        "[2, 6, 32]",
        (2, 6, 32),
        counted(lambda: (2, 6, 4 * 8), lambda: nn.Linear(32, 32)(torch.zeros(2, 6, 32)).shape),
    ),
):
    BOTH.confirmed(f"shape-{name}", line, place, f"The shape, {name}.", shape(*axes), derived)
BOTH.confirmed(
    "work-together",
    1051,
    "work together",
    "Under both masks no token sees its future, none sees padding.",
    HOLDS,
    holds(
        lambda: all(
            not ((j <= i and j < real) and (j > i or j >= real))
            for real in (4, 6)
            for i in range(6)
            for j in range(6)
        ),
        None,
        lambda: torch.equal(
            random_weights(masks.causal(6, 6) & masks.padding(torch.tensor([4, 6, 6]), 6)) > 0,
            (masks.causal(6, 6) & masks.padding(torch.tensor([4, 6, 6]), 6))[:, 0],
        ),
    ),
    formula=r"M_{ij} = [j \le i] \cdot [j < \text{length}]",
)
BOTH.erratum(
    "both-are-essential",
    1051,
    "Both are essential",
    "Under the causal mask alone, some real token of the two targets sees padding.",
    HOLDS,
    holds(
        lambda: bool(_padding_seen([4, 6], 6)),
        lambda: bool((torch.ones(6, 6).tril()[:4, 4:]).any()),
        lambda: not _real_tokens_agree(),
    ),
    slip="Padding at the end is the future of every real token: the causal mask hides it by itself. The padding mask "
    "changes the outputs at padding only, which the loss must leave out in any case; with padding in front it is needed.",
    formula=r"i < \text{length} \le j \implies j > i",
)
BOTH.latent_fault(
    "mixed-types",
    1020,
    "A mask of floats and one of truth values in one call are deprecated: torch warns; combined correctly (line 1009) "
    "both are of truth values, and it does not.",
    blocks=("function",),
    probe="""
import warnings
for mask in causal_mask, causal_mask.isinf():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decoder_layer(tgt_emb, memory, tgt_mask=mask, tgt_key_padding_mask=padding_mask)
    print([each.category.__name__ for each in caught][:1])
""",
    prints="['UserWarning']\n[]",
    why_no_fault="The output is right; it is a warning of the library.",
)
BOTH.behaviour(
    "padding-in-front",
    1044,
    "With padding in front, the first token sees nothing. torch's layer, which asks for no weights, gives no NaN.",
    blocks=("function",),
    probe="first, padded = create_combined_mask(torch.tensor([[0, 1]]))\nx = torch.ones(1, 2, 32)\n"
    "print(decoder_layer(x, x, tgt_mask=first.isinf(), tgt_key_padding_mask=padded).isfinite().all().item())",
    prints="True",
)
