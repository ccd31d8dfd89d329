"""Document 000, lines 573 to 1232: statements between those of the other modules, on blocks, masks and patches."""

from collections.abc import Callable

import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, Worked, counted, holds
from headcheck.golden.ledger import Section
from headcheck.golden.stated import HOLDS, count, shape
from headcheck.reference import (
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerConfig,
    LayerNorm,
    PatchEmbedding,
    Residual,
    VisionTransformer,
    attention,
    masks,
    sinusoidal,
)
from headcheck.reference.blocks import NormOrder

POSITIONS = Section("000", "sinusoidal-positions")
ENCODER = Section("000", "encoder-block")
DECODER = Section("000", "decoder-block")
CAUSAL = Section("000", "causal-mask")
PADDING = Section("000", "padding-mask")
BOTH = Section("000", "combined-masks")
VISION = Section("000", "vision")
WINDOW = Section("000", "sliding-window")
FLASH = Section("000", "flash-attention")

CONFIG = LayerConfig(d_model=64, num_heads=8, d_ff=256, norm_order="pre", activation="relu")
LENGTHS = torch.tensor([4, 6])
"""Real tokens of the two targets of lines 1029 and 1030."""


def _number_of(kind: type[nn.Module], module: nn.Module) -> int:
    return sum(isinstance(each, kind) for each in module.modules())


def _weights(may_attend: torch.Tensor) -> torch.Tensor:
    """The reference's weights under a mask, on random inputs, as rows for each sequence."""
    length = may_attend.shape[-1]
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 1, length, 2, dtype=torch.float64, generator=generator)
    return attention(query, key, value, may_attend=may_attend).weights[:, 0]


def _vision() -> VisionTransformer:
    """The model of the demonstration, with two layers of 16 dims."""
    config = LayerConfig(d_model=16, num_heads=2, d_ff=32, norm_order="pre", activation="relu")
    return VisionTransformer(
        PatchEmbedding(32, 8, 3, 16, patches="convolution"), Encoder(config, 2, final_norm=True), 10
    )


def _cls_hears_every_patch() -> bool:
    """The logits have a gradient in each of the 16 patches of the image."""
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    torch.manual_seed(0)
    gradient = torch.autograd.grad(_vision()(image)[0, 0], image)[0]
    return bool(gradient.abs().unfold(2, 8, 8).unfold(3, 8, 8).amax(dim=(1, 4, 5)).gt(0).all())


def _norm(row: tuple[int, int]) -> list[sympy.Expr]:
    """The layer norm of two numbers, without the small number under the root."""
    mean, half = sympy.Rational(sum(row), 2), sympy.Abs(sympy.Rational(row[1] - row[0], 2))
    return [(each - mean) / half for each in row]


def _pre_norm(row: tuple[int, int]) -> list[sympy.Expr]:
    """x + 2 norm(x)."""
    return [each + 2 * normed for each, normed in zip(row, _norm(row), strict=True)]


def _post_norm(row: tuple[int, int]) -> list[sympy.Expr]:
    """norm(x + 2 x)."""
    return _norm((3 * row[0], 3 * row[1]))


def _around_doubling(norm_order: NormOrder) -> torch.Tensor:
    """The reference's residual connection around doubling, of the row 1, 3."""
    config = LayerConfig(d_model=2, num_heads=1, d_ff=2, norm_order=norm_order, activation="relu")
    out: torch.Tensor = Residual(config)(torch.tensor([[[1.0, 3.0]]]), lambda x: 2 * x)
    return out


# Lines 573 to 785: positions and blocks

POSITIONS.confirmed(
    "shape-embedded",
    573,
    "batch=1, seq_len=10, d_model=64",
    "The shape of the embedded sequence and of what comes out.",
    shape(1, 10, 64),
    counted(
        lambda: (1, 10, 64), lambda: (torch.zeros(1, 10, 64) + sinusoidal(100, 64)[None, :10].float()).shape
    ),
)
for name, line, place, what, counts in (
    (
        "two-linear-layers",
        655,
        "two linear layers with ReLU",
        "The feed-forward network has two matrices.",
        counted(
            lambda: len(sympy.symbols("W_1 W_2")),
            lambda: _number_of(nn.Linear, nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))),
            lambda: sum(each.dim() == 2 for each in FeedForward(64, 256, "relu").parameters()),
        ),
    ),
    (
        "one-norm-per-sublayer",
        664,
        "(one per sub-layer)",
        "The encoder block has a norm for each of its two sub-layers.",
        counted(
            lambda: len(("attention", "feed-forward")),
            lambda: _number_of(nn.LayerNorm, nn.TransformerEncoderLayer(64, 8, 256)),
            lambda: _number_of(LayerNorm, EncoderLayer(CONFIG)),
        ),
    ),
):
    ENCODER.confirmed(name, line, place, what, count(2), counts)
