"""Document 000, lines 1053 to 1169: the vision transformer."""

import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, count, shape
from headcheck.reference import Encoder, LayerConfig, PatchEmbedding, VisionTransformer, unfold_patches

IDEA = Section("000", "vision")
CODE = Section("000", "vision-code")

CONFIG = LayerConfig(d_model=128, num_heads=8, d_ff=512, norm_order="pre", activation="relu")
IMAGES = torch.zeros(4, 3, 32, 32)


def _reference() -> VisionTransformer:
    patches = PatchEmbedding(32, 8, 3, 128, patches="convolution")
    return VisionTransformer(patches, Encoder(CONFIG, 4, final_norm=True), 10)


def _by_formula() -> int:
    width, d_ff = 128, 512
    attention = 4 * (width**2 + width)
    feed_forward = 2 * width * d_ff + d_ff + width
    layer = attention + feed_forward + 2 * 2 * width
    patches, positions = 3 * 8**2 * width + width, (1 + 16 + 1) * width
    return patches + positions + 4 * layer + 2 * width + 10 * (width + 1)


def _by_building() -> int:
    """The same out of torch's layers; the [CLS] token and the positions are rows of two tables."""
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(128, 8, 512)
        model = nn.ModuleList(
            [
                nn.Conv2d(3, 128, 8, 8),
                nn.Embedding(1, 128),
                nn.Embedding(17, 128),
                nn.TransformerEncoder(layer, 4, nn.LayerNorm(128), enable_nested_tensor=False),
                nn.Linear(128, 10),
            ]
        )
    return sum(parameter.numel() for parameter in model.parameters())


def _patches(side: int, patch: int, channels: int = 3) -> torch.Tensor:
    """Patches cut out one after the other."""
    image = torch.arange(channels * side**2, dtype=torch.float64).view(channels, side, side)
    corners = range(0, side, patch)
    return torch.stack([image[:, i : i + patch, j : j + patch].flatten() for i in corners for j in corners])


def _number_of_patches(side: int, patch: int) -> Derived:
    return counted(
        lambda: (sympy.Integer(side) / patch) ** 2,
        lambda: len(_patches(side, patch, 1)),
        lambda: PatchEmbedding(side, patch, 1, 1, patches="unfold").num_patches,
    )


def _convolved(patch: int) -> torch.Tensor:
    """A convolution of kernel and stride of one patch against the patches times its kernels."""
    side, channels = 2 * patch, 3
    image = torch.arange(channels * side**2, dtype=torch.float64).view(1, channels, side, side)
    kernels = torch.arange(2 * channels * patch**2, dtype=torch.float64).view(2, channels, patch, patch)
    found = nn.functional.conv2d(image, kernels, stride=patch).flatten(2).mT[0]
    return found == _patches(side, patch) @ kernels.flatten(1).T


def _both_ways() -> bool:
    """The reference's two patch embeddings, of equal weights, on integers."""
    image = torch.arange(3.0 * 16, dtype=torch.float64).view(1, 3, 4, 4)
    one, other = (
        PatchEmbedding(4, 2, 3, 2, patches="convolution").double(),
        PatchEmbedding(4, 2, 3, 2, patches="unfold").double(),
    )
    for each in (one, other):
        for parameter in each.parameters():
            nn.init.constant_(parameter, 2.0)
    return torch.equal(one(image), other(image))


def _only_cls_is_read() -> bool:
    """The head's gradient with respect to the encoder's output is zero beyond [CLS]."""
    model, seen = _reference(), []
    model.encoder.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    logits = model(IMAGES)
    gradient = torch.autograd.grad(logits.sum(), seen[0])[0]
    return bool(gradient[:, 0].any()) and not bool(gradient[:, 1:].any())


def _is_heard(token: int) -> bool:
    """Whether the logits change with the encoder's output at a token."""
    model = _reference()
    before = model(IMAGES)
    model.encoder.register_forward_hook(
        lambda _module, _given, output: output.index_fill(1, torch.tensor([token]), 1.0)
    )
    return not torch.equal(model(IMAGES), before)


# Lines 1057 to 1084

for name, line, place, what, number, side, patch in (
    ("patches-of-224", 1057, "196", "16 x 16 patches of an image of 224 x 224.", 196, 224, 16),
    ("patches-in-brief", 1073, "196 patches", "16 x 16 patches of an image of 224 x 224.", 196, 224, 16),
    ("patches-of-32", 1093, "(32/8)^2 = 16", "8 x 8 patches of an image of 32 x 32.", 16, 32, 8),
    ("patches-of-32-again", 1162, "16 patches of 8×8", "8 x 8 patches of an image of 32 x 32.", 16, 32, 8),
):
    (IDEA if line < 1084 else CODE).confirmed(
        name,
        line,
        place,
        what,
        count(number),
        _number_of_patches(side, patch),
        formula=r"(H / P)^2",
    )
