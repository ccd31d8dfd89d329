"""Document 002, lines 202 to 218: the decoder block and its mask."""

from typing import Any

import sympy
import torch
from torch import Tensor, nn

from headcheck.golden.d002_layers import PRE, X, seeded
from headcheck.golden.derived import Derived, Worked, holds
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import EPSILON, HOLDS, all_near, count, exactly, nested
from headcheck.reference import DecoderLayer, EncoderLayer, LayerNorm, Residual, attention, masks, shift

DECODER = Section("002", "decoder-block")

TRIANGLE = "1 0 0 0 0; 1 1 0 0 0; 1 1 1 0 0; 1 1 1 1 0; 1 1 1 1 1"
MEMORY = torch.tensor([[[0.5, 2.0, -1.0, 3.0], [1.0, 0.0, 4.0, -2.0], [2.0, 2.0, 1.0, 0.0]]]).double()
FUTURE_BLIND = Derived(
    exact=lambda: sympy.Matrix(5, 5, lambda i, j: int(int(j) <= int(i))),
    again=lambda: torch.tril(torch.ones(5, 5, dtype=torch.int64)),
    reference=lambda: masks.causal(5, 5).int(),
    inputs={"operation": "causal mask", "length": "5"},
)


def _causal(x: Tensor) -> Tensor:
    """Self-attention under the mask, one head."""
    return attention(*[x[None]] * 3, may_attend=masks.causal(x.shape[1], x.shape[1])).output[0]


def _worked(length: int, *, causal: bool = False) -> list[Any]:
    """What attention makes of so many of those tokens, under the mask or without, exactly."""
    rows = "; ".join(" ".join(map(str, row)) for row in MEMORY[0, :length].tolist())
    output = Worked(rows, rows, rows, may_attend="1 0 0; 1 1 0; 1 1 1" if causal else None).output
    return list(nested(output.exact()))


def _weights_under_the_mask() -> Tensor:
    x = torch.arange(20, dtype=torch.float64).reshape(1, 1, 5, 4) % 7
    return attention(x, x, x, may_attend=masks.causal(5, 5)).weights[0, 0]


def _seen_when_generating(word: int) -> list[int]:
    """The words, counted from 1, in the input of the position whose target is that word; 0 is the start."""
    inputs, targets = shift(torch.arange(7)[None])
    position = int((targets[0] == word).nonzero())
    return inputs[0, masks.causal(6, 6)[position]].tolist()


def _steps() -> list[Tensor]:
    """What the reference's decoder layer makes of X and a memory, and what the three formulas make of them."""
    layer = seeded(lambda: DecoderLayer(PRE))
    norms = [module for module in layer.modules() if isinstance(module, LayerNorm)]
    found: list[Tensor] = []
    for module in layer.modules():
        if isinstance(module, Residual):
            module.register_forward_hook(lambda _module, _given, out: found.append(out))
    layer(X, MEMORY, may_attend=masks.causal(2, 2)[None, None])
    first = X + layer.self_attention(norms[0](X), may_attend=masks.causal(2, 2)[None, None])
    second = first + layer.cross_attention(norms[1](first), MEMORY)
    return [*found, first, second, second + layer.feed_forward(norms[2](second))]


def _step(number: int) -> Derived:
    def is_formula() -> bool:
        steps = _steps()
        return all_near(steps[number].tolist(), steps[number + 3], 64 * EPSILON)

    return holds(is_formula, lambda: _torch_by_formula(number))


def _torch_by_formula(number: int) -> bool:
    """Torch's own layer, what comes after the step made silent, is the formula."""
    layer = seeded(
        lambda: nn.TransformerDecoderLayer(4, 2, 8, 0.0, "gelu", batch_first=True, norm_first=True)
    )
    for part in (layer.multihead_attn.out_proj, layer.linear2)[number:]:
        nn.init.zeros_(part.weight), nn.init.zeros_(part.bias)
    hidden = ~masks.causal(2, 2)
    first = X + layer.self_attn(*[layer.norm1(X)] * 3, attn_mask=hidden)[0]
    second = first + layer.multihead_attn(layer.norm2(first), MEMORY, MEMORY)[0]
    third = second + layer.linear2(nn.functional.gelu(layer.linear1(layer.norm3(second))))
    return all_near([first, second, third][number], layer(X, MEMORY, tgt_mask=hidden), 64 * EPSILON)


# Lines 203 to 207

for name, place, kind, number in (
    ("three-sub-layers", "three sub-layers", DecoderLayer, 3),
    ("two-sub-layers", "instead of the encoder's two", EncoderLayer, 2),
):
    DECODER.confirmed(
        name,
        203,
        place,
        "The sub-layers of a block.",
        count(number),
        Derived(
            {DecoderLayer: lambda: len(("self", "cross", "ffn")), EncoderLayer: lambda: len(("self", "ffn"))}[
                kind
            ],
            None,
            {
                DecoderLayer: lambda: len(DecoderLayer(PRE).residuals),
                EncoderLayer: lambda: len(EncoderLayer(PRE).residuals),
            }[kind],
        ),
    )
