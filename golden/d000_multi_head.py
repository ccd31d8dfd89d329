"""Document 000, lines 360 to 447: multi-head attention from scratch."""

import sympy
import torch

from headcheck.golden.derived import counted, holds
from headcheck.golden.exact import contracted, matrix, softmax_rows
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, count, shape
from headcheck.reference import MultiHeadAttention, attention, merge_heads, split_heads

IDEA = Section("000", "multi-head")
CODE = Section("000", "multi-head-code")

H, N, DIM = sympy.symbols("h n d", positive=True, integer=True)
"""Heads, tokens, d_model."""
PROJECT, SPLIT, ATTEND = "bnd,de->bne", (2, 8, 10, 8), "bhqk,bhkd->bhqd"
INPUT = torch.zeros(2, 10, 64, dtype=torch.float64)


def _products(heads: sympy.Expr, head_dim: sympy.Expr) -> sympy.Expr:
    """Multiplications of the scores and of the weighted sum: n^2 head_dim each, in every head."""
    return heads * 2 * N**2 * head_dim


def _linear_layers(count_of: int, width: int) -> int:
    """The parameters of that many square layers with biases, counted on layers that are built."""
    layers = [torch.nn.Linear(width, width, device="meta") for _ in range(count_of)]
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters())


def _multiplications_counted(heads: int, tokens: int, width: int) -> int:
    """The same by counting, one query, key and component at a time."""
    return sum(
        2 for _ in range(heads) for _ in range(tokens) for _ in range(tokens) for _ in range(width // heads)
    )


def _split_and_joined(heads: int) -> torch.Tensor:
    """A (2, 3, 8) tensor split into heads and put together again, as the text describes it."""
    x = torch.arange(48).view(2, 3, 8)
    split = x.view(2, 3, heads, 8 // heads).transpose(1, 2)
    return split.transpose(1, 2).contiguous().view(2, 3, 8) == x


def _reference() -> MultiHeadAttention:
    return MultiHeadAttention(64, 8).double()


def _own_multi_head(x: torch.Tensor) -> torch.Tensor:
    """torch's own module of 64 dims and 8 heads."""
    output: torch.Tensor = torch.nn.MultiheadAttention(64, 8, batch_first=True)(x, x, x)[0]
    return output


def _weights_of_first_head() -> sympy.Matrix:
    """Of two heads of one dim: queries and keys (a, c) and (b, d), the first head reads a and b."""
    x = sympy.Matrix([sympy.symbols("a c"), sympy.symbols("b d")])
    return softmax_rows(x[:, 0] * x[:, 0].T)


# Lines 378 to 387

IDEA.block(
    "compressed",
    380,
    383,
    "Multi-head attention in three lines of pseudo-code.",
    alone=Run(error="NameError: name 'split' is not defined"),
)
for name, line, place, what, number in (
    ("slices", 381, "eight 8-dim slices", "64 dims in eight heads: dims of a slice.", 8),
    ("slices-of-8", 447, "(64/8 = 8)", "64 dims in eight heads: dims of a slice.", 8),
):
    IDEA.confirmed(
        name,
        line,
        place,
        what,
        count(number),
        counted(
            lambda: sympy.Integer(64) / 8,
            lambda: torch.zeros(64).chunk(8)[0].shape[0],
            lambda: split_heads(INPUT, 8).shape[-1],
        ),
        formula=r"d_k = d_{model} / h = 64 / 8",
    )
IDEA.confirmed(
    "parallel-attentions",
    382,
    "8 parallel attentions",
    "64 dims in slices of 8: the number of heads.",
    count(8),
    counted(
        lambda: sympy.Integer(64) / 8,
        lambda: torch.zeros(64).view(-1, 8).shape[0],
        lambda: split_heads(INPUT, 8).shape[1],
    ),
)
IDEA.confirmed(
    "merged",
    383,
    "combine back to 64-dim",
    "Eight heads of 8 dims side by side have 64.",
    count(64),
    counted(
        lambda: 8 * 8,
        lambda: torch.cat([torch.zeros(8)] * 8).numel(),
        lambda: merge_heads(torch.zeros(SPLIT)).shape[-1],
    ),
)
IDEA.confirmed(
    "dims-of-a-head",
    387,
    "d_k = d_model / h dimensions",
    "The heads share the dims of the model.",
    HOLDS,
    holds(
        lambda: H * (DIM / H) == DIM,
        lambda: all(h * len(range(0, 64, h)) == 64 for h in (1, 2, 4, 8, 16, 32, 64)),
        lambda: all(split_heads(INPUT, h).shape[1:] == (h, 10, 64 // h) for h in (1, 2, 8, 64)),
    ),
    formula=r"h \cdot d_k = d_{model}",
)
IDEA.confirmed(
    "same-computation",
    387,
    "the total computation is the same",
    "Scores and weighted sums take as many multiplications in h heads as in one of all dims.",
    HOLDS,
    holds(
        lambda: _products(H, DIM / H) == _products(sympy.Integer(1), DIM),
        lambda: _multiplications_counted(8, 10, 64) == _multiplications_counted(1, 10, 64),
    ),
    formula=r"h \cdot 2 n^2 \frac{d_{model}}{h} = 2 n^2 d_{model}",
)
IDEA.confirmed(
    "same-number-of-weights",
    387,
    "the total computation is the same",
    "Each head has a softmax of its own, but with 8 heads of 8 dims the weights that one head would not have are less "
    "than a tenth of its multiplications and weights.",
    HOLDS,
    holds(
        lambda: (
            ((H - 1) * N**2 / (_products(1, DIM) + N**2)).subs({H: 8, N: 10, DIM: 64}) < sympy.Rational(1, 10)
        ),
        lambda: 10 * (torch.zeros(8, 10, 10).numel() - 100) < _multiplications_counted(1, 10, 64) + 100,
    ),
    formula=r"\frac{(h - 1) n^2}{2 n^2 d + n^2} = \frac{h - 1}{2 d + 1}",
)
IDEA.confirmed(
    "heads-are-slices",
    387,
    "partition the representation space",
    "A head reads its own slice of the projections only: the scores of all heads add up to those of one.",
    HOLDS,
    holds(
        lambda: (
            matrix("1 2 3 4") * matrix("5 6 7 8").T
            == matrix("1 2") * matrix("5 6").T + matrix("3 4") * matrix("7 8").T
        ),
        lambda: (1 * 5 + 2 * 6) + (3 * 7 + 4 * 8) == 70,
    ),
    formula=r"q \cdot k = \sum_{h} q_h \cdot k_h",
)
IDEA.not_checkable(
    "heads-specialise",
    385,
    "each learning to focus on different types of relationships",
    "Each head learns another type of relationship.",
    reason="What is learnt depends on a training that is not given.",
)
IDEA.not_checkable(
    "mirrors-the-paper",
    391,
    "mirrors the original paper",
    "The implementation mirrors the paper.",
    reason="A matter of words: the paper's projections have no biases, these have 256.",
)

# Lines 393 to 447

CODE.block(
    "module",
    393,
    445,
    "The module, and a demonstration of 2 sequences of 10 tokens.",
    alone=Run(
        prints=(
            "Input shape:  torch.Size([2, 10, 64])",
            "Output shape: torch.Size([2, 10, 64])",
            "Params: 16640",
        )
    ),
)
CODE.confirmed(
    "parameters",
    445,
    "4 * 64 * 64 + 4 * 64 = 16640",
    "The parameters of four square layers with biases.",
    count(16640),
    counted(
        lambda: 4 * 64**2 + 4 * 64,
        lambda: _linear_layers(4, 64),
        lambda: sum(each.numel() for each in _reference().parameters()),
    ),
    formula=r"4 d^2 + 4 d, \quad d = 64",
)
for name, line, place, axes, derived in (
    (
        "projected",
        416,
        "[batch, seq_len, d_model]",
        (2, 10, 64),
        counted(
            lambda: contracted(PROJECT, (2, 10, 64), (64, 64)),
            lambda: (torch.zeros(2, 10, 64) @ torch.zeros(64, 64)).shape,
            lambda: _reference().w_q(INPUT).shape,
        ),
    ),
    (
        "split",
        420,
        "[batch, num_heads, seq_len, d_k]",
        SPLIT,
        counted(
            lambda: (2, 8, 10, 64 // 8),
            lambda: torch.zeros(2, 10, 64).view(2, -1, 8, 8).transpose(1, 2).shape,
            lambda: split_heads(INPUT, 8).shape,
        ),
    ),
    (
        "attended",
        430,
        "[batch, heads, seq_len, d_k]",
        SPLIT,
        counted(
            lambda: contracted(ATTEND, (2, 8, 10, 10), SPLIT),
            lambda: (torch.zeros(2, 8, 10, 10) @ torch.zeros(SPLIT)).shape,
            lambda: attention(*[split_heads(INPUT, 8)] * 3).output.shape,
        ),
    ),
    (
        "joined",
        432,
        "[batch, seq_len, d_model]",
        (2, 10, 64),
        counted(
            lambda: (2, 10, 8 * 8),
            lambda: torch.zeros(SPLIT).transpose(1, 2).reshape(2, -1, 64).shape,
            lambda: merge_heads(torch.zeros(SPLIT)).shape,
        ),
    ),
    (
        "input",
        441,
        "batch=2, seq_len=10, d_model=64",
        (2, 10, 64),
        counted(lambda: (2, 10, 8 * 8), lambda: INPUT.shape),
    ),
    ("input-printed", 443, "[2, 10, 64]", (2, 10, 64), counted(lambda: (2, 10, 8 * 8), lambda: INPUT.shape)),
    (
        "output-printed",
        444,
        "[2, 10, 64]",
        (2, 10, 64),
        counted(
            lambda: contracted(PROJECT, (2, 10, 64), (64, 64)),
            lambda: _own_multi_head(torch.zeros(2, 10, 64)).shape,
            lambda: _reference()(INPUT).shape,
        ),
    ),
):
    CODE.confirmed(f"shape-{name}", line, place, f"The shape, {name}.", shape(*axes), derived)
CODE.confirmed(
    "input-and-output-shapes",
    447,
    "the input and output shapes are identical",
    "Input and output have one shape, so that layers can be stacked.",
    HOLDS,
    holds(
        lambda: contracted(PROJECT, (2, 10, 64), (64, 64)) == (2, 10, 64),
        lambda: _own_multi_head(_own_multi_head(torch.zeros(2, 10, 64))).shape == (2, 10, 64),
        lambda: _reference()(_reference()(INPUT)).shape == INPUT.shape,
    ),
)
CODE.confirmed(
    "splitting-and-joining",
    434,
    "view(batch_size, -1, self.d_model)",
    "Heads that are split and joined this way stand where they stood.",
    HOLDS,
    holds(
        lambda: _split_and_joined(4).all(),
        lambda: _split_and_joined(2).all(),
        lambda: torch.equal(merge_heads(split_heads(INPUT, 8)), INPUT),
    ),
)
CODE.confirmed(
    "heads-by-slices",
    447,
    "Each of the 8 heads operates on 8-dimensional slices",
    "What a head attends to depends on its own slice of queries and keys alone.",
    HOLDS,
    holds(lambda: "c" not in str(_weights_of_first_head()), lambda: "d" not in str(_weights_of_first_head())),
)
CODE.behaviour(
    "indivisible-heads-are-refused",
    400,
    "A d_model that the heads do not divide is refused.",
    blocks=("module",),
    probe="try:\n    MultiHeadAttention(4, 3)\nexcept AssertionError as problem:\n    print(problem)",
    prints="d_model must be divisible by num_heads",
)
CODE.latent_fault(
    "dead-row",
    428,
    "A query whose keys are all masked gives NaN.",
    blocks=("module",),
    probe="x = torch.ones(1, 1, 2)\n"
    "print(MultiHeadAttention(2, 1)(x, x, x, torch.zeros(1, 1)).isnan().all().item())",
    prints="True",
    fault="multi_head_attention/DeadRowIsNan",
)
CODE.latent_fault(
    "three-axes-meet-heads",
    428,
    "A mask (batch, seq_len, seq_len) is broadcast as (heads, seq_len, seq_len) when batch = heads: sequence 1, whose "
    "keys are all visible, is masked in head 0 as sequence 0 is.",
    blocks=("module",),
    probe="""
torch.manual_seed(0)
mha, x = MultiHeadAttention(2, 2), torch.randn(2, 2, 2)
mask = torch.ones(2, 2, 2)
mask[0, :, 1] = 0
alone = mha(x[1:], x[1:], x[1:], mask[1:].unsqueeze(1))
print(torch.equal(mha(x, x, x, mask)[1:], alone), torch.equal(mha(x, x, x, mask.unsqueeze(1))[1:], alone))
""",
    prints="False True",
    fault="broadcast/batch-meets-heads",
)
CODE.latent_fault(
    "padding-meets-queries",
    428,
    "A padding mask (batch, seq_len) is laid along the queries when batch = seq_len: sequence 0, whose second token is "
    "padding, attends to it.",
    blocks=("module",),
    probe="""
torch.manual_seed(0)
mha, x = MultiHeadAttention(2, 1), torch.randn(2, 2, 2)
mask, changed = torch.tensor([[1, 0], [1, 1]]), x.clone()
changed[0, 1] = 9.0
print(torch.equal(mha(x, x, x, mask)[0], mha(x, changed, changed, mask)[0]))
""",
    prints="False",
    fault="documents/padding-meets-queries",
)
