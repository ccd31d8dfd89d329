"""Document 002, lines 77 to 258: statements between those of the other modules."""

import sympy
import torch

from headcheck.golden.d002 import KEY, QUERY, RAW, VALUE
from headcheck.golden.derived import Derived, Worked, holds, same
from headcheck.golden.exact import matrix, softmax_rows
from headcheck.golden.ledger import Section
from headcheck.golden.stated import HOLDS, exactly
from headcheck.reference import shift, softmax

WHY = Section("002", "why-scaled")
HAND = Section("002", "attention-by-hand")
ORDER = Section("002", "order")
WAVES = Section("002", "sinusoidal")
NORM = Section("002", "layer-norm")
WHOLE = Section("002", "architecture")
CODE = Section("002", "encoder-code")

EXAMPLE = Worked(QUERY, KEY, VALUE)


def _ahead() -> torch.Tensor:
    """How far the targets of the reference are from its inputs."""
    given, target = shift(torch.arange(6)[None])
    return (target - given)[0]


def _is_distribution(rows: torch.Tensor) -> bool:
    """Whether each row is positive and sums to one within its roundings."""
    near_one = (rows.sum(dim=-1) - 1).abs() < rows.shape[-1] * torch.finfo(rows.dtype).eps
    return bool((rows > 0).all() and near_one.all())


WHY.not_checkable(
    "too-large-for-softmax",
    77,
    "The numbers are too large",
    "The raw scores of the example are too large for the softmax.",
    reason="Too large is no number: line 98 feeds the first row into it. The largest weights are 0.982, 0.982 and 0.500 "
    "there, and 0.876, 0.867 and 0.495 with the scale.",
)
HAND.confirmed(
    "raw-scores-again",
    98,
    "raw scores [2, 12, 8]",
    'The scores of "The", before they are scaled.',
    exactly("2 12 8"),
    RAW.scores.at(0),
    formula=r"q_0 \cdot k_j",
)
HAND.confirmed(
    "nearly-100-percent",
    98,
    'nearly 100% on "cat"',
    'Without the scale "The" gives "cat" more than 98%.',
    HOLDS,
    RAW.weights.at(0, 1).map(lambda weight: bool(weight > sympy.Rational(98, 100))),
)
HAND.confirmed(
    "almost-nothing-left",
    98,
    'almost nothing left for "sat.',
    'Without the scale "The" gives "sat" less than 2%.',
    HOLDS,
    RAW.weights.at(0, 2).map(lambda weight: bool(weight < sympy.Rational(2, 100))),
)
ORDER.confirmed(
    "equation-looked-back-at",
    121,
    "softmax(QK⊤/√d_k) V",
    "The equation of line 46.",
    HOLDS,
    same(
        lambda: softmax_rows(matrix(QUERY) * matrix(KEY).T / 2) * matrix(VALUE),
        EXAMPLE.output.exact,
        EXAMPLE.output.reference,
    ),
    formula=r"\text{softmax}(Q K^T / \sqrt{d_k}) V",
)
WAVES.not_checkable(
    "waves-of-the-paper",
    127,
    "The original Transformer paper encoded each position",
    "The paper encodes positions by sines and cosines of several frequencies.",
    reason="A fact about a paper that is not given: its section 3.5 does.",
)
NORM.not_checkable(
    "they-all-use-pre-norm",
    176,
    "they all use Pre-Norm",
    "GPT-2, GPT-3 and LLaMA norm before the sub-layer.",
    reason="A fact about models that are not given; LLaMA's norm is RMSNorm.",
)
WHOLE.confirmed(
    "shifted-right-by-one",
    234,
    "(shifted right by one)",
    "Of the words 0 to 5: how far each target is from what stands at its position in the input.",
    exactly("1 1 1 1 1"),
    Derived(
        exact=lambda: [target - given for target, given in zip(range(1, 6), range(5), strict=True)],
        again=lambda: torch.arange(6).diff(),
        reference=_ahead,
    ),
)
WHOLE.confirmed(
    "softmax-after-the-projection",
    241,
    "Softmax",
    "What the softmax makes of any logits is a distribution: two of them, s and t, become positive and sum to one.",
    HOLDS,
    holds(
        lambda: (
            sympy.simplify(sum(softmax_rows(sympy.Matrix([sympy.symbols("s t", real=True)]))) - 1) == 0
            and all(
                each.is_positive for each in softmax_rows(sympy.Matrix([sympy.symbols("s t", real=True)]))
            )
        ),
        reference=lambda: _is_distribution(softmax(torch.linspace(-9, 9, 14).double().view(2, 7))),
    ),
)
CODE.behaviour(
    "one-big-projection",
    258,
    "Query, key and value have one matrix each for all heads: with the defaults of the encoder, of 512 x 512.",
    blocks=("encoder",),
    probe="""
module = MultiHeadSelfAttention(512, 8)
print(*(tuple(each.weight.shape) for each in (module.W_q, module.W_k, module.W_v)))
""",
    prints="(512, 512) (512, 512) (512, 512)",
)
