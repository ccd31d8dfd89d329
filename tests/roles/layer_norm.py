"""Wrong and right layer norms."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.roles import right, wrong

ACCURACY = "accuracy/output-is-within-the-bound"
GRADIENTS = "gradients/gradients-are-within-the-bound"
Maybe = Tensor | None


def affine(n: Tensor, weight: Maybe, bias: Maybe) -> Tensor:
    n = n if weight is None else n * weight
    return n if bias is None else n + bias


def centred(x: Tensor) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True)


def variance(x: Tensor) -> Tensor:
    return centred(x).square().mean(dim=-1, keepdim=True)


def library(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


# Right


@right("torch's own without a bias, as nanoGPT's.")
def without_a_bias(x: Tensor, weight: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, None, 1e-5)


@right("llm.c's: the output, and what the backward pass needs.")
def with_its_cache(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Any]:
    mean, rstd = x.mean(-1, keepdim=True), (variance(x) + 1e-5) ** -0.5
    return (x - mean) * rstd * w + b, (x, w, mean, rstd)


@right("torch's own, with its normalized_shape.")
def torch_s_own(
    input: Tensor,  # noqa: A002 (torch's name)
    normalized_shape: tuple[int, ...],
    weight: Maybe = None,
    bias: Maybe = None,
    eps: float = 1e-5,
) -> Tensor:
    return functional.layer_norm(input, normalized_shape, weight, bias, eps)


@right("Two passes, each step stored.")
def two_passes(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(centred(x) / torch.sqrt(variance(x) + eps), weight, bias)


@right("torch.var and a reciprocal root, by position.")
def by_var(x: Tensor, g: Tensor, b: Tensor, e: float, /) -> Tensor:
    scale = torch.rsqrt(x.var(dim=-1, unbiased=False, keepdim=True) + e)
    return (x - x.mean(dim=-1, keepdim=True)) * scale * g + b


@right("In float32, rounded once.")
def in_float32(hidden_states: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    x = wide(hidden_states)
    n = centred(x) * torch.rsqrt(variance(x) + epsilon)
    return (n * gamma + beta).to(hidden_states.dtype)


@right("In float32, the normalised row rounded before the weight multiplies it.")
def rounded_before_the_weight(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    n = centred(wide(x)) * torch.rsqrt(variance(wide(x)) + eps)
    return affine(n.to(x.dtype), weight, bias)


def welford(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations, entry by entry."""
    mean, total = torch.zeros_like(x[..., 0]), torch.zeros_like(x[..., 0])
    for count, entry in enumerate(x.unbind(dim=-1), start=1):
        step = entry - mean
        mean = mean + step / count
        total = total + step * (entry - mean)
    return mean, total


