"""Language models to which their caller gives the causal mask."""

from torch import Tensor, nn
from torch.nn import functional

from tests.roles import right
from tests.roles.causal_lm import VOCAB, Small


@right("torch's encoder, with a mask of (length, length) that its caller makes, as in a tutorial of torch's.")
def mask_of_the_tutorial() -> nn.Module:
    class Right(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.places, self.head = (
                nn.Embedding(VOCAB, 8),
                nn.Embedding(80, 8),
                nn.Linear(8, VOCAB),
            )
            layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
            self.stack = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

        def forward(self, src: Tensor, src_mask: Tensor) -> Tensor:
            x = self.table(src) + self.places.weight[: src.shape[1]]
            return self.head(self.stack(x, mask=src_mask))

    return Right()


@right(
    "A mask of ones and zeros of four axes that may not be None, with the causal one in it.",
    causal_mask=True,
    padding=("right",),
)
def mask_with_padding_of_the_callers() -> nn.Module:
    class Right(Small):
        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
            x = self.table(tokens) + self.places.weight[: tokens.shape[1]]
            for layer in range(len(self.outs)):
                x = x + self.mixed(layer, self.norms[2 * layer](x), mask != 0, None)
                fed = functional.gelu(self.ups[layer](self.norms[2 * layer + 1](x)))
                x = x + self.downs[layer](fed)
            return self.head(self.norms[-1](x))

    return Right()


@right(
    "A causal mask beside one of padding, as torch's encoder takes them; the first is always given.",
    padding=("right",),
)
def causal_mask_beside_that_of_padding() -> nn.Module:
    class Right(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.places = nn.Embedding(9, 8), nn.Embedding(80, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
            self.body, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 9)

        def forward(
            self, src: Tensor, src_mask: Tensor, src_key_padding_mask: Tensor | None = None
        ) -> Tensor:
            states = self.table(src) + self.places.weight[: src.shape[1]]
            return self.head(self.body(states, src_mask, src_key_padding_mask))

    return Right()
