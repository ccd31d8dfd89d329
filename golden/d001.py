"""Document 001, lines 24 to 86 and 221: the motivation, scaled dot-product attention."""

import sympy
import torch

from headcheck.golden.derived import Derived, Worked, holds, rows_sum_to_one, same
from headcheck.golden.exact import contracted, matrix, q, softmax_rows
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, exactly, shape
from headcheck.reference import FeedForward, attention

IDEA = Section("001", "core-concepts")
DOT = Section("001", "scaled-dot-product")
END = Section("001", "reflections")

EXAMPLE = Worked("1 0; 0 2", "1 1; 0 3", "1 2; 3 4")
"""Inputs of our own, for statements about every input."""
QUERY, KEY, VALUE = (matrix(each) for each in (EXAMPLE.query, EXAMPLE.key, EXAMPLE.value))
MASKED = Worked("1 0; 0 2", "1 1; 0 3", "1 2; 3 4", may_attend="1 0; 1 1")
SWAPPED = Worked("0 2; 1 0", "0 3; 1 1", "3 4; 1 2")
"""The example with its two tokens exchanged."""
D, T = sympy.symbols("d t", positive=True)
BATCH, Q_LEN, KV_LEN, D_K = 2, 3, 3, 4


def _axes(labels: str) -> Derived:
    """The shape of scores (bqk) or output (bqd), by the labels of the axes and of the reference at run time."""
    zeros = [torch.zeros(BATCH, 1, length, D_K, dtype=torch.float64) for length in (Q_LEN, KV_LEN, KV_LEN)]
    name = "output" if labels == "bqd" else "scores"
    return Derived(
        exact=lambda: contracted(f"bqd,bkd->{labels}", (BATCH, Q_LEN, D_K), (BATCH, KV_LEN, D_K)),
        reference=lambda: getattr(attention(*zeros), name)[:, 0].shape,
    )


def _two_layers(x: sympy.Matrix) -> sympy.Matrix:
    """max(0, x W_1 + b_1) W_2 + b_2 with small numbers."""
    hidden = (x * sympy.Matrix([[1, 2], [-1, 1]]) + sympy.ones(x.rows, 2)).applyfunc(
        lambda each: max(0, each)
    )
    return hidden * sympy.Matrix([[2, 1], [0, 3]]) + sympy.ones(x.rows, 1) * sympy.Matrix([[1, 2]])


def _feed_forward(rows: list[list[int]]) -> torch.Tensor:
    """The same network, of the reference."""
    layer = FeedForward(2, 2, "relu").double()
    numbers = {
        "w_1.weight": [[1, -1], [2, 1]],
        "w_1.bias": [1, 1],
        "w_2.weight": [[2, 0], [1, 3]],
        "w_2.bias": [1, 2],
    }
    layer.load_state_dict({name: torch.tensor(each) for name, each in numbers.items()})
    found: torch.Tensor = layer(torch.tensor(rows, dtype=torch.float64))
    return found


def _moment(order: int) -> sympy.Expr:
    """E[x^order] of a standard normal number."""
    x = sympy.Symbol("x", real=True)
    density = sympy.exp(-(x**2) / 2) / sympy.sqrt(2 * sympy.pi)
    return sympy.integrate(x**order * density, (x, -sympy.oo, sympy.oo))


def _largest_weight() -> sympy.Expr:
    """Of the scores 3, 1, -2, times t."""
    return sympy.exp(3 * T) / (sympy.exp(3 * T) + sympy.exp(T) + sympy.exp(-2 * T))


def _mean_score() -> sympy.Expr:
    raised = {score: sympy.exp(score * T) for score in (3, 1, -2)}
    return sum(score * each for score, each in raised.items()) / sum(raised.values())


# Lines 28 to 47

