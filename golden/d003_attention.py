"""Document 003, lines 24 to 91: what attention is, its formula, and a function with a mask."""

from dataclasses import replace

import mpmath
import sympy
import torch

from headcheck.golden.derived import Derived, Worked, counted, holds, same
from headcheck.golden.exact import contracted, matrix, softmax, softmax_rows
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import variance_of_product
from headcheck.golden.stated import HOLDS, exactly, shape
from headcheck.reference import attention

IDEA = Section("003", "attention")
FUNCTION = Section("003", "scaled-dot-product")

EXAMPLE = Worked("1 0; 0 2", "1 1; 0 3; 2 0", "1 2; 3 4; 5 5")
"""Inputs of our own, for statements about every input."""
SWAPPED = Worked("1 0; 0 2", "2 0; 0 3; 1 1", "5 5; 3 4; 1 2")
"""The same with the first and the last key and value exchanged."""
QUERY, KEY, VALUE = (matrix(each) for each in (EXAMPLE.query, EXAMPLE.key, EXAMPLE.value))
D = sympy.Symbol("d", positive=True)
T = sympy.Symbol("t", positive=True)
SCORES = sympy.symbols("a b c", real=True)


def zeros(*axes: int) -> torch.Tensor:
    """Zeros in float64."""
    return torch.zeros(*axes, dtype=torch.float64)


