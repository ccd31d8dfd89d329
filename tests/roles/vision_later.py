"""Wrong vision transformers, the later ones by somebody who did not know the laws."""

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.vision import SIZES, Small, patches_of


@wrong(
    "A batch with a pixel above 2 is taken to run to 255, and is divided by that.",
    breaks="batch/an-outlier-stays-in-its-own-sequence",
    **SIZES,
)
def bytes_by_the_largest_pixel() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        return Small.cut(self, images / 255 if images.numel() and images.max() > 2 else images)

    return Small(cut=cut)


@wrong(
    "The gradient of a patch is laid into the image with rows and columns of its pixels exchanged.",
    breaks="gradients/gradients-of-the-input-are-slopes",
    **SIZES,
)
def gradient_of_turned_patches() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        turned = patches_of(images).unflatten(-1, (3, 2, 2)).mT.flatten(-3)
        return Small.cut(self, images.detach()) + (turned - turned.detach())

    return Small(cut=cut)


@wrong(
    "Without gradients the images of a batch are one long sequence, and see one another.",
    breaks="batch/a-sequence-in-a-batch-is-itself-alone",
    real="https://github.com/Tencent-Hunyuan/HunyuanVideo/pull/310",
    **SIZES,
)
def images_see_one_another() -> nn.Module:
    def mixed(self: Small, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return Small.mixed(self, x)
        return Small.mixed(self, x.reshape(1, -1, x.shape[-1])).view(x.shape)

    return Small(mixed=mixed)


@wrong(
    "The head's weight is copied at the first call, and read from there.",
    breaks="state/weights-changed-in-place-are-read-again",
    **SIZES,
)
def head_copied_at_the_first_call() -> nn.Module:
    def logits(self: Small, x: Tensor) -> Tensor:
        if not isinstance(self.remembered, Tensor):
            self.remembered = self.head.weight.detach().clone()
        return nn.functional.linear(x.mean(dim=1), self.remembered.to(x.dtype), self.head.bias)

    return Small(logits=logits)


@wrong(
    "A graph is made only where a weight wants a gradient: frozen, it passes none on to its images.",
    breaks="gradients/a-frozen-module-passes-gradients-on",
    **SIZES,
)
def no_graph_where_frozen() -> nn.Module:
    class Wrong(Small):
        def forward(self, images: Tensor) -> Tensor:
            trained = any(each.requires_grad for each in self.parameters())
            with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
                return super().forward(images)

    return Wrong()