IDEA.not_checkable(
    "training-is-faster",
    32,
    "so training is much faster",
    "Training is much faster on modern hardware.",
    reason="A comparison of times, on hardware that is not named.",
)
IDEA.confirmed(
    "every-token-sees-every-other",
    33,
    "Every token can attend to any other token",
    "Without a mask every weight is positive, whatever the distance.",
    HOLDS,
    EXAMPLE.weights.at().map(lambda rows: all(each > 0 for row in rows for each in row)),
    formula=r"\alpha_{ij} > 0",
)
IDEA.not_checkable(
    "no-vanishing-gradients",
    33,
    "without vanishing gradients",
    "Long distances are captured without vanishing gradients.",
    reason="Attention joins all positions in one step, but how gradients fare depends on weights that are not given.",
)
IDEA.confirmed(
    "order-agnostic",
    43,
    "attention alone is order-agnostic",
    "If the tokens change places, so do their outputs, and nothing else changes.",
    HOLDS,
    same(
        EXAMPLE.output.exact,
        SWAPPED.output.at().map(lambda rows: rows[::-1]).exact,
        SWAPPED.output.at().map(lambda rows: rows[::-1]).reference,
    ),
    formula=r"A(P Q, P K, P V) = P A(Q, K, V)",
)
IDEA.confirmed(
    "feed-forward-by-position",
    44,
    "applied to each position separately and identically",
    "A two-layer network on rows: the row of a token depends on that token alone, in the same way for each.",
    HOLDS,
    holds(
        lambda: (
            _two_layers(sympy.Matrix([[1, -2], [3, 1]])).row(1) == _two_layers(sympy.Matrix([[3, 1]])).row(0)
        ),
        lambda: _two_layers(sympy.Matrix([[3, 1], [3, 1]])).rank() == 1,
        lambda: torch.equal(_feed_forward([[1, -2], [3, 1]])[1:], _feed_forward([[3, 1]])),
    ),
    formula=r"\text{FFN}(x) = \max(0, x W_1 + b_1) W_2 + b_2",
)
IDEA.not_checkable(
    "typical-depth",
    47,
    "typically 6",
    "An encoder typically has 6 to 12 layers.",
    reason="A usage; of the paper (6) and BERT (12, 24) one lies outside.",
)

# Lines 49 to 59

DOT.confirmed(
    "scale",
    51,
    r"divided by \(\sqrt{d_k}\)",
    "The scores are divided by the root of d_k.",
    HOLDS,
    same(lambda: QUERY * KEY.T / sympy.sqrt(2), EXAMPLE.scores.exact, EXAMPLE.scores.reference),
    formula=r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d_k}}",
)
DOT.confirmed(
    "reasonable-range",
    51,
    "keep values in a reasonable range",
    "Of independent standard normal components, the scaled score has variance 1 for every d_k.",
    exactly("1"),
    Derived(lambda: D * _moment(2) ** 2 / D, lambda: sympy.diff((1 - T**2) ** (-D / 2), T, 2).subs(T, 0) / D),
    formula=r"\text{Var}\left(\frac{q \cdot k}{\sqrt{d_k}}\right) = \frac{d_k}{d_k}",
)
DOT.confirmed(
    "step-1",
    55,
    r"\mathbf{q} \cdot \mathbf{k}_j^\top",
    "The raw score is the dot product of query and key.",
    HOLDS,
    same(
        lambda: QUERY * KEY.T,
        Worked(EXAMPLE.query, EXAMPLE.key, EXAMPLE.value, scaled=False).scores.exact,
        Worked(EXAMPLE.query, EXAMPLE.key, EXAMPLE.value, scaled=False).scores.reference,
    ),
    formula=r"\text{score}_j = q \cdot k_j",
)
DOT.confirmed(
    "step-2",
    56,
    r"\sqrt{d_k}",
    "The raw score is divided by the root of d_k.",
    HOLDS,
    same(lambda: QUERY * KEY.T / sympy.sqrt(2), EXAMPLE.scores.exact, EXAMPLE.scores.reference),
)
DOT.confirmed(
    "step-3",
    57,
    r"\(-\infty\)",
    "A score of minus infinity gives a weight of exactly zero, and leaves the key out of the others' shares.",
    exactly("1 0"),
    MASKED.weights.at(0),
    formula=r"e^{-\infty} = 0",
)
DOT.confirmed(
    "step-4",
    58,
    "Softmax to probabilities",
    "The weights are positive and sum to one.",
    HOLDS,
    rows_sum_to_one(EXAMPLE.weights),
    formula=r"\alpha_j = \frac{e^{s_j}}{\sum_k e^{s_k}}",
)
DOT.confirmed(
    "step-5",
    59,
    r"\alpha_j \mathbf{v}_j",
    "The output is the sum of the values, weighted.",
    HOLDS,
    same(
        lambda: softmax_rows(QUERY * KEY.T / sympy.sqrt(2)) * VALUE,
        EXAMPLE.output.exact,
        EXAMPLE.output.reference,
    ),
    formula=r"o = \sum_j \alpha_j v_j",
)

