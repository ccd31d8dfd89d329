"""Document 002, lines 109 to 119: multi-head attention."""

from collections.abc import Sequence

import sympy
import torch

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.exact import matrix, softmax_rows
from headcheck.golden.ledger import Section
from headcheck.golden.stated import EPSILON, HOLDS, all_near, count, shape
from headcheck.reference import MultiHeadAttention, attention, merge_heads, split_heads

HEADS = Section("002", "multi-head")

N, DIM, H = sympy.symbols("n d h", positive=True, integer=True)
"""Tokens, d_model, heads."""


def _layer() -> MultiHeadAttention:
    """Two heads of two dims, with small whole numbers for weights."""
    layer = MultiHeadAttention(4, 2, bias=False).double()
    with torch.no_grad():
        for number, weight in enumerate(layer.parameters(), start=1):
            weight.copy_(torch.arange(16.0).reshape(4, 4) * number % 5 - 2)
    return layer


def _input(tokens: int = 3) -> torch.Tensor:
    return torch.arange(4.0 * tokens, dtype=torch.float64).reshape(1, tokens, 4) % 7 / 4


def _head_by_head() -> torch.Tensor:
    """Concat(head_1, head_2) W_O, each head with three matrices of its own."""
    layer, x = _layer(), _input()
    outputs = []
    for head in (slice(0, 2), slice(2, 4)):
        query, key, value = (x @ w.weight[head].T for w in (layer.w_q, layer.w_k, layer.w_v))
        outputs.append(attention(query[None], key[None], value[None]).output[0])
    return torch.cat(outputs, dim=-1) @ layer.w_o.weight.T


def _split_is_a_slice() -> bool:
    """x W, split into heads, against x times the columns of each head, in symbols."""
    x = sympy.Matrix([sympy.symbols("x:4")])
    w = sympy.Matrix(4, 4, sympy.symbols("w:16"))
    whole = x * w
    return all(whole[:, start : start + 2] == x * w[:, start : start + 2] for start in (0, 2))


def _multiplications(heads: sympy.Expr, head_dim: sympy.Expr) -> sympy.Expr:
    """Of the projections of query, key and value, the scores and the weighted sums of all heads."""
    return heads * (3 * N * DIM * head_dim + 2 * N**2 * head_dim)


def _counted_multiplications(heads: int, tokens: int, width: int) -> int:
    """The same by the sizes of the products, one head at a time."""
    head_dim = width // heads
    products: Sequence[tuple[int, int, int]] = [
        *[(tokens, width, head_dim)] * 3,
        (tokens, head_dim, tokens),
        (tokens, tokens, head_dim),
    ]
    return sum(a * b * c for _ in range(heads) for a, b, c in products)


