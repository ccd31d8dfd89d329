"""Document 004, lines 3 to 47: the attention module with -1e9, multi-head attention, the layers in words."""

import sympy
import torch

from headcheck.golden.derived import Derived, Worked, counted, holds, same
from headcheck.golden.exact import contracted, matrix, normalised, softmax, softmax_rows
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import each_head
from headcheck.golden.stated import HOLDS, count, shape
from headcheck.reference import MultiHeadAttention, attention, layer_norm, merge_heads, split_heads

DOT = Section("004", "scaled-dot-product")
HEADS = Section("004", "multi-head")
LAYERS = Section("004", "layers")

EXAMPLE = Worked("1 0; 0 2", "1 1; 0 3", "1 2; 3 4")
"""Inputs of our own, for statements about every input."""
QUERY, KEY, VALUE = (matrix(each) for each in (EXAMPLE.query, EXAMPLE.key, EXAMPLE.value))
FILL = sympy.Integer(-(10**9))
IMPORTS = "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
"""What the printed code presupposes."""
T = sympy.Symbol("t", positive=True)


def _slope_through(layers: int, *, residual: bool) -> float:
    """The derivative of so many layers that halve, by autograd in float64."""
    x = torch.ones((), dtype=torch.float64, requires_grad=True)
    y = x
    for _ in range(layers):
        y = y / 2 + (y if residual else 0)
    return float(torch.autograd.grad(y, x)[0])


# Lines 5 to 14

DOT.block(
    "module",
    5,
    13,
    "The attention module. No block of this document imports anything.",
    levels="0 1 2 2 2 3 2 2 2",
    alone=Run(error="NameError: name 'nn' is not defined"),
)
DOT.confirmed(
    "formula",
    8,
    "/ math.sqrt(d_k)",
    "Scores divided by the root of d_k, softmax, values: the formula of attention.",
    HOLDS,
    same(
        lambda: softmax_rows(QUERY * KEY.T / sympy.sqrt(2)) * VALUE,
        EXAMPLE.output.exact,
        EXAMPLE.output.reference,
    ),
    formula=r"\text{softmax}(Q K^T / \sqrt{d_k}) V",
)
DOT.confirmed(
    "minus-a-billion-is-zero",
    14,
    "those values accurately converge to zero",
    "Beside a key with a score above -9e8, the weight of -1e9 is below the smallest number of float32 and float64.",
    HOLDS,
    holds(
        lambda: -1075 * sympy.log(2) > FILL + 9 * 10**8,
        lambda: sympy.exp(FILL + 9 * 10**8).evalf(20) < sympy.Integer(2) ** -1075,
        lambda: attention(*_one_masked()).weights[0, 0, 0, 1] == 0,
    ),
    formula=r"e^{-10^9 - s} < 2^{-1075}",
)
DOT.erratum(
    "masked-tokens-are-never-seen",
    14,
    "ensuring the model cannot attend to padded or future",
    "Whatever the mask, a masked token has a weight of zero.",
    HOLDS,
    holds(
        lambda: softmax([FILL, FILL]) == [0, 0],
        lambda: sympy.exp(FILL) / (sympy.exp(FILL) + sympy.exp(FILL)) == 0,
    ),
    slip="A query whose keys are all masked gives each masked key the same weight, here one half: padding and future "
    "are attended to. Only -inf, with such rows set to zero, keeps the promise.",
    formula=r"\frac{e^{-10^9}}{e^{-10^9} + e^{-10^9}} = \frac{1}{2}",
)
DOT.behaviour(
    "output-and-weights",
    14,
    "Both the output and the weights are returned; the weights are those after the softmax.",
    setting=IMPORTS,
    blocks=("module",),
    probe="x = torch.zeros(1, 1, 2, 3)\noutput, weights = ScaledDotProductAttention()(x, x, x)\n"
    "print(tuple(output.shape), weights.tolist())",
    prints="(1, 1, 2, 3) [[[[0.5, 0.5], [0.5, 0.5]]]]",
)
DOT.latent_fault(
    "dead-row",
    10,
    "A query whose keys are all masked attends to all of them alike.",
    setting=IMPORTS,
    blocks=("module",),
    probe="x = torch.ones(1, 1, 2, 1)\n"
    "print(ScaledDotProductAttention()(x, x, x, torch.zeros(2, 2))[1][0, 0].tolist())",
    prints="[[0.5, 0.5], [0.5, 0.5]]",
    fault="documents/filled-with-minus-a-billion",
)
DOT.latent_fault(
    "half-precision",
    10,
    "float16 has no -1e9: with a mask the module fails there.",
    setting=IMPORTS,
    blocks=("module",),
    probe="x = torch.ones(1, 1, 1, 1).half()\n"
    "try:\n    ScaledDotProductAttention()(x, x, x, x[0, 0])\nexcept RuntimeError as problem:\n    print(problem)",
    prints="value cannot be converted to type c10::Half without overflow",
    fault="documents/minus-a-billion-in-half",
)
DOT.latent_fault(
    "additive-mask",
    10,
    "An additive mask, 0 keeps and -inf drops, is read the wrong way round: 0 drops.",
    setting=IMPORTS,
    blocks=("module",),
    probe="x = torch.ones(1, 1, 2, 1)\n"
    "print(ScaledDotProductAttention()(x, x, x, torch.tensor([0.0, -torch.inf]))[1][0, 0, 0].tolist())",
    prints="[0.0, 1.0]",
    fault="documents/zero-drops-in-every-mask",
)
DOT.latent_fault(
    "padding-meets-queries",
    10,
    "A padding mask (batch, seq_len) is laid along the queries when batch = seq_len: query 1 of sequence 0 sees key 1, "
    "which is padding for it.",
    setting=IMPORTS,
    blocks=("module",),
    probe="x = torch.ones(2, 1, 2, 1)\n"
    "print(ScaledDotProductAttention()(x, x, x, torch.tensor([[1, 0], [1, 1]]))[1][0, 0].tolist())",
    prints="[[1.0, 0.0], [0.5, 0.5]]",
    fault="documents/padding-meets-queries",
)
DOT.latent_fault(
    "three-axes-meet-heads",
    10,
    "A mask (batch, seq_len, seq_len) is broadcast as (heads, seq_len, seq_len) when batch = heads: sequence 1, whose "
    "key is visible, has it masked in head 0, beside the key of sequence 0.",
    setting=IMPORTS,
    blocks=("module",),
    probe="x = torch.ones(2, 2, 1, 1)\nkey = x.expand(2, 2, 2, 1)\n"
    "mask = torch.tensor([[[1, 0]], [[1, 1]]])\n"
    "print(ScaledDotProductAttention()(x, key, key, mask)[1][1, :, 0].tolist())",
    prints="[[1.0, 0.0], [0.5, 0.5]]",
    fault="broadcast/batch-meets-heads",
)


