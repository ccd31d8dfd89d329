"""Right attention, written in other ways: a law that breaks on one of these raises a false alarm."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.faults import blocked, clean, variant
from tests.faults.calls import NEVER, Call

HALF = ("bfloat16", "float16")


# The same steps in another order


@variant("The chain of steps, as it stands.")
def plain(call: Call) -> Tensor:
    return clean.attention(call)


@variant(
    "The chain of steps with every declared feature.", features=("window", "softcap", "sinks", "alibi_slopes")
)
def featured(call: Call) -> Tensor:
    return clean.attention(call)


@variant(
    "Every declared feature, and the log-sum-exp beside the output.",
    features=("window", "softcap", "return_lse"),
)
def featured_with_log_sum_exp(call: Call) -> Any:
    return clean.attention(call)


@variant("The root of the scale stands on query and key, its sign on the query.", replaces=clean.score)
def root_of_the_scale_on_both(call: Call, key: Tensor, scale: float) -> Tensor:
    root = math.sqrt(abs(scale))
    return (call.query * math.copysign(root, scale)) @ (key * root).mT


@variant("The scale stands on the query.", replaces=clean.score)
def scale_on_the_query(call: Call, key: Tensor, scale: float) -> Tensor:
    return (call.query * scale) @ key.mT


@variant("The scale stands on the key.", replaces=clean.score)
def scale_on_the_key(call: Call, key: Tensor, scale: float) -> Tensor:
    return call.query @ (key * scale).mT


@variant("The products are written as einsum.")
def einsum(call: Call) -> Tensor:
    return clean.attention(
        call,
        score=lambda call, key, scale: scale * torch.einsum("bhid,bhjd->bhij", call.query, key),
        combine=lambda call, weights, value: torch.einsum("bhij,bhjd->bhid", weights, value),
    )


@variant("Batch and heads are flattened for bmm.")
def batched_matrix_products(call: Call) -> Tensor:
    def score(call: Call, key: Tensor, scale: float) -> Tensor:
        product = torch.bmm(call.query.flatten(0, 1), key.flatten(0, 1).mT)
        return scale * product.view(call.batch, call.heads, call.q_len, call.kv_len)

    def combine(call: Call, weights: Tensor, value: Tensor) -> Tensor:
        return torch.bmm(weights.flatten(0, 1), value.flatten(0, 1)).unflatten(0, weights.shape[:2])

    return clean.attention(call, score=score, combine=combine)


@variant("The weights are normalised after they met the values.")
def normalised_late(call: Call) -> Tensor:
    totals: list[Tensor] = []

    def softmax(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
        top = do.top(call, scores)
        raised = do.exponential(call, scores, top)
        totals.append(do.total(call, raised, top))
        return raised

    def combine(call: Call, weights: Tensor, value: Tensor) -> Tensor:
        return weights @ value / totals[0]

    return clean.attention(call, softmax=softmax, combine=combine)


@variant("The weights are divided twice by the root of the total.", replaces=clean.softmax)
def normalised_in_two_steps(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    top = do.top(call, scores)
    raised = do.exponential(call, scores, top)
    root = do.total(call, raised, top).sqrt()
    return raised / root / root


@variant("Base 2, with log2(e) where the exponential is taken.", replaces=clean.exponential)
def base_two(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    return torch.exp2((scores - top) * math.log2(math.e))


@variant("The shift is the highest score rounded up to a whole number: a bound is as good as the maximum.")
def shifted_by_a_bound(call: Call) -> Tensor:
    return clean.attention(call, top=lambda call, scores: clean.top(call, scores).ceil())


@variant("The exponential of the logarithm of the softmax.", replaces=clean.softmax)
def exponential_of_the_log_softmax(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    dead = (scores == NEVER).all(dim=-1, keepdim=True)
    logarithm = torch.log_softmax(scores.masked_fill(dead, 0.0), dim=-1)
    return logarithm.exp().masked_fill(dead, 0.0)


@variant("torch's softmax, with the dead rows set to zero before and after.", replaces=clean.softmax)
def dead_rows_by_where(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    dead = (scores == NEVER).all(dim=-1, keepdim=True)
    return torch.where(dead, 0.0, torch.softmax(torch.where(dead, 0.0, scores), dim=-1))


@variant("Masked scores are the smallest number; masked weights are then set to zero.")
def smallest_number_then_zero(call: Call) -> Tensor:
    planes: list[Tensor] = []

    def hide(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
        planes.append(kept)
        return scores.masked_fill(~kept, torch.finfo(scores.dtype).min)

    def drop(call: Call, weights: Tensor) -> Tensor:
        return clean.drop(call, weights * planes[0] if planes else weights)

    return clean.attention(call, hide=hide, drop=drop)


@variant("Boolean masks become biases of 0 and -inf.", replaces=clean.hide)
def masks_as_biases(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return scores + torch.zeros_like(scores).masked_fill(~kept, NEVER)


# Equivalent mutants: they look wrong, and the softmax takes it away


@variant("Every score of a row is raised by one: the causal mask of ones of a well-known mistake.")
def row_constant_bias(call: Call) -> Tensor:
    return clean.attention(call, bias=lambda call, scores: clean.bias(call, scores) + 1.0)


@variant("Every second row is raised by a half.")
def another_constant_in_every_row(call: Call) -> Tensor:
    rows = torch.arange(call.q_len)[:, None] % 2 / 2.0
    return clean.attention(call, bias=lambda call, scores: clean.bias(call, scores) + rows.to(scores.dtype))


@variant(
    "ALiBi in a causal call is slope x j: it differs from -slope x (i - j) by a constant of the row.",
    features=("alibi_slopes",),
)
def alibi_of_the_key_alone(call: Call) -> Tensor:
    def alibi(call: Call, scores: Tensor) -> Tensor:
        if call.alibi_slopes is None or not call.is_causal:
            return clean.alibi(call, scores)
        return scores + call.alibi_slopes.to(scores.dtype)[:, None, None] * torch.arange(call.kv_len)

    return clean.attention(call, alibi=alibi)


@variant(
    "ALiBi in a causal call is slope x (j - the last key), as MPT has it: a constant of the row, too.",
    features=("alibi_slopes",),
)
def alibi_counted_from_the_last_key(call: Call) -> Tensor:
    def alibi(call: Call, scores: Tensor) -> Tensor:
        if call.alibi_slopes is None or not call.is_causal:
            return clean.alibi(call, scores)
        return scores + call.alibi_slopes.to(scores.dtype)[:, None, None] * torch.arange(1 - call.kv_len, 1)

    return clean.attention(call, alibi=alibi)


@variant("Every key and value stands there twice.", without=("dropout_p",))
def duplicated_pairs(call: Call) -> Tensor:
    def double(x: Tensor) -> Tensor:
        return x.repeat_interleave(2, dim=-1)

    return clean.attention(
        call,
        group=lambda call, x: clean.group(call, x).repeat_interleave(2, dim=-2),
        alibi=lambda call, scores: scores,
        bias=lambda call, scores: scores if call.bias is None else scores + spread(call.bias, double),
        hide=lambda call, scores, kept: scores.masked_fill(~spread(kept, double), NEVER),
    )


def spread(x: Tensor, over: Callable[[Tensor], Tensor]) -> Tensor:
    """A mask over more keys, unless it has one column for all of them."""
    return x if x.shape[-1] == 1 else over(x)


@variant("Keys and values run backwards, and so do the masks.", without=("dropout_p",))
def keys_backwards(call: Call) -> Tensor:
    return clean.attention(
        call,
        group=lambda call, x: clean.group(call, x).flip(-2),
        bias=lambda call, scores: scores if call.bias is None else scores + call.bias.flip(-1),
        hide=lambda call, scores, kept: scores.masked_fill(~kept.flip(-1), NEVER),
    )


@variant("The keys are padded to a multiple of 8, and the padding is masked.")
def padded_keys(call: Call) -> Tensor:
    missing = -call.kv_len % 8
    real = torch.arange(call.kv_len + missing) < call.kv_len

    def longer(x: Tensor) -> Tensor:
        return spread(x, lambda x: functional.pad(x, (0, missing)))

    def softmax(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
        return clean.softmax(call, scores.masked_fill(~real, NEVER), do)

    return clean.attention(
        call,
        group=lambda call, x: functional.pad(clean.group(call, x), (0, 0, 0, missing)),
        bias=lambda call, scores: scores if call.bias is None else scores + longer(call.bias),
        hide=lambda call, scores, kept: scores.masked_fill(~longer(kept), NEVER),
        softmax=softmax,
    )


@variant("The widths are padded with zeros to a multiple of 8, the scale is that of the true width.")
def padded_widths(call: Call) -> Tensor:
    width, value_dim = call.head_dim, call.value.shape[-1]
    wide = call.but(
        query=functional.pad(call.query, (0, -width % 8)),
        key=functional.pad(call.key, (0, -width % 8)),
        value=functional.pad(call.value, (0, -value_dim % 8)),
        scale=clean.scale(call),
    )
    return clean.attention(wide)[..., :value_dim]


# Tiles, splits and chunks


@variant("Online softmax, one key at a time.")
def online_in_tiles_of_1(call: Call) -> Tensor:
    return blocked.attention(call, block=1)


@variant("Online softmax in tiles of 4 keys.")
def online_in_tiles_of_4(call: Call) -> Tensor:
    return blocked.attention(call, block=4)


@variant("Online softmax in tiles of 16 keys.")
def online_in_tiles_of_16(call: Call) -> Tensor:
    return blocked.attention(call, block=16)


@variant("Online softmax in tiles of 64 keys, the log-sum-exp beside the output.", features=("return_lse",))
def online_in_tiles_of_64(call: Call) -> Any:
    return blocked.attention(call, block=64)


@variant("Online softmax, the last tile first.")
def online_from_the_end(call: Call) -> Tensor:
    return blocked.attention(call, block=4, tiles=lambda call, block: blocked.tiles(call, block)[::-1])


@variant("Online softmax that starts at the smallest number instead of -inf.")
def online_from_the_smallest_number(call: Call) -> Tensor:
    def start(call: Call) -> Tensor:
        return torch.full_like(blocked.start(call), torch.finfo(call.dtype).min)

    return blocked.attention(call, block=4, start=start)


# Its weights reach e^8, and their products with values what autocast to float16 cannot hold.
@variant(
    "Online softmax whose maximum is raised only when it grows by more than 8.", declares={"autocast": False}
)
def online_with_a_lazy_maximum(call: Call) -> Tensor:
    def raise_top(top: Tensor, scores: Tensor) -> Tensor:
        highest = blocked.raise_top(top, scores)
        return torch.where(highest > top + 8.0, highest, top)

    return blocked.attention(call, block=4, raise_top=raise_top)


# The D of a light half, on its own, may be larger than that of the whole: its rounding is more than the bound
# explains, by some hundredths (README.md, Limits).
@variant("The keys in two halves, merged by their log-sum-exp.", gradients=False, without=("dropout_p",))
def two_halves_merged(call: Call) -> Tensor:
    key, value = clean.group(call, call.key), clean.group(call, call.value)
    middle = call.kv_len // 2
    parts = [part(call, key, value, slice(0, middle)), part(call, key, value, slice(middle, call.kv_len))]
    outputs, sums = (torch.stack(side) for side in zip(*parts, strict=True))
    weights = clean.softmax(call, sums.movedim(0, -1), clean.Steps()).movedim(-1, 0)
    return (weights[..., None] * outputs).sum(dim=0).to(call.dtype)


def part(call: Call, key: Tensor, value: Tensor, keys: slice) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp over some of the keys, in the type that the merge is computed in."""
    kept = clean.compose(call, clean.mask(call), clean.causal(call))
    attn_mask = call.bias if kept is None else clean.hide(call, plane_of_zeros(call), kept)
    if kept is not None and call.bias is not None:
        attn_mask = attn_mask + call.bias
    if attn_mask is not None:
        attn_mask = spread(attn_mask, lambda x: x[..., keys])
    some = call.but(key=key[:, :, keys], value=value[:, :, keys], attn_mask=attn_mask)
    return clean.attention(
        some.but(is_causal=False, enable_gqa=False, scale=clean.scale(call), return_lse=True),
        write=lambda call, output: output,
    )


