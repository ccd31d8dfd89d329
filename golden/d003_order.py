"""Document 003, lines 374 to 439: pictures of heads, and order."""

import re
from typing import Any

import sympy
import torch

from headcheck.golden.derived import Derived, Worked, counted, holds, same
from headcheck.golden.exact import sinusoid, sinusoid_again
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, all_near, count, nested, shape
from headcheck.reference import attention, masks, sinusoidal

PICTURES = Section("003", "visualizing")
ORDER = Section("003", "order")

WORDS, REVERSED = "1 0; 1 2; 0 2", "0 2; 1 2; 1 0"
"""Three words of our own, dog bites man and man bites dog, each its own query, key and value."""
THERE, BACK = (Worked(text, text, text) for text in (WORDS, REVERSED))
TRIANGLE = "1 0 0; 1 1 0; 1 1 1"
CAUSAL, CAUSAL_BACK = (Worked(text, text, text, may_attend=TRIANGLE) for text in (WORDS, REVERSED))


def _turned(worked: Worked) -> Derived:
    """The output, its rows the other way round."""
    return worked.output.map(lambda rows: nested(rows)[::-1])


def _sums(worked: Worked) -> list[Any]:
    """Of each dim of the outputs, by the second way."""
    return [sum(column) for column in zip(*worked.output.again(), strict=True)]  # type: ignore[misc]


def _causal_mean(rows: list[list[float]]) -> torch.Tensor:
    x = torch.tensor(rows, dtype=torch.float64)[None, None]
    return attention(x, x, x, may_attend=masks.causal(3, 3)).output.mean(dim=2)


def _weights(batch: int, heads: int, length: int) -> Derived:
    """The shape of the weights of so many heads of 32 dims."""
    x = torch.zeros(batch, heads, length, 32, dtype=torch.float64)
    return counted(
        lambda: (batch, heads, length, length),
        lambda: (x @ x.mT).shape,
        lambda: attention(x, x, x).weights.shape,
    )


# Lines 374 to 435

PICTURES.not_checkable(
    "heads-specialize",
    376,
    "specialize in capturing different types of patterns",
    "What heads of trained models specialize in.",
    reason="Findings about trained models; the document shows none.",
)
PICTURES.block(
    "function",
    378,
    421,
    "Heat maps of four heads. Alone it fails: the attention stands in the block before.",
    needs=("matplotlib", "seaborn"),
    alone=Run(error="NameError: name 'MultiHeadAttention' is not defined"),
    in_order=Run(prints=("Attention weights per head: torch.Size([1, 8, 7, 7])",)),
)
PICTURES.confirmed(
    "seven-tokens",
    410,
    "'The', 'cat', 'sat', 'on', 'the', 'mat', '.'",
    "The tokens of the sentence with its full stop.",
    count(7),
    Derived(
        lambda: len(["the", "cat", "sat", "on", "the", "mat"]) + len(["."]),
        lambda: len(re.findall(r"\w+|\.", "The cat sat on the mat.")),
    ),
)
PICTURES.confirmed(
    "shape-weights",
    419,
    "(1, 8, 7, 7)",
    "The shape of the weights of one sequence, 8 heads and 7 tokens.",
    shape(1, 8, 7, 7),
    _weights(1, 8, 7),
)
for name, line, place in (
    ("docstring", 388, "(num_heads, seq_len, seq_len)"),
    ("squeezed", 419, "squeeze batch dimension"),
):
    PICTURES.confirmed(
        f"shape-{name}",
        line,
        place,
        "The shape of the weights of one sequence.",
        shape(8, 7, 7),
        _weights(1, 8, 7).map(lambda axes: nested(axes)[1:]),
    )
