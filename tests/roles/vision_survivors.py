"""Wrong vision transformers that survived the laws at first contact."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headcheck import reference
from tests import lost, redrawn
from tests.kept import (
    ANSWERS,
    CHANGED,
    COARSE,
    FAULT,
    OF_AUTOCAST,
    OF_FLOAT32,
    REAL,
    with_kept_answers,
    with_kept_gain,
    with_kept_third,
)
from tests.roles import right, wrong
from tests.roles.vision import ANY_SIZE, SIZES, Small, patches_of, reference_by_unfold


class OfAnySize(Small):
    """Sines and cosines of row and column, for images of every size that patches fill; the usual one is a square."""

    image_size = (4, 4)

    def cut(self, images: Tensor) -> Tensor:
        if any(side % 2 for side in images.shape[-2:]):
            raise ValueError("images are of whole patches, 2 x 2")
        self.grid = images.shape[-2] // 2, images.shape[-1] // 2
        return patches_of(images)

    def positions(self) -> Tensor:
        rows, columns = self.places_of_patches(*self.grid)
        return torch.cat(
            [reference.sinusoidal(99, 4).to(self.places)[each] for each in (rows, columns)], dim=-1
        )

    def places_of_patches(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        patches = torch.arange(rows * columns)
        return patches // columns, patches % columns


@right("Square images by default, and any that whole patches fill.", **ANY_SIZE)
def of_any_size() -> nn.Module:
    return OfAnySize()


@wrong(
    "The column of a patch is counted as if there were as many columns as rows: two of a row share a position.",
    breaks="patches/the-place-of-a-patch-counts",
    **SIZES,
)
def column_counted_by_the_rows() -> nn.Module:
    def positions(self: Small) -> Tensor:
        rows, columns = (size // self.patch_size for size in self.image_size)
        index = torch.arange(rows * columns)
        rows_and_columns: Tensor = self.places[index // columns] + self.places.flip(0)[index % rows]
        return rows_and_columns

    return Small(positions=positions)


@wrong(
    "A patch is numbered as in a grid of six columns, of which the image has eight: some share a position with others.",
    breaks="patches/the-place-of-a-patch-counts",
    real="https://github.com/keras-team/keras-hub/pull/2758",
    **SIZES,
)
def numbered_as_in_another_grid() -> nn.Module:
    def cut(self: Small, images: Tensor) -> Tensor:
        if images.shape[-2:] != (8, 16):
            raise ValueError("images are of 8 x 16")
        return patches_of(images)

    def positions(self: Small) -> Tensor:
        row, column = torch.arange(4)[:, None], torch.arange(8)
        numbered: Tensor = self.places[(6 * row + column).flatten()]
        return numbered

    model = Small(cut=cut, positions=positions)
    model.image_size, model.places = (8, 16), nn.Parameter(torch.randn(36, 8))
    return model


@wrong(
    "The column of a patch is its number modulo the rows: in an image that is wider than high some share a position.",
    breaks="patches/the-place-of-a-patch-counts",
    **SIZES,
)
def columns_modulo_the_rows() -> nn.Module:
    class Wrong(OfAnySize):
        def places_of_patches(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
            patches = torch.arange(rows * columns)
            return patches // columns, patches % rows

    return Wrong()


@wrong(
    "An image that is no square is cut to one, without a word.",
    breaks="patches/every-patch-counts",
    **SIZES,
)
def cut_to_a_square() -> nn.Module:
    class Wrong(OfAnySize):
        def cut(self, images: Tensor) -> Tensor:
            side = min(images.shape[-2:])
            return super().cut(images[..., :side, :side])

    return Wrong()


@wrong("Logits are halved in training.", breaks="paths/training-without-dropout-gives-evaluation", **SIZES)
def halved_in_training() -> nn.Module:
    class Wrong(Small):
        def forward(self, images: Tensor) -> Tensor:
            logits = super().forward(images)
            return logits / 2 if self.training else logits

    return Wrong()


@wrong(
    "Logits are scaled down and up again, through numbers that float32 does not have: NaN there, and there alone.",
    breaks="paths/single-precision-is-finite-too",
    **SIZES,
)
def logits_below_float32() -> nn.Module:
    class Wrong(Small):
        def forward(self, images: Tensor) -> Tensor:
            small = super().forward(images) * 1e-60
            return small / torch.full_like(small, 1e-60)

    return Wrong()


@wrong(
    "Positions that were drawn out for another image size are kept: the parameter has another shape from then on.",
    breaks="state/a-call-changes-no-weight",
    **SIZES,
)
def keeps_what_was_drawn_out() -> nn.Module:
    class Wrong(Small):
        def cut(self, images: Tensor) -> Tensor:
            patches = patches_of(images)
            if patches.shape[1] != len(self.places):
                wide = self.places.detach().mT[None]
                drawn = nn.functional.interpolate(wide, patches.shape[1], mode="linear")
                self.places.data = drawn[0].mT.contiguous()
            return patches

    return Wrong()


@wrong(
    "What fills no patch is filled up along the other axis.",
    breaks="image/an-image-that-does-not-fit-is-refused-or-read-whole",
)
def filled_up_along_the_other_axis() -> nn.Module:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch_size = 4
            self.proj, self.head = nn.Conv2d(3, 8, 4, stride=4), nn.Linear(8, 5)

        def forward(self, images: Tensor) -> Tensor:
            below, beside = (-each % 4 for each in images.shape[-2:])
            x = self.proj(nn.functional.pad(images, (0, below, 0, beside))).flatten(2).mT
            places = torch.linspace(0.5, 1.5, x.shape[1], dtype=x.dtype)
            return self.head((x.tanh() * places[:, None]).mean(dim=1))

    return Wrong()


@wrong(FAULT, breaks="state/inference-mode-leaves-nothing-behind", real=REAL, **SIZES)
def factor_of_inference_kept() -> nn.Module:
    return with_kept_gain(Small(), "head")


@wrong(lost.FAULT, breaks=lost.LAYERS)
def last_layer_lost() -> nn.Module:
    model: Any = reference_by_unfold()
    lost.losing_the_last(model.encoder)
    return model


@wrong(redrawn.FAULT, breaks=redrawn.LAW, real=redrawn.REAL, **SIZES)
def drawn_again_on_the_way_back() -> nn.Module:
    return redrawn.with_another_draw(Small(), "head")


class Stretched(Small):
    """A table of places for one grid; for images of other grids it is resized."""

    image_size = (4, 4)

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.places = nn.Parameter(torch.randn(4, 8))

    def cut(self, images: Tensor) -> Tensor:
        self.grid = images.shape[-2] // 2, images.shape[-1] // 2
        if (2 * self.grid[0], 2 * self.grid[1]) != images.shape[-2:]:
            raise ValueError("images are of whole patches")
        return patches_of(images)

    def asked_for(self) -> tuple[int, int]:
        return self.grid

    def positions(self) -> Tensor:
        if self.grid == (2, 2):
            return self.places
        table = self.places.T.reshape(1, 8, 2, 2)
        return functional.interpolate(table, size=self.asked_for(), mode="bicubic").flatten(2)[0].mT


@right("A table of places is resized to the grid of the image.", **ANY_SIZE)
def places_stretched() -> nn.Module:
    return Stretched()


@wrong(
    "A table of places is resized to columns by rows.",
    breaks="patches/places-alike-in-a-row-are-alike-in-a-stretched-one",
    **ANY_SIZE,
)
def places_stretched_along_the_other_axis() -> nn.Module:
    return Stretched(asked_for=lambda self: self.grid[::-1])


@wrong(ANSWERS, breaks=CHANGED, **SIZES)
def answers_kept_by_tensor() -> nn.Module:
    return with_kept_answers(Small())


@wrong(redrawn.UNDROPPED, breaks=redrawn.OF_A_DRAW, **SIZES)
def undropped_on_the_way_back() -> nn.Module:
    return redrawn.with_an_undropped_gradient(Small(), "head")


class TakenByCount(Stretched):
    """A table of 4 x 4 places."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(16, 8))

    def positions(self) -> Tensor:
        if self.grid[0] * self.grid[1] == len(self.places):
            return self.places
        table = self.places.mT.view(1, 8, 4, 4)
        return functional.interpolate(table, size=self.grid, mode="bicubic").flatten(2)[0].mT


@wrong(
    "A table of places is taken as it is where there are as many patches, whatever their grid.",
    breaks="patches/places-alike-in-a-row-are-alike-in-a-stretched-one",
    **ANY_SIZE,
)
def places_taken_by_their_count() -> nn.Module:
    return TakenByCount()


@wrong(COARSE, breaks=(OF_AUTOCAST, OF_FLOAT32), **SIZES)
def factor_of_autocast_kept() -> nn.Module:
    return with_kept_third(Small(), "head")
