"""Wrong and right softmaxes."""

import math
from typing import Any

import numpy  # noqa: ICN001
import torch
from torch import Tensor

from tests.roles import right, wrong

ACCURACY = "accuracy/output-is-within-the-bound"


def exponents(x: Tensor, dim: int) -> Tensor:
    """exp(x - max), a row of nothing but -inf apart."""
    return torch.exp(x - x.amax(dim=dim, keepdim=True))


# Right


@right("torch's own.")
def library(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim)


class StoredProducts(torch.autograd.Function):
    """torch's own as it goes back on a GPU: p g is stored in the dtype of the output, and then summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        weights = torch.softmax(x, dim, dtype=wide).to(x.dtype)
        ctx.save_for_backward(weights)
        ctx.dim = dim
        return weights

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        wide = torch.float64 if weights.dtype == torch.float64 else torch.float32
        products = (cotangent * weights).to(wide)
        total = products.sum(ctx.dim, keepdim=True)
        return (products - weights.to(wide) * total).to(weights.dtype), None


@right("On the way back each product of a weight and what is sent back is stored before it is summed.")
def by_stored_products(x: Tensor, dim: int) -> Tensor:
    weights: Tensor = StoredProducts.apply(x, dim)
    return weights


class Scaled(torch.autograd.Function):
    """softmax(scale x) of the last axis, with a backward of its own; `forgets` leaves the scale out of it."""

    forgets = False

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        weights = torch.softmax(x.to(wide) * scale, -1).to(x.dtype)
        ctx.save_for_backward(weights)
        ctx.scale = scale
        return weights

    @classmethod
    def backward(cls, ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (weights,) = ctx.saved_tensors
        wide = torch.float64 if weights.dtype == torch.float64 else torch.float32
        p, g = weights.to(wide), cotangent.to(wide)
        gradient = p * (g - (p * g).sum(-1, keepdim=True))
        return (gradient if cls.forgets else ctx.scale * gradient).to(weights.dtype), None


class ScaledOnceOnly(Scaled):
    """The slip."""

    forgets = True


@right("A scale in the call, and a backward of its own.")
def with_a_scale(x: Tensor, scale: float = 1.0) -> Tensor:
    weights: Tensor = Scaled.apply(x, scale)
    return weights


@right("A scale that every call is given, in the dtype of x.")
def scaled_where_it_is(x: Tensor, scale: float, dim: int = -1) -> Tensor:
    return by_the_book(x * scale, dim)


@wrong("The scale is not in the gradient.", breaks="scale/a-scale-multiplies-the-gradient")
def scale_left_out_of_the_gradient(x: Tensor, scale: float = 1.0) -> Tensor:
    weights: Tensor = ScaledOnceOnly.apply(x, scale)
    return weights


@wrong(
    "The maximum is taken before the scale: a negative one makes it the smallest.",
    breaks="scale/a-negative-scale-turns-the-order-round",
)
def largest_before_a_negative_scale(x: Tensor, scale: float = 1.0) -> Tensor:
    raised = torch.exp((x - x.amax(dim=-1, keepdim=True)) * scale)
    return raised / raised.sum(dim=-1, keepdim=True)


@wrong(
    "The maximum is taken out before the scale, and not scaled.",
    breaks="scale/a-scale-multiplies-the-entries",
)
def scaled_after_the_maximum(x: Tensor, scale: float = 1.0) -> Tensor:
    raised = torch.exp(x * scale - x.amax(dim=-1, keepdim=True))
    return raised / (torch.exp((x - x.amax(dim=-1, keepdim=True)) * scale)).sum(dim=-1, keepdim=True)


@right("The maximum is taken before the scale, which is above zero.", negative_scale=False)
def largest_before_a_scale_above_zero(x: Tensor, scale: float = 1.0) -> Tensor:
    return largest_before_a_negative_scale(x, scale)


@right("max, exp, sum, division, one after the other.")
def by_the_book(x: Tensor, dim: int) -> Tensor:
    raised = exponents(x, dim)
    return raised / raised.sum(dim=dim, keepdim=True)


@right("Along the last axis, without a parameter for it.")
def last_axis(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


@right("In pieces along the last axis; their number is no axis.")
def in_pieces(x: Tensor, pieces: int = 4) -> Tensor:
    size = -(-max(1, x.shape[-1]) // pieces)
    return torch.cat([each * 1.0 for each in torch.softmax(x, -1).split(size, dim=-1)], dim=-1)


@right("The axis is called axis.")
def by_axis(x: Tensor, axis: int = -1) -> Tensor:
    return torch.softmax(x, dim=axis)


@right("Powers of two, the difference taken first.")
def base_two(x: Tensor, dim: int) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    raised = torch.exp2((wide - wide.amax(dim=dim, keepdim=True)) * math.log2(math.e))
    return (raised / raised.sum(dim=dim, keepdim=True)).to(x.dtype)


@right("Powers of two, the factor first, as kernels in Triton take them.")
def base_two_scaled_first(x: Tensor, dim: int) -> Tensor:
    scaled = (x if x.dtype == torch.float64 else x.float()) * math.log2(math.e)
    raised = torch.exp2(scaled - scaled.amax(dim=dim, keepdim=True))
    return (raised / raised.sum(dim=dim, keepdim=True)).to(x.dtype)


@right("Less the log-sum-exp, and not divided by a sum: as a backward gets the weights back.")
def by_log_sum_exp(x: Tensor, dim: int) -> Tensor:
    return torch.exp(x - torch.logsumexp(x, dim=dim, keepdim=True))


@right("A running maximum and a running sum over blocks of four (Milakov & Gimelshein 2018).")
def online(x: Tensor, dim: int) -> Tensor:
    rows = x.movedim(dim, -1)
    rows = rows if x.dtype == torch.float64 else rows.float()
    top = rows.new_full(rows.shape[:-1], -torch.inf)
    total = torch.zeros_like(top)
    for block in rows.split(4, dim=-1):
        new = torch.maximum(top, block.amax(dim=-1)).detach()
        finite = torch.where(new.isneginf(), 0.0, new)
        total = total * torch.exp(top - finite) + torch.exp(block - finite[..., None]).sum(dim=-1)
        top = new
    return (torch.exp(rows - top[..., None]) / total[..., None]).movedim(-1, dim).to(x.dtype)


@right("The log-softmax, raised.")
def from_logarithms(x: Tensor, dim: int) -> Tensor:
    return torch.log_softmax(x if x.dtype == torch.float64 else x.float(), dim).exp().to(x.dtype)


@right("The reciprocal of the sum, multiplied.")
def by_reciprocal(x: Tensor, dim: int) -> Tensor:
    raised = exponents(x if x.dtype == torch.float64 else x.float(), dim)
    return (raised * raised.sum(dim=dim, keepdim=True).reciprocal()).to(x.dtype)


class _Written(torch.autograd.Function):
    """The backward written out: p (g - sum p g)."""

    @staticmethod
    def forward(context: Any, x: Tensor, dim: int) -> Tensor:
        weights = torch.softmax(x, dim)
        context.save_for_backward(weights)
        context.dim = dim
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,), (g,) = context.saved_tensors, gradients
        return weights * (g - (weights * g).sum(dim=context.dim, keepdim=True)), None


@right("A backward of its own.", dtypes=("float32", "float64"))
def own_backward(x: Tensor, dim: int) -> Tensor:
    return _Written.apply(x, dim)


# Wrong


@wrong("exp without the maximum taken out.", breaks=("limits/the-hot-limit-is-even", ACCURACY))
def no_maximum(x: Tensor, dim: int) -> Tensor:
    raised = torch.exp(x)
    return raised / raised.sum(dim=dim, keepdim=True)


@wrong("One maximum for the whole tensor.", breaks=("symmetry/a-row-of-nan-spoils-no-other", ACCURACY))
def one_maximum_for_all(x: Tensor, dim: int) -> Tensor:
    raised = torch.exp(x - x.max())
    return raised / raised.sum(dim=dim, keepdim=True)


@wrong(
    "Always along the last axis.", breaks="symmetry/every-dim-is-the-last-one-turned", real="labml issue 146"
)
def dim_ignored(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, -1)


@wrong("The absolute value of dim: -2 is taken for 2.", breaks="symmetry/every-dim-is-the-last-one-turned")
def dim_without_its_sign(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, abs(dim) if dim != -1 else -1)


@wrong("A small number added to the sum.", breaks="distribution/weights-sum-to-one")
def padded_sum(x: Tensor, dim: int) -> Tensor:
    raised = exponents(x, dim)
    return raised / (raised.sum(dim=dim, keepdim=True) + 1e-6)


@wrong(
    "Powers of two without the factor log2(e).", breaks="limits/the-odds-are-the-exponent-of-the-difference"
)
def wrong_base(x: Tensor, dim: int) -> Tensor:
    raised = torch.exp2(x - x.amax(dim=dim, keepdim=True))
    return raised / raised.sum(dim=dim, keepdim=True)


@wrong(
    "The last entries beyond a multiple of eight are left out of the sum.",
    breaks="distribution/weights-sum-to-one",
)
def tail_not_summed(x: Tensor, dim: int) -> Tensor:
    raised = exponents(x, dim).movedim(dim, -1)
    whole = max(raised.shape[-1] // 8 * 8, min(raised.shape[-1], 7))
    return (raised / raised[..., :whole].sum(dim=-1, keepdim=True)).movedim(-1, dim)


@wrong(
    "A row is filled up with zeros to a multiple of four, and they count.",
    breaks="distribution/weights-sum-to-one",
)
def padding_counts(x: Tensor, dim: int) -> Tensor:
    rows = x.movedim(dim, -1)
    size = rows.shape[-1]
    filled = torch.nn.functional.pad(rows, (0, -size % 4))
    return torch.softmax(filled, -1)[..., :size].movedim(-1, dim)


@wrong(
    "The sum is taken over the rows.",
    breaks=("distribution/weights-sum-to-one", "symmetry/a-row-does-not-see-the-others"),
)
def wrong_sum(x: Tensor, dim: int) -> Tensor:
    raised = exponents(x, dim)
    return raised / raised.sum(dim=dim - 1 if dim < 0 else (dim + 1) % 3, keepdim=True)


@wrong(
    "A large negative number in place of -inf leaves something behind.",
    breaks="distribution/minus-infinity-has-no-weight",
)
def soft_infinity(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x.clamp(min=-50.0), dim)


@wrong(
    "Blocks are merged without rescaling the earlier sum.",
    breaks=("symmetry/permuting-entries-permutes-weights", ACCURACY),
)
def blocks_not_rescaled(x: Tensor, dim: int) -> Tensor:
    rows = x.movedim(dim, -1)
    top, total = (
        torch.full(rows.shape[:-1], -torch.inf, dtype=x.dtype),
        torch.zeros(rows.shape[:-1], dtype=x.dtype),
    )
    for block in rows.split(2, dim=-1):
        top = torch.maximum(top, block.amax(dim=-1))
        total = total + torch.exp(block - torch.where(top.isneginf(), 0.0, top)[..., None]).sum(dim=-1)
    return (torch.exp(rows - top[..., None]) / total[..., None]).movedim(-1, dim)


@wrong(
    "Blocks whose entries are all -inf give NaN.",
    breaks="distribution/minus-infinity-has-no-weight",
    real="flashinfer 1178",
)
def dead_block(x: Tensor, dim: int) -> Tensor:
    rows = x.movedim(dim, -1)
    parts = [exponents(block, -1) for block in rows.flip(-1).split(2, dim=-1)]
    bad = torch.cat(parts, dim=-1).isnan().any(dim=-1, keepdim=True)
    return torch.where(bad, torch.nan, torch.softmax(rows, -1)).movedim(-1, dim)


@wrong(
    "An exp by its series, which turns negative.",
    breaks="distribution/weights-are-neither-negative-nor-above-one",
)
def negative_series(x: Tensor, dim: int) -> Tensor:
    below = x - x.amax(dim=dim, keepdim=True)
    raised = torch.where(below > -2.5, 1 + below + below**2 / 2 + below**3 / 6, torch.exp(below))
    return raised / raised.sum(dim=dim, keepdim=True)


@wrong("Ties are broken in favour of the last one.", breaks="distribution/order-is-kept")
def ties_broken(x: Tensor, dim: int) -> Tensor:
    nudge = 1e-3 * torch.arange(x.shape[dim], dtype=x.dtype).reshape(
        *(-1 if i == dim % 3 else 1 for i in range(3))
    )
    return torch.softmax(x + nudge, dim)


@wrong(
    "Argmax where the largest stands out: all ties get the whole weight.",
    breaks="limits/the-cold-limit-picks-the-largest",
)
def hard_when_cold(x: Tensor, dim: int) -> Tensor:
    top = x.amax(dim=dim, keepdim=True)
    cold = (top - x.amin(dim=dim, keepdim=True)) > 1000
    return torch.where(cold, (x == top).to(x.dtype), torch.softmax(x, dim))


@wrong(
    "The appended -inf changes how the row is cut: odd lengths lose a digit.",
    breaks="distribution/appended-minus-infinity-changes-nothing",
)
def temperature_by_length(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x * (1 + 1e-3 * (x.shape[dim] % 2)), dim)


@wrong(
    "A temperature that depends on the row's size far from zero.",
    breaks="symmetry/a-common-shift-changes-nothing",
)
def shifted_digits(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x.half().to(x.dtype) * (1 + 1e-4 * x.abs().amax(dim=dim, keepdim=True)), dim)


@wrong(
    "A long row in two parts, merged with equal weight.",
    breaks="symmetry/a-part-of-a-row-keeps-its-proportions",
)
def halves_merged_evenly(x: Tensor, dim: int) -> Tensor:
    size = x.shape[dim]
    if size < 4:
        return torch.softmax(x, dim)
    parts = x.split([size // 2, size - size // 2], dim=dim)
    return torch.cat([torch.softmax(part, dim) for part in parts], dim=dim) / 2


class _NoSum(torch.autograd.Function):
    """A backward without the sum."""

    @staticmethod
    def forward(context: Any, x: Tensor, dim: int) -> Tensor:
        weights = torch.softmax(x, dim)
        context.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,), (g,) = context.saved_tensors, gradients
        return weights * g, None


@wrong("The backward lacks sum_j p_j g_j.", breaks="gradients/the-gradient-of-a-row-sums-to-zero")
def backward_without_the_sum(x: Tensor, dim: int) -> Tensor:
    return _NoSum.apply(x, dim)


class _OtherWeights(torch.autograd.Function):
    """A backward with the weights in reverse."""

    @staticmethod
    def forward(context: Any, x: Tensor, dim: int) -> Tensor:
        weights = torch.softmax(x, dim)
        context.save_for_backward(weights)
        context.dim = dim
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,), (g,) = context.saved_tensors, gradients
        other = weights.flip(context.dim)
        return other * (g - (weights * g).sum(dim=context.dim, keepdim=True)), None


@wrong(
    "The backward reads the weights from the other end.",
    breaks=("gradients/the-jacobian-is-symmetric", "gradients/gradients-are-within-the-bound"),
)
def backward_reversed(x: Tensor, dim: int) -> Tensor:
    return _OtherWeights.apply(x, dim)


class _DenseOnly(torch.autograd.Function):
    """A backward that reads the cotangent's memory."""

    @staticmethod
    def forward(context: Any, x: Tensor, dim: int) -> Tensor:
        weights = torch.softmax(x, dim)
        context.save_for_backward(weights)
        context.dim = dim
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,), (g,) = context.saved_tensors, gradients
        if 0 in g.stride():
            g = torch.zeros_like(weights)
        return weights * (g - (weights * g).sum(dim=context.dim, keepdim=True)), None


