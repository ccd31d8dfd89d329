"""Wrong vision transformers, as they come in ports and exercises."""

from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.vision import SIZES, Small


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
    "All axes of one are squeezed away, with them the batch of a single image.",
    breaks="batch/a-sequence-in-a-batch-is-itself-alone",
    **SIZES,
)
def single_image_squeezed() -> nn.Module:
    def logits(self: Small, x: Tensor) -> Tensor:
        return self.head(x.mean(dim=1, keepdim=True)).squeeze()

    return Small(logits=logits)
