"""Wrong pairs of encoder and decoder on paths that were not asked for."""

from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.seq2seq import Pair


@wrong("Logits are halved in training.", breaks="paths/training-without-dropout-gives-evaluation")
def halved_in_training() -> nn.Module:
    def logits(self: Pair, x: Tensor, real: Tensor) -> Tensor:
        found: Tensor = self.head(x)
        return found / 2 if self.training else found

    return Pair(logits=logits)


@wrong(
    "Logits are scaled down and up again, through numbers that float32 does not have: NaN there, and there alone.",
    breaks="paths/single-precision-is-finite-too",
)
def logits_below_float32() -> nn.Module:
    def logits(self: Pair, x: Tensor, real: Tensor) -> Tensor:
        small: Tensor = self.head(x) * 1e-60
        return small / small.new_full((), 1e-60)

    return Pair(logits=logits)
