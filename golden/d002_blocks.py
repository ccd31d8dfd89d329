"""Document 002, lines 186 to 201: the feed-forward network, and the encoder block."""

from collections import Counter

import mpmath
import sympy
import torch
from torch import Tensor, nn

from headcheck.golden.d002_layers import PRE, X, seeded
from headcheck.golden.derived import Derived, holds
from headcheck.golden.exact import matrix, product_again, widely
from headcheck.golden.ledger import Section
from headcheck.golden.stated import EPSILON, HOLDS, all_near, count, shape
from headcheck.reference import (
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    Residual,
    gelu,
    swish,
)

FFN = Section("002", "feed-forward")
BLOCK = Section("002", "encoder-block")

T = sympy.Symbol("t", real=True)
GELU = T * (1 + sympy.erf(T / sympy.sqrt(2))) / 2
W_1, W_2 = matrix("1 2 -1; -1 1 3"), matrix("2 1; 0 3; 1 -2")
"""Two dims, three hidden: numbers of our own."""


def _hidden(x: sympy.Matrix) -> sympy.Matrix:
    """max(0, x W_1), the biases left out."""
    return (x * W_1).applyfunc(lambda each: max(0, each))


def _memories(x: list[int]) -> list[int]:
    """The sum over hidden units of activation(x . key) value, unit by unit."""
    keys, values = [list(W_1.col(i)) for i in range(3)], [list(W_2.row(i)) for i in range(3)]
    matches = [max(0, sum(a * b for a, b in zip(x, key, strict=True))) for key in keys]
    return [sum(match * value[dim] for match, value in zip(matches, values, strict=True)) for dim in (0, 1)]


def _feed_forward(activation: str = "relu") -> FeedForward:
    """Of the reference, with the weights above."""
    layer = FeedForward(2, 3, activation, bias=False).double()  # type: ignore[arg-type]  # one of its names
    with torch.no_grad():
        layer.w_1.weight.copy_(torch.tensor(W_1.T.tolist(), dtype=torch.float64))
        layer.w_2.weight.copy_(torch.tensor(W_2.T.tolist(), dtype=torch.float64))
    return layer


def _row(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _slopes(at: list[float], activation: nn.Module) -> list[float]:
    """The derivative of an activation, by autograd in float64."""
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    return [float(each) for each in torch.autograd.grad(activation(x).sum(), x)[0]]


def _linear_maps(activation: str) -> Derived:
    """The weight matrices of a feed-forward network, by the formula and as the reference builds it."""
    return Derived(
        lambda: {"relu": len(("W_1", "W_2")), "swiglu": len(("W_gate", "W_1", "W_2"))}[activation],
        None,
        lambda: sum(isinstance(each, nn.Linear) for each in _feed_forward(activation).modules()),
    )


def _shape_of(weight: str, axes: tuple[int, int]) -> Derived:
    """The shape of an outer product, and of one weight of the reference with 512 and 2048 dims."""
    return Derived(
        lambda: (sympy.zeros(axes[0], 1) * sympy.zeros(1, axes[1])).shape,
        None,
        lambda: getattr(FeedForward(512, 2048, "relu"), weight).weight.shape,
    )


def _operations() -> list[str]:
    """Of one encoder layer of the reference, in the order in which they are done."""
    layer, done = seeded(lambda: EncoderLayer(PRE)), []
    names = {LayerNorm: "norm", MultiHeadAttention: "attention", FeedForward: "feed-forward", Residual: "add"}
    for module in layer.modules():
        if type(module) in names:
            module.register_forward_hook(lambda each, _given, _out: done.append(names[type(each)]))
    layer(X)
    return done


def _layer_by_formula(step: int) -> Derived:
    """The reference's layer: its first step alone (1), or both (2), against the formulas of lines 198 and 199."""
    layer = seeded(lambda: EncoderLayer(PRE))
    first, second = (module for module in layer.modules() if isinstance(module, LayerNorm))
    if step == 1:
        with torch.no_grad():
            for parameter in layer.feed_forward.w_2.parameters():
                parameter.zero_()
    middle = X + layer.self_attention(first(X))
    want = middle if step == 1 else middle + layer.feed_forward(second(middle))
    return holds(lambda: all_near(want.tolist(), layer(X), 64 * EPSILON), lambda: _torch_by_formula(step))


def _torch_by_formula(step: int) -> bool:
    """The same of torch's own layer."""
    layer = seeded(
        lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, "gelu", batch_first=True, norm_first=True)
    )
    if step == 1:
        for parameter in layer.linear2.parameters():
            nn.init.zeros_(parameter)
    middle = X + layer.self_attn(*[layer.norm1(X)] * 3)[0]
    inner = nn.functional.gelu(layer.linear1(layer.norm2(middle)))
    return all_near((middle + layer.linear2(inner)).tolist(), layer(X), 64 * EPSILON)