def _attended(name: str, query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> Derived:
    """The shape of the weights or the output of attention: by the labels of the axes, by torch, by the reference."""
    labels = "bhqd,bhkd,bhkv->" + ("bhqk" if name == "weights" else "bhqv")
    return counted(
        lambda: contracted(labels, query, key, value),
        lambda: torch.einsum(labels, zeros(*query), zeros(*key), zeros(*value)).shape,
        lambda: getattr(attention(zeros(*query), zeros(*key), zeros(*value)), name).shape,
    )


def _variance_by_generating_function() -> sympy.Expr:
    """The second derivative at 0 of E[e^(t q.k)] = (1 - t^2)^(-d/2)."""
    return sympy.diff((1 - T**2) ** (-D / 2), T, 2).subs(T, 0)


def _broadcast(*mask: int) -> Derived:
    """The shape of a mask of ones, multiplied with the scores of 2 sequences, 4 heads and 10 tokens."""
    return counted(
        lambda: tuple(max(pair) for pair in zip(mask, (2, 4, 10, 10), strict=True)),
        lambda: (torch.ones(mask) * torch.zeros(2, 4, 10, 10)).shape,
    )


# Lines 24 to 44

IDEA.not_checkable(
    "introduced-in-2017",
    24,
    '"Attention Is All You Need" (2017)',
    "Where and when the architecture was introduced.",
    reason="A fact about publications; nothing of it is calculated.",
)
IDEA.not_checkable(
    "better-than-recurrence",
    24,
    "better long-range dependency modeling",
    "The architecture revolutionised its field and models long dependencies better.",
    reason="A comparison of trained models, none of them named.",
)
for name, line, place in (
    ("regardless-of-distance", 28, "regardless of distance"),
    ("all-at-once", 32, "look at all positions simultaneously"),
):
    IDEA.confirmed(
        name,
        line,
        place,
        "The output is the same when two keys change places with their values: distance does not count, nor order.",
        HOLDS,
        same(EXAMPLE.output.exact, SWAPPED.output.exact, SWAPPED.output.reference),
        formula=r"\text{Attention}(Q, P K, P V) = \text{Attention}(Q, K, V)",
    )
IDEA.confirmed(
    "soft-selection",
    32,
    '"soft selection"',
    "The selection is soft: of three keys each has a weight above zero, and together they have one.",
    HOLDS,
    holds(
        lambda: (
            all(each.is_positive for each in softmax(SCORES)) and sympy.simplify(sum(softmax(SCORES))) == 1
        ),
        lambda: all(each > 0 for row in EXAMPLE.weights.again() for each in row),  # type: ignore[misc]
        lambda: bool((EXAMPLE.weights.reference() > 0).all()),  # type: ignore[misc]
    ),
    formula=r"\alpha_j = \frac{e^{s_j}}{\sum_k e^{s_k}} > 0, \quad \sum_j \alpha_j = 1",
)
IDEA.confirmed(
    "adapts-to-the-input",
    32,
    "adapts to each specific input",
    "Two queries weigh the same keys differently.",
    HOLDS,
    holds(
        lambda: EXAMPLE.weights.exact().row(0) != EXAMPLE.weights.exact().row(1),
        lambda: EXAMPLE.weights.again()[0] != EXAMPLE.weights.again()[1],  # type: ignore[misc]
        lambda: not torch.equal(*EXAMPLE.weights.reference()),  # type: ignore[misc]
    ),
)
IDEA.not_checkable(
    "human-cognition",
    34,
    "comes from human cognition",
    "The idea comes from how people read.",
    reason="A remark about the origin of an idea.",
)
IDEA.confirmed(
    "access-to-all-states",
    38,
    "access all encoder hidden states directly",
    "The derivative of the output by each value is its weight, and none is zero: every state is heard.",
    HOLDS,
    holds(
        lambda: all(
            sympy.diff(sum(w * v for w, v in zip(softmax(SCORES), values, strict=True)), value).is_positive
            for values in [sympy.symbols("x y z", real=True)]
            for value in values
        ),
        None,
        lambda: bool((EXAMPLE.weights.reference() > 0).all()),  # type: ignore[misc]
    ),
    formula=r"\frac{\partial o}{\partial v_j} = \alpha_j > 0",
)
IDEA.confirmed(
    "weighted-sum-of-values",
    42,
    "computes a weighted sum of the values",
    "The output is the sum of the values by their weights.",
    HOLDS,
    same(
        lambda: EXAMPLE.weights.exact() * VALUE,
        EXAMPLE.output.again,  # type: ignore[arg-type]
        EXAMPLE.output.reference,
    ),
    formula=r"o_i = \sum_j \alpha_{ij} v_j",
)
IDEA.confirmed(
    "scale-is-the-root",
    42,
    "dividing by the square root of the dimension",
    "The divisor is the root of the dimension: 6 / sqrt(2) for the product 6 of two dims.",
    exactly("18"),
    Derived(
        lambda: EXAMPLE.scores.exact()[1, 1] ** 2,
        lambda: EXAMPLE.scores.again()[1][1] ** 2,  # type: ignore[misc]
        lambda: EXAMPLE.scores.reference()[1, 1] ** 2,  # type: ignore[misc]
    ),
    formula=r"s^2 = \frac{6^2}{2} = 18",
)
IDEA.confirmed(
    "peaked-without-the-scale",
    42,
    "extremely peaked distributions in high dimensions",
    "The variance of a product of independent standard normal vectors is their dimension, and 1 once scaled.",
    HOLDS,
    holds(
        lambda: D * variance_of_product() == D and variance_of_product() * D / sympy.sqrt(D) ** 2 == 1,
        lambda: sympy.simplify(_variance_by_generating_function() - D) == 0,
    ),
    formula=r"\text{Var}(q \cdot k) = d_k, \quad \text{Var}(q \cdot k / \sqrt{d_k}) = 1",
)
IDEA.confirmed(
    "peaked-in-the-limit",
    42,
    "extremely peaked distributions",
    "As scores grow, the weight of the largest goes to one.",
    exactly("1"),
    Derived(
        lambda: sympy.limit(1 / (1 + sympy.exp(-T)), T, sympy.oo),
        None,
        lambda: attention(*_far_apart()).weights[0, 0, 0, 0],
    ),
    formula=r"\lim_{t \to \infty} \text{softmax}(t, 0) = (1, 0)",
)
IDEA.confirmed(
    "formula",
    44,
    "softmax(QK^T / vd_k) × V",
    "softmax(Q K^T / sqrt(d_k)) V; the root sign was lost in extraction and stands as a v.",
    HOLDS,
    same(
        lambda: softmax_rows(QUERY * KEY.T / sympy.sqrt(2)) * VALUE,
        EXAMPLE.output.again,  # type: ignore[arg-type]
        EXAMPLE.output.reference,
    ),
    formula=r"\text{Attention}(Q, K, V) = \text{softmax}(Q K^T / \sqrt{d_k}) V",
)
IDEA.confirmed(
    "dot-product-is-similarity",
    44,
    "measures similarity between queries and keys",
    "Of keys of one length, the one in the direction of the query has the largest product.",
    HOLDS,
    holds(
        lambda: (
            sympy.solveset(sympy.diff(sympy.cos(T), T), T, sympy.Interval.open(-sympy.pi / 2, sympy.pi / 2))
            == sympy.FiniteSet(0)
        ),
        lambda: all(mpmath.cos(mpmath.mpf(n) / 10) < 1 for n in range(1, 32)),
    ),
    formula=r"q \cdot k = |q| |k| \cos \theta",
)
IDEA.confirmed(
    "dot-product-is-similarity-in-general",
    44,
    "measures similarity between queries and keys",
    "The product has the sign of the cosine of the angle: of [1, 0] with [3, 3], [0, 2] and [-1, 4], at 45, 90 and 104 "
    "degrees; of keys of different length the more similar one may have the smaller product.",
    HOLDS,
    holds(
        lambda: [sympy.sign(each) for each in matrix("1 0") * matrix("3 3; 0 2; -1 4").T] == [1, 0, -1],
        lambda: (
            [mpmath.sign(mpmath.chop(mpmath.cos(mpmath.atan2(*at)))) for at in ((3, 3), (2, 0), (4, -1))]
            == [1, 0, -1]
        ),
        lambda: (
            Worked("1 0", "3 3; 0 2; -1 4", "0; 0; 0").scores.reference()[0].sign().tolist()  # type: ignore[misc]
            == [1, 0, -1]
        ),
    ),
    formula=r"q \cdot k = \vert q \vert \vert k \vert \cos \theta",
)
IDEA.confirmed(
    "probability-distribution",
    44,
    "normalizes these scores into a probability distribution",
    "The weights of a query sum to one.",
    exactly("1"),
    replace(EXAMPLE.weights.at(0).map(sum), exact=lambda: sympy.simplify(sum(softmax(SCORES)))),
    formula=r"\sum_j \alpha_j = 1",
)
IDEA.not_checkable(
    "powerful-and-efficient",
    44,
    "highly parallelizable and efficient",
    "The formulation is powerful, parallelizable and efficient.",
    reason="No measure and nothing to compare with is named.",
)

# Lines 46 to 91

FUNCTION.block(
    "function",
    46,
    91,
    "Attention as a function with an optional mask, and a demonstration.",
    alone=Run(
        prints=(
            "Output shape: torch.Size([2, 4, 10, 64])",
            "Attention weights shape: torch.Size([2, 4, 10, 10])",
        )
    ),
)
OWN = ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 7))
"""Two sequences, three heads, five tokens, d_k = 4, d_v = 7."""
PRINTED = ((2, 4, 10, 64),) * 3
for name, line, place, axes, what, given in (
    ("docstring-query", 56, "(batch, num_heads, seq_len, d_k)", (2, 3, 5, 5), "weights", OWN),
    ("docstring-key", 57, "(batch, num_heads, seq_len, d_k)", (2, 3, 5, 5), "weights", OWN),
    ("docstring-value", 58, "(batch, num_heads, seq_len, d_v)", (2, 3, 5, 7), "output", OWN),
    ("scores", 67, "(batch, heads, seq_len, seq_len)", (2, 3, 5, 5), "weights", OWN),
    ("output", 89, "(2, 4, 10, 64)", (2, 4, 10, 64), "output", PRINTED),
    ("weights", 90, "(2, 4, 10, 10)", (2, 4, 10, 10), "weights", PRINTED),
):
    sizes = "the printed sizes" if given is PRINTED else "2 sequences, 3 heads, 5 tokens, d_k = 4 and d_v = 7"
    FUNCTION.confirmed(
        f"shape-{name}",
        line,
        place,
        f"The shape of the {what} that such inputs give, here of {sizes}.",
        shape(*axes),
        _attended(what, *given),
    )
