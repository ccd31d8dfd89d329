"""Wrong vision transformers, written by somebody who did not know the laws."""

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.vision import SIZES, Small, patches_of


@wrong(
    "Images whose channels lie last in memory are read as if they lay first.",
    breaks="image/the-layout-in-memory-does-not-matter",
    real="https://github.com/pytorch/executorch/issues/21837",
    **SIZES,
)
def channels_last_misread() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
        if last:
            images = images.as_strided(images.shape, torch.empty(images.shape).stride())
        return Small.cut(self, images)

    return Small(cut=cut)


@wrong("A batch of one loses its axis.", breaks="state/same-call-same-answer", **SIZES)
def batch_of_one_squeezed() -> nn.Module:
    return Small(logits=lambda self, x: self.head(x.mean(dim=1)).squeeze(0))


@wrong(
    "Images are taken two by two; an odd last one has the logits of the one before.",
    breaks="batch/permuting-the-batch-permutes-the-output",
    **SIZES,
)
def odd_image_copies() -> nn.Module:
    def logits(self: Small, x: Tensor) -> Tensor:
        found = Small.logits(self, x)
        return torch.cat([found[:-1], found[-2:-1]]) if len(x) > 1 and len(x) % 2 else found

    return Small(logits=logits)


@wrong(
    "Without gradients the positions are those of a grid with rows and columns exchanged.",
    breaks="state/gradients-wanted-or-not-the-output-is-the-same",
    **SIZES,
)
def grid_turned_without_gradients() -> nn.Module:
    def positions(self: Small) -> Tensor:
        turned = self.places.unflatten(0, (2, 3)).transpose(0, 1).flatten(0, 1)
        return self.places if torch.is_grad_enabled() else turned

    return Small(positions=positions)


@wrong(
    "Pixels are clipped at 3 on both sides, as if they were normalised.",
    breaks="image/every-pixel-has-a-gradient",
    **SIZES,
)
def pixels_clipped() -> nn.Module:
    return Small(cut=lambda self, images: patches_of(images.clamp(-3.0, 3.0)))


@wrong(
    "The last patch of each row is cut from the image before in the batch.",
    breaks="batch/a-sequence-in-a-batch-is-itself-alone",
    **SIZES,
)
def patch_of_the_image_before() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        mine = Small.cut(self, images)
        last = torch.tensor([False, False, True] * 2)[:, None]
        return torch.where(last, mine.roll(1, dims=0), mine)

    return Small(cut=cut)