def _silent_layer() -> Tensor:
    """The reference's layer on X where attention and feed-forward give zeros."""
    layer = seeded(lambda: EncoderLayer(PRE))
    for parameter in (*layer.self_attention.parameters(), *layer.feed_forward.parameters()):
        nn.init.zeros_(parameter)
    silent: Tensor = layer(X)
    return silent


def _hears_every_token() -> bool:
    """Another number in either token changes both states of one layer."""
    layer = seeded(lambda: Encoder(PRE, 1, final_norm=True))
    changed = [X + torch.eye(2)[token][None, :, None] * _row(1, 0, 0, 0) for token in (0, 1)]
    return all(bool((layer(each) != layer(X)).any(dim=-1).all()) for each in changed)


def _every_token_reaches_every_other() -> bool:
    """Through one layer: no 4 x 4 part of the Jacobian from token to token is zero."""
    layer = seeded(lambda: Encoder(PRE, 1, final_norm=True))
    jacobian: Tensor = torch.func.jacrev(layer)(X)
    return bool(jacobian.abs().sum(dim=(0, 2, 3, 5)).gt(0).all())


# Lines 187 to 190

FFN.confirmed(
    "independently-to-each-token",
    188,
    "applied independently to each token",
    "The row of a token depends on that token alone, in the same way for each.",
    HOLDS,
    holds(
        lambda: (_hidden(matrix("1 -2; 3 1")) * W_2).row(1) == (_hidden(matrix("3 1")) * W_2).row(0),
        lambda: _memories([3, 1]) == list((_hidden(matrix("1 -2; 3 1")) * W_2).row(1)),
        lambda: torch.equal(
            _feed_forward()(torch.stack((_row(1, -2), _row(3, 1))))[1], _feed_forward()(_row(3, 1))
        ),
    ),
)
FFN.confirmed(
    "formula",
    189,
    "activation(W",
    "Two linear maps with an activation between them: the reference computes the formula, here with ReLU.",
    HOLDS,
    holds(
        lambda: list(_hidden(matrix("3 1")) * W_2) == _memories([3, 1]),
        None,
        lambda: all_near(_memories([3, 1]), _feed_forward()(_row(3, 1)), 0),
    ),
    formula=r"W_2 \, \text{activation}(W_1 x + b_1) + b_2",
)
FFN.confirmed(
    "factor-of-4",
    190,
    "d_ff = 2048",
    "Expanded by a factor of 4, 512 dims are 2048.",
    count(2048),
    Derived(lambda: 4 * 512, lambda: torch.zeros(512).repeat(4).numel()),
    formula=r"d_{ff} = 4 d_{model}",
)
for name, place, axes, weight in (
    ("expands", "= 512 expands to", (2048, 512), "w_1"),
    ("projects-back", "projects it back down", (512, 2048), "w_2"),
):
    FFN.confirmed(
        name,
        190,
        place,
        "The shape of the matrix, as it multiplies a column.",
        shape(*axes),
        _shape_of(weight, axes),
    )

# Lines 192 to 194

FFN.confirmed(
    "key-value-memories",
    192,
    "act as key-value memories",
    "The network is a sum over hidden units: how its column of W_1, the key, matches x, times its row of W_2, the value.",
    HOLDS,
    holds(
        lambda: all(
            list(_hidden(matrix(f"{a} {b}")) * W_2) == _memories([a, b])
            for a in range(-2, 3)
            for b in range(-2, 3)
        ),
        lambda: product_again([[max(0, each) for each in (2, 7, 0)]], W_2.tolist())[0] == _memories([3, 1]),
        lambda: all_near(_memories([3, 1]), _feed_forward()(_row(3, 1)), 0),
    ),
    formula=r"\sum_i \text{activation}(x \cdot k_i) v_i",
)
FFN.not_checkable(
    "facts-in-the-weights",
    192,
    "primarily stored in FFN weights",
    "Facts are stored in the feed-forward weights and can be edited there (Geva et al., Meng et al.).",
    reason="Findings on trained models that are not given.",
)
FFN.not_checkable(
    "nobody-knows-why",
    193,
    "no one is completely certain why",
    "Why facts gather in the feed-forward weights is not known.",
    reason="A statement about what is known.",
)
FFN.not_checkable(
    "who-uses-what",
    194,
    "The original paper used ReLU",
    "The paper has ReLU, GPT-2 and BERT have GELU, LLaMA and PaLM SwiGLU.",
    reason="A fact about models that are not given.",
)
FFN.confirmed(
    "gelu-is-smoother",
    194,
    "is smoother",
    "At 0 the slope of GELU is 1/2 from both sides, that of ReLU jumps from 0 to 1.",
    HOLDS,
    holds(
        lambda: (
            sympy.limit(sympy.diff(GELU, T), T, 0, "-") == sympy.limit(sympy.diff(GELU, T), T, 0, "+")
            and sympy.limit(sympy.diff(sympy.Max(0, T), T), T, 0, "-")
            != sympy.limit(sympy.diff(sympy.Max(0, T), T), T, 0, "+")
        ),
        lambda: _slopes([-1e-12, 1e-12], nn.ReLU()) == [0, 1],
        lambda: all(abs(float(gelu(_row(h)) / h) - 0.5) < 1e-8 for h in (-1e-9, 1e-9)),
    ),
    formula=r"x \Phi(x)",
)
FFN.confirmed(
    "swish",
    194,
    "Swish function (x",
    "Swish is x sigmoid(x): at 1 it is e / (1 + e).",
    HOLDS,
    holds(
        lambda: sympy.simplify(1 / (1 + sympy.exp(-1)) - sympy.E / (1 + sympy.E)) == 0,
        widely(lambda: all_near(1 / (1 + mpmath.exp(-1)), (1 + mpmath.tanh(mpmath.mpf(1) / 2)) / 2)),
        lambda: all_near(sympy.E / (1 + sympy.E), float(swish(_row(1.0))), 4 * EPSILON),
    ),
    formula=r"x \sigma(x) = \frac{x}{1 + e^{-x}}",
)
FFN.not_checkable(
    "swiglu-outperforms",
    194,
    "consistently outperforms",
    "SwiGLU is better than ReLU and GELU in practice.",
    reason="It depends on trainings that are not given.",
)
FFN.not_checkable(
    "modest-cost",
    194,
    "modest additional computational cost",
    "SwiGLU costs modestly more.",
    reason="Modest is no number: a third matrix is half as much again at the same d_ff, and nothing at 2/3 of it.",
)
for name, place, activation, number in (
    ("three-matrices", "three weight matrices", "swiglu", 3),
    ("two-matrices", "instead of two", "relu", 2),
):
    FFN.confirmed(
        name, 194, place, f"The weight matrices with {activation}.", count(number), _linear_maps(activation)
    )