# Lines 16 to 38

HEADS.block(
    "module",
    17,
    37,
    "The multi-head module. With the imports it runs; it needs the module before.",
    levels="0 1222222222 1 222222222",
    alone=Run(error="NameError: name 'nn' is not defined"),
)
HEADS.confirmed(
    "project-once-then-split",
    16,
    "reshape the tensor to split it across heads",
    "One projection, split, gives what a projection for each head gives: its columns are those of the heads.",
    HOLDS,
    holds(
        lambda: (matrix("1 2") * matrix("3 4; 5 6"))[:, :1] == matrix("1 2") * matrix("3 4; 5 6")[:, :1],
        lambda: _projected_once_equals_projected_by_head(heads=2),
    ),
    formula=r"X [W_1, W_2] = [X W_1, X W_2]",
)
SPLIT = (2, 4, 5, 16)
for name, line, place in (
    ("split", 30, "(batch, seq, d_model) -> (batch, heads, seq, d_k)"),
    ("split-again", 38, "to (batch, num_heads, seq_len, d_k)"),
):
    HEADS.confirmed(
        f"shape-{name}",
        line,
        place,
        "The shape after the split, here of 2 sequences of 5 tokens, 64 dims and 4 heads.",
        shape(*SPLIT),
        counted(
            lambda: (2, 4, 5, sympy.Integer(64) / 4),
            lambda: each_head(torch.zeros(2, 5, 64), 4).shape,
            lambda: split_heads(torch.zeros(2, 5, 64), 4).shape,
        ),
    )
for name, line, place in (
    ("joined", 35, "(batch, heads, seq, d_k) -> (batch, seq, d_model)"),
    ("joined-again", 38, "then concatenate the results back"),
):
    HEADS.confirmed(
        f"shape-{name}",
        line,
        place,
        "The shape after the heads are put together again.",
        shape(2, 5, 64),
        counted(
            lambda: (2, 5, 4 * 16),
            lambda: torch.zeros(SPLIT).transpose(1, 2).contiguous().view(2, -1, 64).shape,
            lambda: merge_heads(torch.zeros(SPLIT)).shape,
        ),
    )
