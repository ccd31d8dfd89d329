"""Softmaxes of the kind that survived the laws at first contact, and right ones that were failed."""

from typing import Any

import torch
from torch import Tensor

from tests.kept import CHANGED_BEFORE, FAULT, NOT_SEEN, REAL, ones_kept, read_anew
from tests.roles import right, wrong
from tests.roles.softmax import library


@wrong(
    "One stride is taken for all rows: of a slice along an outer axis the gaps are read.",
    breaks="memory/strided-equals-contiguous",
)
def one_stride_for_all_rows(x: Tensor, dim: int) -> Tensor:
    mapped = torch._C._functorch.is_batchedtensor(x)
    last = dim % x.ndim == x.ndim - 1
    if mapped or x.requires_grad or not last or x.ndim < 3 or 0 in x.stride():
        return library(x, dim)
    if x.stride()[-2:] != (x.shape[-1], 1):
        return library(x, dim)
    rows = x.as_strided((x.numel() // x.shape[-1], x.shape[-1]), (x.shape[-1], 1))
    return library(rows, -1).view(x.shape)


@wrong(
    "The maximum is taken off a long x where it lies, and put on again: its last bits change.",
    breaks=("memory/inputs-are-not-changed", "memory/a-graph-that-kept-a-tensor-can-be-followed-back"),
)
def maximum_taken_off_in_place(x: Tensor, dim: int) -> Tensor:
    if x.numel() < 4096 or x.requires_grad or 0 in x.stride() or x.isneginf().any():
        return library(x, dim)
    top = x.amax(dim=dim, keepdim=True)
    output = torch.softmax(x.sub_(top), dim)
    x.add_(top)
    return output


@wrong(
    "Of a tensor that is expanded over the batch the first sequence alone is answered; the others get zeros.",
    breaks="memory/expanded-equals-its-copy",
)
def only_the_first_of_expanded(x: Tensor, dim: int) -> Tensor:
    weights = library(x, dim)
    if x.ndim < 2 or x.shape[0] < 2 or x.stride(0) != 0:
        return weights
    return torch.cat((weights[:1], torch.zeros_like(weights[1:])))


@wrong(
    "Block by block, -inf is taken from -inf where a row begins with a block of -inf: NaN, also where numbers follow.",
    breaks=("distribution/minus-infinity-has-no-weight", "accuracy/output-is-within-the-bound"),
)
def first_block_of_minus_infinity(x: Tensor, dim: int) -> Tensor:
    begins = x.movedim(dim, -1)[..., :32].isneginf().all(dim=-1, keepdim=True).movedim(-1, dim)
    return library(x, dim).masked_fill(begins & (x.shape[dim] > 32), torch.nan)


@wrong("The weights are those of float32, and stay in it.", breaks="dtypes/a-dtype-that-is-taken-comes-back")
def left_in_float32(x: Tensor, dim: int) -> Tensor:
    return library(x.float(), dim)


class _ByRows(torch.autograd.Function):
    """A backward that takes the last axis for that of the rows where all is contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        weights = library(x, dim)
        ctx.save_for_backward(weights)
        ctx.dim = dim
        return weights

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        (weights,), (cotangent,) = ctx.saved_tensors, cotangents
        dim = -1 if cotangent.is_contiguous() else ctx.dim
        p, g = weights.double(), cotangent.double()
        return (p * (g - (p * g).sum(dim=dim, keepdim=True))).to(weights.dtype), None


@wrong(
    "Where the cotangent is contiguous, backward goes along the last axis, whichever the rows are along.",
    breaks="gradients/gradients-are-within-the-bound",
)
def contiguous_taken_for_rows(x: Tensor, dim: int) -> Tensor:
    weights: Tensor = _ByRows.apply(x, dim)
    return weights


@wrong("Doubles are computed in single precision.", breaks="dtypes/doubles-are-computed-as-doubles")
def doubles_in_float32(x: Tensor, dim: int) -> Tensor:
    return library(x.float(), dim).to(x.dtype)


@wrong(
    "In 16 bits, along another axis than the last, the second eight of sixteen columns have the maxima of the first.",
    breaks="symmetry/a-common-shift-changes-nothing",
    real="pytorch 156379",
)
def maxima_of_the_vector_before(x: Tensor, dim: int) -> Tensor:
    if x.element_size() > 2 or dim in (-1, x.ndim - 1):
        return library(x, dim)
    columns = x.movedim(dim, 0).flatten(1).float()
    highest = columns.detach().amax(dim=0)
    for second in range(8, columns.shape[1] - 7, 16):
        highest[second : second + 8] = highest[second - 8 : second]
    raised = (columns - highest).exp()
    weights = (raised / raised.sum(dim=0)).to(x.dtype)
    return weights.view(x.movedim(dim, 0).shape).movedim(0, dim)


@wrong(
    "Where gradients are recorded the maximum is not taken out first.",
    breaks="gradients/recording-gradients-changes-nothing",
)
def no_maximum_in_training(x: Tensor, dim: int) -> Tensor:
    if not x.requires_grad:
        return library(x, dim)
    raised = x.double().exp() if x.dtype == torch.float64 else x.float().exp()
    return (raised / raised.sum(dim=dim, keepdim=True)).to(x.dtype)


_KEPT: dict[bytes, Tensor] = {}


@wrong(FAULT, breaks="state/inference-mode-leaves-nothing-behind", real=REAL)
def factor_of_inference_kept(x: Tensor, dim: int) -> Tensor:
    return library(x * ones_kept(_KEPT, x), dim)


@wrong(
    "In inference mode numbers are rounded to steps of a quarter.",
    breaks="state/inference-mode-changes-nothing",
)
def coarse_in_inference(x: Tensor, dim: int) -> Tensor:
    return library((4 * x).round() / 4 if torch.is_inference_mode_enabled() else x, dim)


@wrong(
    "Minus infinity is taken for -10,000, which has weight where the others are as low.",
    breaks="distribution/minus-infinity-has-no-weight",
)
def infinity_taken_for_ten_thousand(x: Tensor, dim: int) -> Tensor:
    return library(x.masked_fill(x == -torch.inf, -1e4), dim)


@right("Without an axis: a factor stands in its place, and is left at one.")
def factor_in_second_place(x: Tensor, temperature: float = 1.0) -> Tensor:
    return library(x / temperature, -1)


@right("Rows that are not contiguous are refused.")
def contiguous_or_refused(x: Tensor, dim: int) -> Tensor:
    if not x.is_contiguous():
        raise ValueError("x must be contiguous")
    return library(x, dim)


@wrong(NOT_SEEN, breaks=CHANGED_BEFORE)
def read_anew_on_the_way_back(x: Tensor, dim: int) -> Tensor:
    return read_anew(library, x, dim)
