"""Document 000, lines 698 to 797: the decoder block and its causal mask."""

import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, holds
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import attention_parameters, feed_forward_parameters, parameters, random_tensor
from headcheck.golden.stated import HOLDS, exactly, shape
from headcheck.reference import DecoderLayer, EncoderLayer, LayerConfig, masks

DECODER = Section("000", "decoder-block")


def _config() -> LayerConfig:
    return LayerConfig(d_model=64, num_heads=8, d_ff=256, norm_order="pre", activation="relu")


def _decoder_hears(changed: int) -> list[bool]:
    """Which target tokens change with one of them, in the reference under a causal mask."""
    layer, x, memory = DecoderLayer(_config()).double(), random_tensor(1, 4, 64), random_tensor(1, 5, 64)
    other, seen = x.clone(), masks.causal(4, 4)[None, None]
    other[0, changed] += 1
    differ = layer(x, memory, may_attend=seen) != layer(other, memory, may_attend=seen)
    return [bool(each) for each in differ.any(dim=-1)[0]]


def _memory_matters() -> bool:
    layer, x = DecoderLayer(_config()).double(), random_tensor(1, 4, 64)
    return bool(
        (layer(x, random_tensor(1, 5, 64)) != layer(x, 2 * random_tensor(1, 5, 64))).all(dim=-1).any()
    )


def _memory_matters_to_torch() -> bool:
    """Torch's own decoder layer has a gradient with respect to every token of the encoder's output."""
    layer, memory = (
        nn.TransformerDecoderLayer(64, 8, 256, 0.0, batch_first=True).double(),
        random_tensor(1, 5, 64).requires_grad_(),
    )
    (gradient,) = torch.autograd.grad(layer(random_tensor(1, 4, 64), memory).square().sum(), memory)
    return bool(gradient.any(dim=-1).all())


def _blocked(position: int, keys: range) -> Derived:
    """1 where the causal mask blocks."""
    return Derived(
        exact=lambda: [int(key > position) for key in keys],
        again=lambda: torch.ones(10, 10, dtype=torch.int64).triu(1)[position, list(keys)],
        reference=lambda: 1 - masks.causal(10, 10)[position, list(keys)].int(),
    )


def _decoded(tokens: int) -> Derived:
    """The shape of what a decoder layer makes of so many target tokens."""
    return Derived(
        exact=lambda: contracted("bnf,fd->bnd", (2, tokens, 256), (256, 64)),
        reference=lambda: (
            DecoderLayer(_config()).double()(random_tensor(2, tokens, 64), random_tensor(2, 10, 64)).shape
        ),
    )


# Lines 702 to 718

for name, line, place, stated, derived in (
    ("no-peeking", 702, "not allowed to peek at tokens 6, 7, 8", "1 1 1", _blocked(5, range(6, 9))),
    ("sees-0-to-4", 714, "only see tokens 0–4", "0 0 0 0 0", _blocked(4, range(5))),
    ("not-6-to-9", 714, "not tokens 6–9", "1 1 1 1", _blocked(4, range(6, 10))),
):
    DECODER.confirmed(
        name,
        line,
        place,
        "What the causal mask blocks (1) for the token named; token 5 is predicted in row 4.",
        exactly(stated),
        derived,
    )
for name, line, place in (
    ("blindfold", 712, "by looking at future tokens during training"),
    ("causal", 714, "prevents each position from attending to future positions"),
    ("up-to-i", 797, "positions 0 through i"),
):
    DECODER.confirmed(
        name,
        line,
        place,
        "Under the mask, a change of a target token changes its own and later outputs only.",
        HOLDS,
        holds(
            lambda: all((j <= i) != (j > i) for i in range(4) for j in range(4)),
            None,
            lambda: all(_decoder_hears(j) == [i >= j for i in range(4)] for j in range(4)),
        ),
    )
DECODER.confirmed(
    "reads-the-source",
    709,
    "read the original",
    "The output depends on the encoder's.",
    HOLDS,
    holds(_memory_matters, _memory_matters_to_torch),
)
DECODER.confirmed(
    "three-sublayers",
    718,
    "three sub-layers instead of two",
    "Sub-layers of a decoder block and of an encoder block.",
    exactly("3 2"),
    Derived(
        exact=lambda: [len(("masked", "cross", "feed-forward")), len(("attention", "feed-forward"))],
        reference=lambda: [len(DecoderLayer(_config()).residuals), len(EncoderLayer(_config()).residuals)],
    ),
)
DECODER.confirmed(
    "own-residuals",
    718,
    "its own residual connection and layer normalization",
    "Parameters of three norms and of what they surround, as torch's layer has them.",
    HOLDS,
    holds(
        lambda: 2 * attention_parameters(64) + feed_forward_parameters(64, 256) + 3 * 2 * 64 == 66_752,
        lambda: parameters(nn.TransformerDecoderLayer(64, 8, 256, device="meta")) == 66_752,
        lambda: parameters(DecoderLayer(_config())) == 66_752,
    ),
)

