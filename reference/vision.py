"""The vision transformer: patches of an image are its tokens.  Dosovitskiy et al. 2021 (ViT), section 3.1."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear

from headcheck.reference.blocks import Encoder
from headcheck.reference.choices import require_choice
from headcheck.reference.positions import LearnedPositions

Patches = Literal["convolution", "unfold"]
"""convolution: kernel and stride of one patch. unfold: cut, flatten, multiply. Of equal weights, the same."""


def unfold_patches(
    images: Float[Tensor, "batch channels height width"], patch_size: int
) -> Float[Tensor, "batch patches channels*{patch_size}*{patch_size}"]:
    """Patches row by row; in each, channel by channel, then row by row.  Dosovitskiy et al. 2021, section 3.1."""
    batch, channels, height, width = images.shape
    tiles = images.reshape(batch, channels, height // patch_size, patch_size, width // patch_size, patch_size)
    return tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class PatchEmbedding(nn.Module):
    """Each patch, flattened, times one matrix.  Equation (1); document 000, line 1089.

    image_size: of square images; ValueError unless it is a multiple of patch_size.
    """

    def __init__(
        self, image_size: int, patch_size: int, channels: int, d_model: int, *, patches: Patches
    ) -> None:
        super().__init__()
        require_choice("patches", patches, Patches)
        if image_size % patch_size:
            raise ValueError(f"image_size = {image_size} is not a multiple of patch_size = {patch_size}")
        self.patches, self.patch_size, self.image_size = patches, patch_size, image_size
        self.num_patches = (image_size // patch_size) ** 2
        self.projection = nn.Conv2d(channels, d_model, kernel_size=patch_size, stride=patch_size)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch patches d_model"]:
        """ValueError for images of another size: a convolution would drop what fills no patch."""
        if images.shape[-2:] != (self.image_size, self.image_size):
            raise ValueError(
                f"images of {tuple(images.shape[-2:])}, expected {self.image_size} x {self.image_size}"
            )
        weight, bias = self.projection.weight, self.projection.bias
        if self.patches == "convolution":
            return conv2d(images, weight, bias, stride=self.patch_size).flatten(2).mT
        return linear(unfold_patches(images, self.patch_size), weight.flatten(1), bias)


class VisionTransformer(nn.Module):
    """A learned [CLS] token before the patches, learned positions, an encoder, a linear head on [CLS]."""

    def __init__(
        self, patch_embedding: PatchEmbedding, encoder: Encoder, num_classes: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        d_model = patch_embedding.projection.out_channels
        self.patch_embedding, self.encoder = patch_embedding, encoder
        self.cls_token = nn.Parameter(torch.empty(1, 1, d_model).normal_(std=0.02))
        self.positions = LearnedPositions(patch_embedding.num_patches + 1, d_model)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(d_model, num_classes)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch num_classes"]:
        x = torch.cat((self.cls_token.expand(len(images), -1, -1), self.patch_embedding(images)), dim=1)
        x = x + self.positions(torch.arange(x.shape[1], device=x.device))
        return self.head(self.encoder(self.dropout(x))[:, 0])
