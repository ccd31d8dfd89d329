"""From tokens to vectors and back: the table, its scale, the positions added to it, and the table used twice."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headcheck.reference.choices import require_choice
from headcheck.reference.positions import LearnedPositions, sinusoidal_at

AddedPositions = Literal["sinusoidal", "learned", "none"]


class Embedding(nn.Module):
    """dropout(table[token] x sqrt(d_model), where scaled, + position).  Vaswani et al. 2017, section 3.4.

    scaled: the table starts at variance 1/d_model, so that its scaled rows start at variance 1.
    positions: "learned" needs max_len; "none" leaves them to rotary positions.
    """

    def __init__(
        self,
        vocab: int,
        d_model: int,
        *,
        scaled: bool,
        positions: AddedPositions,
        max_len: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_choice("positions", positions, AddedPositions)
        self.scale = math.sqrt(d_model) if scaled else 1.0
        self.table = nn.Embedding(vocab, d_model)
        nn.init.normal_(self.table.weight, std=1 / self.scale)
        self.added = positions
        self.learned = LearnedPositions(max_len, d_model) if positions == "learned" else None
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        positions: Int[Tensor, "#batch length"] | Int[Tensor, " length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """positions: None is 0 .. length - 1."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        x: Tensor = self.table(tokens) * self.scale
        if self.learned is not None:
            x = x + self.learned(positions)
        if self.added == "sinusoidal":
            x = x + sinusoidal_at(positions, x.shape[-1]).to(x)
        return self.dropout(x)


def output_layer(embedding: Embedding, *, tied: bool, bias: bool) -> nn.Linear:
    """From d_model to a logit for each token; tied: its weight is the embedding's table itself, not a copy.

    A tied table starts at standard deviation 0.02, so that the first loss is near ln(vocab): GPT-2.
    Press and Wolf 2017; Vaswani et al. 2017, section 3.4.
    """
    vocab, d_model = embedding.table.weight.shape
    output = nn.Linear(d_model, vocab, bias=bias)
    if tied:
        nn.init.normal_(embedding.table.weight, std=0.02)
        output.weight = embedding.table.weight
    return output
