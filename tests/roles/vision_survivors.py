"""Wrong vision transformers that survived the laws at first contact."""

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.vision import SIZES, Small


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
