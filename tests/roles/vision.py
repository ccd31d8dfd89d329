"""Wrong and right vision transformers. The wrong ones are `Small` with one of its parts replaced."""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headcheck import reference
from tests.roles import right, wrong


def patches_of(images: Tensor) -> Tensor:
    """Patches of 2 x 2, row by row, each flattened channel by channel: (batch, patches, channels x 4)."""
    return functional.unfold(images, 2, stride=2).mT


class Small(nn.Module):
    """Images of 3 x 4 x 6 in patches of 2 x 2; one layer, the mean of all states, five classes."""

    image_size, patch_size = (4, 6), 2

    def __init__(self, **parts: Callable[..., Any]) -> None:
        super().__init__()
        self.embedding, self.places = nn.Linear(12, 8), nn.Parameter(torch.randn(6, 8))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.projection, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)
        self.remembered: Any = 0
        for name, part in parts.items():
            setattr(self, name, MethodType(part, self))

    def cut(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (4, 6):
            raise ValueError("images are of 4 x 6")
        return patches_of(images)

    def positions(self) -> Tensor:
        return self.places

    def mixed(self, x: Tensor) -> Tensor:
        query, key, value = self.projection(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.out((torch.softmax(query @ key.mT / 2, -1) @ value).transpose(1, 2).flatten(2))

    def logits(self, x: Tensor) -> Tensor:
        return self.head(x.mean(dim=1))

    def forward(self, images: Tensor) -> Tensor:
        x = self.embedding(self.cut(images)) + self.positions()
        x = x + self.mixed(self.norms[0](x))
        return self.logits(self.norms[1](x))


SIZES = {"channels": 3}
ANY_SIZE = {"channels": 3, "other_sizes": True}


# Right


@right("A vision transformer written out, for images that are not square.", **ANY_SIZE)
def written_out() -> nn.Module:
    return Small()


@right("The same, its weights large.", **SIZES)
def large_weights() -> nn.Module:
    model = Small()
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(20)
    return model


@right("Without positions, a state for each patch.", positions=False, **SIZES)
def states_without_positions() -> nn.Module:
    return Small(positions=lambda self: 0.0 * self.places, logits=lambda self, x: x)


@right("Without positions, one vector.", positions=False, **SIZES)
def pooled_without_positions() -> nn.Module:
    return Small(positions=lambda self: 0.0 * self.places)


def _reference(patches: Any, **fields: Any) -> nn.Module:
    config = reference.LayerConfig(d_model=8, num_heads=2, d_ff=16, activation="gelu", **fields)
    embedding = reference.PatchEmbedding(6, 2, 1, 8, patches=patches)
    encoder = reference.Encoder(config, 2, final_norm=config.norm_order == "pre")
    return reference.VisionTransformer(embedding, encoder, 4, dropout=0.1)


@right("The reference, pre-norm, by convolution, in grey.")
def reference_by_convolution() -> nn.Module:
    return _reference("convolution", norm_order="pre", dropout=0.2)


@right("The reference, post-norm, by unfold.")
def reference_by_unfold() -> nn.Module:
    return _reference("unfold", norm_order="post")


class Torch(nn.Module):
    """torch.nn.TransformerEncoder on its fast path; a head that starts at zero; sizes by attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.image_size, self.patch_size = 12, 4
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.cls, self.places = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 10, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.stack, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 5)
        nn.init.zeros_(self.head.weight)

    def embedded(self, images: Tensor) -> Tensor:
        return self.patch(images).flatten(2).mT

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-2:] == (12, 12)
        x = torch.cat([self.cls.expand(len(x), -1, -1), self.embedded(x)], dim=1) + self.places
        return self.head(self.stack(x)[:, 0])


@right("torch.nn.TransformerEncoder with a class token; positions and head start at zero.")
def torch_encoder() -> nn.Module:
    return Torch()


@right("Patches, norm and softmax in float32.", **SIZES)
def float32_inside() -> nn.Module:
    def mixed(self: Small, x: Tensor) -> Tensor:
        query, key, value = self.projection(x).float().unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.out((torch.softmax(query @ key.mT / 2, -1) @ value).transpose(1, 2).flatten(2).to(x))

    return Small(mixed=mixed)


@right(
    "Images that do not fit are padded; sines and cosines of row and column in place of a table.", **ANY_SIZE
)
def padded_to_fit() -> nn.Module:
    class Padded(Small):
        def cut(self, images: Tensor) -> Tensor:
            height, width = images.shape[-2:]
            self.grid = (height + 1) // 2, (width + 1) // 2
            return patches_of(functional.pad(images, (0, width % 2, 0, height % 2)))

        def positions(self) -> Tensor:
            rows, columns = (reference.sinusoidal(count, 4).to(self.places) for count in self.grid)
            pairs = torch.cartesian_prod(torch.arange(len(rows)), torch.arange(len(columns)))
            return torch.cat([rows[pairs[:, 0]], columns[pairs[:, 1]]], dim=-1)

    return Padded()


@right(
    "A bare convolution, which drops what fills no patch, as torch's is documented to; images are of one size.",
    image_size=(4, 6),
)
def of_one_size() -> nn.Module:
    class Bare(Small):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Conv2d(3, 8, 2, 2)

        def forward(self, images: Tensor) -> Tensor:
            x = self.embedding(images).flatten(2).mT + self.places
            x = x + self.mixed(self.norms[0](x))
            return self.logits(self.norms[1](x))

    return Bare()


@right(
    "Patches, and two by two of them merged, which drops an odd one; images are of one size.",
    other_sizes=False,
)
def in_two_stages() -> nn.Module:
    class Stages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.merged, self.head = (
                nn.Conv2d(3, 8, 4, 4),
                nn.Conv2d(8, 8, 2, 2),
                nn.Linear(8, 5),
            )

        def forward(self, images: Tensor) -> Tensor:
            states = self.merged(functional.gelu(self.patches(images)))
            return self.head(functional.gelu(states).flatten(2).mean(dim=-1))

    return Stages()


# Wrong


@wrong(
    "The last column of patches is cut off.",
    breaks=("patches/every-patch-counts", "image/every-pixel-has-a-gradient"),
    real="diffusers 8837, TIL-01",
    **SIZES,
)
def last_column_lost() -> nn.Module:
    def mean(self: Small, x: Tensor) -> Tensor:
        return self.head(x[:, [0, 1, 3, 4]].mean(dim=1))

    return Small(mixed=lambda self, x: self.out(x), logits=mean)


@wrong("The positions are made and not added.", breaks="patches/the-place-of-a-patch-counts", **SIZES)
def positions_not_added() -> nn.Module:
    return Small(positions=lambda self: 0.0 * self.places)


@wrong(
    "Patches are cut with a view, which mixes them.",
    breaks="patches/without-positions-patches-are-a-set",
    real="pytorch-vit 7, BLK-11",
    positions=False,
    **SIZES,
)
def view_for_permute() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        return images.reshape(len(images), 6, 12)

    return Small(cut=cut, positions=lambda self: 0.0 * self.places)


@wrong(
    "What the convolution gives is viewed as tokens, not transposed: each token is of one channel.",
    breaks="patches/a-patch-is-one-token",
    real="pytorch-vit 7, BLK-11",
)
def view_for_transpose() -> nn.Module:
    class Viewed(Torch):
        def embedded(self, images: Tensor) -> Tensor:
            x = self.patch(images)
            return x.view(len(x), 9, 8)

    return Viewed()


@wrong("The first channel is taken for all.", breaks="image/every-channel-counts", **SIZES)
def read_as_grey() -> nn.Module:
    return Small(cut=lambda self, images: patches_of(images[:, :1].expand(-1, 3, -1, -1)))


@wrong("The image is detached.", breaks="image/every-pixel-has-a-gradient", **SIZES)
def detached() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        return patches_of(images.detach() + 0 * images)

    return Small(cut=cut)


@wrong("Every other pixel is read.", breaks="image/every-pixel-has-a-gradient", **SIZES)
def pixels_skipped() -> nn.Module:
    return Small(cut=lambda self, images: patches_of(images[..., ::2].repeat_interleave(2, -1)))


@wrong(
    "The image is read as if it were contiguous.",
    breaks="image/the-layout-in-memory-does-not-matter",
    real="pytorch 181133, MEM-01",
    **SIZES,
)
def read_as_contiguous() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        dense = torch.empty(images.shape).stride()
        return patches_of(images.as_strided(images.shape, dense, images.storage_offset()))

    return Small(cut=cut)


@wrong(
    "What fills no patch is dropped.",
    breaks="image/an-image-that-does-not-fit-is-refused-or-read-whole",
    real="diffusers 8837, TIL-01; document 000, line 1093",
    **ANY_SIZE,
)
def remainder_dropped() -> nn.Module:
    return Small(cut=lambda self, images: patches_of(images[..., :4, :6]))


@wrong(
    "An image of another size with as many patches is read with the positions of the usual one.",
    breaks="image/patches-in-another-grid-are-refused-or-have-other-places",
    real="document 000, line 1140",
    **ANY_SIZE,
)
def places_of_another_grid() -> nn.Module:
    return Small(cut=lambda self, images: patches_of(images))


@wrong("The mean over the batch is taken out.", breaks="batch/a-sequence-in-a-batch-is-itself-alone", **SIZES)
def norm_over_the_batch() -> nn.Module:
    return Small(logits=lambda self, x: self.head((x - x.mean(dim=0, keepdim=True) / 2).mean(dim=1)))


@wrong(
    "A factor for the place in the batch.", breaks="batch/permuting-the-batch-permutes-the-output", **SIZES
)
def place_in_the_batch() -> nn.Module:
    return Small(logits=lambda self, x: self.head(x.mean(dim=1)) * (1 + 1e-3 * torch.arange(len(x))[:, None]))


@wrong(
    "Patches are dropped in evaluation too.",
    breaks="state/same-call-same-answer",
    real="nanoGPT 240, DRP-01",
    **SIZES,
)
def patches_dropped() -> nn.Module:
    return Small(logits=lambda self, x: self.head(functional.dropout(x, 0.1).mean(dim=1)))


@wrong("The mean over all images so far.", breaks="state/another-call-between-changes-nothing", **SIZES)
def running_mean() -> nn.Module:
    def logits(self: Small, x: Tensor) -> Tensor:
        self.remembered = self.remembered + x.detach().mean()
        return self.head(x.mean(dim=1)) + self.remembered

    return Small(logits=logits)


@wrong("A norm that learns in evaluation.", breaks="state/a-call-changes-no-weight", **SIZES)
def learns_in_evaluation() -> nn.Module:
    def logits(self: Small, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.norms[-1].weight.mul_(1.001)
        return self.head(x.mean(dim=1))

    return Small(logits=logits)


@wrong("Images are normalised in place.", breaks="state/inputs-are-not-changed", **SIZES)
def normalised_in_place() -> nn.Module:
    return Small(cut=lambda self, images: patches_of(images.data.sub_(0.5)))


@wrong("Divided by its own spread, which is 0 for one patch.", breaks="state/output-is-finite", **SIZES)
def divided_by_nothing() -> nn.Module:
    return Small(logits=lambda self, x: self.head(x.mean(dim=1) / x[:, :1].std(dim=1, correction=0)))


@wrong("It seeds the global generator.", breaks="state/nothing-global-is-touched", **SIZES)
def seeds() -> nn.Module:
    def logits(self: Small, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return self.head(x.mean(dim=1))

    return Small(logits=logits)