IN_ORDER = ("003/multi-head/module", "function")
PICTURES.behaviour(
    "four-heads-side-by-side",
    421,
    "The picture has four heat maps, and a scale beside the last.",
    blocks=IN_ORDER,
    probe="print([each.get_title() for each in plt.gcf().axes])",
    prints="['Head 1', 'Head 2', 'Head 3', 'Head 4', '']",
)
PICTURES.latent_fault(
    "weights-after-dropout",
    417,
    "The module is in training and returns weights after dropout: what is drawn has holes, and rows that do not sum to "
    "one.",
    blocks=IN_ORDER,
    probe="print(bool((weights == 0).any()), bool(torch.allclose(weights.sum(dim=-1), torch.tensor(1.0))))",
    prints="True False",
    fault="multi_head_attention/WeightsAfterDropout",
)
PICTURES.latent_fault(
    "fewer-than-four-heads",
    396,
    "With fewer heads than are to be shown, four unless said otherwise, it fails: here with one.",
    blocks=IN_ORDER,
    probe="try:\n    visualize_attention_heads(torch.ones(1, 1, 1), ['a'])\n"
    "except IndexError as problem:\n    print(problem)",
    prints="index 1 is out of bounds for dimension 0 with size 1",
    why_no_fault="It draws; nothing is computed.",
)
for name, line, place in (
    ("positional-heads", 429, "Attend to adjacent positions"),
    ("separator-heads", 430, "Focus on [SEP] and [CLS] tokens"),
    ("syntactic-heads", 431, "Track dependency parse relationships"),
    ("coreference-heads", 432, "Link pronouns to their referents"),
    ("rare-word-heads", 433, "when encountering OOV tokens"),
    ("source", 435, "Clark et al. (2019)"),
):
    PICTURES.not_checkable(
        name,
        line,
        place,
        "What studies have found in BERT's heads, and which study.",
        reason="A finding about a trained model, reported and not shown.",
    )

# Line 439

ORDER.confirmed(
    "no-notion-of-order",
    439,
    "no inherent notion of word order",
    "Without positions or a mask, words in another order have the same outputs in that order.",
    HOLDS,
    same(THERE.output.exact, _turned(BACK).exact, _turned(BACK).reference),
    formula=r"A(P X) = P A(X)",
)
ORDER.confirmed(
    "dog-bites-man",
    439,
    "would be indistinguishable!",
    "The words of both sentences have the same three outputs: their sums are equal.",
    HOLDS,
    same(
        lambda: [sum(THERE.output.exact().col(dim)) for dim in range(2)],
        lambda: [sum(column) for column in zip(*BACK.output.again(), strict=True)],  # type: ignore[misc]
        lambda: BACK.output.reference().sum(dim=0),  # type: ignore[misc]
    ),
    formula=r"\sum_i A(P X)_i = \sum_i A(X)_i",
)
ORDER.erratum(
    "dog-bites-man-in-a-decoder",
    439,
    "would be indistinguishable!",
    "The same with a causal mask: the words of both sentences have the same three outputs.",
    HOLDS,
    holds(
        lambda: all(
            sympy.N(sum(CAUSAL.output.exact().col(dim)) - sum(CAUSAL_BACK.output.exact().col(dim)), 40) == 0
            for dim in range(2)
        ),
        lambda: all_near(_sums(CAUSAL), _sums(CAUSAL_BACK)),
        lambda: torch.allclose(
            _causal_mean([[1, 0], [1, 2], [0, 2]]), _causal_mean([[0, 2], [1, 2], [1, 0]])
        ),
    ),
    slip="It holds of encoders. Under a causal mask the first word sees itself alone and the last sees all: a decoder "
    "tells the two orders apart without positions.",
)
ORDER.confirmed(
    "position-is-injected",
    439,
    "injecting position information into the input embeddings",
    "With positions added, one word at two places is two vectors.",
    HOLDS,
    holds(
        lambda: any(sympy.simplify(sinusoid(0, dim, 4) - sinusoid(1, dim, 4)) != 0 for dim in range(4)),
        lambda: any(abs(sinusoid_again(0, dim, 4) - sinusoid_again(1, dim, 4)) > 0.1 for dim in range(4)),
        lambda: not torch.allclose(*(sinusoidal(2, 4) + 1)),
    ),
    formula=r"x_p + PE(p)",
)
ORDER.confirmed(
    "in-parallel",
    439,
    "process all positions in parallel",
    "A token's output is the same whether its query comes alone or with all others.",
    HOLDS,
    same(
        lambda: THERE.output.exact().row(1),
        Worked("1 2", WORDS, WORDS).output.exact,
        Worked("1 2", WORDS, WORDS).output.reference,
    ),
)
