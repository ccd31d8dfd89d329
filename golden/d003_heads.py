"""Document 003, lines 282 to 372: what self-attention costs, and multi-head attention."""

from collections.abc import Callable

import sympy
import torch

from headcheck.golden.d003_attention import zeros
from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.exact import contracted, matrix
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import each_head
from headcheck.golden.stated import HOLDS, count, shape
from headcheck.reference import MultiHeadAttention, attention, merge_heads, number_of_scores, split_heads

COST = Section("003", "complexity")
HEADS = Section("003", "multi-head")

N, D, H = sympy.symbols("n d h", positive=True)
Sizes = Callable[[], tuple[int, ...]]
PRINTED = (4, 20, 512)
"""Batch, tokens and dims of the example, which has 8 heads."""


def _products(n: int, d: int, heads: int = 1) -> int:
    """The multiplications of Q K^T and of the weights with V, head by head, counted at run time."""
    each = d // heads
    scores = (torch.ones(n, 1, each) * torch.ones(1, n, each)).numel()
    output = (torch.ones(n, n, 1) * torch.ones(1, n, each)).numel()
    return heads * (scores + output)


def _parameters(d_model: int, heads: int) -> Derived:
    """Of four square layers with biases: by formula, by torch's module, by the reference."""
    return counted(
        lambda: 4 * (d_model**2 + d_model),
        lambda: sum(each.numel() for each in torch.nn.MultiheadAttention(d_model, heads).parameters()),
        lambda: sum(each.numel() for each in MultiHeadAttention(d_model, heads).parameters()),
    )


def _projected_once_is_projected_by_head(heads: int) -> bool:
    x, w = torch.arange(6.0).view(1, 2, 3), torch.arange(12.0).view(3, 4)
    by_head = torch.stack([x @ part for part in w.chunk(heads, dim=1)], dim=1)
    return torch.equal(each_head(x @ w, heads), by_head)


def _output(batch: int, length: int, d_model: int, heads: int) -> Derived:
    """The shape of the output of the whole module."""
    return counted(
        lambda: contracted("bnd,de->bne", (batch, length, d_model), (d_model, d_model)),
        lambda: (
            torch.nn.MultiheadAttention(d_model, heads, batch_first=True)(
                *[torch.zeros(batch, length, d_model)] * 3
            )[0].shape
        ),
        lambda: MultiHeadAttention(d_model, heads)(torch.zeros(batch, length, d_model)).shape,
    )


def _split(batch: int, length: int, d_model: int, heads: int) -> Derived:
    return counted(
        lambda: (batch, heads, length, sympy.Integer(d_model) / heads),
        lambda: each_head(torch.zeros(batch, length, d_model), heads).shape,
        lambda: split_heads(torch.zeros(batch, length, d_model), heads).shape,
    )


def _merged() -> Derived:
    """The shape of 2 sequences of 3 tokens when 2 heads of 2 dims stand side by side again."""
    return counted(
        lambda: (2, 3, 2 * 2),
        lambda: zeros(2, 2, 3, 2).transpose(1, 2).contiguous().view(2, -1, 4).shape,
        lambda: merge_heads(zeros(2, 2, 3, 2)).shape,
    )


def weights_of(batch: int, heads: int, length: int, d_k: int) -> Derived:
    """The shape of the weights, by the labels of the axes, at run time, and of the reference."""
    query = (batch, heads, length, d_k)
    return counted(
        lambda: contracted("bhqd,bhkd->bhqk", query, query),
        lambda: (zeros(*query) @ zeros(*query).mT).shape,
        lambda: attention(zeros(*query), zeros(*query), zeros(*query)).weights.shape,
    )


# Line 282

