"""Wrong encoders, the third ones by somebody who did not know the laws."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from tests.roles import wrong
from tests.roles.encoder import Block


@wrong(
    "A length is filled up to a multiple of 8, and without a mask from the caller nothing hides the filling.",
    breaks="not/yet-known",
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
    breaks="not/yet-known",
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
    breaks="not/yet-known",
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
    breaks="not/yet-known",
)
def gradient_of_the_other_gelu() -> nn.Module:
    class Wrong(Block):
        def feed(self, x: Tensor) -> Tensor:
            hidden = self.up(x)
            other = gelu(hidden, approximate="tanh")
            return self.down(other + (gelu(hidden) - other).detach())

    return Wrong()
