"""Encoders whose form is easily mistaken, right, and one whose mask raises in every call."""

import torch
from torch import Tensor, nn

from tests.roles import right, wrong
from tests.roles.encoder import HEADS, WIDTH, Block


class Projected(nn.Module):
    """A projection or a norm first, then torch's own layers."""

    def __init__(self, first: nn.Module, *, norm_first: bool) -> None:
        super().__init__()
        self.first = first
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True, norm_first=norm_first)
        self.stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return self.stack(self.first(x), src_key_padding_mask=src_key_padding_mask)


@right("A projection before pre-norm layers.", skip_path=False)
def projected_pre_norm() -> nn.Module:
    return Projected(nn.Linear(WIDTH, WIDTH), norm_first=True)


@right("A projection before post-norm layers.", skip_path=False)
def projected_post_norm() -> nn.Module:
    return Projected(nn.Linear(WIDTH, WIDTH), norm_first=False)


@right("A norm before pre-norm layers, as in BLOOM.", skip_path=False)
def normed_first() -> nn.Module:
    return Projected(nn.LayerNorm(WIDTH), norm_first=True)


@right("The mask is (batch, 1, length); of (batch, length) the batch would stand at the three heads.")
def mask_of_three_axes_beside_three_heads() -> nn.Module:
    class Three(Block):
        def split(self, x: Tensor) -> Tensor:
            return x[..., :6].unflatten(-1, (3, 2)).transpose(1, 2)

        def merge(self, x: Tensor) -> Tensor:
            return torch.nn.functional.pad(x.transpose(1, 2).flatten(-2), (0, WIDTH - 6))

        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores.masked_fill(~is_real.unsqueeze(1), -1e9)

    return Three()


@right("The rate of dropout is a property without a setter.")
def rate_is_a_property() -> nn.Module:
    class Dropping(Block):
        @property
        def dropout_p(self) -> float:
            return 0.1 if self.training else 0.0

        def feed(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(super().feed(x), self.dropout_p, self.training)

    return Dropping()


@wrong(
    "The mask of padding is expanded to scores that have an axis less: every call with one raises.",
    breaks="padding/padding-on-the-right-changes-nothing",
)
def mask_of_padding_raises() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
            return super().forward(x, key_padding_mask)

        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is None:
                return scores
            flat = scores.flatten(0, 1)
            hidden = flat.masked_fill(is_real[:, None, None, :].expand_as(flat), -1e9)
            return hidden.unflatten(0, (-1, HEADS))

    return Wrong()
