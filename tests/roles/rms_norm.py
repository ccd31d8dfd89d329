"""Wrong and right RMS norms."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.roles import right, wrong

ACCURACY = "accuracy/output-is-within-the-bound"
GRADIENTS = "gradients/gradients-are-within-the-bound"
ALONG = "gradients/along-the-row-the-gradient-is-what-eps-leaves"
SUMMED = "gradients/the-gradient-of-the-weight-is-summed-over-all-rows"
Maybe = Tensor | None


def weighted(n: Tensor, weight: Maybe) -> Tensor:
    return n if weight is None else n * weight


def mean_square(x: Tensor) -> Tensor:
    return x.square().mean(dim=-1, keepdim=True)


def library(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


# Right


@right("torch's own, with its normalized_shape.")
def torch_s_own(
    input: Tensor,  # noqa: A002 (torch's name)
    normalized_shape: tuple[int, ...],
    weight: Maybe = None,
    eps: float | None = None,
) -> Tensor:
    return functional.rms_norm(input, normalized_shape, weight, eps)


@right("torch's own without an eps: each format has its own.")
def torch_s_own_without_eps(x: Tensor, weight: Maybe = None) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight)


@right("Of one odd width.", dims=(7,))
def of_seven(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    if x.shape[-1] != 7:
        raise ValueError("rows of seven")
    return torch_s_own(x, (7,), weight, eps)


@right("The equation, each step stored.")
def by_the_book(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(x / torch.sqrt(mean_square(x) + eps), weight)


@right("Llama's: in float32, rounded, then weighted.")
def rounded_before_the_weight(hidden_states: Tensor, weight: Tensor, variance_epsilon: float) -> Tensor:
    x = wide(hidden_states)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + variance_epsilon)
    return weight * x.to(hidden_states.dtype)


@right("Eight rows at a time: the weight's gradients of the pieces are added up in the type of the weight.")
def eight_rows_at_a_time(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    pieces = [
        wide(rows) * torch.rsqrt(mean_square(wide(rows)) + eps)
        for rows in x.reshape(-1, x.shape[-1]).split(8)
    ]
    weighed = [rows if weight is None else rows * wide(weight) for rows in pieces]
    return torch.cat(weighed).view(x.shape).to(x.dtype)


@right("Gemma's: a weight that one is added to, in float32, rounded last.", weight_offset=1.0)
def zero_centred_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    n = wide(x) * torch.rsqrt(mean_square(wide(x)) + eps)
    return (n * (1.0 + wide(weight))).to(x.dtype)


@right("The same stored step by step.", weight_offset=1.0)
def zero_centred_opwise(x: Tensor, weight: Maybe, norm_eps: float = 1e-6) -> Tensor:
    n = x * torch.rsqrt(mean_square(x) + norm_eps)
    return n if weight is None else n * (1 + weight)


@right("By the length of the row, by position.")
def by_length(x: Tensor, g: Tensor, e: float, /) -> Tensor:
    size = x.shape[-1]
    length = torch.linalg.vector_norm(wide(x), dim=-1, keepdim=True)
    return (wide(x) * math.sqrt(size) * torch.rsqrt(length.square() + size * e) * g).to(x.dtype)


@right("Sums of squares over blocks of eight, by a product of each block with itself.")
def by_blocks(x: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    rows = wide(x)
    total = torch.zeros_like(rows[..., :1])
    for block in rows.split(8, dim=-1):
        total = total + torch.einsum("brd,brd->br", block, block)[..., None]
    return (rows * (1 / (total / x.shape[-1] + epsilon).sqrt()) * scale).to(x.dtype)


@right("Entry after entry, without a backward.", gradients=False, effort=0.5)
def one_after_the_other(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    with torch.no_grad():
        rows = wide(x)
        total = torch.zeros_like(rows[..., 0])
        for entry in rows.unbind(dim=-1):
            total = total + entry * entry
        return weighted(rows * torch.rsqrt(total / x.shape[-1] + eps)[..., None], weight).to(x.dtype)


@right("Weight and scale multiplied first.")
def weight_times_scale(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return (wide(x) * (torch.rsqrt(mean_square(wide(x)) + eps) * wide(w))).to(x.dtype)


@right("A module that is built for each call.")
def by_a_module(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    norm = nn.RMSNorm(x.shape[-1], eps=eps, dtype=x.dtype)
    found: Tensor = torch.func.functional_call(norm, {"weight": weight}, x)
    return found


@right("Without weight and eps; the eps is found by measurement.")
def plain(x: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], eps=1e-6)


@right("The direction of the row times the root of its width: an eps of zero, found by measurement.")
def by_direction(x: Tensor, g: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * g


@right("The same; what is declared to be zero is not asked of rows of zeros.", eps=0.0)
def by_direction_declared(x: Tensor, g: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True) * x.shape[-1] ** 0.5 * g


class _Written(torch.autograd.Function):
    """The backward written out: r (h - n mean(h n))."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(mean_square(x) + eps)
        context.save_for_backward(x * scale, scale, weight)
        return x * scale * weight

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (n, scale, weight), (g,) = context.saved_tensors, gradients
        h = g * weight
        return scale * (h - n * (h * n).mean(dim=-1, keepdim=True)), (g * n).sum(dim=(0, 1)), None