def _weights_of(module: torch.nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


# Lines 110 to 115

HEADS.confirmed(
    "one-distribution-per-word",
    110,
    "one probability distribution per word",
    "One attention has one row of weights for each word, which sums to one.",
    HOLDS,
    holds(
        lambda: all(
            sympy.simplify(sum(row)) == 1 for row in softmax_rows(matrix("1 2 3; 0 4 1; 2 2 5")).tolist()
        ),
        None,
        lambda: all_near([1] * 3, attention(*[_input()[None]] * 3).weights.sum(dim=-1)[0, 0], 64 * EPSILON),
    ),
)
HEADS.confirmed(
    "own-matrices",
    112,
    "each with its own set of W_Q, W_K, W_V",
    "Each of the two heads has three matrices of its own, here of 4 x 2: 2 x 3 x 8 numbers.",
    count(48),
    counted(lambda: 2 * 3 * 4 * 2, lambda: _weights_of(_layer()) - _layer().w_o.weight.numel()),
)
HEADS.confirmed(
    "dims-of-a-head",
    113,
    "= 64 dimensions",
    "512 dims in 8 heads: the dims of a head.",
    count(64),
    Derived(
        lambda: sympy.Integer(512) / 8,
        lambda: len(torch.zeros(512).chunk(8)[0]),
        lambda: split_heads(torch.zeros(1, 1, 512), 8).shape[-1],
    ),
    formula=r"d_k = 512 / 8",
)
HEADS.confirmed(
    "concatenated",
    113,
    "back into a 512-dimensional vector",
    "Eight heads of 64 dims side by side.",
    count(512),
    Derived(
        lambda: 8 * 64,
        lambda: torch.cat([torch.zeros(64)] * 8).numel(),
        lambda: merge_heads(torch.zeros(1, 8, 1, 64)).shape[-1],
    ),
)
HEADS.confirmed(
    "output-matrix",
    113,
    "one final weight matrix W_O",
    "W_O takes the 512 concatenated dims to 512.",
    shape(512, 512),
    Derived(lambda: (8 * 64, 512), None, lambda: MultiHeadAttention(512, 8, bias=False).w_o.weight.shape),
)
for name, line, place, formula in (
    ("concatenation", 114, "MultiHead(Q, K, V) = Concat(", r"\text{Concat}(head_1, \dots, head_h) W_O"),
    ("one-head", 115, "= Attention(X", r"head_i = \text{Attention}(X W^i_Q, X W^i_K, X W^i_V)"),
):
    HEADS.confirmed(
        name,
        line,
        place,
        "The layer is its heads, each with its own matrices, run one by one, side by side, times W_O.",
        HOLDS,
        holds(
            _split_is_a_slice,
            None,
            # The output sums 4 products below 24: 64 roundings are enough.
            lambda: all_near(_layer()(_input()).tolist(), _head_by_head(), 64 * EPSILON),
        ),
        formula=formula,
    )
HEADS.confirmed(
    "eight-people",
    116,
    "sends eight people into the room",
    "Eight heads make eight matrices of weights for one sequence.",
    count(8),
    Derived(
        lambda: sympy.Integer(512) / 64,
        None,
        lambda: attention(*[split_heads(torch.zeros(1, 2, 512), 8)] * 3).weights.shape[1],
    ),
)
HEADS.not_checkable(
    "heads-specialise",
    117,
    "Clark et al. (2019) visualized",
    "Heads of BERT track agreement, coreference and neighbours.",
    reason="A finding on a trained model that is not given.",
)

# Lines 118 and 119

HEADS.confirmed(
    "same-products",
    118,
    "essentially the same as single-head attention",
    "Projections, scores and weighted sums take as many multiplications in h heads as in one of all dims.",
    HOLDS,
    holds(
        lambda: sympy.simplify(_multiplications(H, DIM / H) - _multiplications(sympy.Integer(1), DIM)) == 0,
        lambda: _counted_multiplications(8, 10, 512) == _counted_multiplications(1, 10, 512),
    ),
    formula=r"h (3 n d \frac{d}{h} + 2 n^2 \frac{d}{h}) = 3 n d^2 + 2 n^2 d",
)
HEADS.confirmed(
    "per-head-cost",
    118,
    "so the per-head cost is smaller",
    "One head of 64 dims takes an eighth of the multiplications of one of 512.",
    count(8),
    Derived(
        lambda: sympy.simplify(
            _multiplications(sympy.Integer(1), DIM) / _multiplications(sympy.Integer(1), DIM / 8)
        ),
        lambda: _counted_multiplications(1, 10, 512) * 8 // _counted_multiplications(8, 10, 512),
    ),
)
HEADS.confirmed(
    "plus-one-multiplication",
    118,
    "plus one extra matrix multiplication (W_O)",
    "What the layer has beyond the matrices of its heads is one of 512 x 512.",
    count(512**2),
    Derived(
        lambda: 4 * 512**2 - 8 * 3 * 512 * 64,
        None,
        lambda: _weights_of(MultiHeadAttention(512, 8, bias=False)) - 8 * 3 * 512 * 64,
    ),
)
HEADS.confirmed(
    "not-paying-more",
    118,
    "not paying more",
    "Scores and weighted sums of eight heads of 64 dims take the multiplications of one head of 512.",
    HOLDS,
    holds(
        lambda: 8 * 2 * N**2 * 64 == 2 * N**2 * 512,
        lambda: (
            8 * 2 * (torch.zeros(10, 10, 1) * torch.zeros(64)).numel()
            == 2 * (torch.zeros(10, 10, 1) * torch.zeros(512)).numel()
        ),
    ),
    formula=r"h \cdot 2 n^2 \frac{d}{h} = 2 n^2 d",
)
HEADS.erratum(
    "free-upgrade",
    118,
    "a free expressivity upgrade",
    "Eight heads with their W_O cost no more than one attention of 512 dims.",
    HOLDS,
    holds(
        lambda: 4 * 512**2 <= 3 * 512**2,
        None,
        lambda: _weights_of(MultiHeadAttention(512, 8, bias=False)) <= 3 * 512**2,
    ),
    slip="The same line counts W_O as extra: n 512^2 multiplications, a third more than the projections of one "
    "head, and 262,144 weights.",
    formula=r"4 d^2 > 3 d^2",
)
HEADS.confirmed(
    "one-big-projection",
    119,
    "of shape (512, 512)",
    "The columns of eight matrices (512, 64) side by side.",
    shape(512, 512),
    Derived(
        lambda: (512, 8 * 64),
        lambda: torch.cat([torch.zeros(512, 64)] * 8, dim=1).shape,
        lambda: MultiHeadAttention(512, 8).w_q.weight.shape,
    ),
)
HEADS.confirmed(
    "mathematically-identical",
    119,
    "Mathematically identical",
    "One projection, split, is the projections of the heads: every column of the product has its own column of W.",
    HOLDS,
    holds(
        _split_is_a_slice,
        None,
        lambda: all(
            torch.equal(
                split_heads(_input() @ _layer().w_q.weight.T, 2)[:, head],
                _input() @ _layer().w_q.weight[2 * head : 2 * head + 2].T,
            )
            for head in (0, 1)
        ),
    ),
    formula=r"x [W^1 | \dots | W^h] = [x W^1 | \dots | x W^h]",
)
HEADS.not_checkable(
    "faster-on-a-gpu",
    119,
    "much faster on a GPU",
    "One large product is much faster than eight small ones.",
    reason="A comparison of times on hardware that is not named.",
)