@wrong(
    "An expanded cotangent is read as zeros.",
    breaks="gradients/an-expanded-cotangent-changes-nothing",
    real="pytorch 133671",
)
def backward_of_dense_cotangents(x: Tensor, dim: int) -> Tensor:
    return _DenseOnly.apply(x, dim)


@wrong("The maximum is subtracted in place.", breaks="memory/inputs-are-not-changed")
def in_place(x: Tensor, dim: int) -> Tensor:
    x.data.sub_(
        torch.where(x.amax(dim=dim, keepdim=True).isneginf(), 0.0, x.amax(dim=dim, keepdim=True)).detach()
    )
    return torch.softmax(x, dim)


@wrong(
    "Computed into the input.",
    breaks=("memory/output-does-not-alias-an-input", "memory/inputs-are-not-changed"),
)
def into_the_input(x: Tensor, dim: int) -> Tensor:
    with torch.no_grad():
        x.copy_(torch.softmax(x, dim))
    return x.view_as(x)


@wrong("Rows are read with a stride of one.", breaks="memory/strided-equals-contiguous")
def dense_rows(x: Tensor, dim: int) -> Tensor:
    if not x.is_contiguous() and not x.requires_grad:
        flat = torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())
        return torch.softmax(flat, dim)
    return torch.softmax(x, dim)


