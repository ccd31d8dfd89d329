"""Modules that read images, whose form is easily mistaken."""

import torch
from torch import Tensor, nn

from tests.roles import right


@right("Patches of 7 x 7 overlap, one every 4, as in PVT v2; `patch_size` is said to be 7.")
def overlapping_patches() -> nn.Module:
    class Overlapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image_size, self.patch_size = 28, 7
            self.patch, self.places = nn.Conv2d(3, 8, 7, 4, 3), nn.Parameter(torch.randn(1, 49, 8))
            layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
            self.stack, self.head = (
                nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
                nn.Linear(8, 5),
            )

        def forward(self, images: Tensor) -> Tensor:
            states = self.patch(images).flatten(2).mT + self.places
            return self.head(self.stack(states).mean(dim=1))

    return Overlapping()
