"""Decoders whose form is easily mistaken."""

from torch import Tensor, nn

from tests.roles import right
from tests.roles.decoder import HEADS, WIDTH


class Told(nn.Module):
    """torch's layer, which is told by its caller what a state may attend to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 16, 0.0, batch_first=True)


@right("torch's layer with a causal mask of (length, length), True at what is hidden, that its caller makes.")
def causal_mask_of_the_callers_alone() -> nn.Module:
    class Right(Told):
        def forward(self, x: Tensor, memory: Tensor, tgt_mask: Tensor) -> Tensor:
            return self.layer(x, memory, tgt_mask=tgt_mask)

    return Right()


@right("Neither mask may be None: ones and zeros, the memory's first, the other with the causal one in it.")
def two_masks_in_every_call() -> nn.Module:
    class Right(Told):
        def forward(self, x: Tensor, memory: Tensor, src_mask: Tensor, trg_mask: Tensor) -> Tensor:
            own = (trg_mask == 0).expand(-1, HEADS, -1, -1).flatten(0, 1)
            return self.layer(x, memory, own, memory_key_padding_mask=src_mask.view(len(x), -1) == 0)

    return Right()
