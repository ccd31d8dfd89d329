"""Wrong layer norms of the kind that survived the laws at first contact."""

import torch
from torch import Tensor

from tests.kept import CHANGED_BEFORE, FAULT, NOT_SEEN, REAL, ones_kept, read_anew
from tests.roles import wrong
from tests.roles.layer_norm import Maybe, library


@wrong(
    "Rows that are dense are taken to lie in the order of the axes: (length, batch, dim) seen as (batch, length, dim) "
    "comes back in another order.",
    breaks="memory/strided-equals-contiguous",
)
def order_of_the_memory(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    mapped = torch._C._functorch.is_batchedtensor(x)
    if (
        mapped
        or x.requires_grad
        or x.ndim < 3
        or x.stride(-1) != 1
        or not x.mT.mT.transpose(0, 1).is_contiguous()
    ):
        return library(x, weight, bias, eps)
    rows = x.as_strided((x.numel() // x.shape[-1], x.shape[-1]), (x.shape[-1], 1))
    return library(rows, weight, bias, eps).view(x.shape)


@wrong(
    "Rows of one sequence that is expanded are read as if each had a place of its own.",
    breaks="memory/expanded-equals-its-copy",
)
def expanded_rows_read_as_dense(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    if x.ndim > 2 and x.shape[0] > 1 and x.stride(0) == 0:
        x = torch.cat((x[:1], torch.zeros_like(x[1:])))
    return library(x, weight, bias, eps)


@wrong(
    "Of 4096 numbers and more a power of two is put on x where it lies, and taken off again.",
    breaks="memory/a-graph-that-kept-a-tensor-can-be-followed-back",
)
def halved_for_the_squares(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    output = library(x, weight, bias, eps)
    if x.numel() >= 4096 and not x.requires_grad and 0 not in x.stride():
        x.mul_(0.5).mul_(2.0)
    return output


@wrong(
    "In 16 bits the rows are normalised in float32, and stay in it.",
    breaks="dtypes/a-dtype-that-is-taken-comes-back",
)
def left_in_float32(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    if x.itemsize > 2:
        return library(x, weight, bias, eps)
    return library(*(None if each is None else each.float() for each in (x, weight, bias)), eps)  # type: ignore[arg-type]


@wrong("Doubles are computed in single precision.", breaks="dtypes/doubles-are-computed-as-doubles")
def doubles_in_float32(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    given = (None if each is None else each.float() for each in (weight, bias))
    return library(x.float(), *given, eps).to(x.dtype)


@wrong(
    "Squares are taken in the dtype of x, averaged in float32: in float16 those of 256 overflow: a row of zeros.",
    breaks="statistics/squares-do-not-overflow-before-they-are-widened",
    real="https://github.com/xlite-dev/LeetCUDA/pull/335",
)
def squares_before_the_cast(x: Tensor, weight: Maybe, bias: Maybe, eps: float = 1e-5) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    centred = x - x.to(wide).mean(dim=-1, keepdim=True).to(x.dtype)
    variance = (centred * centred).to(wide).mean(dim=-1, keepdim=True)
    y = centred.to(wide) * torch.rsqrt(variance + eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).to(x.dtype)


@wrong(
    "Where gradients are recorded a forward of its own is taken, which leaves the bias out.",
    breaks="gradients/recording-gradients-changes-nothing",
)
def bias_in_inference_only(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    normed = library(x, weight, bias, eps)
    if bias is None or not normed.requires_grad:
        return normed
    return normed - bias.detach()


_KEPT: dict[bytes, Tensor] = {}


@wrong(FAULT, breaks="state/inference-mode-leaves-nothing-behind", real=REAL)
def factor_of_inference_kept(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return library(x * ones_kept(_KEPT, x), weight, bias, eps)


@wrong(
    "In inference mode numbers are rounded to steps of a quarter.",
    breaks="state/inference-mode-changes-nothing",
)
def coarse_in_inference(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return library((4 * x).round() / 4 if torch.is_inference_mode_enabled() else x, weight, bias, eps)


@wrong("An eps of zero is taken for none.", breaks="epsilon/an-eps-of-zero-is-added-too")
def eps_of_zero_is_none(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return library(x, weight, bias, eps or 1e-5)


@wrong(NOT_SEEN, breaks=CHANGED_BEFORE)
def read_anew_on_the_way_back(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return read_anew(library, x, weight, bias, eps)
