"""Document 000, lines 908 to 933, and 1275 to 1280: torch's own transformer, and the conclusion."""

import sympy
import torch
from torch import nn

from headcheck.golden.derived import counted, holds
from headcheck.golden.exact import contracted, softmax
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import parameters, stack_parameters
from headcheck.golden.stated import HOLDS, count, shape
from headcheck.reference import (
    Decoder,
    Encoder,
    LayerConfig,
    attention,
    masks,
    number_of_scores,
    unfold_patches,
)

OWN = Section("000", "torch-transformer")
BRIEF = Section("000", "conclusion")


def _config(d_model: int, d_ff: int) -> LayerConfig:
    return LayerConfig(d_model=d_model, num_heads=8, d_ff=d_ff, norm_order="pre", activation="relu")


def _reference_stacks() -> list[nn.Module]:
    """The stacks of lines 916 to 919; torch puts a norm after each."""
    config = _config(64, 256)
    return [Encoder(config, 3, final_norm=True), Decoder(config, 3, final_norm=True)]


def _torch_own() -> nn.Transformer:
    return nn.Transformer(64, 8, 3, 3, 256, batch_first=True)


def _nothing_hidden_is_seen() -> bool:
    seen = masks.causal(4, 4) & masks.padding(torch.tensor([3]), 4)
    zeros = torch.zeros(1, 1, 4, 2, dtype=torch.float64)
    return torch.equal(attention(zeros, zeros, zeros, may_attend=seen).weights > 0, seen)


# Lines 908 to 933

OWN.block(
    "module",
    912,
    931,
    "torch's model of 3 + 3 layers on embeddings.",
    alone=Run(prints=("Output shape: torch.Size([2, 12, 64])", "Total params: 350464")),
)
OWN.confirmed(
    "parameters",
    931,
    "sum(p.numel()",
    "The parameters, which the block prints and the text does not.",
    count(350_464),
    counted(
        lambda: stack_parameters(64, 256, 3) + 2 * 2 * 64,
        lambda: parameters(_torch_own()),
        lambda: parameters(*_reference_stacks()),
    ),
    formula=r"3 (49984 + 66752) + 2 \cdot 128",
)
OWN.confirmed(
    "shape-output",
    930,
    "[2, 12, 64]",
    "The shape of the output.",
    shape(2, 12, 64),
    counted(
        lambda: contracted("btf,fd->btd", (2, 12, 256), (256, 64)),
        lambda: _torch_own()(torch.zeros(2, 15, 64), torch.zeros(2, 12, 64)).shape,
        lambda: (
            Decoder(_config(64, 256), 3, final_norm=True)(
                torch.zeros(2, 12, 64), torch.zeros(2, 15, 64)
            ).shape
        ),
    ),
)
for name, line, place in (
    ("everything", 910, "wraps everything into a single module"),
    ("full-transformer", 915, "a full Transformer with one line"),
):
    OWN.erratum(
        name,
        line,
        place,
        "torch's module has embeddings and an output layer too.",
        HOLDS,
        holds(
            lambda: stack_parameters(64, 256, 3) + 2 * 2 * 64 < parameters(_torch_own()),
            lambda: any(isinstance(each, nn.Embedding) for each in _torch_own().modules()),
        ),
        slip="It is the two stacks. Embeddings, positions and the output layer are left to the user, as line 933 says.",
    )
OWN.confirmed(
    "what-is-missing",
    933,
    "add your own embedding layers, positional encoding, and output projection",
    "torch's module has no embedding; its parameters are those of the stacks and their norms.",
    HOLDS,
    holds(
        lambda: stack_parameters(64, 256, 3) + 2 * 2 * 64 == parameters(_torch_own()),
        lambda: not any(isinstance(each, nn.Embedding) for each in _torch_own().modules()),
    ),
)

# Lines 1275 to 1280

BRIEF.confirmed(
    "two-and-three-sublayers",
    1278,
    "decoder blocks add masked self-attention and cross-attention",
    "Attentions of an encoder and of a decoder block.",
    shape(1, 2),
    counted(
        lambda: (1, 1 + 1),
        lambda: tuple(
            sum(isinstance(each, nn.MultiheadAttention) for each in layer(8, 1, 8).modules())
            for layer in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
        ),
        lambda: tuple(
            sum(name.endswith("w_q") for name, _ in stack(_config(8, 8), 1, final_norm=False).named_modules())
            for stack in (Encoder, Decoder)
        ),
    ),
)
BRIEF.confirmed(
    "pairwise",
    1275,
    "parallel pairwise token interactions",
    "Three tokens have nine scores, one for each pair.",
    count(9),
    counted(lambda: 3**2, lambda: torch.empty(3, 3).numel(), lambda: number_of_scores(3, 3)),
)
BRIEF.confirmed(
    "masks",
    1279,
    "Causal masks prevent future-token leakage",
    "Under a causal mask and a padding mask, no weight is on the future or on padding.",
    HOLDS,
    holds(lambda: softmax([sympy.Integer(0), -sympy.oo]) == [1, 0], None, _nothing_hidden_is_seen),
)
BRIEF.confirmed(
    "patches-are-tokens",
    1280,
    "treat image patches as tokens",
    "Four patches of 3 x 2 x 2 numbers are a sequence of four tokens.",
    shape(1, 4, 12),
    counted(
        lambda: (1, 2 * 2, 3 * 2 * 2),
        lambda: nn.Unfold(2, stride=2)(torch.zeros(1, 3, 4, 4)).mT.shape,
        lambda: unfold_patches(torch.zeros(1, 3, 4, 4), 2).shape,
    ),
)
BRIEF.not_checkable(
    "multiple-relationships",
    1276,
    "multiple types of relationships",
    "Heads capture different relationships.",
    reason="What is learnt depends on a training that is not given.",
)
