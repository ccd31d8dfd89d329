"""Encoders whose form is easily mistaken, right, and one whose mask raises in every call."""

import torch
from torch import Tensor, nn

from tests.lost import LAYERS
from tests.roles import right, wrong
from tests.roles.encoder import HEADS, WIDTH, Block, PostNorm


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


class Deep(nn.Module):
    """Three layers with a final norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(Block() for _ in range(3)), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, is_real)
        return self.norm(x)


@right(
    "Of experts that all are given all states one alone has a share, for each state the one of the largest gate."
)
def experts_for_all() -> nn.Module:
    class Mixed(Block):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(WIDTH, 4)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH)) for _ in range(4)
            )

        def feed(self, x: Tensor) -> Tensor:
            gates = self.gate(x).softmax(dim=-1)
            gates = gates * (gates == gates.amax(dim=-1, keepdim=True))
            return sum(gates[..., [n]] * expert(x) for n, expert in enumerate(self.experts))

    return Mixed()


@right("Post-norm, the feed-forward and its norm on four states at a time.")
def fed_in_chunks() -> nn.Module:
    class Chunked(PostNorm):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = self.norm1(x + self.attend(x, is_real))
            return torch.cat([self.norm2(each + self.feed(each)) for each in x.split(4, dim=1)], dim=1)

    return Chunked()


@wrong("Each layer is given the input of the stack: the last one alone counts.", breaks=LAYERS)
def layers_beside_each_other() -> nn.Module:
    class Wrong(Deep):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            for layer in self.layers:
                output = layer(x, is_real)
            return self.norm(output)

    return Wrong()


@wrong("The loop over the layers begins at the second.", breaks=LAYERS)
def first_layer_left_out() -> nn.Module:
    class Wrong(Deep):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            for layer in list(self.layers)[1:]:
                x = layer(x, is_real)
            return self.norm(x)

    return Wrong()


@right("A mask of ones and zeros that may not be None, as in the Annotated Transformer's descendants.")
def a_mask_in_every_call() -> nn.Module:
    class Right(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            assert is_real is not None
            return scores.masked_fill(is_real.unsqueeze(1) == 0, -1e9)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x, mask.view(len(x), 1, -1))

    return Right()


@right(
    "In training one of two feed-forward parts is drawn by a hard Gumbel softmax, whose gradient is a soft one's."
)
def drawn_part() -> nn.Module:
    class Right(Block):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.other = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, WIDTH)

        def feed(self, x: Tensor) -> Tensor:
            said = self.gate(x)
            one_hot = torch.nn.functional.one_hot(said.argmax(dim=-1), 2).to(said.dtype)
            chosen = torch.nn.functional.gumbel_softmax(said, hard=True) if self.training else one_hot
            return chosen[..., :1] * super().feed(x) + chosen[..., 1:] * self.other(x)

    return Right()
