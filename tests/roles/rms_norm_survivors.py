"""Wrong RMS norms that survived the laws at first contact, and others of their kind."""

import torch
from torch import Tensor

from tests.kept import CHANGED_BEFORE, FAULT, NOT_SEEN, REAL, ones_kept, read_anew
from tests.roles import wrong
from tests.roles.rms_norm import Maybe, library

STRIDED = "memory/strided-equals-contiguous"


@wrong(
    "Dense rows are taken to lie one behind the other over all axes: of x[:, 1:] the gaps are normalised.",
    breaks=STRIDED,
)
def one_stride_for_all_rows(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    width = x.shape[-1]
    plain = torch.compiler.is_compiling() or torch._C._functorch.is_batchedtensor(x)
    if plain or x.requires_grad or x.ndim < 3 or 0 in x.stride() or x.stride()[-2:] != (width, 1):
        return library(x, weight, eps)
    rows = x.as_strided((x.numel() // width, width), (width, 1))
    return library(rows, weight, eps).view(x.shape)


@wrong(
    "Rows of one sequence that is expanded are read as if each had a place of its own.",
    breaks="memory/expanded-equals-its-copy",
)
def expanded_rows_read_as_dense(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    if x.ndim > 2 and x.shape[0] > 1 and x.stride(0) == 0:
        x = torch.cat((x[:1], torch.zeros_like(x[1:])))
    return library(x, weight, eps)


@wrong(
    "Of 4096 numbers and more the squares are kept down by a power of two, put on x where it lies and taken off again.",
    breaks="memory/a-graph-that-kept-a-tensor-can-be-followed-back",
)
def halved_for_the_squares(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    output = library(x, weight, eps)
    if x.numel() >= 4096 and not x.requires_grad and 0 not in x.stride():
        x.mul_(0.5).mul_(2.0)
    return output


@wrong(
    "In 16 bits the rows are normalised in float32, and stay in it.",
    breaks="dtypes/a-dtype-that-is-taken-comes-back",
)
def left_in_float32(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    if x.itemsize > 2:
        return library(x, weight, eps)
    return library(x.float(), None if weight is None else weight.float(), eps)


@wrong(
    "Doubles are normalised in single precision, as by Llama's norm, and weighted in double.",
    breaks="dtypes/doubles-are-computed-as-doubles",
)
def doubles_in_float32(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    normalised = library(x.float(), None, eps).to(x.dtype)
    return normalised if weight is None else weight * normalised


@wrong(
    "Rows of whole vectors of eight go to a kernel that records no gradients.",
    breaks="gradients/gradients-are-within-the-bound",
)
def whole_vectors_learn_nothing(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    if x.shape[-1] % 8:
        return library(x, weight, eps)
    return library(x.detach(), None if weight is None else weight.detach(), eps)


@wrong(
    "Where gradients are recorded a forward of its own is taken, whose eps is that of another model.",
    breaks="gradients/recording-gradients-changes-nothing",
)
def another_eps_in_training(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    normed = library(x, weight, eps)
    return normed + (library(x, weight, eps + 1e-2) - normed).detach() if normed.requires_grad else normed


_KEPT: dict[bytes, Tensor] = {}


@wrong(FAULT, breaks="state/inference-mode-leaves-nothing-behind", real=REAL)
def factor_of_inference_kept(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return library(x * ones_kept(_KEPT, x), weight, eps)


@wrong(
    "In inference mode numbers are rounded to steps of a quarter.",
    breaks="state/inference-mode-changes-nothing",
)
def coarse_in_inference(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return library((4 * x).round() / 4 if torch.is_inference_mode_enabled() else x, weight, eps)


@wrong("An eps of zero is taken for none.", breaks="epsilon/an-eps-of-zero-is-added-too")
def eps_of_zero_is_none(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return library(x, weight, eps or 1e-6)


@wrong(NOT_SEEN, breaks=CHANGED_BEFORE)
def read_anew_on_the_way_back(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return read_anew(library, x, weight, eps)