IDEA.confirmed(
    "grid",
    1061,
    "a 14×14 grid",
    "224 pixels in patches of 16: a grid of 14 x 14.",
    shape(14, 14),
    counted(
        lambda: (sympy.Integer(224) / 16, sympy.Integer(224) / 16),
        lambda: torch.zeros(224, 224)[::16, ::16].shape,
    ),
)
for name, line, place in (
    ("no-convolution-needed", 1057, "without any convolutions at all"),
    ("no-convolutions", 1068, "No convolutions, no pooling"),
    ("patches-by-convolution", 1084, "kernel_size = stride = patch_size"),
    ("flatten-and-project", 1080, "flatten each patch into a vector, project it"),
):
    IDEA.confirmed(
        name,
        line,
        place,
        "Cutting, flattening and one matrix do what a convolution does whose kernel and stride are one patch, as it is "
        "used in line 1095: it can be done without.",
        HOLDS,
        holds(lambda: _convolved(2).all(), lambda: _convolved(3).all(), _both_ways),
    )
IDEA.block(
    "compressed",
    1072,
    1078,
    "A vision transformer in six lines of pseudo-code.",
    alone=Run(error="NameError: name 'split_image_into_grid' is not defined"),
)
IDEA.not_checkable(
    "paper-of-2020",
    1080,
    "In 2020",
    "The paper is of 2020 and its patches are of 16 x 16.",
    reason="A fact about a publication.",
)

# Lines 1086 to 1162

