"""Layers with dropout that are computed again on the way back, with the draw of the forward pass or with another one."""

from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

FAULT = "A layer is computed again on the way back, with another draw than that of the forward pass."
LAW = "gradients/the-gradient-is-of-what-was-drawn"
REAL = "https://pytorch.org/docs/stable/checkpoint.html: preserve_rng_state"


class Again(nn.Linear):
    """Dropout and a linear layer, of which in training nothing is kept."""

    drop, same = 0.1, False

    def dropped(self, x: Tensor) -> Tensor:
        return super().forward(dropout(x, self.drop, self.training))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.dropped(x)
        found: Tensor = checkpoint(self.dropped, x, use_reentrant=False, preserve_rng_state=self.same)
        return found


def with_another_draw(module: nn.Module, name: str, *, same: bool = False) -> nn.Module:
    """The module with such a layer in place of the linear one of that name."""
    plain = getattr(module, name)
    again = Again(plain.in_features, plain.out_features, bias=plain.bias is not None)
    again.drop, again.same = 0.1, same
    setattr(module, name, again)
    return module