COST.confirmed(
    "quadratic-times-dim",
    282,
    "O(n² × d) where n is sequence length and d is dimension",
    "Q K^T and the weighted sum take n x n x d multiplications each: here with n = 6 and d = 4, without projections.",
    count(2 * 6 * 6 * 4),
    Derived(lambda: (2 * N**2 * D).subs({N: 6, D: 4}), lambda: _products(6, 4)),
    formula=r"2 n^2 d",
)
COST.confirmed(
    "quadratic-scaling",
    282,
    "This quadratic scaling with sequence length",
    "Twice the tokens have four times the scores.",
    count(4),
    counted(
        lambda: sympy.simplify((2 * N) ** 2 / N**2),
        lambda: sympy.Rational((zeros(6, 1) @ zeros(1, 6)).numel(), (zeros(3, 1) @ zeros(1, 3)).numel()),
        lambda: number_of_scores(6, 6) / number_of_scores(3, 3),
    ),
)
COST.confirmed(
    "quadratic-with-projections",
    282,
    "Time complexity: O(n² × d)",
    "With the projections of line 165, 3 n d^2 multiplications more, it is so too as n grows: the ratio to n^2 d goes "
    "to 2; of the example's 6 tokens and 256 dims the projections are 98 of 100.",
    HOLDS,
    holds(
        lambda: sympy.limit((3 * N * D**2 + 2 * N**2 * D) / (N**2 * D), N, sympy.oo) == 2,
        lambda: 2 * 10**24 * 256 <= 3 * 10**12 * 256**2 + 2 * 10**24 * 256 < 2.000001 * 10**24 * 256,
    ),
    formula=r"\frac{3 n d^2 + 2 n^2 d}{n^2 d} \to 2",
)
COST.not_checkable(
    "main-limitation",
    282,
    "the main limitation of Transformers",
    "The quadratic cost is the main limitation, and motivated efficient variants.",
    reason="A judgement, and the history of publications.",
)
# Lines 284 to 372

