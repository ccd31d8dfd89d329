"""Document 003, lines 633 to 718: the encoder's stack, its parameters and its mask."""

from functools import cache

import mpmath
import sympy
import torch
from torch import nn

from headcheck.golden.d003_encoder import ATTENTION, PRINTED, W_1, layer_output
from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.exact import matrix
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, count, exactly, shape
from headcheck.reference import Embedding, Encoder, FeedForward, relu

STACK = Section("003", "encoder")

POSITIONS = """
import torch
import torch.nn as nn
class SinusoidalPositionalEncoding(nn.Identity):
    pass
"""
"""A stand-in for the class of positions, which adds nothing."""


def _layer_parameters(d_model: int, d_ff: int) -> int:
    attention = 4 * (d_model**2 + d_model)
    return attention + 2 * d_model * d_ff + d_ff + d_model + 2 * (2 * d_model)


@cache
def _by_building() -> tuple[int, ...]:
    """The parameters of the table and of each layer, out of torch's layers."""
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(512, 8, 2048)
        parts = nn.Embedding(30000, 512), *nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).layers
    return tuple(sum(each.numel() for each in part.parameters()) for part in parts)


@cache
def _by_reference() -> tuple[int, ...]:
    """The same of the reference's."""
    with torch.device("meta"):
        parts = (
            Embedding(30000, 512, scaled=True, positions="sinusoidal"),
            *Encoder(PRINTED, 6, final_norm=False).layers,
        )
    return tuple(sum(each.numel() for each in part.parameters()) for part in parts)


def _broadcasts(*axes: int) -> bool:
    """Torch lays a mask over the scores of 4 sequences, 8 heads and 50 tokens."""
    try:
        torch.zeros(axes) + torch.zeros(4, 8, 50, 50)
    except RuntimeError:
        return False
    return True


def _is_a_convolution() -> bool:
    """A linear layer at each position is a convolution of width one."""
    x, w = torch.arange(6.0).view(1, 3, 2), torch.arange(8.0).view(4, 2)
    return torch.equal(x @ w.T, nn.functional.conv1d(x.mT, w[:, :, None]).mT)


def _alone_and_with_others() -> tuple[torch.Tensor, torch.Tensor]:
    """The reference's network on a token [1, 2], by itself and as the first of two; weights of whole numbers."""
    network = FeedForward(2, 3, "relu")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape))
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return network(x[:1])[0], network(x)[0]


# Line 565

STACK.confirmed(
    "identical-layers",
    565,
    "a stack of identical layers",
    "The six layers have as many parameters each; which they share only in number.",
    HOLDS,
    holds(
        lambda: len({_layer_parameters(512, 2048)}) == 1,
        lambda: set(_by_building()[1:]) == {_layer_parameters(512, 2048)},
        lambda: set(_by_reference()[1:]) == {_layer_parameters(512, 2048)},
    ),
    formula=r"4 (d^2 + d) + 2 d d_{ff} + d_{ff} + d + 4 d = 3152384",
)

# Lines 633 to 718

STACK.block(
    "stack",
    637,
    705,
    "The encoder. Alone it fails: it imports no math, and three classes stand in earlier blocks.",
    needs=("matplotlib",),
    alone=Run(error="NameError: name 'math' is not defined"),
    in_order=Run(
        prints=(
            "Input token IDs: torch.Size([4, 50])",
            "Encoded output: torch.Size([4, 50, 512])",
            "Number of layer attention weights: 6",
            "Total parameters: 34,274,304",
        )
    ),
)
STACK.confirmed(
    "parameters",
    705,
    "Total parameters",
    "What the block prints: the parameters of 30,000 x 512 embeddings and 6 layers of d_ff 2048, positions having none.",
    count(34_274_304),
    counted(
        lambda: 30000 * 512 + 6 * _layer_parameters(512, 2048),
        lambda: sum(_by_building()),
        lambda: sum(_by_reference()),
    ),
    formula=r"30000 \cdot 512 + 6 \cdot 3152384 = 34274304",
)
STACK.confirmed(
    "scale",
    649,
    "Scaling factor from paper",
    "The square of the factor of the embeddings, with 512 dims.",
    exactly("512"),
    Derived(
        lambda: sympy.sqrt(512) ** 2,
        lambda: mpmath.power(2, 9),
        lambda: Embedding(1, 512, scaled=True, positions="none").scale ** 2,
        steps=1024,  # a rounding of the root, squared: 2 x 512 half units
    ),
    formula=r"\sqrt{d_{model}}",
)
for name, line, place in (
    ("one-vector-per-token", 635, "one for each input position"),
    ("docstring", 670, "(batch, seq_len, d_model)"),
    ("encoded", 699, "batch=4, seq_len=50"),
):
    STACK.confirmed(
        f"shape-{name}",
        line,
        place,
        "The shape of 4 sequences of 50 tokens, encoded in 512 dims.",
        shape(4, 50, 512),
        layer_output(4, 50, 512),
    )