HEADS.confirmed(
    "dims-of-a-head",
    38,
    "16-dimensional subspace",
    "With d_model 64 and 4 heads, the dims of a head.",
    count(16),
    counted(
        lambda: sympy.Integer(64) / 4,
        lambda: each_head(torch.zeros(1, 1, 64), 4).shape[-1],
        lambda: split_heads(torch.zeros(1, 1, 64), 4).shape[-1],
    ),
    formula=r"d_k = 64 / 4",
)
HEADS.confirmed(
    "recombined",
    38,
    "recombines these subspaces into a single representation",
    "W_o takes the 4 x 16 dims of the heads back to 64.",
    shape(2, 5, 64),
    counted(
        lambda: contracted("bne,ed->bnd", (2, 5, 4 * 16), (64, 64)),
        lambda: torch.nn.Linear(64, 64)(torch.zeros(2, 5, 64)).shape,
        lambda: MultiHeadAttention(64, 4)(torch.zeros(2, 5, 64)).shape,
    ),
)
HEADS.behaviour(
    "shapes-at-run-time",
    38,
    "With d_model 64 and 4 heads, 5 queries and 3 keys: the shapes of output and weights.",
    setting=IMPORTS,
    blocks=("004/scaled-dot-product/module", "module"),
    probe="x, y = torch.ones(2, 5, 64), torch.ones(2, 3, 64)\n"
    "print(*(tuple(each.shape) for each in MultiHeadAttention(64, 4)(x, y, y)))",
    prints="(2, 5, 64) (2, 4, 5, 3)",
)
HEADS.latent_fault(
    "indivisible-heads",
    22,
    "A d_model that the heads do not divide is not refused: 2 tokens of 3 dims become 3 tokens of 1 dim in 2 heads, and "
    "the output has the right shape.",
    setting=IMPORTS,
    blocks=("004/scaled-dot-product/module", "module"),
    probe="x = torch.ones(1, 2, 3)\nprint(*(tuple(each.shape) for each in MultiHeadAttention(3, 2)(x, x, x)))",
    prints="(1, 2, 3) (1, 2, 3, 3)",
    fault="multi_head_attention/RoundedDown",
)

# Lines 40 to 47

LAYERS.not_checkable(
    "symmetric",
    40,
    "architecture is symmetric",
    "Encoder and decoder are symmetric.",
    reason="In what respect is not said: of sublayers the encoder has 2 and the decoder 3, as line 47 says.",
)
LAYERS.confirmed(
    "gradient-shortcut",
    46,
    "the gradient has a shortcut path",
    "The derivative of x + f(x) is 1 plus that of f: it does not vanish where that of f does.",
    HOLDS,
    holds(
        lambda: sympy.diff(T + sympy.Function("f")(T), T) == 1 + sympy.diff(sympy.Function("f")(T), T),
        lambda: sympy.diff(T + sympy.tanh(T), T).subs(T, 40).evalf(20) >= 1,
    ),
    formula=r"\frac{d}{dx}(x + f(x)) = 1 + f'(x)",
)
LAYERS.confirmed(
    "vanishing-without-it",
    46,
    "suffer from vanishing gradients",
    "Through n sublayers of slope below one the derivative goes to zero, and with residuals it does not.",
    HOLDS,
    holds(
        lambda: (
            sympy.limit(sympy.Rational(1, 2) ** T, T, sympy.oo) == 0
            and sympy.limit((1 + sympy.Rational(1, 2)) ** T, T, sympy.oo) != 0
        ),
        lambda: _slope_through(100, residual=False) < 1e-30 and _slope_through(100, residual=True) > 1,
    ),
    formula=r"a^n \to 0, \quad (1 + a)^n \not\to 0, \quad 0 < a < 1",
)
LAYERS.confirmed(
    "norm-stabilises-the-scale",
    46,
    "stabilizes the scale of activations",
    "Layer normalisation gives the same for activations ten times as large.",
    HOLDS,
    same(
        lambda: normalised(10 * sympy.Matrix([[1, 2, 6]])),
        lambda: normalised(sympy.Matrix([[1, 2, 6]])),
        lambda: layer_norm(torch.tensor([[10.0, 20.0, 60.0]], dtype=torch.float64), eps=0.0),
    ),
    formula=r"\text{LayerNorm}(c x) = \text{LayerNorm}(x), \quad c > 0",
)
LAYERS.confirmed(
    "cross-attention",
    47,
    "Keys and Values are provided by the Encoder",
    "With 2 queries from the decoder and 3 keys and values from the encoder, the output has the decoder's length.",
    shape(1, 1, 2, 4),
    Derived(
        exact=lambda: contracted("bhqd,bhkd,bhkv->bhqv", (1, 1, 2, 4), (1, 1, 3, 4), (1, 1, 3, 4)),
        reference=lambda: (
            attention(*(torch.zeros(1, 1, n, 4, dtype=torch.float64) for n in (2, 3, 3))).output.shape
        ),
    ),
)


def _one_masked() -> list[torch.Tensor]:
    """A query of -1e9 on the second of two keys: the score that the module sets."""
    rows = ([[1.0, -1e9]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [1.0]])
    return [torch.tensor(each, dtype=torch.float64)[None, None] for each in rows]


def _projected_once_equals_projected_by_head(heads: int) -> bool:
    x, w = torch.arange(6.0).view(1, 2, 3), torch.arange(12.0).view(3, 4)
    by_head = torch.stack([x @ part for part in w.chunk(heads, dim=1)], dim=1)
    return torch.equal(each_head(x @ w, heads), by_head)
