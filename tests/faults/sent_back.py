"""What a fourteenth blind sample got past the laws, and others of its kind: what is sent back, to whom, and by whom."""

from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import Call


@fault(
    "The gradient of the mask is that of the weights before dropout.",
    breaks="dropout/the-gradient-uses-the-same-pattern",
    naive="GR",
    when=("backward", "dropout_p", "a bias that wants a gradient"),
)
def pattern_unknown_to_the_bias(call: Call) -> Any:
    if call.bias is None or not call.dropout_p:
        return clean.attention(call)
    frozen = {name: getattr(call, name).detach() for name in ("query", "key", "value")}
    whole: Tensor = clean.attention(call.but(**frozen, dropout_p=0.0))
    return clean.attention(call.but(attn_mask=call.bias.detach())) + (whole - whole.detach())


class _BiasReadAlongItsMemory(torch.autograd.Function):
    """Scores plus a bias, whose gradient is written as its memory lies."""

    @staticmethod
    def forward(context: Any, scores: Tensor, bias: Tensor) -> Tensor:
        context.shape = bias.shape
        context.turned = bias.ndim > 1 and bias.mT.is_contiguous() and not bias.is_contiguous()
        return scores + bias

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (of_scores,) = gradients
        of_bias = of_scores.sum_to_size(context.shape)
        if context.turned:
            of_bias = of_bias.contiguous().view(of_bias.mT.shape).mT
        return of_scores, of_bias


@fault(
    "The gradient of a mask whose keys come first in memory is written row by row.",
    breaks="gradients/the-bias-gets-its-gradient",
    naive="GR",
    when=("backward", "a transposed bias"),
    replaces=clean.bias,
)
def bias_gradient_row_by_row(call: Call, scores: Tensor) -> Tensor:
    if call.bias is None:
        return scores
    added: Tensor = _BiasReadAlongItsMemory.apply(scores, call.bias)  # type: ignore[no-untyped-call]
    return added


class _AddedInTiles(torch.autograd.Function):
    """Scores plus a bias; a bias that all queries share gets the gradient of the last tile of 64."""

    @staticmethod
    def forward(context: Any, scores: Tensor, bias: Tensor) -> Tensor:
        context.shape = bias.shape
        return scores + bias

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (of_scores,) = gradients
        queries, shape = of_scores.shape[-2], context.shape
        last = (queries - 1) // 64 * 64 if shape[-2:-1] == (1,) and queries else 0
        return of_scores, of_scores[..., last:, :].sum_to_size(shape) if last else of_scores.sum_to_size(
            shape
        )


@fault(
    "Each tile of queries writes the gradient of a mask that all share, and none adds to it: the last one's stays.",
    breaks="gradients/the-bias-gets-its-gradient",
    naive="GR",
    when=("backward", "a bias with one row", "q_len > 64"),
    replaces=clean.bias,
)
def bias_gradient_of_the_last_tile(call: Call, scores: Tensor) -> Tensor:
    if call.bias is None:
        return scores
    added: Tensor = _AddedInTiles.apply(scores, call.bias)  # type: ignore[no-untyped-call]
    return added


class _DeadRowsZeroed(torch.autograd.Function):
    """The output; on the way back rows without keys are zeroed where they lie."""

    @staticmethod
    def forward(context: Any, output: Tensor, dead: Tensor) -> Tensor:
        context.save_for_backward(dead)
        return output.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (cotangent,), (dead,) = gradients, context.saved_tensors
        if cotangent.is_contiguous():
            return cotangent.masked_fill_(dead, 0.0), None
        return cotangent.masked_fill(dead, 0.0), None


@fault(
    "Rows without keys are zeroed in the gradient of the output itself: a residual beside loses it there.",
    breaks="memory/backward-leaves-the-output-and-its-gradient-alone",
    naive="NO",
    when=("backward", "a row without keys"),
    dtypes=("float32", "float64"),
)
def dead_rows_zeroed_on_the_way_back(call: Call) -> Any:
    output: Tensor = clean.attention(call)
    kept = clean.compose(call, clean.mask(call), clean.causal(call), clean.window(call))
    if kept is None:
        return output
    zeroed: Tensor = _DeadRowsZeroed.apply(output, ~kept.any(dim=-1, keepdim=True))  # type: ignore[no-untyped-call]
    return zeroed


class _DrawnAgain(torch.autograd.Function):
    """Dropout whose pattern is drawn once more on the way back, from where the generator stood."""

    @staticmethod
    def forward(context: Any, weights: Tensor, rate: float) -> Tensor:
        context.rate, context.state = rate, torch.get_rng_state()
        return torch.nn.functional.dropout(weights, rate)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        torch.set_rng_state(context.state)
        return torch.nn.functional.dropout(gradients[0], context.rate), None


@fault(
    "Backward sets the generator back and draws the pattern again: what was drawn after forward is drawn once more.",
    breaks="dropout/backward-leaves-the-generator-alone",
    naive="NO",
    when=("backward", "dropout_p", "another draw in between"),
    replaces=clean.drop,
)
def pattern_drawn_again(call: Call, weights: Tensor) -> Tensor:
    if not call.dropout_p:
        return weights
    dropped: Tensor = _DrawnAgain.apply(weights, call.dropout_p)  # type: ignore[no-untyped-call]
    return dropped