STACK.erratum(
    "padding-mask",
    668,
    "Padding mask (batch, seq_len)",
    "A padding mask (4, 50), which attention makes (1, 1, 4, 50), can be laid over the scores of the example.",
    HOLDS,
    holds(
        lambda: all(a == b or 1 in (a, b) for a, b in zip((1, 1, 4, 50), (4, 8, 50, 50), strict=True)),
        lambda: _broadcasts(1, 1, 4, 50),
    ),
    slip="Line 342 takes two axes for queries and keys: the mask is refused, or where batch = seq_len laid along the "
    "queries. The form that works is (batch, 1, 1, seq_len).",
)
STACK.confirmed(
    "padding-mask-that-works",
    668,
    "Padding mask (batch, seq_len)",
    "With two axes more, (4, 1, 1, 50), it is laid over the keys.",
    HOLDS,
    holds(
        lambda: all(a == b or 1 in (a, b) for a, b in zip((4, 1, 1, 50), (4, 8, 50, 50), strict=True)),
        lambda: _broadcasts(4, 1, 1, 50),
    ),
)
STACK.latent_fault(
    "padding-meets-queries",
    668,
    "The padding mask of the docstring, (batch, seq_len), is laid along the queries when batch = seq_len: query 1 of "
    "sequence 0 sees key 1, which is padding for it.",
    setting=POSITIONS,
    blocks=(*ATTENTION, "003/encoder-layer/layer", "stack"),
    probe="small = TransformerEncoder(1, 2, 1, 2, 1, 2).eval()\n"
    "print(small(torch.zeros(2, 2).long(), torch.tensor([[1, 0], [1, 1]]))[1][0][0, 0].tolist())",
    prints="[[1.0, 0.0], [0.5, 0.5]]",
    fault="documents/padding-meets-queries",
)
STACK.latent_fault(
    "padding-is-refused",
    668,
    "The same mask is refused by an error about sizes where batch is not seq_len.",
    setting=POSITIONS,
    blocks=(*ATTENTION, "003/encoder-layer/layer", "stack"),
    probe="small = TransformerEncoder(1, 2, 1, 2, 1, 2)\n"
    "try:\n    small(torch.zeros(2, 3).long(), torch.ones(2, 3))\nexcept RuntimeError:\n    print('RuntimeError')",
    prints="RuntimeError",
    why_no_fault="A mask that does not work is no matter of laws: another form is looked for, a declared one refused.",
)
STACK.latent_fault(
    "positions-drown",
    673,
    "The scale presupposes embeddings of variance 1/d; torch's start at 1, and times the root of 512 they are over 20 "
    "times as large as the positions, which stay within 1.",
    setting=POSITIONS,
    blocks=(*ATTENTION, "003/encoder-layer/layer", "stack"),
    probe="print(round((encoder.token_embedding.weight * encoder.scale).std().item(), 1))",
    prints="22.6",
    why_no_fault="The positions still count, and more than that no law asks: how large tables start is a choice.",
)
STACK.latent_fault(
    "dropout-without-use",
    662,
    "The dropout of the stack itself is never applied: positions and layers have their own.",
    setting=POSITIONS,
    blocks=(*ATTENTION, "003/encoder-layer/layer", "stack"),
    probe="calls = []\nencoder.dropout.register_forward_hook(lambda *given: calls.append(1))\n"
    "encoder(input_ids[:1, :1])\nprint(len(calls))",
    prints="0",
    why_no_fault="It changes nothing.",
)
STACK.behaviour(
    "order-of-components",
    711,
    "The order in which the layer's parts are done.",
    blocks=(*ATTENTION, "003/encoder-layer/layer"),
    probe="layer, calls = EncoderLayer(4, 2, 8), []\nfor name, part in layer.named_children():\n"
    "    part.register_forward_hook(lambda module, given, out, name=name: calls.append(name))\n"
    "layer(torch.zeros(1, 3, 4))\nprint(*(each for each in calls if 'dropout' not in each))",
    prints="self_attention norm1 feed_forward norm2",
)
STACK.confirmed(
    "two-linear-layers",
    715,
    "Two linear layers with ReLU",
    "The network has two matrices.",
    count(2),
    counted(
        lambda: len({"expand", "contract"}),
        lambda: sum("linear" in name for name, _ in nn.TransformerEncoderLayer(4, 2, 8).named_children()),
        lambda: sum(each.ndim == 2 for each in FeedForward(4, 8, "relu").parameters()),
    ),
)
STACK.confirmed(
    "each-position-independently",
    718,
    "like a 1x1 convolution",
    "The network gives a token the same whether it comes alone or with others, as a convolution of width one does.",
    HOLDS,
    holds(
        lambda: (matrix("1 2; 3 4") * matrix(W_1)).row(0) == matrix("1 2") * matrix(W_1),
        _is_a_convolution,
        lambda: torch.equal(*_alone_and_with_others()),
    ),
)
STACK.confirmed(
    "non-linear",
    718,
    "adding non-linear capacity",
    "relu(1) + relu(-1) is not relu(0).",
    exactly("1"),
    Derived(
        lambda: max(sympy.Integer(1), 0) + max(sympy.Integer(-1), 0) - max(sympy.Integer(0), 0),
        None,
        lambda: float(relu(torch.tensor([1.0, -1.0], dtype=torch.float64)).sum()),
    ),
)
