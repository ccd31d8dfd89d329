"""Causal blocks without a memory, as a decoder-only model has them: right, and wrong."""

import torch
from torch import Tensor, nn

from headcheck.reference.masks import causal
from tests import dropped
from tests.roles import right, wrong
from tests.roles.encoder import WIDTH, Block

LATER = "causality/later-states-do-not-matter"
LATER_GRADIENT = "causality/no-gradient-comes-from-later-states"
EARLIER = "causality/every-earlier-state-counts"
PREFIX = "causality/a-prefix-gives-the-same-states"


class Causal(Block):
    """A pre-norm block, each state of which sees those before it and itself."""

    def seen(self, length: int) -> Tensor:
        return causal(length, length)

    def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
        future = ~self.seen(scores.shape[-1]).to(scores.device)
        return super().hide(scores, is_real).masked_fill(future, torch.finfo(scores.dtype).min)


@right("A block of a decoder-only model.", causal=True)
def causal_block() -> nn.Module:
    return Causal()


@right(
    "Query and key are normed, and attention alone is the module, as in many models of today.",
    causal=True,
    skip_path=False,
)
def causal_attention_with_normed_queries() -> nn.Module:
    class Right(Causal):
        def __init__(self) -> None:
            super().__init__()
            self.q_norm, self.k_norm = (
                nn.RMSNorm(self.split(torch.zeros(1, 1, WIDTH)).shape[-1]) for _ in range(2)
            )

        def scores(self, q: Tensor, k: Tensor) -> Tensor:
            return super().scores(self.q_norm(q), self.k_norm(k))

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return self.attend(x, is_real)

    return Right()


@right("Positions are added, and no state sees those behind it.", causal=True, positions=True, max_length=64)
def causal_block_with_positions() -> nn.Module:
    class Right(Causal):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(64, WIDTH))

        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x + self.table[: x.shape[1]])

    return Right()


@wrong("The mask lets each state see the next one.", breaks=LATER, causal=True)
def one_ahead() -> nn.Module:
    class Wrong(Causal):
        def seen(self, length: int) -> Tensor:
            return torch.ones(length, length, dtype=torch.bool).tril(1)

    return Wrong()


@wrong(
    "Heads and length are mixed by a view in place of a transposition.",
    breaks=LATER,
    causal=True,
    skip_path=False,
)
def heads_by_a_view() -> nn.Module:
    class Wrong(Causal):
        def split(self, x: Tensor) -> Tensor:
            batch, length, _ = x.shape
            return x.view(batch, -1, length, super().split(x).shape[-1])

        def merge(self, x: Tensor) -> Tensor:
            return x.reshape(x.shape[0], x.shape[2], -1)

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return self.attend(x, is_real)

    return Wrong()


@wrong(
    "Of two maps that are subtracted from each other the second sees all, with a weight that begins near zero.",
    breaks=LATER_GRADIENT,
    causal=True,
)
def second_map_without_a_mask() -> nn.Module:
    class Wrong(Causal):
        def weigh(self, scores: Tensor) -> Tensor:
            every = scores.where(scores > torch.finfo(scores.dtype).min, scores.mean().detach() * 0)
            return super().weigh(scores) - 1e-3 * every.softmax(dim=-1)

    return Wrong()


@wrong("The first state is seen by itself alone.", breaks=EARLIER, causal=True)
def first_state_unseen() -> nn.Module:
    class Wrong(Causal):
        def seen(self, length: int) -> Tensor:
            seen = super().seen(length).clone()
            seen[1:, 0] = False
            return seen

    return Wrong()


@wrong("Weights are divided by the length of the sequence, not by their own sum.", breaks=PREFIX, causal=True)
def weights_by_length() -> nn.Module:
    class Wrong(Causal):
        def weigh(self, scores: Tensor) -> Tensor:
            return super().weigh(scores) / scores.shape[-1] ** 0.5

    return Wrong()


@wrong(dropped.FAULT, breaks=dropped.LATER, real=dropped.REAL, causal=True)
def future_scores_dropped_once_masked() -> nn.Module:
    return dropped.with_dropped_scores(Causal)