DECODER.confirmed(
    "one-norm-per-sublayer",
    748,
    "(one per sub-layer)",
    "The decoder block has a norm for each of its three sub-layers.",
    count(3),
    counted(
        lambda: len(("self-attention", "cross-attention", "feed-forward")),
        lambda: _number_of(nn.LayerNorm, nn.TransformerDecoderLayer(64, 8, 256)),
        lambda: _number_of(LayerNorm, DecoderLayer(CONFIG)),
    ),
)
for name, line, place in (
    ("norm-last-in-the-comment", 672, "Multi-Head Self-Attention + Residual + Norm"),
    ("norm-last-in-the-comment-again", 681, "Feed-Forward Network + Residual + Norm"),
):
    ENCODER.erratum(
        name,
        line,
        place,
        "The lines under the comment do its parts in its order, the norm last: the row 1, 3 around doubling.",
        HOLDS,
        holds(
            lambda: _pre_norm((1, 3)) == _post_norm((1, 3)),
            None,
            lambda: torch.equal(_around_doubling("pre"), _around_doubling("post")),
        ),
        slip="The norm is first, as line 640 says: -1, 5. In the order of the comment it would be -1, 1.",
    )
ENCODER.confirmed(
    "shape-input-in-words",
    690,
    "batch=2, seq_len=10, d_model=64",
    "The shape of the input, which the block keeps.",
    shape(2, 10, 64),
    counted(
        lambda: (2, 10, 64),
        lambda: nn.TransformerEncoderLayer(64, 8, 256, batch_first=True)(torch.zeros(2, 10, 64)).shape,
        lambda: EncoderLayer(CONFIG)(torch.zeros(2, 10, 64)).shape,
    ),
)
for name, line, place, number in (
    ("target-tokens", 784, "(8 tokens)", 8),
    ("source-tokens", 785, "(10 tokens)", 10),
):
    DECODER.confirmed(
        name,
        line,
        place,
        "How many tokens the sequence has: an axis of the weights of 8 queries on 10 keys.",
        count(number),
        Worked("; ".join(["1 0"] * 8), "; ".join(["0 1"] * 10), "; ".join(["1 1"] * 10))
        .weights.axes()
        .at(int(number == 10)),
    )

# Lines 947 to 1047: masks

Kept = Callable[[], torch.Tensor]
for part, name, line, place, what, blocked in (
    (
        "causal",
        "true-blocks-in-the-docstring",
        947,
        "True means 'block this position'",
        "Turned round for the reference, in which True keeps, the mask takes the weight away exactly where it is True.",
        lambda: masks.causal(5, 5).logical_not(),
    ),
    (
        "padding",
        "true-ignores-in-the-docstring",
        977,
        "True means 'this position is padding",
        "The same for padding: the weights of keys that are padding are zero, and no others.",
        lambda: masks.padding(LENGTHS, 6).logical_not()[:, 0].expand(2, 6, 6),
    ),
):
    (CAUSAL if part == "causal" else PADDING).confirmed(
        name,
        line,
        place,
        what,
        HOLDS,
        holds(
            lambda: sympy.exp(-sympy.oo) == 0 and sympy.exp(sympy.Symbol("s", real=True)).is_positive,
            None,
            lambda blocked=blocked: torch.equal(  # type: ignore[misc]
                _weights(blocked().logical_not().view(-1, 1, *blocked().shape[-2:]).expand(2, -1, -1, -1))
                == 0,
                blocked().expand(2, *blocked().shape[-2:]),
            ),
        ),
    )
for part, name, line, place, what, axes in (
    ("causal", "shape-of-five", 952, "for a 5-token sequence", "The shape of the mask.", (5, 5)),
    ("padding", "shape-of-the-batch", 980, "batch of 3 sequences padded to length 6", "The shape.", (3, 6)),
):
    (CAUSAL if part == "causal" else PADDING).confirmed(
        name,
        line,
        place,
        what,
        shape(*axes),
        counted(
            lambda part=part: (5, 5) if part == "causal" else (len((4, 6, 2)), max(4, 6, 2)),  # type: ignore[misc]
            None,
            lambda part=part: (
                (  # type: ignore[misc]
                    masks.causal(5, 5)
                    if part == "causal"
                    else masks.padding(torch.tensor([4, 6, 2]), 6)[:, 0, 0]
                ).shape
            ),
        ),
    )
