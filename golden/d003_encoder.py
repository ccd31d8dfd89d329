"""Document 003, lines 563 to 631: the encoder's layer."""

import mpmath
import sympy
import torch
from torch import nn

from headcheck.golden.d003_heads import weights_of
from headcheck.golden.derived import Derived, counted, holds, same
from headcheck.golden.exact import contracted, fractions, matrix, normalised, product_again
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, count, exactly, shape
from headcheck.reference import (
    EncoderLayer,
    FeedForward,
    LayerConfig,
    layer_norm,
    reachable,
)

LAYER = Section("003", "encoder-layer")

T = sympy.Symbol("t", positive=True)
SMALL = LayerConfig(d_model=4, num_heads=2, d_ff=16, norm_order="post", activation="relu")
PRINTED = LayerConfig(d_model=512, num_heads=8, d_ff=2048, norm_order="post", activation="relu")
X, W_1, B_1, W_2, B_2 = "1 2", "1 -1 2; 0 1 -3", "0 1 1", "1 2; 3 4; 5 6", "1 -1"
"""A token of our own, and the weights of a network from 2 dims to 3 and back."""
ATTENTION = ("003/multi-head/module",)


def _network() -> Derived:
    """max(0, x W_1 + b_1) W_2 + b_2: by algebra, entry by entry, by the reference."""
    return Derived(
        exact=lambda: (
            (matrix(X) * matrix(W_1) + matrix(B_1)).applyfunc(lambda e: max(0, e)) * matrix(W_2) + matrix(B_2)
        ),
        again=_network_again,
        reference=_network_of_the_reference,
    )


def _network_again() -> list[list[object]]:
    hidden = product_again([*fractions(X)], fractions(W_1))[0]
    raised = [[max(0, each + bias) for each, bias in zip(hidden, fractions(B_1)[0], strict=True)]]
    out = product_again(raised, fractions(W_2))[0]
    return [[each + bias for each, bias in zip(out, fractions(B_2)[0], strict=True)]]


def _network_of_the_reference() -> torch.Tensor:
    network = FeedForward(2, 3, "relu").double()
    with torch.no_grad():
        for parameter, text in zip(network.parameters(), (W_1, B_1, W_2, B_2), strict=True):
            parameter.copy_(torch.tensor(matrix(text).T.tolist(), dtype=torch.float64).view(parameter.shape))
    out: torch.Tensor = network(torch.tensor(matrix(X).tolist(), dtype=torch.float64))
    return out.detach()


def _expanded(d_out: int) -> Derived:
    """2 sequences of 3 tokens, from 4 dims to 16 and back where that is d_out."""
    return counted(
        lambda: contracted("bnd,df,fe->bne", (2, 3, 4), (4, 16), (16, 4)) if d_out == 4 else (2, 3, 16),
        lambda: nn.Linear(16 if d_out == 4 else 4, d_out)(torch.zeros(2, 3, 16 if d_out == 4 else 4)).shape,
        lambda: (
            (
                FeedForward(4, 16, "relu")(torch.zeros(2, 3, 4))
                if d_out == 4
                else SMALL.new_feed_forward().w_1(torch.zeros(2, 3, 4))
            ).shape
        ),
    )


def layer_output(batch: int, length: int, d_model: int) -> Derived:
    """The shape of the output of a whole layer."""
    config = PRINTED if d_model == 512 else SMALL
    return counted(
        lambda: (batch, length, d_model),
        lambda: (
            nn.TransformerEncoderLayer(d_model, config.num_heads, config.d_ff, batch_first=True)(
                torch.zeros(batch, length, d_model)
            ).shape
        ),
        lambda: EncoderLayer(config)(torch.zeros(batch, length, d_model)).shape,
    )


# Lines 563 to 631

LAYER.confirmed(
    "two-sublayers",
    565,
    "each containing two sub-layers",
    "The sub-layers of an encoder layer.",
    count(2),
    counted(
        lambda: len({"self-attention", "feed-forward"}), None, lambda: len(EncoderLayer(SMALL).residuals)
    ),
)
LAYER.confirmed(
    "add-and-norm",
    565,
    "output = LayerNorm(x + Sublayer(x))",
    "After add and norm a row has mean 0 and variance 1: [1, 2, 6] becomes [-2, -1, 3] over the root of 14/3.",
    HOLDS,
    same(
        lambda: normalised(matrix("1 2 6")),
        lambda: matrix("-2 -1 3") / sympy.sqrt(sympy.Rational(14, 3)),
        lambda: layer_norm(torch.tensor([[1.0, 2.0, 6.0]], dtype=torch.float64), eps=0.0),
    ),
    formula=r"\text{LayerNorm}(x + f(x))",
)
LAYER.confirmed(
    "without-vanishing-gradients",
    565,
    "deep stacking without vanishing gradients",
    "The derivative of x + f(x) is 1 plus that of f: it does not vanish where that of f does.",
    HOLDS,
    holds(
        lambda: sympy.diff(T + sympy.Function("f")(T), T) == 1 + sympy.diff(sympy.Function("f")(T), T),
        lambda: mpmath.diff(lambda x: x + mpmath.tanh(x), 40) >= 1,
    ),
    formula=r"\frac{d}{dx}(x + f(x)) = 1 + f'(x)",
)
LAYER.not_checkable(
    "depth",
    567,
    "The original Transformer uses 6 encoder layers",
    "How many layers published models have, and what more layers do.",
    reason="Facts about publications, and a rule of thumb about trained models.",
)
for name, place in (
    ("influenced-by-all", "influenced by all other tokens"),
    ("bidirectional", "capture bidirectional context"),
):
    LAYER.confirmed(
        name,
        567,
        place,
        "Without a mask each of 5 tokens hears all 5 through one layer.",
        exactly("5 5 5 5 5"),
        Derived(
            lambda: [5] * 5,
            lambda: [int((torch.softmax(torch.zeros(5, 5), -1)[i] > 0).sum()) for i in range(5)],
            lambda: reachable(torch.ones(5, 5, dtype=torch.bool), 1).sum(dim=1),
        ),
    )