FFN.erratum(
    "three-matrices-are-swiglu",
    194,
    "that's SwiGLU",
    "Three weight matrices are always SwiGLU: a gated network with GELU or a sigmoid has the same output.",
    HOLDS,
    holds(
        lambda: sympy.simplify(T / (1 + sympy.exp(-T)) - GELU).equals(0),
        lambda: nn.functional.gelu(_row(1.0)).equal(nn.functional.silu(_row(1.0))),
    ),
    slip="Every gated network has three: GEGLU (T5 1.1) and the first gated linear unit, with a sigmoid, too.",
    formula=r"(\text{swish}(x W) \cdot x V) W_2 \ne (\text{gelu}(x W) \cdot x V) W_2",
)

# Lines 197 to 201

BLOCK.erratum(
    "four-operations",
    197,
    "chains four operations",
    "The operations that an encoder block chains.",
    count(4),
    Derived(
        lambda: len(("norm", "attention", "add", "norm", "feed-forward", "add")),
        None,
        lambda: len(_operations()),
    ),
    slip="Six, of four kinds: norm and addition are done twice, as the sentence itself goes on to say.",
    gives=lambda: len(Counter(_operations())),
)
BLOCK.erratum(
    "order-of-the-prose",
    197,
    "layer norm stabilizes it, then the FFN",
    "In the order of the lines that follow, the norm comes after the addition.",
    HOLDS,
    holds(
        lambda: _operations()[:3] == ["attention", "add", "norm"],
        lambda: not torch.equal(_silent_layer(), X),
    ),
    slip="The sentence tells post-norm order, as in line 172; lines 198 and 199, introduced by it as pre-norm, have the "
    "norm first.",
    formula=r"\text{norm}(x + f(x)) \ne x + f(\text{norm}(x))",
)
for name, line, place, step, formula in (
    ("first-step", 198, "MultiHeadAttention(LayerNorm(x))", 1, r"x_1 = x + \text{MHA}(\text{norm}(x))"),
    ("second-step", 199, "FFN(LayerNorm(x", 2, r"x_2 = x_1 + \text{FFN}(\text{norm}(x_1))"),
):
    BLOCK.confirmed(
        name,
        line,
        place,
        "The reference's pre-norm layer is the formula.",
        HOLDS,
        _layer_by_formula(step),
        formula=formula,
    )
BLOCK.not_checkable(
    "six-layers",
    201,
    "The original paper used N = 6",
    "The paper has six layers; early ones are syntactic, later ones semantic.",
    reason="A fact about a paper, and findings on trained models that are not given.",
)
BLOCK.confirmed(
    "relationship-to-every-other",
    201,
    "its relationship to every other token",
    "After one layer every token's vector depends on every token of the sequence.",
    HOLDS,
    holds(_every_token_reaches_every_other, _hears_every_token),
)
BLOCK.confirmed(
    "six-rounds",
    201,
    "six rounds of attention",
    "A stack of six layers attends six times.",
    count(6),
    Derived(
        lambda: 6,
        None,
        lambda: sum(
            isinstance(each, MultiHeadAttention) for each in Encoder(PRE, 6, final_norm=True).modules()
        ),
    ),
)