for name, line, place in (
    ("rows-sum-to-one", 63, "Attention probability distribution"),
    ("probabilities", 74, "attention weights (probabilities)"),
    ("rows-sum-to-one-as-printed", 91, "Should be ~1.0"),
):
    FUNCTION.confirmed(
        name,
        line,
        place,
        "The weights of a query sum to one.",
        exactly("1"),
        replace(EXAMPLE.weights.at(1).map(sum), exact=lambda: sympy.simplify(sum(softmax(SCORES)))),
    )
for name, mask in (("padding", (2, 1, 1, 10)), ("causal", (1, 1, 10, 10))):
    FUNCTION.confirmed(
        f"mask-for-{name}",
        70,
        "(for padding or causal attention)",
        f"A mask {mask} broadcasts to the scores of 2 sequences, 4 heads and 10 tokens.",
        shape(2, 4, 10, 10),
        _broadcast(*mask),
    )
FUNCTION.behaviour(
    "rows-sum-to-one-at-run-time",
    91,
    "The 80 rows of the demonstration's weights sum to one within 1e-6.",
    blocks=("function",),
    probe="print(bool(((weights.sum(dim=-1) - 1).abs() < 1e-6).all()))",
    prints="True",
)
FUNCTION.behaviour(
    "other-lengths",
    57,
    "Though one seq_len is named for both, keys may be more than queries, and d_v another than d_k.",
    blocks=("function",),
    probe="q, k, v = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 5)\n"
    "print(*(tuple(each.shape) for each in scaled_dot_product_attention(q, k, v)))",
    prints="(1, 1, 2, 5) (1, 1, 2, 3)",
)
FUNCTION.latent_fault(
    "dead-row",
    72,
    "A query whose keys are all masked gives NaN, in the output and in the weights.",
    blocks=("function",),
    probe="x = torch.ones(1, 1, 1, 1)\n"
    "print(*(each.item() for each in scaled_dot_product_attention(x, x, x, torch.zeros(1, 1, 1, 1))))",
    prints="nan nan",
    fault="dead_rows/plain",
)
FUNCTION.latent_fault(
    "additive-mask",
    72,
    "An additive mask, 0 keeps and -inf drops, is read the wrong way round: 0 drops.",
    blocks=("function",),
    probe="x = torch.ones(1, 1, 2, 1)\n"
    "print(scaled_dot_product_attention(x, x, x, torch.tensor([0.0, -torch.inf]))[1][0, 0, 0].tolist())",
    prints="[0.0, 1.0]",
    fault="documents/zero-drops-in-every-mask",
)
FUNCTION.latent_fault(
    "padding-meets-queries",
    72,
    "A padding mask (batch, seq_len) is laid along the queries when batch = seq_len: query 1 of sequence 0 sees key 1, "
    "which is padding for it.",
    blocks=("function",),
    probe="x = torch.ones(2, 1, 2, 1)\n"
    "print(scaled_dot_product_attention(x, x, x, torch.tensor([[1, 0], [1, 1]]))[1][0, 0].tolist())",
    prints="[[1.0, 0.0], [0.5, 0.5]]",
    fault="documents/padding-meets-queries",
)
FUNCTION.latent_fault(
    "three-axes-meet-heads",
    72,
    "A mask (batch, seq_len, seq_len) is broadcast as (heads, seq_len, seq_len) when batch = heads: sequence 1, whose "
    "key is visible, has it masked in head 0, beside the key of sequence 0.",
    blocks=("function",),
    probe="x = torch.ones(2, 2, 1, 1)\nkey = x.expand(2, 2, 2, 1)\n"
    "mask = torch.tensor([[[1, 0]], [[1, 1]]])\n"
    "print(scaled_dot_product_attention(x, key, key, mask)[1][1, :, 0].tolist())",
    prints="[[1.0, 0.0], [0.5, 0.5]]",
    fault="broadcast/batch-meets-heads",
)


def _far_apart() -> list[torch.Tensor]:
    """A query with scores 1000 apart: the smaller weight is zero in float64."""
    rows = ([[1000.0]], [[1.0], [0.0]], [[1.0], [1.0]])
    return [torch.tensor(each, dtype=torch.float64)[None, None] for each in rows]