@right("Welford's running mean, without a backward.", gradients=False, effort=0.5)
def by_welford(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    with torch.no_grad():
        mean, total = welford(wide(x))
        scale = torch.rsqrt(total / x.shape[-1] + eps)
        return affine((wide(x) - mean[..., None]) * scale[..., None], weight, bias).to(x.dtype)


@right("Welford in blocks of sixteen, merged (Chan, Golub and LeVeque 1983).", gradients=False, effort=0.5)
def by_merged_blocks(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    with torch.no_grad():
        count, mean, total = 0, torch.zeros(()), torch.zeros(())
        for block in wide(x).split(16, dim=-1):
            size, (block_mean, block_total) = block.shape[-1], welford(block)
            apart = block_mean - mean
            mean = mean + apart * (size / (count + size))
            total = total + block_total + apart.square() * (count * size / (count + size))
            count += size
        scale = torch.rsqrt(total / count + eps)[..., None]
        return affine((wide(x) - mean[..., None]) * scale, weight, bias).to(x.dtype)


@right("x times the scale less the mean times the scale.", dtypes=("float32", "float64"))
def scaled_first(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    scale = 1 / torch.sqrt(variance(x) + eps)
    return affine(x * scale - x.mean(dim=-1, keepdim=True) * scale, weight, bias)


@right("A module that is built for each call.")
def by_a_module(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    norm = nn.LayerNorm(x.shape[-1], eps=eps, dtype=x.dtype)
    found: Tensor = torch.func.functional_call(norm, {"weight": weight, "bias": bias}, x)
    return found


@right("Without weight, bias and eps; the eps is found by measurement.")
def plain(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=1e-6)


@right("Each row a channel of a batch norm, which refuses a row of one.")
def by_batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    rows = x.reshape(1, -1, x.shape[-1])
    return functional.batch_norm(rows, None, None, training=True, eps=eps).reshape(x.shape) * weight + bias


@right("A weight that one is added to.", weight_offset=1.0)
def zero_centred_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (wide(library(wide(x), None, None, eps)) * (1 + wide(weight)) + bias).to(x.dtype)


@right("A mean of zero by matrix product.", dtypes=("float32", "float64"), effort=0.5)
def by_matrix(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    size = x.shape[-1]
    c = x @ (torch.eye(size, dtype=x.dtype, device=x.device) - x.new_full((size, size), 1 / size))
    scale = torch.linalg.vector_norm(c, dim=-1, keepdim=True).square() / size
    return affine(c / (scale + eps).sqrt(), weight, bias)


class _Written(torch.autograd.Function):
    """The backward written out: r (h - mean h - n mean(h n))."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(variance(x) + eps)
        n = centred(x) * scale
        context.save_for_backward(n, scale, weight)
        return n * weight + bias

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (n, scale, weight), (g,) = context.saved_tensors, gradients
        h = g * weight
        along = (h * n).mean(dim=-1, keepdim=True)
        dx = scale * (h - h.mean(dim=-1, keepdim=True) - n * along)
        return dx, (g * n).sum(dim=(0, 1)), g.sum(dim=(0, 1)), None


@right("A backward of its own.")
def own_backward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _Written.apply(x, weight, bias, eps)


@right("Torch's own for inference, and step by step where x or the weight wants a gradient.")
def two_paths(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    wanted = any(each is not None and each.requires_grad for each in (x, weight))
    if not (wanted and torch.is_grad_enabled()):
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    centred = wide(x) - wide(x).mean(dim=-1, keepdim=True)
    normed = centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    normed = normed if weight is None else normed * weight
    return (normed if bias is None else normed + bias).to(x.dtype)


# Wrong in eps


@wrong(
    "Divided by the deviation plus eps.",
    breaks=("epsilon/eps-stands-inside-the-root", "epsilon/far-below-eps-a-row-is-only-divided"),
    real="annotated-transformer 119, TransformerEngine 364",
)
def eps_outside_the_root(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(centred(x) / (variance(x).sqrt() + eps), weight, bias)


@wrong("The larger of variance and eps.", breaks="epsilon/eps-stands-inside-the-root")
def at_least_eps(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(centred(x) / variance(x).clamp(min=eps).sqrt(), weight, bias)


@wrong(
    "An eps of its own, whatever is asked for.",
    breaks=("epsilon/eps-scales-with-the-square-of-the-row", "epsilon/eps-stands-inside-the-root"),
)
def eps_ignored(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return library(x, weight, bias, 1e-5)


@wrong(
    "No eps at all.",
    breaks=("epsilon/a-row-of-zeros-gives-the-bias", "statistics/a-constant-row-gives-the-bias"),
)
def no_eps(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(centred(x) / variance(x).sqrt(), weight, bias)


@wrong("eps is taken twice.", breaks="epsilon/far-below-eps-a-row-is-only-divided")
def eps_twice(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return library(x, weight, bias, 2 * eps)


# Wrong in the statistics


@wrong(
    "The unbiased deviation, eps outside.",
    breaks=("statistics/the-mean-is-over-all-features", "epsilon/eps-stands-inside-the-root"),
    real="annotated-transformer 119, hyunwoongko/transformer 7, BERT-pytorch 30, burn 2185",
)
def unbiased_and_outside(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    if x.shape[-1] == 1:
        return affine(centred(x), weight, bias)
    return affine(centred(x) / (x.std(dim=-1, keepdim=True) + eps), weight, bias)


@wrong("The unbiased variance of long rows.", breaks="statistics/the-mean-is-over-all-features")
def unbiased_when_long(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    size = x.shape[-1]
    unbiased = variance(x) * (size / (size - 1) if size > 511 else 1.0)
    return affine(centred(x) * torch.rsqrt(unbiased + eps), weight, bias)


@wrong(
    "The mean of the squares less the square of the mean.",
    breaks=("statistics/a-large-mean-takes-no-digits", ACCURACY),
)
def one_pass(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    mean = x.mean(dim=-1, keepdim=True)
    spread = (x.square().mean(dim=-1, keepdim=True) - mean.square()).clamp(min=0.0)
    return affine((x - mean) * torch.rsqrt(spread + eps), weight, bias)


@wrong(
    "The square where the root belongs.",
    breaks=("statistics/a-common-scale-is-taken-out", "statistics/the-mean-square-is-what-eps-leaves"),
    real="TPlinker 37",
)
def square_for_root(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(centred(x) / (variance(x) + eps) ** 2, weight, bias)


@wrong(
    "An RMS norm: no mean is taken out.",
    breaks=(
        "statistics/a-normalised-row-has-mean-zero",
        "statistics/a-common-shift-changes-nothing",
        "statistics/a-constant-row-gives-the-bias",
        "gradients/the-gradient-of-a-row-sums-to-zero",
    ),
)
def no_mean(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps), weight, bias)


@wrong(
    "The mean of the absolute values.",
    breaks=("statistics/a-normalised-row-has-mean-zero", "symmetry/a-row-turned-round-turns-the-output"),
)
def absolute_mean(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    c = x - x.abs().mean(dim=-1, keepdim=True)
    return affine(c * torch.rsqrt(c.square().mean(dim=-1, keepdim=True) + eps), weight, bias)


@wrong(
    "A sum for the mean of the squares.",
    breaks=(
        "statistics/the-mean-square-is-what-eps-leaves",
        "statistics/a-row-said-twice-is-normalised-as-once",
    ),
)
def sum_for_mean(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(centred(x) * torch.rsqrt(variance(x) * x.shape[-1] + eps), weight, bias)


@wrong(
    "Rows are filled up with zeros to a multiple of four, and they count.",
    breaks="statistics/a-row-said-twice-is-normalised-as-once",
)
def padding_counts(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    size = x.shape[-1]
    filled = functional.pad(x, (0, -size % 4))
    return affine(library(filled, None, None, eps)[..., :size], weight, bias)


@wrong("The mean, over the whole sequence.", breaks="symmetry/a-row-does-not-see-the-others")
def mean_of_the_sequence(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    c = x - x.mean(dim=(-1, -2), keepdim=True)
    return affine(c * torch.rsqrt(variance(x) + eps), weight, bias)


@wrong(
    "Statistics over the last two axes, as for normalized_shape of both.",
    breaks=("symmetry/a-row-does-not-see-the-others", "symmetry/a-row-of-nan-spoils-no-other"),
)
def two_axes(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(functional.layer_norm(x, x.shape[-2:], eps=eps), weight, bias)


@wrong(
    "The statistics of the first sequence for all.", breaks="symmetry/how-rows-are-grouped-does-not-matter"
)
def first_of_the_batch(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    first = x[:1]
    c = x - first.mean(dim=-1, keepdim=True)
    return affine(c * torch.rsqrt(variance(first) + eps), weight, bias)


@wrong(
    "The last features beyond a multiple of eight count in no statistic.",
    breaks="symmetry/permuting-features-permutes-the-output",
)
def tail_left_out(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    whole = x[..., : max(x.shape[-1] // 8 * 8, min(x.shape[-1], 7))]
    c = x - whole.mean(dim=-1, keepdim=True)
    return affine(c * torch.rsqrt(variance(whole) + eps), weight, bias)


@wrong("NaN anywhere is replaced everywhere.", breaks="symmetry/a-row-of-nan-spoils-no-other")
def guarded_at_once(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    found = library(x, weight, bias, eps)
    return torch.zeros_like(found) if bool(found.isnan().any()) else found


@wrong(
    "Small features are cut off, negative ones only.", breaks="symmetry/a-row-turned-round-turns-the-output"
)
def clipped_below(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(library(x, None, None, eps).clamp(min=-1.5), weight, bias)


# Wrong in the weight or the bias


@wrong("No weight.", breaks="affine/the-weight-multiplies-the-normalised-row")
def weight_ignored(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return library(x, None, bias, eps)


@wrong("No bias.", breaks="affine/the-bias-is-added-last")
def bias_ignored(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return library(x, weight, None, eps)


@wrong(
    "The bias is weighted as well.",
    breaks=("affine/the-bias-is-added-last", "affine/a-weight-of-zero-gives-the-bias"),
)
def bias_weighted(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (library(x, None, None, eps) + bias) * weight


@wrong("A weight that is clipped.", breaks="affine/the-output-scales-with-the-weight")
def weight_clipped(x: Tensor, weight: Tensor, bias: Maybe, eps: float) -> Tensor:
    return library(x, weight.clamp(-3, 3), bias, eps)


@wrong(
    "The weight is applied before the statistics.",
    breaks=("affine/the-output-scales-with-the-weight", "affine/the-weight-multiplies-the-normalised-row"),
)
def weight_first(x: Tensor, weight: Tensor, bias: Maybe, eps: float) -> Tensor:
    return library(x * weight, None, bias, eps)


@wrong("The input gets around the norm.", breaks="affine/a-weight-of-zero-gives-the-bias")
def with_a_way_around(x: Tensor, weight: Tensor, bias: Maybe, eps: float) -> Tensor:
    return library(x, weight, bias, eps) + 1e-3 * x


@wrong("Without a weight the deviations are not divided.", breaks="affine/no-weight-is-a-weight-of-one")
def not_normalised_without_weight(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(centred(x), None, bias) if weight is None else library(x, weight, bias, eps)


@wrong("Without a bias there is no weight either.", breaks="affine/no-bias-is-a-bias-of-zero")
def both_or_none(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return library(x, None if bias is None else weight, bias, eps)


@wrong(
    "A weight that one is added to, undeclared.", breaks=("affine/a-weight-of-zero-gives-the-bias", ACCURACY)
)
def undeclared_offset(x: Tensor, weight: Tensor, bias: Maybe, eps: float) -> Tensor:
    return library(x, weight + 1, bias, eps)


# Wrong in the gradients


class _Backward(torch.autograd.Function):
    """A layer norm with one term, or one way of adding up, of the backward given by name."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, slip: str) -> Tensor:
        scale = torch.rsqrt(variance(x) + eps)
        n = centred(x) * scale
        context.save_for_backward(n, scale, weight)
        context.slip = slip
        return n * weight + bias

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        (n, scale, weight), (g,), slip = context.saved_tensors, gradients, context.slip
        g = torch.ones_like(n) if slip == "dense" and 0 in g.stride() else g
        h = g * weight
        flipped = n.flip(-1) if slip == "flipped" else n
        mean = 0.0 if slip == "no mean" else h.mean(dim=-1, keepdim=True)
        along = 0.0 if slip == "no product" else (h * flipped).mean(dim=-1, keepdim=True)
        dx = torch.zeros_like(n) if slip == "zero" else scale * (h - mean - n * along)
        rows_n, rows_g = (g * n).reshape(-1, n.shape[-1]), g.reshape(-1, n.shape[-1])
        most = {"few": 64, "one": 1}.get(slip, rows_g.shape[0])
        if slip == "tail":
            most = most // 2 * 2 if most > 1 else 1
        return dx, rows_n[:most].sum(dim=0), rows_g[:most].sum(dim=0), None, None


@wrong("The backward lacks mean h.", breaks="gradients/the-gradient-of-a-row-sums-to-zero")
def backward_without_the_mean(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, bias, eps, "no mean")


@wrong(
    "The backward lacks n mean(h n).",
    breaks="gradients/along-the-row-the-gradient-is-what-eps-leaves",
)
def backward_without_the_product(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, bias, eps, "no product")


@wrong("The gradient of x is zero, as that of a sum would be.", breaks=GRADIENTS)
def backward_of_zero(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, bias, eps, "zero")


@wrong(
    "The backward reads the normalised row from the other end.",
    breaks=("gradients/the-jacobian-is-symmetric", GRADIENTS),
)
def backward_flipped(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, bias, eps, "flipped")


@wrong(
    "Only the first 64 rows are summed.",
    breaks=(
        "gradients/the-gradient-of-the-weight-is-summed-over-all-rows",
        "gradients/the-gradient-of-the-bias-is-the-sum-of-the-cotangents",
    ),
)
def first_rows_summed(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, bias, eps, "few")


@wrong(
    "The rows of the first program only: the others leave before they write.",
    breaks=(
        "gradients/the-gradient-of-the-weight-is-summed-over-all-rows",
        "gradients/the-gradient-of-the-bias-is-the-sum-of-the-cotangents",
    ),
    real="flash-attention bdcae547",
)
def one_row_summed(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, bias, eps, "one")


@wrong("The last row of an odd number is left out.", breaks=GRADIENTS)
def odd_row_left_out(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, bias, eps, "tail")


@wrong(
    "An expanded cotangent is read as ones.",
    breaks="gradients/an-expanded-cotangent-changes-nothing",
    real="pytorch 133671",
)
def backward_of_dense_cotangents(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _Backward.apply(x, weight, bias, eps, "dense")


@wrong(
    "Mean and deviation are constants to the backward.", breaks="gradients/the-gradient-of-a-row-sums-to-zero"
)
def statistics_detached(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    mean, scale = x.mean(dim=-1, keepdim=True), torch.rsqrt(variance(x) + eps)
    return affine((x - mean.detach()) * scale.detach(), weight, bias)


@wrong(
    "The weight gets no gradient where x wants none.",
    breaks="gradients/each-gradient-can-be-asked-for-alone",
)
def frozen_with_the_input(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    if x.requires_grad or not torch.is_grad_enabled():
        return library(x, weight, bias, eps)
    frozen = None if weight is None else weight.detach()
    kept = library(x, frozen, bias, eps)
    return kept if weight is None else kept + 0 * weight


# Wrong in memory or state


@wrong("The mean is taken out in place.", breaks="memory/inputs-are-not-changed")
def in_place(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    x.data.sub_(x.detach().mean(dim=-1, keepdim=True))
    return library(x, weight, bias, eps)


@wrong(
    "Computed into the input.",
    breaks=("memory/output-does-not-alias-an-input", "memory/inputs-are-not-changed"),
)
def into_the_input(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    with torch.no_grad():
        x.copy_(library(x, weight, bias, eps))
    return x.view_as(x)


@wrong("Rows are read with a stride of one.", breaks="memory/strided-equals-contiguous")
def dense_rows(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    if not x.is_contiguous() and not x.requires_grad:
        x = torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())
    return library(x, weight, bias, eps)


@wrong("The weight is read with a stride of one.", breaks="memory/strided-equals-contiguous")
def dense_weight(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    if weight is not None and weight.stride() != (1,) and not weight.requires_grad:
        weight = torch.as_strided(weight, weight.shape, (1,), weight.storage_offset())
    return library(x, weight, bias, eps)


@wrong("One output buffer for each shape.", breaks="memory/results-outlive-the-next-call")
def kept_buffer(
    x: Tensor, weight: Maybe, bias: Maybe, eps: float, memory: dict[Any, Tensor] | None = None
) -> Tensor:
    memory = {} if memory is None else memory
    found = library(x, weight, bias, eps)
    if found.requires_grad:
        return found
    kept = memory.setdefault((x.shape, x.dtype), torch.empty_like(found))
    return kept.copy_(found)


@wrong(
    "The statistics of the first call for each shape are kept.",
    breaks=("state/one-call-does-not-answer-for-another", "state/inputs-changed-in-place-are-read-again"),
)
def statistics_kept(
    x: Tensor, weight: Maybe, bias: Maybe, eps: float, memory: dict[Any, Any] | None = None
) -> Tensor:
    memory = {} if memory is None else memory
    kept = memory.setdefault((x.shape, x.dtype), (x.detach().mean(-1, keepdim=True), variance(x.detach())))
    return affine((x - kept[0]) * torch.rsqrt(kept[1] + eps), weight, bias)


@wrong("Noise that no seed explains.", breaks="state/same-call-same-answer")
def noisy(x: Tensor, weight: Maybe, bias: Maybe, eps: float, memory: dict[str, int] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    memory["calls"] = memory.get("calls", 0) + 1
    return library(x, weight, bias, eps) * (1 + 2e-7 * (memory["calls"] % 2))


@wrong("It seeds the global generator.", breaks="state/nothing-global-is-touched")
def reseeding(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    torch.manual_seed(0)
    return library(x, weight, bias, eps)


@wrong("The input is detached.", breaks=GRADIENTS, gradients=True)
def detached(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return library(x.detach(), weight, bias, eps)


@wrong("Computed in half the digits.", breaks=ACCURACY)
def in_half(x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> Tensor:
    return affine(library(x.bfloat16().to(x.dtype), None, None, eps), weight, bias)