CAUSAL.latent_fault(
    "the-other-convention",
    949,
    "True blocks in this mask and keeps in the document's own function of line 322: given to it, the mask shows each "
    "token its future alone, and leaves the last one no key.",
    blocks=("000/packaged/function", "function"),
    probe="x = torch.ones(1, 1, 3, 1)\n"
    "print(scaled_dot_product_attention(x, x, x, create_causal_mask(3))[1][0, 0].tolist())",
    prints="[[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [nan, nan, nan]]",
    fault="masks/polarity-reversed",
)
PADDING.latent_fault(
    "the-other-convention",
    978,
    "True is padding in this mask and keeps in the document's own function of line 322: given to it with axes for heads "
    "and queries, tokens attend to padding alone.",
    blocks=("000/packaged/function", "function"),
    probe="x = torch.ones(1, 1, 3, 1)\n"
    "mask = create_padding_mask(torch.tensor([[5, 7, 0]]))[:, None, None]\n"
    "print(scaled_dot_product_attention(x, x, x, mask)[1][0, 0, 0].tolist())",
    prints="[0.0, 0.0, 1.0]",
    fault="masks/polarity-reversed",
)
BOTH.behaviour(
    "both-apart-are-both-merged",
    1009,
    "The two masks, handed over apart, do what one mask does that blocks what either blocks.",
    blocks=("function",),
    probe="""
decoder_layer.eval()
apart = decoder_layer(tgt_emb, memory, tgt_mask=causal_mask, tgt_key_padding_mask=padding_mask)
either = (causal_mask < 0) | padding_mask[:, None]
merged = decoder_layer(tgt_emb, memory, tgt_mask=either.repeat_interleave(4, dim=0))
print(bool((apart - merged).abs().max() < 1e-5))
""",
    prints="True",
)
BOTH.behaviour(
    "two-masks-not-one",
    1015,
    "The function named for a combined mask combines nothing: it returns both masks, each as it is.",
    blocks=("function",),
    probe="print(*(tuple(each.shape) for each in create_combined_mask(tgt)))",
    prints="(6, 6) (2, 6)",
)
for name, line, place, blocked_pairs in (
    ("no-future-peeking", 1046, "prevents future peeking", ~torch.ones(6, 6).tril().bool().expand(2, 6, 6)),
    (
        "padding-is-ignored-too",
        1047,
        "ignores PAD tokens",
        (torch.arange(6) >= LENGTHS[:, None])[:, None].expand(2, 6, 6),
    ),
):
    BOTH.confirmed(
        name,
        line,
        place,
        "Under both masks no weight is on the pairs that this one blocks.",
        HOLDS,
        holds(
            lambda: sympy.exp(-sympy.oo) == 0,
            None,
            lambda pairs=blocked_pairs: (
                not _weights(  # type: ignore[misc]
                    masks.causal(6, 6) & masks.padding(LENGTHS, 6)
                )[pairs].any()
            ),
        ),
    )

# Lines 1066 to 1232: patches and windows

for name, line, place in (
    ("cls-hears-every-patch", 1066, "aggregates information from all patches"),
    ("cls-hears-every-patch-again", 1162, "aggregate information from all patches"),
):
    VISION.confirmed(
        name,
        line,
        place,
        "What [CLS] gives depends on each of the 16 patches: all weights are above zero.",
        HOLDS,
        holds(
            lambda: sympy.exp(sympy.Symbol("s", real=True)).is_positive,
            None,
            _cls_hears_every_patch,
        ),
    )
VISION.erratum(
    "no-convolutions-in-the-model",
    1068,
    "No convolutions, no pooling",
    "How many convolutions the model of lines 1089 to 1148 has: none.",
    count(0),
    Derived(
        lambda: _number_of(nn.Conv2d, _vision()),
        lambda: sum(each.dim() == 4 for each in _vision().parameters()),
    ),
    slip="Line 1095 cuts the patches by a convolution, as line 1084 says. It could be done without: the claim "
    "no-convolutions of the same line.",
)
VISION.confirmed(
    "no-pooling",
    1068,
    "no pooling",
    "How many pooling layers the model has.",
    count(0),
    Derived(
        lambda: sum("Pool" in type(each).__name__ for each in _vision().modules()),
        lambda: sum(
            _number_of(kind, _vision()) for kind in (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
        ),
    ),
)
VISION.not_checkable(
    "size-of-cifar-images",
    1150,
    "32x32 images (like CIFAR-10)",
    "The images of CIFAR-10 are of 32 x 32.",
    reason="A fact about a published dataset.",
)
WINDOW.confirmed(
    "true-is-allowed",
    1194,
    "True = allowed to attend",
    "With True inside the window and its opposite filled with -inf, weights are above zero where the mask is True.",
    HOLDS,
    holds(
        lambda: sympy.exp(-sympy.oo) == 0 and sympy.exp(sympy.Symbol("s", real=True)).is_positive,
        None,
        lambda: torch.equal(
            _weights(masks.sliding_window(10, 10, 2, 2).expand(2, 1, 10, 10))[0] > 0,
            (torch.arange(10)[:, None] - torch.arange(10)).abs() <= 2,
        ),
    ),
)
WINDOW.latent_fault(
    "mask-on-the-cpu",
    1195,
    "The mask is made on the CPU, wherever the inputs are: on another device the function fails.",
    blocks=("function",),
    probe="x = torch.ones(3, 2, device='meta')\n"
    "try:\n    sliding_window_attention(x, x, x)\nexcept RuntimeError:\n    print('RuntimeError')",
    prints="RuntimeError",
    why_no_fault="It is refused with an error; the laws judge on one device.",
)
FLASH.not_checkable(
    "less-memory",
    1232,
    "uses significantly less memory",
    "Flash attention uses significantly less memory, with no change of code.",
    reason="Significantly is no number. How its memory grows is line 1268's.",
)
