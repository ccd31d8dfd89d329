"""Document 001, lines 88 to 149: multi-head attention."""

import sympy
import torch

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import each_head
from headcheck.golden.stated import HOLDS, shape
from headcheck.reference import MultiHeadAttention, split_heads

HEADS = Section("001", "multi-head")

D, T = sympy.symbols("d t", positive=True)


def _views_after_transpose(contiguous: bool) -> bool:
    joined = each_head(torch.zeros(1, 2, 4), 2).contiguous().transpose(1, 2)
    try:
        (joined.contiguous() if contiguous else joined).view(1, 2, 4)
    except RuntimeError:
        return False
    return True


def _joins_by_strides(contiguous: bool) -> bool:
    """Whether the axes of heads and dims lie in memory as one: a head's stride is all dims of one."""
    heads = torch.zeros(1, 2, 2, 2).transpose(1, 2)
    strides = (heads.contiguous() if contiguous else heads).stride()
    return strides[2] == heads.shape[3] * strides[3]


def _square_layer(width: int) -> Derived:
    """The shape of 2 sequences of 3 tokens after a linear layer, by the labels of the axes and at run time."""
    return counted(
        lambda: contracted("bnd,de->bne", (2, 3, width), (width, width)),
        lambda: torch.nn.Linear(width, width)(torch.zeros(2, 3, width)).shape,
        lambda: MultiHeadAttention(width, 2)(torch.zeros(2, 3, width)).shape,
    )


# Lines 88 to 149

HEADS.block(
    "module",
    95,
    146,
    "The module. It runs because it is only defined: its forward needs the function of the block before.",
    alone=Run(),
)
HEADS.confirmed(
    "dims-of-a-head",
    92,
    "`d_k = d_model / h`",
    "The heads share the dims of the model.",
    HOLDS,
    holds(lambda: D / T * T == D, lambda: sum(part.shape[-1] for part in torch.zeros(12).chunk(3)) == 12),
    formula=r"h \cdot d_k = d_{model}",
)
AXES: tuple[tuple[str, int, str, tuple[int, ...], Derived], ...] = (
    (
        "projected",
        117,
        "(batch, seq_len, d_model)",
        (2, 3, 4),
        _square_layer(4),
    ),
    (
        "split",
        125,
        "(batch, heads, seq_len, d_k)",
        (2, 2, 3, 2),
        counted(
            lambda: (2, 2, 3, sympy.Integer(4) / 2),
            lambda: each_head(torch.zeros(2, 3, 4), 2).shape,
            lambda: split_heads(torch.zeros(2, 3, 4), 2).shape,
        ),
    ),
    (
        "flat",
        129,
        "(batch*heads, seq_q, d_k)",
        (4, 3, 2),
        counted(lambda: (2 * 2, 3, 2), lambda: each_head(torch.zeros(2, 3, 4), 2).reshape(-1, 3, 2).shape),
    ),
    (
        "output",
        145,
        "(batch, seq_len, d_model)",
        (2, 3, 4),
        _square_layer(4),
    ),
)
for name, line, place, axes, derived in AXES:
    HEADS.confirmed(
        f"shape-{name}",
        line,
        place,
        f"The shape, {name}, here of d_model 4 in 2 heads.",
        shape(*axes),
        derived,
    )
HEADS.confirmed(
    "contiguous-before-view",
    149,
    "`.contiguous()` before `.view`",
    "After a transpose a view is refused, and works on a contiguous copy.",
    HOLDS,
    holds(
        lambda: _views_after_transpose(contiguous=True) and not _views_after_transpose(contiguous=False),
        lambda: _joins_by_strides(contiguous=True) and not _joins_by_strides(contiguous=False),
    ),
)
HEADS.behaviour(
    "shapes-at-run-time",
    145,
    "The output has the shape of the input; the weights come with batch and heads in one axis.",
    blocks=("001/scaled-dot-product/function", "module"),
    probe="x = torch.ones(2, 3, 4)\nprint(*(tuple(each.shape) for each in MultiHeadAttention(4, 2)(x, x, x)))",
    prints="(2, 3, 4) (4, 3, 3)",
)
HEADS.behaviour(
    "indivisible-heads-are-refused",
    101,
    "A d_model that the heads do not divide is refused.",
    blocks=("module",),
    probe="try:\n    MultiHeadAttention(4, 3)\nexcept AssertionError as problem:\n    print(problem)",
    prints="d_model must be divisible by num_heads",
)
HEADS.behaviour(
    "needs-the-block-before",
    138,
    "Alone, the module fails when it is called: the attention function stands in another block.",
    blocks=("module",),
    probe="x = torch.ones(1, 1, 2)\n"
    "try:\n    MultiHeadAttention(2, 1)(x, x, x)\nexcept NameError as problem:\n    print(problem)",
    prints="name 'scaled_dot_product_attention' is not defined",
)
HEADS.latent_fault(
    "rows-meet-sequences",
    135,
    "A mask (seq_len, seq_len) goes row by row to the sequences when batch = seq_len: under a causal mask, sequence 1 "
    "sees the future and sequence 0 nothing but its first key.",
    blocks=("001/scaled-dot-product/function", "module"),
    probe="x = torch.ones(2, 2, 2)\n"
    "print(MultiHeadAttention(2, 1)(x, x, x, torch.tril(torch.ones(2, 2)))[1].tolist())",
    prints="[[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]]",
    fault="documents/rows-meet-sequences",
)
HEADS.latent_fault(
    "one-mask-for-all",
    135,
    "One mask (1, seq_len, seq_len) for all sequences is refused where there are two: heads and batch are one axis.",
    blocks=("001/scaled-dot-product/function", "module"),
    probe="x = torch.ones(2, 1, 2)\n"
    "try:\n    MultiHeadAttention(2, 2)(x, x, x, torch.ones(1, 1, 1))\nexcept RuntimeError:\n    print('RuntimeError')",
    prints="RuntimeError",
    fault="documents/one-mask-for-all-is-refused",
)