def plane_of_zeros(call: Call) -> Tensor:
    return call.query.new_zeros(call.q_len, call.kv_len)


@variant("The queries in chunks of 3.", without=("dropout_p",))
def queries_in_chunks(call: Call) -> Tensor:
    starts = range(0, max(call.q_len, 1), 3)
    return torch.cat([rows(call, slice(start, start + 3)) for start in starts], dim=2)


def rows(call: Call, queries: slice) -> Tensor:
    """Some of the rows: the causal mask is that of their place in the whole."""
    kept, mask = clean.causal(call), call.attn_mask
    if mask is not None and mask.shape[-2] > 1:
        mask = mask[..., queries, :]
    few = call.but(query=call.query[:, :, queries], attn_mask=mask)
    return clean.attention(few, causal=lambda call: None if kept is None else kept[queries])


@variant("One head at a time, in a loop.", without=("dropout_p",))
def head_by_head(call: Call) -> Tensor:
    return torch.cat([one_head(call, head) for head in range(call.heads)], dim=1)


def one_head(call: Call, head: int) -> Tensor:
    mask = call.attn_mask
    if mask is not None and mask.ndim >= 3 and mask.shape[-3] > 1:
        mask = mask[..., head : head + 1, :, :]
    key_head = slice(head // call.group, head // call.group + 1)
    alone = call.but(
        query=call.query[:, head : head + 1],
        key=call.key[:, key_head],
        value=call.value[:, key_head],
        attn_mask=mask,
        enable_gqa=False,
    )
    return clean.attention(alone)


@variant("Two passes over the keys: the maxima of the tiles, then the sums.", replaces=clean.top)
def two_passes(call: Call, scores: Tensor) -> Tensor:
    if call.kv_len == 0:
        return clean.top(call, scores)
    maxima = [tile.detach().amax(dim=-1, keepdim=True) for tile in scores.split(8, dim=-1)]
    return clean.top(call, torch.cat(maxima, dim=-1))


@variant("Grouped heads meet their key head by broadcasting; nothing is repeated.", without=("dropout_p",))
def grouped_by_broadcasting(call: Call) -> Tensor:
    def score(call: Call, key: Tensor, scale: float) -> Tensor:
        grouped = call.query.unflatten(1, (-1, call.group)) if call.group > 1 else call.query.unsqueeze(2)
        return scale * (grouped @ key.unsqueeze(2).mT).flatten(1, 2)

    def combine(call: Call, weights: Tensor, value: Tensor) -> Tensor:
        return (weights.unflatten(1, (-1, call.group)) @ value.unsqueeze(2)).flatten(1, 2)

    return clean.attention(call, group=lambda call, x: x, score=score, combine=combine)


# Memory


@variant("The output is laid out as (batch, length, heads, dim).", replaces=clean.write)
def output_laid_out_by_length(call: Call, output: Tensor) -> Tensor:
    return output.to(call.dtype).transpose(1, 2).contiguous().transpose(1, 2)


@variant("The output is every other column of a wider tensor.", replaces=clean.write)
def output_with_gaps(call: Call, output: Tensor) -> Tensor:
    return output.to(call.dtype).repeat_interleave(2, dim=-1)[..., ::2]


@variant("Everything is made contiguous first.", replaces=clean.read)
def contiguous_first(call: Call) -> Call:
    mask = None if call.attn_mask is None else call.attn_mask.contiguous()
    call = call.but(query=call.query.contiguous(), key=call.key.contiguous(), value=call.value.contiguous())
    return clean.read(call.but(attn_mask=mask))


# Gradients


@variant("The graph is thrown away, and built again for the backward pass.")
def checkpointed(call: Call) -> Tensor:
    def recompute(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return clean.attention(call.but(query=query, key=key, value=value, attn_mask=mask))

    return checkpoint(recompute, call.query, call.key, call.value, call.attn_mask, use_reentrant=False)


@variant(
    "torch's own function, always with a mask: without one its CPU kernel turns NaN in a query to zeros."
)
def library(call: Call) -> Tensor:
    everything = torch.ones(call.q_len, call.kv_len, dtype=torch.bool)
    mask = clean.compose(call, everything, clean.mask(call), clean.causal(call))
    if call.bias is not None:
        mask = call.bias.masked_fill(~mask, NEVER)
    return functional.scaled_dot_product_attention(
        call.query, call.key, call.value, mask, call.dropout_p, scale=call.scale, enable_gqa=call.enable_gqa
    )


# Arithmetic


@variant("Everything is computed in float64 and rounded once.", replaces=clean.read)
def float64_inside(call: Call) -> Call:
    mask = call.attn_mask if call.bias is None else call.bias.double()
    return call.but(
        query=call.query.double(), key=call.key.double(), value=call.value.double(), attn_mask=mask
    )


@variant(
    "Float32 inside, the weights rounded to the half type of the inputs.", arithmetic="flash", dtypes=HALF
)
def weights_in_half_precision(call: Call) -> Tensor:
    def drop(step: Call, weights: Tensor) -> Tensor:
        return clean.drop(step, weights.to(call.dtype).to(weights.dtype))

    return clean.attention(call, drop=drop)


@variant("Scores, then weights, are stored in the half type of the inputs.", arithmetic="eager", dtypes=HALF)
def scores_in_half_precision(call: Call) -> Tensor:
    def through(x: Tensor) -> Tensor:
        return x.to(call.dtype).to(x.dtype)

    return clean.attention(
        call,
        score=lambda call, key, scale: through(clean.score(call, key, scale)),
        drop=lambda call, weights: clean.drop(call, through(weights)),
    )


@variant("Sums in order, one key after the other.", replaces=clean.combine, dtypes=("float64", "float32"))
def summed_one_by_one(call: Call, weights: Tensor, value: Tensor) -> Tensor:
    output = weights.new_zeros(*weights.shape[:-1], value.shape[-1])
    for j in range(value.shape[-2]):
        output = output + weights[..., j : j + 1] * value[..., j : j + 1, :]
    return output