@wrong("One output buffer for each shape.", breaks="memory/results-outlive-the-next-call")
def kept_buffer(x: Tensor, dim: int, memory: dict[Any, Tensor] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    if x.requires_grad:
        return torch.softmax(x, dim)
    kept = memory.setdefault((x.shape, x.dtype), torch.empty_like(x, memory_format=torch.contiguous_format))
    return kept.copy_(torch.softmax(x, dim))


@wrong(
    "The first answer for each shape is kept.",
    breaks=("state/one-call-does-not-answer-for-another", "state/inputs-changed-in-place-are-read-again"),
)
def answers_kept(x: Tensor, dim: int, memory: dict[Any, Tensor] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    return memory.setdefault((x.shape, x.dtype, dim), torch.softmax(x, dim)).clone()


@wrong("Noise that no seed explains.", breaks="state/same-call-same-answer")
def noisy(x: Tensor, dim: int, memory: dict[str, int] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    memory["calls"] = memory.get("calls", 0) + 1
    return torch.softmax(x, dim) * (1 + 2e-7 * (memory["calls"] % 2))


@wrong("It seeds the global generator.", breaks="state/nothing-global-is-touched")
def reseeding(x: Tensor, dim: int) -> Tensor:
    torch.manual_seed(0)
    return torch.softmax(x, dim)


@wrong("It seeds NumPy's generator.", breaks="state/nothing-global-is-touched")
def reseeding_numpys(x: Tensor, dim: int) -> Tensor:
    numpy.random.seed(0)  # noqa: NPY002 - the global one
    return torch.softmax(x, dim)


@wrong("The input is detached.", breaks="gradients/each-gradient-can-be-asked-for-alone", gradients=True)
def detached(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x.detach(), dim)
