"""Wrong vision transformers, as they come in ports and exercises."""

import torch
from torch import Tensor, nn

from tests.roles import right, wrong
from tests.roles.vision import ANY_SIZE, SIZES, Small, Torch, patches_of
from tests.sub_layers import BY_ITSELF, EACH_PART, ONE_NORM, READ_TWICE, STALE, STANDS_IN, Slip, TwoSubLayers


@wrong(
    "Channels are not moved behind the patches: a token is of one channel and of several patches.",
    breaks="patches/a-patch-is-one-token",
    real="https://github.com/gupta-abhay/pytorch-vit/issues/7",
    **SIZES,
)
def channels_before_patches() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        if images.shape[-2:] != (4, 6):
            raise ValueError("images are of 4 x 6")
        return images.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(images), -1, 12)

    return Small(cut=cut)


@wrong(
    "What the convolution gives is reshaped to tokens, not transposed; there are as many channels as patches.",
    breaks="patches/a-patch-is-one-token",
)
def as_many_channels_as_patches() -> nn.Module:
    class Reshaped(Torch):
        def __init__(self) -> None:
            super().__init__()
            self.image_size, self.patch = 16, nn.Conv2d(3, 16, 4, 4)
            self.cls, self.places = (
                nn.Parameter(torch.zeros(1, 1, 16)),
                nn.Parameter(torch.randn(1, 17, 16)),
            )
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            self.stack, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 5)

        def embedded(self, images: Tensor) -> Tensor:
            return self.patch(images).reshape(len(images), -1, 16)

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[-2:] == (16, 16)
            x = torch.cat([self.cls.expand(len(x), -1, -1), self.embedded(x)], dim=1) + self.places
            return self.head(self.stack(x)[:, 0])

    return Reshaped()


@right("Tokens are (batch, width, patches) throughout, and as many as they are wide.", patch_size=4)
def channels_first_throughout() -> nn.Module:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image_size, self.patch_size = 16, 4
            self.patch, self.places = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.randn(16, 16))
            self.over_channels, self.over_patches = nn.Conv1d(16, 16, 1), nn.Linear(16, 16)
            self.head = nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[-2:] == (16, 16)
            x = self.patch(x).flatten(2) + self.places
            x = x + self.over_channels(x).tanh()
            x = x + self.over_patches(x).tanh()
            return self.head(x.mean(dim=-1))

    return Mixer()


@right("The tokens are mixed by a linear layer, as they come from the convolution; as many as they are wide.")
def mixed_before_they_are_turned() -> nn.Module:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image_size, self.patch = 16, nn.Conv2d(3, 16, 4, 4)
            self.places = nn.Parameter(torch.randn(16, 16))
            self.over_patches, self.over_channels = nn.Linear(16, 16), nn.Linear(16, 16)
            self.head = nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[-2:] == (16, 16)
            x = self.patch(x).flatten(2) + self.places
            x = (x + self.over_patches(x).tanh()).mT
            return self.head((x + self.over_channels(x).tanh()).mean(dim=1))

    return Mixer()


@right("A layer is given the tokens that score above zero, which are not as many for each image.")
def dropped_by_their_score() -> nn.Module:
    class Pruned(Torch):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.mlp = nn.Linear(8, 1), nn.Linear(8, 8)
            self.head = nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[-2:] == (12, 12)
            x = self.embedded(x) + torch.arange(72).view(9, 8).cos().to(x)
            score = self.score(x)
            kept = [
                (self.mlp(each[None, above]) * one[None, above].relu()).sum(dim=1)
                for each, one, above in zip(x, score, score[..., 0] > 0, strict=True)
            ]
            return self.head(torch.cat(kept) + (score.tanh() * x).mean(dim=1))

    return Pruned()


@wrong(
    "All axes of one are squeezed away, with them the batch of a single image.",
    breaks="batch/a-sequence-in-a-batch-is-itself-alone",
    **SIZES,
)
def single_image_squeezed() -> nn.Module:
    def logits(self: Small, x: Tensor) -> Tensor:
        return self.head(x.mean(dim=1, keepdim=True)).squeeze()

    return Small(logits=logits)


class Layered(Small):
    """Layers that are modules."""

    def __init__(self, slip: Slip = "") -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TwoSubLayers(8, slip) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        x = self.embedding(self.cut(images)) + self.positions()
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norms[1](x))


@right("Layers that are modules, their residual updated between the sub-layers.", **SIZES)
def layers_of_two_sub_layers() -> nn.Module:
    return Layered()


class Counted(Small):
    """Any number of patches, by the sine of their place, as `number` counts it from the rows and columns."""

    def cut(self, images: Tensor) -> Tensor:
        self.grid = images.shape[-2] // 2, images.shape[-1] // 2
        if (2 * self.grid[0], 2 * self.grid[1]) != images.shape[-2:]:
            raise ValueError("images are of whole patches")
        return patches_of(images)

    def number(self, rows: Tensor, columns: Tensor) -> Tensor:
        return rows * self.grid[1] + columns

    def positions(self) -> Tensor:
        rows, columns = (torch.arange(count) for count in self.grid)
        places = self.number(rows[:, None], columns).flatten()
        return (places[:, None] * 0.8 ** torch.arange(8) + torch.arange(8)).sin().to(self.places)


@right("Places are counted through in reading order, whatever the grid.", grid=False, **ANY_SIZE)
def counted_through() -> nn.Module:
    return Counted()


@wrong(
    "The place of a patch is its row times the columns of the images of training, plus its column.",
    breaks="patches/no-two-rows-of-a-larger-image-share-places",
    grid=False,
    **ANY_SIZE,
)
def rows_as_long_as_in_training() -> nn.Module:
    return Counted(number=lambda self, rows, columns: rows * 3 + columns)


@wrong(STALE, breaks=BY_ITSELF, **SIZES)
def residual_not_updated() -> nn.Module:
    return Layered("stale")


@wrong(ONE_NORM, breaks=STANDS_IN, **SIZES)
def one_norm_for_both() -> nn.Module:
    return Layered("one norm")


@wrong(READ_TWICE, breaks=EACH_PART, **SIZES)
def a_part_read_twice() -> nn.Module:
    return Layered("read twice")
