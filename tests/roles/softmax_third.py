"""Wrong softmaxes, the third ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor

from tests.roles import wrong


class _KeptOnTheContext(torch.autograd.Function):
    """The weights are kept as a copy that autograd does not know."""

    @staticmethod
    def forward(context: Any, x: Tensor, dim: int) -> Tensor:
        weights = torch.softmax(x, dim)
        context.weights, context.dim = weights.clone(), dim
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        weights, (g,) = context.weights, gradients
        return weights * (g - (weights * g).sum(context.dim, keepdim=True)), None


class _Mapped(torch.autograd.Function):
    """Under vmap the new axis comes first; an axis that is counted from the front is not moved on."""

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        return torch.softmax(x, dim)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        context.save_for_backward(output)
        context.dim = inputs[1]

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,), (g,) = context.saved_tensors, gradients
        return weights * (g - (weights * g).sum(context.dim, keepdim=True)), None

    @staticmethod
    def vmap(_: Any, in_dims: Any, x: Tensor, dim: int) -> tuple[Tensor, int]:
        return _Mapped.apply(x.movedim(in_dims[0], 0), dim), 0


@wrong(
    "Under vmap an axis that is counted from the front is counted with the mapped one.",
    breaks="accuracy/mapped-calls-are-those-of-a-loop",
)
def axis_counted_with_the_mapped_one(x: Tensor, dim: int) -> Tensor:
    return _Mapped.apply(x, dim)


@wrong(
    "A single entry is answered with ones, which no graph leads to.",
    breaks="gradients/a-single-entry-has-a-gradient-of-zero",
)
def ones_for_a_single_entry(x: Tensor, dim: int) -> Tensor:
    return torch.ones_like(x) if x.shape[dim] == 1 else torch.softmax(x, dim)


@wrong(
    "In 16 bits the sum is taken in 16 bits, entry by entry: it stands still when a row is long.",
    breaks=("distribution/weights-sum-to-one", "accuracy/output-is-within-the-bound"),
)
def sum_in_sixteen_bits(x: Tensor, dim: int) -> Tensor:
    if x.dtype not in {torch.bfloat16, torch.float16}:
        return torch.softmax(x, dim)
    raised = torch.exp(x.float() - x.float().amax(dim=dim, keepdim=True))
    total = torch.zeros_like(x.select(dim, 0))
    for entry in raised.to(x.dtype).unbind(dim):
        total = total + entry
    return (raised / total.float().unsqueeze(dim)).to(x.dtype)


@wrong(
    "Weights below 2^-14, the least that float16 holds in full, are flushed to zero, whatever the dtype.",
    breaks=("limits/the-odds-are-the-exponent-of-the-difference", "accuracy/output-is-within-the-bound"),
)
def small_weights_flushed(x: Tensor, dim: int) -> Tensor:
    weights = torch.softmax(x, dim)
    return torch.where(weights < 2.0**-14, 0.0, weights)


class _InPlace(_KeptOnTheContext):
    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (g,) = gradients
        return context.weights.mul_(g - (context.weights * g).sum(context.dim, keepdim=True)), None


@wrong(
    "The backward works in the memory of the kept weights: a second one through a kept graph reads the first's result.",
    breaks="gradients/a-second-backward-gives-the-same",
)
def backward_into_the_kept_weights(x: Tensor, dim: int) -> Tensor:
    return _InPlace.apply(x, dim)