HEADS.confirmed(
    "different-projections",
    286,
    "each with different learned projections",
    "One projection, split, gives what a projection for each head gives: the heads have columns of their own.",
    HOLDS,
    holds(
        lambda: (matrix("1 2") * matrix("3 4; 5 6"))[:, :1] == matrix("1 2") * matrix("3 4; 5 6")[:, :1],
        lambda: _projected_once_is_projected_by_head(heads=2),
    ),
    formula=r"X [W_1, W_2] = [X W_1, X W_2]",
)
HEADS.confirmed(
    "combined-for-efficiency",
    308,
    "(combined for efficiency)",
    "Combined are the heads: one matrix projects for all of them. Query, key and value have one each.",
    HOLDS,
    holds(
        lambda: sympy.simplify(H * (D * (D / H)) - D**2) == 0,
        lambda: _projected_once_is_projected_by_head(heads=4),
        lambda: MultiHeadAttention(4, 2).w_q.weight.numel() == 4 * 4,
    ),
    formula=r"h \cdot d \cdot \frac{d}{h} = d^2",
)
HEADS.not_checkable(
    "various-relationships",
    286,
    "capturing various types of relationships",
    "What heads capture.",
    reason="It depends on a training that is not given.",
)
HEADS.confirmed(
    "dims-of-a-head",
    288,
    "(d_model / num_heads)",
    "The heads share the dims of the model.",
    HOLDS,
    holds(lambda: sympy.simplify(D / H * H - D) == 0, lambda: sum([512 // 8] * 8) == 512),
    formula=r"h \cdot d_k = d_{model}",
)
HEADS.confirmed(
    "same-computation",
    288,
    "similar to single-head attention at full dimension",
    "Eight heads of 64 dims take as many multiplications for scores and weighted sum as one head of 512: here 20 tokens.",
    count(2 * 20 * 20 * 512),
    Derived(
        lambda: (H * 2 * N**2 * (D / H)).subs({N: 20, D: 512, H: 8}),
        lambda: _products(20, 512, 8),
    ),
    formula=r"h \cdot 2 n^2 \frac{d}{h} = 2 n^2 d",
)
HEADS.confirmed(
    "same-parameters",
    288,
    "the total computation is similar",
    "With 8 heads or with 1 the module has as many parameters.",
    HOLDS,
    holds(
        lambda: _parameters(512, 8).exact() == _parameters(512, 1).exact(),
        lambda: _parameters(512, 8).again() == _parameters(512, 1).again(),  # type: ignore[misc]
        lambda: _parameters(512, 8).reference() == _parameters(512, 1).reference(),  # type: ignore[misc]
    ),
)
HEADS.confirmed(
    "more-exponentials",
    288,
    "the total computation is similar",
    "Each head has exponentials of its own, 8 x 20 x 20 instead of 20 x 20: the 2,800 more are under 1% of the products.",
    HOLDS,
    holds(
        lambda: sympy.Rational(7 * 20 * 20, 2 * 20 * 20 * 512) < sympy.Rational(1, 100),
        lambda: 100 * (zeros(8, 20, 20).numel() - zeros(1, 20, 20).numel()) < _products(20, 512, 8),
        lambda: 100 * 7 * number_of_scores(20, 20) < _products(20, 512, 8),
    ),
    formula=r"\frac{(h - 1) n^2}{2 n^2 d} = \frac{7}{1024}",
)
HEADS.confirmed(
    "concatenated",
    288,
    "concatenated and projected through a final linear layer",
    "The heads side by side have the dims of the model, and the last layer keeps them.",
    shape(2, 3, 4),
    _output(2, 3, 4, 2),
)
HEADS.not_checkable(
    "linguistic-phenomena",
    288,
    "Different heads often learn",
    "What different heads often learn.",
    reason="It depends on a training that is not given.",
)
HEADS.block(
    "module",
    290,
    372,
    "Multi-head attention as a module, and 20 tokens.",
    alone=Run(
        prints=(
            "Input shape: torch.Size([4, 20, 512])",
            "Output shape: torch.Size([4, 20, 512])",
            "Attention weights shape: torch.Size([4, 8, 20, 20])",
            "Each head's d_k: 64",
        )
    ),
)
for name, line, place, axes, derived in (
    ("projected", 327, "(batch, seq_len, d_model)", (2, 3, 4), _output(2, 3, 4, 2)),
    ("split", 332, "(batch, heads, seq_len, d_k)", (2, 2, 3, 2), _split(2, 3, 4, 2)),
    ("split-docstring", 319, "into (num_heads, d_k)", (2, 2, 3, 2), _split(2, 3, 4, 2)),
    ("split-comment", 321, "(batch, heads, seq_len, d_k)", (2, 2, 3, 2), _split(2, 3, 4, 2)),
    ("context", 349, "(batch, heads, seq_len, d_k)", (2, 2, 3, 2), _split(2, 3, 4, 2)),
    (
        "transposed",
        352,
        "(batch, seq_len, heads, d_k)",
        (2, 3, 2, 2),
        counted(
            lambda: contracted("bhnd->bnhd", (2, 2, 3, 2)), lambda: zeros(2, 2, 3, 2).transpose(1, 2).shape
        ),
    ),
    ("merged", 353, "(batch, seq_len, d_model)", (2, 3, 4), _merged()),
    ("output", 370, "Same as input", PRINTED, _output(*PRINTED, 8)),
    ("weights", 371, "(batch, heads, seq_len, seq_len)", (4, 8, 20, 20), weights_of(4, 8, 20, 64)),
):
    HEADS.confirmed(
        f"shape-{name}",
        line,
        place,
        f"The shape, {name}, here of {'the printed sizes' if line > 369 else 'd_model 4 in 2 heads'}.",
        shape(*axes),
        derived,
    )
for name, line, place in (("d-k", 306, "Dimension per head"), ("d-k-as-printed", 372, "64")):
    HEADS.confirmed(
        name,
        line,
        place,
        "With d_model 512 and 8 heads, the dims of a head.",
        count(64),
        _split(*PRINTED, 8).at(3),
    )
HEADS.behaviour(
    "indivisible-heads-are-refused",
    302,
    "A d_model that the heads do not divide is refused.",
    blocks=("module",),
    probe="try:\n    MultiHeadAttention(4, 3)\nexcept AssertionError as problem:\n    print(problem)",
    prints="d_model must be divisible by num_heads",
)
HEADS.behaviour(
    "mask-of-two-axes",
    340,
    "A mask (seq_len, seq_len) is the same for all sequences and heads, though there are as many sequences as tokens.",
    blocks=("module",),
    probe="x = torch.ones(2, 2, 4)\n"
    "print(MultiHeadAttention(4, 2, dropout=0.0)(x, x, x, torch.tril(torch.ones(2, 2)))[1].unique(dim=0).tolist())",
    prints="[[[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]]]",
)
HEADS.latent_fault(
    "weights-after-dropout",
    346,
    "The weights that are returned are those after dropout: in training a row need not sum to one. With p = 1/2 and one "
    "key the one weight is 0 or 2.",
    blocks=("module",),
    probe="x = torch.ones(8, 1, 2)\nprint(sorted(set(MultiHeadAttention(2, 1, 0.5)(x, x, x)[1].flatten().tolist())))",
    prints="[0.0, 2.0]",
    fault="multi_head_attention/WeightsAfterDropout",
)
HEADS.latent_fault(
    "dead-row",
    343,
    "A query whose keys are all masked gives NaN, in the output and in the weights.",
    blocks=("module",),
    probe="x = torch.ones(1, 1, 1)\n"
    "print(*(each.item() for each in MultiHeadAttention(1, 1, 0.0)(x, x, x, torch.zeros(1, 1))))",
    prints="nan nan",
    fault="multi_head_attention/DeadRowIsNan",
)
HEADS.latent_fault(
    "additive-mask",
    343,
    "An additive mask, 0 keeps and -inf drops, is read the wrong way round: 0 drops.",
    blocks=("module",),
    probe="x, mask = torch.ones(1, 2, 1), torch.tensor([[0.0, -torch.inf]])\n"
    "print(MultiHeadAttention(1, 1, 0.0)(x, x, x, mask)[1][0, 0, 0].tolist())",
    prints="[0.0, 1.0]",
    fault="documents/zero-drops-in-every-mask",
)
HEADS.latent_fault(
    "padding-meets-queries",
    342,
    "A padding mask (batch, seq_len) has two axes and is laid over queries and keys when batch = seq_len: query 1 of "
    "sequence 0 sees key 1, which is padding for it.",
    blocks=("module",),
    probe="x = torch.ones(2, 2, 1)\n"
    "print(MultiHeadAttention(1, 1, 0.0)(x, x, x, torch.tensor([[1, 0], [1, 1]]))[1][0, 0].tolist())",
    prints="[[1.0, 0.0], [0.5, 0.5]]",
    fault="documents/padding-meets-queries",
)
HEADS.latent_fault(
    "three-axes-meet-heads",
    343,
    "A mask (batch, q_len, kv_len) is left as it is and read as (heads, q_len, kv_len) when batch = heads: sequence 1, "
    "whose key is visible, has it masked in head 0, beside the key of sequence 0.",
    blocks=("module",),
    probe="x, key = torch.ones(2, 1, 2), torch.ones(2, 2, 2)\nmask = torch.tensor([[[1, 0]], [[1, 1]]])\n"
    "print(MultiHeadAttention(2, 2, 0.0)(x, key, key, mask)[1][1, :, 0].tolist())",
    prints="[[1.0, 0.0], [0.5, 0.5]]",
    fault="broadcast/batch-meets-heads",
)
HEADS.latent_fault(
    "sequences-run-together",
    320,
    "Keys of two sequences for a query of one are not refused: they become one sequence of twice the length.",
    blocks=("module",),
    probe="x, y = torch.ones(1, 1, 2), torch.ones(2, 3, 2)\nprint(tuple(MultiHeadAttention(2, 1)(x, y, y)[1].shape))",
    prints="(1, 1, 1, 6)",
    why_no_fault="The laws give queries and keys of one number of sequences, where it does not show.",
)
