"""What faults and right functions of several roles keep between calls, or between the two passes of one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

REAL = "https://github.com/Dao-AILab/flash-attention/pull/299"
FAULT = "A factor that is made in inference mode is kept, and cannot be trained with."


def ones_kept(kept: dict[bytes, Tensor], x: Tensor) -> Tensor:
    """Ones in the shape of x, kept for the numbers of the last call."""
    if torch._C._functorch.is_batchedtensor(x):
        return torch.ones_like(x)
    asked = x.detach().double().numpy().tobytes() + f"{x.dtype} {x.shape}".encode()
    if asked not in kept:
        kept.clear()
        kept[asked] = torch.ones_like(x.detach())
    return kept[asked]


class KeptGain(nn.Linear):
    """A linear layer that multiplies its input by ones, made in its first call in a dtype."""

    gains: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.gains is None or self.gains.dtype != x.dtype:
            self.gains = torch.ones(x.shape[-1], dtype=x.dtype)
        return super().forward(x * self.gains)


def with_kept_gain(module: nn.Module, name: str) -> nn.Module:
    """The module with such a layer in place of the linear one of that name."""
    plain = getattr(module, name)
    kept = KeptGain(plain.in_features, plain.out_features, bias=plain.bias is not None)
    setattr(module, name, kept)
    return module


COARSE = "A factor is kept in the format of the first call, as rotary tables are: in 16 bits after one under autocast."
OF_AUTOCAST = "state/autocast-leaves-nothing-behind"
OF_FLOAT32 = "state/a-coarser-format-leaves-nothing-behind"


class KeptThird(nn.Linear):
    """A linear layer whose output is divided by three; the factor is made in the first call, or anew for each format."""

    third: Tensor | None = None
    anew = False

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.third is None or (self.anew and self.third.dtype != output.dtype):
            with torch.inference_mode(mode=False):
                self.third = torch.full((1,), 1 / 3, dtype=torch.float64).to(output.dtype)
        return output * self.third


def with_kept_third(module: nn.Module, name: str, *, anew: bool = False) -> nn.Module:
    """The module with such a layer in place of the linear one of that name."""
    plain = getattr(module, name)
    kept = KeptThird(plain.in_features, plain.out_features, bias=plain.bias is not None)
    kept.anew = anew
    setattr(module, name, kept)
    return module


ANSWERS = "The answer is kept beside the tensor that is given first: numbers that are changed in it do not change it."
CHANGED = "state/inputs-changed-in-place-are-read-again"


def with_kept_answers(module: nn.Module) -> nn.Module:
    """The module in evaluation gives what it gave for the very tensor, where gradients are not wanted."""
    module.kept_answer = None  # type: ignore[assignment]
    module.register_forward_hook(_kept_answer, with_kwargs=True)
    return module


def _kept_answer(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], returned: Any) -> Any:
    if module.training or torch.is_grad_enabled():
        return returned
    kept: Any = module.kept_answer
    (first, *_) = *given, *named.values()
    if kept is not None and kept[0] is first:
        return kept[1]
    module.kept_answer = first, returned
    return returned


NOT_SEEN = "The way back reads what it was given as it is by then: nobody sees to it that it is what it was."
CHANGED_BEFORE = "gradients/what-is-changed-before-backward-is-noticed"


class _ReadAnew(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *given: Any) -> Tensor:
        ctx.function = function
        ctx.given = [each.detach() if isinstance(each, Tensor) else each for each in given]
        return function(*given)

    @staticmethod
    def backward(ctx: Any, *sent: Tensor) -> Any:
        leaves = [each.requires_grad_() if isinstance(each, Tensor) else each for each in ctx.given]
        with torch.enable_grad():
            output = ctx.function(*leaves)
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        found = iter(torch.autograd.grad(output, tensors, *sent))
        return None, *(next(found) if isinstance(each, Tensor) else None for each in leaves)


def read_anew(function: Callable[..., Tensor], *given: Any) -> Tensor:
    """What a function gives, its gradients made of the very tensors, kept as attributes."""
    found: Tensor = _ReadAnew.apply(function, *given)
    return found