# Lines 720 to 797

DECODER.block(
    "module",
    720,
    795,
    "The decoder block, and a demonstration of 8 target tokens and 10 of the source.",
    alone=Run(
        prints=(
            "Decoder input shape:  torch.Size([2, 8, 64])",
            "Encoder output shape: torch.Size([2, 10, 64])",
            "Decoder output shape: torch.Size([2, 8, 64])",
        )
    ),
)
for name, line, axes in (
    ("input", 793, (2, 8, 64)),
    ("memory", 794, (2, 10, 64)),
    ("output", 795, (2, 8, 64)),
):
    DECODER.confirmed(
        f"shape-{name}",
        line,
        str([*axes]),
        f"The shape of the {name}.",
        shape(*axes),
        _decoded(axes[1]),
    )
DECODER.erratum(
    "lower-triangular",
    787,
    "lower triangular (True = allowed, False = blocked)",
    "The mask of line 789 is True on and below the diagonal.",
    HOLDS,
    holds(
        lambda: sympy.Matrix(8, 8, lambda i, j: int(int(j) > int(i))).is_lower,
        lambda: bool(torch.ones(8, 8).triu(1).bool()[7, 0]),
        lambda: torch.equal(torch.ones(8, 8).triu(1).bool(), masks.causal(8, 8)),
    ),
    slip="The comment says the opposite of the code, which is right: True above the diagonal, and True blocks, as line "
    "790 says.",
)
for name, line, place in (
    ("upper-triangular", 790, "so we use upper triangular"),
    ("upper-triangular-in-words", 797, "an upper triangular matrix of True values"),
):
    DECODER.confirmed(
        name,
        line,
        place,
        "True above the diagonal, False on and below it.",
        HOLDS,
        holds(
            lambda: (
                sympy.Matrix(8, 8, lambda i, j: int(int(j) > int(i))).is_upper
                and sum(sympy.Matrix(8, 8, lambda i, j: int(int(j) > int(i)))) == 28
            ),
            lambda: int(torch.ones(8, 8).triu(1).sum()) == 28,
            lambda: torch.equal(torch.ones(8, 8).triu(1).bool(), ~masks.causal(8, 8)),
        ),
    )
DECODER.behaviour(
    "true-blocks",
    797,
    "With the mask of line 789 the first output does not change with the last target token; turned round, it does.",
    blocks=("module",),
    probe="""
decoder_block.eval()
changed = tgt.clone()
changed[:, -1] += 1
for mask in causal_mask, ~causal_mask:
    one, other = (decoder_block(each, encoder_out, tgt_mask=mask)[:, 0] for each in (tgt, changed))
    print(torch.equal(one, other))
""",
    prints="True\nFalse",
)
DECODER.latent_fault(
    "only-padding",
    771,
    "A source that is all padding gives NaN.",
    blocks=("module",),
    probe="x, block = torch.ones(1, 1, 2), TransformerDecoderBlock(2, 1, 2)\n"
    "print(block(x, x, memory_key_padding_mask=torch.tensor([[True]])).isnan().all().item())",
    prints="True",
    fault="dead_rows/plain",
)
DECODER.latent_fault(
    "padding-in-front",
    759,
    "With padding in front, the causal mask leaves the first token no key: NaN.",
    blocks=("module",),
    probe="x, block = torch.ones(1, 2, 2), TransformerDecoderBlock(2, 1, 2)\n"
    "mask, padded = torch.ones(2, 2).triu(1).bool(), torch.tensor([[True, False]])\n"
    "print(block(x, x, tgt_mask=mask, tgt_key_padding_mask=padded).isnan().all(dim=-1).tolist())",
    prints="[[True, False]]",
    fault="decoder/dead-rows",
)
DECODER.latent_fault(
    "no-mask-by-default",
    754,
    "Without a mask the decoder block looks at the future, silently.",
    blocks=("module",),
    probe="""
decoder_block.eval()
changed = tgt.clone()
changed[:, -1] += 1
print(torch.equal(decoder_block(tgt, encoder_out)[:, 0], decoder_block(changed, encoder_out)[:, 0]))
""",
    prints="False",
    fault="decoder/not-causal",
)
