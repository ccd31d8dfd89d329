"""A layer norm that raises for its own defaults."""

from torch import Tensor

from tests.roles import wrong


@wrong(
    "Weight and bias are None where they are not given, and None is multiplied by.",
    breaks=("affine/no-weight-is-a-weight-of-one", "affine/no-bias-is-a-bias-of-zero"),
)
def defaults_that_raise(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    normed = centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return normed * weight + bias  # type: ignore[operator]  # The fault.