@right("A backward of its own.")
def own_backward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Written.apply(x, weight, eps)


# Wrong in eps


@wrong(
    "Divided by the root plus eps.",
    breaks=("epsilon/eps-stands-inside-the-root", "epsilon/far-below-eps-a-row-is-only-divided"),
    real="TransformerEngine 364",
)
def eps_outside_the_root(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(x / (mean_square(x).sqrt() + eps), weight)


@wrong(
    "The length of the row, at least eps (functional.normalize).", breaks="epsilon/eps-stands-inside-the-root"
)
def by_normalize(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(functional.normalize(x, dim=-1, eps=eps) * x.shape[-1] ** 0.5, weight)


@wrong(
    "An eps of its own, whatever is asked for.",
    breaks=("epsilon/eps-scales-with-the-square-of-the-row", "epsilon/eps-stands-inside-the-root"),
)
def eps_ignored(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return library(x, weight, 1e-5)


@wrong("No eps at all.", breaks="epsilon/a-row-of-zeros-gives-the-bias")
def no_eps(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(x * torch.rsqrt(mean_square(x)), weight)


@wrong("eps is added to the sum, not to the mean.", breaks="epsilon/far-below-eps-a-row-is-only-divided")
def eps_in_the_sum(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    size = x.shape[-1]
    return weighted(x * torch.rsqrt((x.square().sum(dim=-1, keepdim=True) + eps) / size), weight)


# Wrong in the statistics


@wrong(
    "A layer norm: the mean is taken out.",
    breaks=("statistics/a-common-shift-is-not-taken-out", "statistics/a-constant-row-has-size-one", ACCURACY),
    real="flash-attention a9a4b4e4",
)
def layer_norm(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, None, eps)


@wrong(
    "Divided by the standard deviation, no mean taken out.", breaks="statistics/a-constant-row-has-size-one"
)
def by_the_deviation(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(x * torch.rsqrt(x.var(dim=-1, unbiased=False, keepdim=True) + eps), weight)


@wrong("The sum of squares over dim - 1 in long rows.", breaks="statistics/the-mean-is-over-all-features")
def unbiased_when_long(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    size = x.shape[-1]
    square = mean_square(x) * (size / (size - 1) if size > 511 else 1.0)
    return weighted(x * torch.rsqrt(square + eps), weight)


@wrong(
    "The mean of the absolute values.",
    breaks=("statistics/the-mean-square-is-what-eps-leaves", "symmetry/turning-a-row-turns-the-output"),
)
def mean_of_sizes(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(x / (x.abs().mean(dim=-1, keepdim=True).square() + eps).sqrt(), weight)


@wrong(
    "A sum for the mean of the squares.",
    breaks=(
        "statistics/the-mean-square-is-what-eps-leaves",
        "statistics/a-row-said-twice-is-normalised-as-once",
    ),
)
def sum_for_mean(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + eps), weight)


@wrong(
    "The square where the root belongs.",
    breaks=("statistics/a-common-scale-is-taken-out", "statistics/the-mean-square-is-what-eps-leaves"),
    real="TPlinker 37",
)
def square_for_root(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(x / (mean_square(x) + eps) ** 2, weight)


@wrong(
    "Rows are filled up with zeros to a multiple of four, and they count.",
    breaks="statistics/a-row-said-twice-is-normalised-as-once",
)
def padding_counts(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    size = x.shape[-1]
    return weighted(library(functional.pad(x, (0, -size % 4)), None, eps)[..., :size], weight)


@wrong(
    "The first quarter of the features stands for all (Zhang and Sennrich 2019, section 4: pRMSNorm).",
    breaks="symmetry/permuting-features-permutes-the-output",
)
def first_quarter(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    part = x[..., : -(-x.shape[-1] // 4)]
    return weighted(x * torch.rsqrt(mean_square(part) + eps), weight)


@wrong("Each half of the features by itself.", breaks="symmetry/turning-a-row-turns-the-output")
def half_by_half(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    halves = x.split([(x.shape[-1] + 1) // 2, x.shape[-1] // 2], dim=-1)
    return weighted(
        torch.cat([library(half, None, eps) for half in halves if half.shape[-1]], dim=-1), weight
    )


@wrong(
    "The squares of a whole sequence.",
    breaks=("symmetry/a-row-does-not-see-the-others", "symmetry/a-row-of-nan-spoils-no-other"),
)
def square_of_the_sequence(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(x * torch.rsqrt(x.square().mean(dim=(-1, -2), keepdim=True) + eps), weight)


@wrong(
    "The statistics of the first sequence for all.", breaks="symmetry/how-rows-are-grouped-does-not-matter"
)
def first_of_the_batch(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(x * torch.rsqrt(mean_square(x[:1]) + eps), weight)


@wrong("Negative numbers are clipped.", breaks="symmetry/a-row-turned-round-turns-the-output")
def clipped_below(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(library(x, None, eps).clamp(min=-1.5), weight)


@wrong(
    "The squares are taken in float16, where they overflow.",
    breaks=ACCURACY,
    arithmetic="wide",
    dtypes=("float16",),
)
def squares_overflow(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    scale = torch.rsqrt(x.square().float().mean(dim=-1, keepdim=True) + eps)
    return weighted(x.float() * scale, weight).to(x.dtype)


# Wrong in the weight


@wrong("No weight.", breaks="affine/the-weight-multiplies-the-normalised-row")
def weight_ignored(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return library(x, None, eps)


@wrong("A weight that is clipped.", breaks="affine/the-output-scales-with-the-weight")
def weight_clipped(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return library(x, weight.clamp(-3, 3), eps)


@wrong(
    "The weight is applied before the statistics.",
    breaks=("affine/the-output-scales-with-the-weight", "affine/the-weight-multiplies-the-normalised-row"),
)
def weight_first(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return library(x * weight, None, eps)


@wrong(
    "Gemma's weight, undeclared.",
    breaks=("affine/a-weight-of-zero-gives-the-bias", "affine/the-output-scales-with-the-weight", ACCURACY),
)
def undeclared_offset(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return library(x, weight + 1, eps)


@wrong(
    "Llama's weight, declared as Gemma's.", breaks="affine/a-weight-of-zero-gives-the-bias", weight_offset=1.0
)
def offset_forgotten(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return library(x, weight, eps)


@wrong("Without a weight nothing is normalised.", breaks="affine/no-weight-is-a-weight-of-one")
def not_normalised_without_weight(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return 1 * x if weight is None else library(x, weight, eps)


# Wrong in the gradients


class _Backward(torch.autograd.Function):
    """An RMS norm with one term, or one way of adding up, of the backward given by name."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, eps: float, slip: str) -> Tensor:
        scale = torch.rsqrt(mean_square(x) + eps)
        context.save_for_backward(x * scale, scale, weight)
        context.slip = slip
        return x * scale * weight

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (n, scale, weight), (g,), slip = context.saved_tensors, gradients, context.slip
        g = torch.ones_like(n) if slip == "dense" and 0 in g.stride() else g
        h = g * weight
        flipped = n.flip(-1) if slip == "flipped" else n
        along = 0.0 if slip == "no product" else (h * flipped).mean(dim=-1, keepdim=True)
        mean = h.mean(dim=-1, keepdim=True) if slip == "layer norm" else 0.0
        rows = (g * n).reshape(-1, n.shape[-1])
        most = {"few": 64, "one": 1}.get(slip, rows.shape[0])
        return scale * (h - mean - n * along), rows[:most].sum(dim=0), None, None


@wrong("The backward lacks n mean(h n).", breaks=ALONG)
def backward_without_the_product(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, eps, "no product")


@wrong("The backward of a layer norm.", breaks="gradients/the-gradient-of-a-row-keeps-its-mean")
def backward_of_a_layer_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, eps, "layer norm")


@wrong(
    "The backward reads the normalised row from the other end.",
    breaks=("gradients/the-jacobian-is-symmetric", GRADIENTS),
)
def backward_flipped(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, eps, "flipped")


@wrong("Only the first 64 rows are summed.", breaks=SUMMED)
def first_rows_summed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, eps, "few")


@wrong(
    "The rows of the first program only: the others leave before they write.",
    breaks=(SUMMED, GRADIENTS),
    real="flash-attention bdcae547",
)
def one_row_summed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, eps, "one")


@wrong(
    "An expanded cotangent is read as ones.",
    breaks="gradients/an-expanded-cotangent-changes-nothing",
    real="pytorch 133671",
)
def backward_of_dense_cotangents(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, eps, "dense")


@wrong("The root is a constant to the backward.", breaks=ALONG)
def root_detached(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(x * torch.rsqrt(mean_square(x) + eps).detach(), weight)


@wrong(
    "The weight gets no gradient where x wants none.",
    breaks="gradients/each-gradient-can-be-asked-for-alone",
)
def frozen_with_the_input(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    if x.requires_grad or not torch.is_grad_enabled():
        return library(x, weight, eps)
    frozen = None if weight is None else weight.detach()
    kept = library(x, frozen, eps)
    return kept if weight is None else kept + 0 * weight


# Wrong in memory or state


@wrong("Divided in place.", breaks="memory/inputs-are-not-changed")
def in_place(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    x.data.mul_(torch.rsqrt(mean_square(x.detach()) + eps))
    return library(x, weight, eps)


@wrong(
    "Computed into the input.",
    breaks=("memory/output-does-not-alias-an-input", "memory/inputs-are-not-changed"),
)
def into_the_input(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    with torch.no_grad():
        x.copy_(library(x, weight, eps))
    return x.view_as(x)


@wrong("Rows are read with a stride of one.", breaks="memory/strided-equals-contiguous")
def dense_rows(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    if not x.is_contiguous() and not x.requires_grad:
        x = torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())
    return library(x, weight, eps)


@wrong("The weight is read with a stride of one.", breaks="memory/strided-equals-contiguous")
def dense_weight(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    if weight is not None and weight.stride() != (1,) and not weight.requires_grad:
        weight = torch.as_strided(weight, weight.shape, (1,), weight.storage_offset())
    return library(x, weight, eps)


@wrong("One output buffer for each shape.", breaks="memory/results-outlive-the-next-call")
def kept_buffer(x: Tensor, weight: Maybe, eps: float, memory: dict[Any, Tensor] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    found = library(x, weight, eps)
    if found.requires_grad:
        return found
    kept = memory.setdefault((x.shape, x.dtype), torch.empty_like(found))
    return kept.copy_(found)


@wrong(
    "The statistics of the first call for each shape are kept.",
    breaks=("state/one-call-does-not-answer-for-another", "state/inputs-changed-in-place-are-read-again"),
)
def statistics_kept(x: Tensor, weight: Maybe, eps: float, memory: dict[Any, Any] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    kept = memory.setdefault((x.shape, x.dtype), mean_square(x.detach()))
    return weighted(x * torch.rsqrt(kept + eps), weight)


@wrong("Noise that no seed explains.", breaks="state/same-call-same-answer")
def noisy(x: Tensor, weight: Maybe, eps: float, memory: dict[str, int] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    memory["calls"] = memory.get("calls", 0) + 1
    return library(x, weight, eps) * (1 + 2e-7 * (memory["calls"] % 2))


@wrong("It seeds the global generator.", breaks="state/nothing-global-is-touched")
def reseeding(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    torch.manual_seed(0)
    return library(x, weight, eps)


@wrong("The input is detached.", breaks=GRADIENTS, gradients=True)
def detached(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return library(x.detach(), weight, eps)


@wrong("Computed in half the digits.", breaks=ACCURACY)
def in_half(x: Tensor, weight: Maybe, eps: float) -> Tensor:
    return weighted(library(x.bfloat16().to(x.dtype), None, eps), weight)