LAYER.confirmed(
    "feed-forward",
    577,
    "max(0, xW_1 + b_1)W_2 + b_2",
    "The formula of the feed-forward network, of a token [1, 2] and three hidden dims.",
    HOLDS,
    same(_network().exact, _network().again, _network().reference),  # type: ignore[arg-type]
    formula=r"\max(0, x W_1 + b_1) W_2 + b_2",
)
LAYER.confirmed(
    "four-times",
    579,
    "2048 for d_model=512",
    "Four times d_model = 512.",
    count(2048),
    counted(lambda: sympy.Integer(4) * 512, lambda: torch.zeros(4, 512).numel()),
)
for name, line, place, width in (
    ("expand", 589, "Expand", 16),
    ("contract", 589, "Contract", 4),
    ("expands-then-contracts", 715, "(expands then contracts)", 4),
):
    LAYER.confirmed(
        f"shape-{name}",
        line,
        place,
        "The shape of 2 sequences of 3 tokens in a network from 4 dims to 16 and back.",
        shape(2, 3, width),
        _expanded(width),
    )
LAYER.block(
    "layer",
    569,
    631,
    "Feed-forward network and encoder layer. Alone it fails: the attention stands in an earlier block.",
    alone=Run(error="NameError: name 'MultiHeadAttention' is not defined"),
    in_order=Run(
        prints=(
            "Encoder layer input: torch.Size([4, 20, 512])",
            "Encoder layer output: torch.Size([4, 20, 512])",
            "Attention weights: torch.Size([4, 8, 20, 20])",
        )
    ),
)
for name, line, place, axes, derived in (
    ("output", 630, "Same shape", (4, 20, 512), layer_output(4, 20, 512)),
    ("weights", 631, "Attention weights", (4, 8, 20, 20), weights_of(4, 8, 20, 64)),
):
    LAYER.confirmed(f"shape-{name}", line, place, f"The shape of the layer's {name}.", shape(*axes), derived)
for name, line, place, what in (
    ("attention", 611, "self-attention", "norm1(x + attention(x, x, x))"),
    ("feed-forward", 615, "feed-forward", "norm2(x + feed_forward(x))"),
):
    LAYER.behaviour(
        f"step-{name}",
        line,
        f"Without dropout, the step of {place} is {what}, which is the formula of line 565.",
        blocks=(*ATTENTION, "layer"),
        probe="layer, x = EncoderLayer(4, 2, 8).eval(), torch.randn(2, 3, 4)\n"
        "middle = layer.norm1(x + layer.self_attention(x, x, x)[0])\n"
        "network = layer.feed_forward.fc2(torch.relu(layer.feed_forward.fc1(middle)))\n"
        "print(torch.equal(layer(x)[0], layer.norm2(middle + network)))",
        prints="True",
    )
LAYER.behaviour(
    "norm-on-the-path",
    613,
    "The residual path goes through both norms: with sub-layers that give zero, [1, 3] comes out as [-1, 1].",
    blocks=(*ATTENTION, "layer"),
    probe="layer = EncoderLayer(2, 1, 2).eval()\n"
    "for part in (layer.self_attention.W_o, layer.feed_forward.fc2):\n"
    "    nn.init.zeros_(part.weight)\n    nn.init.zeros_(part.bias)\n"
    "print([round(each, 3) for each in layer(torch.tensor([[[1.0, 3.0]]]))[0].flatten().tolist()])",
    prints="[-1.0, 1.0]",
)
LAYER.behaviour(
    "where-dropout-is",
    592,
    "Dropout is applied four times: to the weights, after attention, inside the network, and after it.",
    blocks=(*ATTENTION, "layer"),
    probe="layer, calls = EncoderLayer(4, 2, 8), []\n"
    "for part in layer.modules():\n    if isinstance(part, nn.Dropout):\n"
    "        part.register_forward_hook(lambda module, given, out: calls.append(tuple(out.shape)))\n"
    "layer(torch.zeros(1, 3, 4))\nprint(calls)",
    prints="[(1, 2, 3, 3), (1, 3, 4), (1, 3, 8), (1, 3, 4)]",
)