# Lines 63 to 86

DOT.block("function", 64, 83, "Attention as a function with an optional mask.", alone=Run())
for name, line, place, labels, axes in (
    ("scores", 86, "`(batch, seq_q, seq_k)`", "bqk", (BATCH, Q_LEN, KV_LEN)),
    ("output", 86, "`(batch, seq_q, d_k)`", "bqd", (BATCH, Q_LEN, D_K)),
    ("mask", 70, "(batch, seq_len_q, seq_len_k)", "bqk", (BATCH, Q_LEN, KV_LEN)),
):
    DOT.confirmed(
        f"shape-{name}",
        line,
        place,
        f"The shape of the {name}, here of 2 sequences of 3 tokens and 4 dims.",
        shape(*axes),
        _axes(labels),
    )
DOT.confirmed(
    "shape-inputs",
    69,
    "shape (batch, seq_len, d_k)",
    "Inputs of one shape give an output of that shape.",
    shape(BATCH, Q_LEN, D_K),
    _axes("bqd"),
)
DOT.confirmed(
    "large-negative",
    76,
    "setting scores to large negative",
    "A masked score is below every number: the line below sets it to -inf, as line 57 says.",
    HOLDS,
    MASKED.scores.at(0, 1).map(lambda score: bool(score < -(10**30))),
)
DOT.confirmed(
    "zero-weight",
    86,
    "effectively zero weight",
    "A masked key has a weight of exactly zero, as long as another key is left.",
    exactly("0"),
    MASKED.weights.at(0, 1),
)
DOT.behaviour(
    "shapes-at-run-time",
    86,
    "The shapes of output and weights, where the values have another width than the keys: the output has d_v.",
    blocks=("function",),
    probe="q, v = torch.ones(2, 3, 4), torch.ones(2, 3, 5)\n"
    "print(*(tuple(each.shape) for each in scaled_dot_product_attention(q, q, v)))",
    prints="(2, 3, 5) (2, 3, 3)",
)
DOT.latent_fault(
    "dead-row",
    78,
    "A query whose keys are all masked gives NaN, in the output and in the weights.",
    blocks=("function",),
    probe="x = torch.ones(1, 1, 1)\n"
    "print(*(each.item() for each in scaled_dot_product_attention(x, x, x, torch.zeros(1, 1, 1))))",
    prints="nan nan",
    fault="dead_rows/plain",
)
DOT.latent_fault(
    "additive-mask",
    78,
    "An additive mask, 0 keeps and -inf drops, is read the wrong way round: 0 drops.",
    blocks=("function",),
    probe="x = torch.ones(1, 2, 1)\n"
    "print(scaled_dot_product_attention(x, x, x, torch.tensor([0.0, -torch.inf]))[1][0, 0].tolist())",
    prints="[0.0, 1.0]",
    fault="documents/zero-drops-in-every-mask",
)
DOT.latent_fault(
    "padding-meets-queries",
    78,
    "A padding mask (batch, seq_len) is laid along the queries when batch = seq_len: query 1 of sequence 0 sees key 1, "
    "which is padding for it.",
    blocks=("function",),
    probe="x = torch.ones(2, 2, 1)\n"
    "print(scaled_dot_product_attention(x, x, x, torch.tensor([[1, 0], [1, 1]]))[1][0].tolist())",
    prints="[[1.0, 0.0], [0.5, 0.5]]",
    fault="documents/padding-meets-queries",
)

# Line 221

END.confirmed(
    "unscaled-is-peakier",
    221,
    "omitting it caused overly peaky distributions",
    "Multiplying the scores by more never lowers the largest weight: its derivative is weight x (score - mean score).",
    HOLDS,
    holds(
        lambda: (
            sympy.simplify(sympy.diff(_largest_weight(), T) - _largest_weight() * (3 - _mean_score())) == 0
        ),
        lambda: _largest_weight().subs(T, 1).evalf(40) > _largest_weight().subs(T, q("0.125")).evalf(40),
    ),
    formula=r"\frac{d \alpha_{max}}{d c} = \alpha_{max} (s_{max} - \sum_j \alpha_j s_j) \ge 0",
)
END.not_checkable(
    "in-my-tests",
    221,
    "in my tests",
    "Without the scale the distributions were overly peaky in the author's tests.",
    reason="The tests are not given.",
)