for number, (line, place, formula) in enumerate(
    (
        (204, "MaskedSelfAttention(LayerNorm(x))", r"x_1 = x + \text{MaskedMHA}(\text{norm}(x))"),
        (205, "encoder_out)", r"x_2 = x_1 + \text{CrossAttention}(\text{norm}(x_1), memory)"),
        (206, "FFN(LayerNorm(x", r"x_3 = x_2 + \text{FFN}(\text{norm}(x_2))"),
    )
):
    DECODER.confirmed(
        f"step-{number + 1}",
        line,
        place,
        "The reference's pre-norm decoder layer is the formula.",
        HOLDS,
        _step(number),
        formula=formula,
    )
DECODER.confirmed(
    "no-future",
    207,
    "prevents each position from attending to future positions",
    "Under the mask every weight on a later position is zero, and every other one is not.",
    HOLDS,
    holds(
        lambda: all(FUTURE_BLIND.exact()[i, j] == (j <= i) for i in range(5) for j in range(5)),
        None,
        lambda: torch.equal(_weights_under_the_mask() > 0, masks.causal(5, 5)),
    ),
)
DECODER.erratum(
    "the-5th-word-sees-itself",
    207,
    "words 1 through 5",
    "The words that the model sees when it generates the 5th.",
    exactly("1 2 3 4 5"),
    Derived(
        lambda: list(range(1, 5)),
        None,
        lambda: [word for word in _seen_when_generating(5) if word],
    ),
    slip="Off by one: the input is shifted right (line 243), so that the position that predicts word 5 holds word 4. It "
    "sees the start and words 1 to 4; word 5 has not been generated either. Five is the number of positions seen.",
    gives=lambda: [word + 1 for word in _seen_when_generating(5)],
    formula=r"P(w_5 | w_1, w_2, w_3, w_4)",
)
DECODER.confirmed(
    "not-word-6",
    207,
    "not word 6 onward",
    "Word 6 is not among those that are seen when the 5th is generated.",
    HOLDS,
    holds(lambda: 6 not in range(1, 5), None, lambda: max(_seen_when_generating(5)) < 6),
)

# Lines 208 to 218: the mask

DECODER.confirmed(
    "lower-triangular",
    208,
    "a lower-triangular matrix",
    "The mask is one on the diagonal and below it.",
    exactly(TRIANGLE),
    FUTURE_BLIND,
    formula=r"M_{ij} = [j \le i]",
)
DECODER.block("mask", 209, 215, "The mask of five words.", levels="0" * 7, alone=Run())
for number, (row, said) in enumerate(
    zip(
        TRIANGLE.split("; "),
        ("word 1 sees only itself", "words 1-2", "words 1-3", "words 1-4", "word 5 sees everything so far"),
        strict=True,
    )
):
    DECODER.confirmed(
        f"row-{number + 1}",
        211 + number,
        row.replace(" ", ", "),
        f"The row of word {number + 1}.",
        exactly(row),
        FUTURE_BLIND.at(number),
    )
    DECODER.confirmed(
        f"sees-{number + 1}",
        211 + number,
        said,
        f"How many words the row of word {number + 1} lets it see.",
        count(number + 1),
        FUTURE_BLIND.at(number).map(sum),
    )
DECODER.behaviour(
    "mask-at-run-time",
    210,
    "The code gives the matrix of its comment.",
    blocks=("mask",),
    probe="print(causal_mask.int().tolist())",
    prints="[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]",
)
DECODER.confirmed(
    "exactly-zero",
    216,
    "drives those weights to exactly zero",
    "A score of minus infinity gives a weight of exactly zero.",
    exactly("0"),
    Derived(
        lambda: sympy.exp(-sympy.oo), None, lambda: _weights_under_the_mask().triu(diagonal=1).abs().max()
    ),
    formula=r"e^{-\infty} = 0",
)
DECODER.confirmed(
    "no-leak",
    216,
    "No information leaks from the future",
    "The output at a position does not change when later ones do.",
    HOLDS,
    holds(
        lambda: torch.equal(_causal(MEMORY)[0, :2], _causal(MEMORY * torch.tensor([[1], [1], [9]]))[0, :2]),
        lambda: not torch.func.jacrev(_causal)(MEMORY)[0, :2, :, 0, 2].any(),
    ),
)
DECODER.confirmed(
    "all-positions-in-parallel",
    217,
    "All positions are computed in parallel",
    "Under the mask one pass over the whole sequence gives at each position what a pass over its past gives.",
    HOLDS,
    holds(
        lambda: all(
            all_near(_causal(MEMORY)[0, end].tolist(), _causal(MEMORY[:, : end + 1])[0, -1], 64 * EPSILON)
            for end in range(3)
        ),
        lambda: all(all_near(_worked(3, causal=True)[end], _worked(end + 1)[end]) for end in range(3)),
    ),
)
DECODER.not_checkable(
    "speed-of-training",
    217,
    "the training speed of a Transformer",
    "Teacher forcing under the mask trains as fast as full parallelism allows.",
    reason="A statement about times, on hardware that is not named.",
)
DECODER.not_checkable(
    "cheating",
    218,
    "suspiciously low training loss",
    "Without the mask the loss in training is suspiciously low, and what is generated is garbage.",
    reason="It depends on a training that is not given.",
)
DECODER.confirmed(
    "weights-are-lower-triangular",
    218,
    "attention weights form a lower-triangular pattern",
    "With the right mask the weights are lower-triangular; without one they are not.",
    HOLDS,
    holds(
        lambda: FUTURE_BLIND.exact().is_lower and not sympy.ones(5, 5).is_lower,
        None,
        lambda: not _weights_under_the_mask().triu(diagonal=1).any(),
    ),
)
