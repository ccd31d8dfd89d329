"""Wrong encoders, the third ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from tests.roles import wrong
from tests.roles.encoder import Block


@wrong(
    "A length is filled up to a multiple of 8, and without a mask from the caller nothing hides the filling.",
    breaks="padding/a-mask-of-nothing-changes-nothing",
)
def filling_seen_without_a_mask() -> nn.Module:
    class Wrong(Block):
        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is not None:
                return super().attend(x, is_real)
            length = x.shape[1]
            return super().attend(pad(x, (0, 0, 0, -length % 8)), None)[:, :length]

    return Wrong()


@wrong(
    "Without gradients a batch beyond 8 is worked off in parts of 8, all with the mask of the first part.",
    breaks="batch/permuting-the-batch-permutes-the-output",
)
def mask_of_the_first_part() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            if is_real is not None and len(x) > 8 and not torch.is_grad_enabled():
                is_real = is_real[torch.arange(len(x)) % 8]
            return super().forward(x, is_real)

    return Wrong()


@wrong(
    "The mask is the least number in the dtype of the input, which the scores cannot hold under autocast.",
    breaks="padding/padding-is-nothing-under-autocast-too",
)
def least_number_of_the_input() -> nn.Module:
    class Wrong(Block):
        least = 0.0

        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores.masked_fill(~is_real[:, None, None, :], self.least)

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            self.least = torch.finfo(x.dtype).min
            return super().forward(x, is_real)

    return Wrong()


@wrong(
    "GELU is exact, its gradient is that of the form with tanh.",
    breaks="gradients/gradients-of-the-weights-are-slopes",
)
def gradient_of_the_other_gelu() -> nn.Module:
    class Wrong(Block):
        def feed(self, x: Tensor) -> Tensor:
            hidden = self.up(x)
            other = gelu(hidden, approximate="tanh")
            return self.down(other + (gelu(hidden) - other).detach())

    return Wrong()


@wrong(
    "The hidden layer is made by a function that holds the layer: a deep copy goes on reading its original's weights.",
    breaks="state/a-copy-is-a-module-of-its-own",
)
def copy_reads_the_original() -> nn.Module:
    class Wrong(Block):
        def __init__(self) -> None:
            super().__init__()
            self.make = lambda x: gelu(self.up(x))

        def feed(self, x: Tensor) -> Tensor:
            return self.down(self.make(x))

    return Wrong()


@wrong(
    "The feed-forward goes through a random matrix that the state of the layer does not hold.",
    breaks="state/the-state-holds-all-that-was-drawn",
)
def random_matrix_not_in_the_state() -> nn.Module:
    class Wrong(Block):
        def __init__(self) -> None:
            super().__init__()
            self.features = torch.randn(8, 8)

        def feed(self, x: Tensor) -> Tensor:
            return super().feed(x @ self.features.to(x.dtype))

    return Wrong()


@wrong(
    "Each call of eval folds the gain of a scale into the weight behind it, be it folded already or not.",
    breaks="state/a-mode-that-is-set-again-changes-nothing",
)
def folded_by_each_eval() -> nn.Module:
    class Wrong(Block):
        def train(self, mode: bool = True) -> Any:
            with torch.no_grad():
                self.up.weight *= 0.5 if not mode else 2.0
            return super().train(mode)

    return Wrong()