CODE.block(
    "model",
    1086,
    1160,
    "The model, and a demonstration of 4 images of 32 x 32. torch warns that pre-norm rules out nested tensors.",
    alone=Run(
        warnings=("UserWarning",),
        prints=(
            "Input shape:  torch.Size([4, 3, 32, 32])",
            "Output shape: torch.Size([4, 10])",
            "Parameters:   821642",
        ),
    ),
)
CODE.confirmed(
    "parameters",
    1160,
    "sum(p.numel()",
    "The parameters, which the block prints and the text does not.",
    count(821_642),
    counted(_by_formula, _by_building, lambda: sum(each.numel() for each in _reference().parameters())),
    formula=r"24704 + 128 + 17 \cdot 128 + 4 \cdot 198272 + 256 + 1290",
)
for name, line, place, axes, derived in (
    (
        "projected",
        1100,
        "[batch, embed_dim, H/patch, W/patch]",
        (4, 128, 4, 4),
        counted(
            lambda: (4, *contracted("bchpwq,cpqe->behw", (4, 3, 4, 8, 4, 8), (3, 8, 8, 128))[1:]),
            lambda: nn.Conv2d(3, 128, 8, 8)(IMAGES).shape,
        ),
    ),
    (
        "flattened",
        1101,
        "[batch, embed_dim, num_patches]",
        (4, 128, 16),
        counted(lambda: (4, 128, (32 // 8) ** 2), lambda: nn.Conv2d(3, 128, 8, 8)(IMAGES).flatten(2).shape),
    ),
    (
        "transposed",
        1102,
        "[batch, num_patches, embed_dim]",
        (4, 16, 128),
        counted(
            lambda: contracted("bnp,pe->bne", (4, 16, 3 * 8**2), (3 * 8**2, 128)),
            lambda: nn.Conv2d(3, 128, 8, 8)(IMAGES).flatten(2).mT.shape,
            lambda: _reference().patch_embedding(IMAGES).shape,
        ),
    ),
    (
        "patches",
        1133,
        "[batch, num_patches, embed_dim]",
        (4, 16, 128),
        counted(
            lambda: contracted("bnp,pe->bne", (4, 16, 3 * 8**2), (3 * 8**2, 128)),
            lambda: (torch.zeros(4, 16, 192) @ torch.zeros(192, 128)).shape,
            lambda: _reference().patch_embedding(IMAGES).shape,
        ),
    ),
    (
        "with-cls",
        1137,
        "[batch, num_patches+1, embed_dim]",
        (4, 17, 128),
        counted(
            lambda: (4, 16 + 1, 128),
            lambda: torch.cat((torch.zeros(4, 1, 128), torch.zeros(4, 16, 128)), dim=1).shape,
        ),
    ),
    (
        "cls-output",
        1147,
        "[batch, embed_dim]",
        (4, 128),
        counted(lambda: (4, 128), lambda: torch.zeros(4, 17, 128)[:, 0].shape),
    ),
    (
        "input",
        1157,
        "[4, 3, 32, 32]",
        (4, 3, 32, 32),
        counted(lambda: (4, 3, 4 * 8, 4 * 8), lambda: IMAGES.shape),
    ),
    (
        "output",
        1158,
        "[4, 10]",
        (4, 10),
        counted(
            lambda: contracted("be,ek->bk", (4, 128), (128, 10)),
            lambda: nn.Linear(128, 10)(torch.zeros(4, 128)).shape,
            lambda: _reference()(IMAGES).shape,
        ),
    ),
    (
        "batch-of-images",
        1155,
        "batch of 4 RGB images",
        (4, 3, 32, 32),
        counted(lambda: (4, 3, 4 * 8, 4 * 8), lambda: IMAGES.shape),
    ),
    (
        "of-a-patch",
        1162,
        "8×8 pixels",
        (3, 8, 8),
        counted(lambda: (3, 32 // 4, 32 // 4), lambda: IMAGES[0, :, ::4, ::4].shape),
    ),
):
    CODE.confirmed(f"shape-{name}", line, place, f"The shape, {name}.", shape(*axes), derived)
CODE.confirmed(
    "width-of-a-token",
    1162,
    "a 128-dimensional token",
    "A patch of 3 x 8 x 8 numbers becomes 128.",
    count(128),
    counted(
        lambda: contracted("p,pe->e", (3 * 8**2,), (3 * 8**2, 128))[0],
        lambda: nn.Linear(192, 128)(torch.zeros(192)).numel(),
        lambda: _reference().patch_embedding(IMAGES).shape[-1],
    ),
)
CODE.confirmed(
    "tokens",
    1162,
    "17 tokens total",
    "16 patches and [CLS].",
    count(17),
    counted(
        lambda: (sympy.Integer(32) / 8) ** 2 + 1,
        lambda: len([*unfold_patches(torch.zeros(1, 1, 32, 32), 8)[0], "[CLS]"]),
        lambda: len(_reference().positions.weight),
    ),
)
CODE.confirmed(
    "only-cls-is-read",
    1162,
    "uses only the [CLS] token's output",
    "No other token's output reaches the classes.",
    HOLDS,
    holds(_only_cls_is_read, lambda: [each for each in range(17) if _is_heard(each)] == [0]),
)
CODE.behaviour(
    "one-convolution",
    1095,
    "The printed model, of which line 1068 says that there are no convolutions, has one: for its patches.",
    blocks=("model",),
    probe="print(sum(isinstance(each, nn.Conv2d) for each in vit.modules()))",
    prints="1",
)
CODE.latent_fault(
    "border-is-dropped",
    1093,
    "An image size that is no multiple of the patch size is accepted: the last rows and columns are not looked at.",
    blocks=("model",),
    probe="""
embed, image = PatchEmbedding(3, 2, 1, 1), torch.zeros(1, 1, 3, 3)
changed = image.clone()
changed[..., 2] = 9.0
print(torch.equal(embed(image), embed(changed)))
""",
    prints="True",
    fault="vision/remainder-dropped",
)
CODE.latent_fault(
    "other-image-sizes",
    1140,
    "An image of another size with as many patches, here 2 x 8 for 4 x 4, is taken with positions that do not fit.",
    blocks=("model",),
    probe="print(tuple(vit(torch.zeros(1, 3, 16, 64)).shape))",
    prints="(1, 10)",
    fault="vision/places-of-another-grid",
)
CODE.latent_fault(
    "positions-outweigh-patches",
    1115,
    "Positions and [CLS] start at deviation 1 (0.02 in ViT): more than the patches of a normal image.",
    blocks=("model",),
    probe="print(bool(vit.patch_embed(images).std() < 0.7), bool(vit.pos_embed.std() > 0.9))",
    prints="True True",
    why_no_fault="The positions still count, and more than that no law asks: how large tables start is a choice.",
)

# Line 1167

for name, place, what in (
    ("cifar-10", "CIFAR-10 (50K images)", "CIFAR-10 has 50,000 images (for training; 60,000 in all)."),
    ("imagenet-21k", "ImageNet-21K with 14M images", "ImageNet-21K has 14 million images."),
    ("jft-300m", "JFT-300M with 300M images", "JFT-300M has 300 million images."),
    (
        "needs-more-data",
        "need significantly more training data",
        "Vision transformers need more data than CNNs.",
    ),
    ("beats-cnns", "ViTs surpass CNNs", "On large datasets vision transformers do better than CNNs."),
):
    IDEA.not_checkable(
        name,
        1167,
        place,
        what,
        reason="A fact about published datasets and trainings; nothing here derives it.",
    )
