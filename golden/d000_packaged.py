"""Document 000, lines 319 to 358: attention as a function with a mask."""

import sympy
import torch

from headcheck.golden.derived import Derived, Worked
from headcheck.golden.exact import contracted, softmax
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import count, exactly, shape
from headcheck.reference import Attended, attention

PACKAGED = Section("000", "packaged")


def _demonstration(heads: int = 1, head_dim: int = 16, value_dim: int = 16) -> Attended:
    """The reference on zeros: 2 sequences of 5 tokens."""
    zeros = [torch.zeros(2, heads, 5, dim, dtype=torch.float64) for dim in (head_dim, head_dim, value_dim)]
    return attention(*zeros)


def _shape_of(name: str, heads: int = 1, head_dim: int = 16, value_dim: int = 16) -> Derived:
    """The shape of the output or the weights, by the labels of the axes and at run time."""
    query, value = (2, heads, 5, head_dim), (2, heads, 5, value_dim)
    labels = "bhqd,bhkd,bhkv->" + ("bhqv" if name == "output" else "bhqk")
    return Derived(
        exact=lambda: contracted(labels, query, query, value),
        reference=lambda: getattr(_demonstration(heads, head_dim, value_dim), name).shape,
    )


def _broadcast(*mask: int) -> Derived:
    """The shape of a mask of ones, multiplied with scores of 2 sequences, 3 heads and 5 tokens."""
    return Derived(
        exact=lambda: tuple(max(pair) for pair in zip(mask, (2, 3, 5, 5), strict=True)),
        again=lambda: (torch.ones(mask) * torch.zeros(2, 3, 5, 5)).shape,
    )


# Lines 319 to 358

PACKAGED.block(
    "function",
    319,
    356,
    "Attention as a function with an optional mask, and a demonstration.",
    alone=Run(
        prints=(
            "Output shape: torch.Size([2, 1, 5, 16])",
            "Weights shape: torch.Size([2, 1, 5, 5])",
            "Weights row sum: tensor([1., 1., 1., 1., 1.])",
        )
    ),
)
for name, line, place, four_axes in (
    ("output", 354, "[2, 1, 5, 16]", (2, 1, 5, 16)),
    ("weights", 355, "[2, 1, 5, 5]", (2, 1, 5, 5)),
):
    PACKAGED.confirmed(
        f"shape-{name}",
        line,
        place,
        f"Two sequences, one head, five tokens, 16 dims: the shape of the {name}.",
        shape(*four_axes),
        _shape_of(name),
    )
PACKAGED.confirmed(
    "rows-sum-to-one",
    356,
    "all 1.0",
    "The weights of each query sum to one.",
    exactly("1 1 1 1 1"),
    Derived(
        lambda: [sum(softmax([sympy.Integer(0)] * 5))] * 5,
        None,
        lambda: _demonstration().weights.sum(dim=-1)[0, 0],
    ),
)
for name, line, place, four_axes, what in (
    ("docstring-output", 333, "[batch, heads, seq_len, d_v]", (2, 3, 5, 7), "output"),
    ("docstring-weights", 334, "[batch, heads, seq_len, seq_len]", (2, 3, 5, 5), "weights"),
):
    PACKAGED.confirmed(
        name,
        line,
        place,
        f"The shape of the {what}, here of 2 sequences, 3 heads, 5 tokens, d_k = 4 and d_v = 7.",
        shape(*four_axes),
        _shape_of(what, 3, 4, 7),
    )
for name, mask in (("padding", (2, 1, 1, 5)), ("causal", (1, 1, 5, 5))):
    PACKAGED.confirmed(
        f"mask-shape-{name}",
        330,
        "[batch, 1, 1, seq_len]" if name == "padding" else "[1, 1, seq_len, seq_len]",
        f"A mask of shape {mask} broadcasts to the scores of 2 sequences and 3 heads.",
        shape(2, 3, 5, 5),
        _broadcast(*mask),
    )
PACKAGED.confirmed(
    "masked-weight-is-zero",
    340,
    "so softmax gives them zero weight",
    "A key whose score is -inf has a weight of exactly zero, as long as another key is left.",
    exactly("0"),
    Worked("1 0", "1 1; 0 3", "1 2; 3 4", may_attend="1 0").weights.at(0, 1),
    formula=r"e^{-\infty} = 0",
)
PACKAGED.confirmed(
    "batches-and-heads",
    358,
    "handles batched inputs with multiple attention heads",
    "Two sequences of three heads give outputs for each.",
    count(6),
    Derived(lambda: 2 * 3, None, lambda: _demonstration(3).output.shape[0] * 3),
)
PACKAGED.latent_fault(
    "dead-row",
    341,
    "A query whose keys are all masked gives NaN, in the output and in the weights.",
    blocks=("function",),
    probe="x = torch.ones(1, 1, 1, 1)\n"
    "print(*(each.item() for each in scaled_dot_product_attention(x, x, x, torch.zeros(1, 1, 1, 1))))",
    prints="nan nan",
    fault="dead_rows/plain",
)
PACKAGED.latent_fault(
    "additive-mask",
    341,
    "An additive mask, 0 keeps and -inf drops, is read the wrong way round: 0 drops.",
    blocks=("function",),
    probe="x = torch.ones(1, 1, 2, 1)\n"
    "print(scaled_dot_product_attention(x, x, x, torch.tensor([0.0, -torch.inf]))[1][0, 0, 0].tolist())",
    prints="[0.0, 1.0]",
    fault="documents/zero-drops-in-every-mask",
)
PACKAGED.latent_fault(
    "padding-meets-queries",
    341,
    "A padding mask (batch, seq_len) is laid along the queries when batch = seq_len: query 1 of sequence 0 sees key 1, "
    "which is padding for it.",
    blocks=("function",),
    probe="x = torch.ones(2, 1, 2, 1)\n"
    "print(scaled_dot_product_attention(x, x, x, torch.tensor([[1, 0], [1, 1]]))[1][0, 0].tolist())",
    prints="[[1.0, 0.0], [0.5, 0.5]]",
    fault="documents/padding-meets-queries",
)
