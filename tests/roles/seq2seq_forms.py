"""Encoder-decoders whose form is easily mistaken."""

from torch import Tensor, nn

from tests.roles import right
from tests.roles.seq2seq import SOURCES, TARGETS, Attention


class Apart(nn.Module):
    """Masks of three axes, as in the Annotated Transformer: an axis for the heads, of which there are two, is put in."""

    def __init__(self) -> None:
        super().__init__()
        self.source_table, self.target_table = nn.Embedding(SOURCES, 8), nn.Embedding(TARGETS, 8)
        self.places, self.head = nn.Embedding(80, 8), nn.Linear(8, TARGETS)
        self.reading, self.own, self.cross = Attention(), Attention(), Attention()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(4))

    def embedded(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        return table(tokens) + self.places.weight[: tokens.shape[1]]

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
        memory, x = self.embedded(self.source_table, source), self.embedded(self.target_table, target)
        of_source, of_target = source_mask.unsqueeze(1), target_mask.unsqueeze(1)
        normed = self.norms[0](memory)
        memory = self.norms[1](memory + self.reading(normed, normed, of_source))
        normed = self.norms[2](x)
        x = x + self.own(normed, normed, of_target)
        return self.head(x + self.cross(self.norms[3](x), memory, of_source))


@right(
    "Masks are (batch, 1, length), that of the target with the causal one; there are two heads.",
    padding=("right",),
)
def masks_of_three_axes_beside_two_heads() -> nn.Module:
    return Apart()


@right("torch's own transformer, with the causal mask of (length, length) that its caller makes.")
def causal_mask_of_the_callers() -> nn.Module:
    class Right(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source_table, self.target_table = nn.Embedding(SOURCES, 8), nn.Embedding(TARGETS, 8)
            self.places, self.head = nn.Embedding(80, 8), nn.Linear(8, TARGETS)
            self.transformer = nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True)

        def forward(self, source: Tensor, target: Tensor, tgt_mask: Tensor) -> Tensor:
            read, written = (
                table(tokens) + self.places.weight[: tokens.shape[1]]
                for table, tokens in ((self.source_table, source), (self.target_table, target))
            )
            return self.head(self.transformer(read, written, tgt_mask=tgt_mask))

    return Right()


class OfTheTutorial(nn.Module):
    """torch's transformer with all the masks that its tutorial of translation gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.source_table, self.target_table = nn.Embedding(SOURCES, 8), nn.Embedding(TARGETS, 8)
        self.places, self.head = nn.Embedding(80, 8), nn.Linear(8, TARGETS)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, 0.1)

    def placed(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        """(length, batch, width), of tokens (batch, length)."""
        found: Tensor = table(tokens.t()) + self.places.weight[: tokens.shape[1], None]
        return found

    def forward(
        self,
        src: Tensor,
        trg: Tensor,
        src_mask: Tensor,
        tgt_mask: Tensor,
        src_padding_mask: Tensor,
        tgt_padding_mask: Tensor,
        memory_key_padding_mask: Tensor,
    ) -> Tensor:
        states = self.transformer(
            self.placed(self.source_table, src),
            self.placed(self.target_table, trg),
            src_mask,
            tgt_mask,
            None,
            src_padding_mask,
            tgt_padding_mask,
            memory_key_padding_mask,
        )
        return self.head(states).transpose(0, 1)


@right(
    "Seven arguments, as in torch's tutorial of translation; tables read tokens (length, batch).",
    padding=("right",),
)
def all_masks_of_the_tutorial() -> nn.Module:
    return OfTheTutorial()
