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


@right(
    "torch's layer in a module around it, with masks of padding and a causal one, all of them None where not given.",
    causal_mask=True,
    norm_order="post",
    padding=("right",),
)
def causal_mask_beside_those_of_padding() -> nn.Module:
    class Right(Told):
        def forward(
            self,
            tgt: Tensor,
            memory: Tensor,
            tgt_mask: Tensor | None = None,
            memory_mask: Tensor | None = None,
            tgt_key_padding_mask: Tensor | None = None,
            memory_key_padding_mask: Tensor | None = None,
        ) -> Tensor:
            return self.layer(
                tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
            )

    return Right()


@right(
    "The names of Keras's tutorial: 1 at what is hidden, ahead or in padding, and at padding in the memory."
)
def look_ahead_mask_and_padding_mask() -> nn.Module:
    class Right(Told):
        def forward(
            self, x: Tensor, enc_output: Tensor, look_ahead_mask: Tensor, padding_mask: Tensor
        ) -> Tensor:
            own, other = (
                (-1e9 * mask.to(x)).expand(-1, HEADS, x.shape[1], -1).flatten(0, 1)
                for mask in (look_ahead_mask, padding_mask)
            )
            return self.layer(x, enc_output, own, other)

    return Right()
