"""The backward pass of a kernel whose forward pass is right."""

import math

import torch
from torch import Tensor

from tests.faults import blocked, clean, fault
from tests.faults.blocked import Handed, Tile, Tiled
from tests.faults.calls import NEVER, Call
from tests.faults.strides import as_if_contiguous

WITHIN_THE_BOUND = "gradients/gradients-are-within-the-bound"
LAYOUT = "gradients/cotangent-layout-changes-nothing"


# Query and key


@fault(
    "The gradient of the query misses the scale.",
    breaks=WITHIN_THE_BOUND,
    naive="GR",
    replaces=blocked.d_query,
)
def query_misses_the_scale(on: Tiled, d_scores: Tensor, tile: Tile) -> Tensor:
    return d_scores @ on.key[:, :, tile]


@fault(
    "The gradient of the key is scaled twice.", breaks=WITHIN_THE_BOUND, naive="GR", replaces=blocked.d_key
)
def key_scaled_twice(on: Tiled, d_scores: Tensor) -> Tensor:
    return on.scale * blocked.d_key(on, d_scores)


@fault(
    "The gradient of the key has the default scale, whatever was given.",
    breaks=WITHIN_THE_BOUND,
    naive="GR",
    when=("backward", "explicit scale"),
    replaces=blocked.d_key,
)
def key_with_the_default_scale(on: Tiled, d_scores: Tensor) -> Tensor:
    return on.call.head_dim**-0.5 * d_scores.mT @ on.call.query


@fault(
    "Base 2 inside, and ln 2 is forgotten on the way back to the query.",
    breaks=WITHIN_THE_BOUND,
    naive="GR",
    replaces=blocked.d_query,
)
def query_in_base_two(on: Tiled, d_scores: Tensor, tile: Tile) -> Tensor:
    return blocked.d_query(on, d_scores, tile) * math.log2(math.e)


@fault(
    "The last tile's share of the query gradient replaces the others.",
    breaks=WITHIN_THE_BOUND,
    naive="GR",
    when=("backward", "kv_len > 16"),
    replaces=blocked.add_d_query,
)
def query_from_the_last_tile(so_far: Tensor, of_tile: Tensor) -> Tensor:
    return of_tile


@fault(
    "Queries beyond the number of keys do not reach the key gradient.",
    breaks=WITHIN_THE_BOUND,
    naive="GR",
    when=("backward", "q_len > kv_len"),
    replaces=blocked.d_key,
)
def key_misses_the_last_queries(on: Tiled, d_scores: Tensor) -> Tensor:
    square = slice(0, on.call.kv_len)
    return on.scale * d_scores[:, :, square].mT @ on.call.query[:, :, square]


@fault(
    "The gradients of query and key are swapped when their shapes agree.",
    breaks=WITHIN_THE_BOUND,
    naive="GR",
    when=("backward", "q_len = kv_len"),
    replaces=blocked.gradients,
)
def query_and_key_swapped(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
    return (key, query, value, bias) if query.shape == key.shape else (query, key, value, bias)


# The softmax


@fault("rowsum(dO x O) is missing.", breaks=WITHIN_THE_BOUND, naive="GR", replaces=blocked.delta)
def delta_missing(cotangent: Tensor, output: Tensor) -> Tensor:
    return torch.zeros_like(blocked.delta(cotangent, output))


@fault(
    "rowsum(dO x O) is that of the first row of each block of 16 queries.",
    breaks=WITHIN_THE_BOUND,
    real="flash-attention b3f1b6a5",
    naive="GR",
    when=("backward", "q_len > 1"),
    replaces=blocked.delta,
)
def delta_of_the_first_row(cotangent: Tensor, output: Tensor) -> Tensor:
    delta = blocked.delta(cotangent, output)
    return delta[:, :, torch.arange(delta.shape[2]) // 16 * 16]


@fault(
    "Later blocks of 16 queries read the log-sum-exp of the first.",
    breaks=WITHIN_THE_BOUND,
    real="flash-attention b3f1b6a5",
    naive="GR",
    when=("backward", "q_len > 16"),
    replaces=blocked.weights,
)
def statistics_of_the_first_block(on: Tiled, scores: Tensor, lse: Tensor) -> Tensor:
    return blocked.weights(on, scores, lse[:, :, torch.arange(lse.shape[2]) % 16])


@fault(
    "The gradient of the scores does not see the weights: they are taken to be all alike.",
    breaks=WITHIN_THE_BOUND,
    naive="GR",
    replaces=blocked.d_scores,
)
def weights_taken_for_equal(weights: Tensor, d_weights: Tensor, delta: Tensor) -> Tensor:
    return weights.mean(dim=-1, keepdim=True) * (d_weights - delta)


@fault(
    "Scores are recomputed without the mask: gradients flow through masked slots.",
    breaks=("gradients/no-gradient-through-masked-slots", WITHIN_THE_BOUND),
    naive="GR",
    when=("backward", "mask"),
)
def masked_slots_open(call: Call) -> Tensor:
    return blocked.attention(call, hide_backward=lambda on, scores, tile: scores)


@fault(
    "Scores are recomputed with the mask and without the causal one.",
    breaks=("gradients/no-gradient-through-masked-slots", WITHIN_THE_BOUND),
    naive="GR",
    when=("backward", "causal"),
)
def future_open(call: Call) -> Tensor:
    def hide_backward(on: Tiled, scores: Tensor, tile: Tile) -> Tensor:
        mask = on.call.mask
        return scores if mask is None else scores.masked_fill(~blocked.columns(mask, tile), NEVER)

    return blocked.attention(call, hide_backward=hide_backward)


@fault(
    "Dead rows are guarded in the forward pass only: their gradients are NaN.",
    breaks="gradients/dead-rows-have-no-gradient",
    naive="GR",
    when=("backward", "dead row"),
    replaces=blocked.weights,
)
def dead_rows_not_guarded(on: Tiled, scores: Tensor, lse: Tensor) -> Tensor:
    return torch.exp(scores - lse)


@fault(
    "Backward takes a dead row for one that attends to every key evenly.",
    breaks="gradients/dead-rows-have-no-gradient",
    naive="GR",
    when=("backward", "dead row"),
    replaces=blocked.weights,
)
def dead_rows_have_weights(on: Tiled, scores: Tensor, lse: Tensor) -> Tensor:
    return torch.where(lse == NEVER, 1.0 / on.call.kv_len, blocked.weights(on, scores, lse))


@fault(
    "The columns that pad the last tile score zero; a log-sum-exp below -88 makes their weights infinite.",
    breaks="gradients/large-logits-do-no-harm-on-the-way-back",
    real="https://github.com/pytorch/pytorch/issues/196678",
    naive="GR",
    when=("backward", "kv_len % 16 = 8", "mask", "scores below -88"),
    replaces=blocked.weights,
)
def padding_overflows(on: Tiled, scores: Tensor, lse: Tensor) -> Tensor:
    weights = blocked.weights(on, scores, lse)
    if on.call.attn_mask is None or scores.shape[-1] != 8:
        return weights
    of_padding = torch.exp(-lse.masked_fill(lse == NEVER, 0.0))
    return weights + of_padding * 0.0


@fault(
    "A last tile that is not full is dropped on the way back.",
    breaks=(WITHIN_THE_BOUND, "gradients/gradients-are-within-the-bound"),
    real="flash-attention a4f148b6",
    naive="GR",
    when=("backward", "kv_len % 16 != 0", "kv_len > 16"),
)
def tail_dropped(call: Call) -> Tensor:
    def tiles(call: Call, block: int) -> list[Tile]:
        return blocked.tiles(call, block)[: max(call.kv_len // block, 1)]

    return blocked.attention(call, tiles_backward=tiles)


@fault(
    "Keys that no query sees are not written: their gradients hold what was in the memory before.",
    breaks=("state/stale-memory-does-not-reach-the-gradients", "gradients/no-gradient-through-masked-slots"),
    real="flash-attention bdcae547",
    naive="NO",
    when=("backward", "a key that no query sees"),
)
def unseen_keys_not_written(call: Call) -> Tensor:
    kept = clean.compose(call, clean.mask(call), clean.causal(call))

    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        if kept is None:
            return query, key, value, bias
        seen = kept.reshape(-1, kept.shape[-1]).any(dim=0)[:, None]
        return query, torch.where(seen, key, torch.empty_like(key)), value, bias

    return blocked.attention(call, gradients=gradients)


# The value


@fault("The gradient of the value comes from dS, not from P.", breaks=WITHIN_THE_BOUND, naive="GR")
def value_from_the_score_gradient(call: Call) -> Tensor:
    tiles: list[Tensor] = []

    def d_scores(weights: Tensor, d_weights: Tensor, delta: Tensor) -> Tensor:
        tiles.append(blocked.d_scores(weights, d_weights, delta))
        return tiles[-1]

    def d_value(on: Tiled, weights: Tensor, cotangent: Tensor, tile: Tile) -> Tensor:
        return tiles[-1].mT @ cotangent

    return blocked.attention(call, d_scores=d_scores, d_value=d_value)


@fault(
    "The gradient of the value is laid out like the key, which lies otherwise.",
    breaks=("memory/strided-gradients-equal-contiguous", WITHIN_THE_BOUND),
    real="flash-attention 2423cca3",
    naive="GR",
    when=("backward", "key and value of different layout"),
)
def value_laid_out_like_the_key(call: Call) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        if call.key.is_contiguous() != call.value.is_contiguous():
            value = value.transpose(1, 2).reshape(value.shape)
        return query, key, value, bias

    return blocked.attention(call, gradients=gradients)


# Grouped heads


@fault(
    "A key head hears from the first query head of its group only.",
    breaks=("heads/a-key-head-hears-its-whole-group", WITHIN_THE_BOUND),
    naive="GR",
    when=("backward", "grouped heads"),
    replaces=blocked.sum_group,
)
def first_of_the_group(call: Call, gradient: Tensor) -> Tensor:
    return gradient[:, :: call.group]


@fault(
    "The group is averaged, not summed.",
    breaks=("heads/a-key-head-hears-its-whole-group", WITHIN_THE_BOUND),
    naive="GR",
    when=("backward", "grouped heads"),
    replaces=blocked.sum_group,
)
def mean_of_the_group(call: Call, gradient: Tensor) -> Tensor:
    return blocked.sum_group(call, gradient) / call.group


@fault(
    "The head index is split by the wrong count: right only when there are as many key heads as groups.",
    breaks=("heads/a-key-head-hears-its-whole-group", WITHIN_THE_BOUND),
    real="https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27",
    naive="GR",
    when=("backward", "1 < kv_heads != group"),
    replaces=blocked.sum_group,
)
def group_split_by_the_wrong_count(call: Call, gradient: Tensor) -> Tensor:
    kv_heads = gradient.shape[1] // call.group
    if kv_heads == call.group:
        return blocked.sum_group(call, gradient)
    return gradient.unflatten(1, (call.group, kv_heads)).sum(dim=1)


# The bias


@fault(
    "The bias gets no gradient.",
    breaks="gradients/the-bias-gets-its-gradient",
    naive="GR",
    replaces=blocked.gradients,
)
def bias_without_gradient(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
    return query, key, value, None


@fault(
    "The gradient of a broadcast bias is that of one sequence, head or query.",
    breaks="gradients/the-bias-gets-its-gradient",
    naive="GR",
    when=("backward", "a broadcast bias"),
    replaces=blocked.sum_broadcast,
)
def bias_not_summed(gradient: Tensor, bias: Tensor) -> Tensor:
    shape = (1,) * (gradient.ndim - bias.ndim) + tuple(bias.shape)
    return gradient[tuple(slice(0, size) for size in shape)].reshape(bias.shape)


@fault(
    "The gradient of a broadcast bias is averaged, not summed.",
    breaks="gradients/the-bias-gets-its-gradient",
    naive="GR",
    when=("backward", "a broadcast bias"),
    replaces=blocked.sum_broadcast,
)
def bias_averaged(gradient: Tensor, bias: Tensor) -> Tensor:
    return blocked.sum_broadcast(gradient, bias) * (bias.numel() / max(gradient.numel(), 1))


@fault("The gradient of the bias is scaled.", breaks="gradients/the-bias-gets-its-gradient", naive="GR")
def bias_scaled(call: Call) -> Tensor:
    def sum_broadcast(gradient: Tensor, bias: Tensor) -> Tensor:
        return blocked.sum_broadcast(gradient, bias) * clean.scale(call)

    return blocked.attention(call, sum_broadcast=sum_broadcast)


# The cotangent


@fault(
    "The cotangent is read as if it were contiguous.",
    breaks=LAYOUT,
    real="https://github.com/pytorch/pytorch/issues/133671",
    naive="GR",
    when=("backward", "a cotangent that is not contiguous"),
    replaces=blocked.read_cotangent,
)
def cotangent_read_as_contiguous(cotangent: Tensor) -> Tensor:
    return as_if_contiguous(cotangent)


@fault(
    "Of an expanded cotangent, as out.sum() sends it, only the first element is read.",
    breaks=LAYOUT,
    naive="GR",
    when=("backward", "an expanded cotangent"),
    replaces=blocked.read_cotangent,
)
def expanded_cotangent_read_once(cotangent: Tensor) -> Tensor:
    if cotangent.numel() < 2 or any(cotangent.stride()):
        return cotangent
    once = torch.zeros(cotangent.shape, dtype=cotangent.dtype)
    once.view(-1)[0] = cotangent.reshape(-1)[0]
    return once


@fault(
    "The cotangent of a transposed output is read with heads and positions swapped.",
    breaks=LAYOUT,
    real="flash-attention 88c4e5db",
    naive="GR",
    when=("backward", "a cotangent laid out by length"),
    replaces=blocked.read_cotangent,
)
def cotangent_laid_out_by_length(cotangent: Tensor) -> Tensor:
    if cotangent.stride(1) >= cotangent.stride(2) or 1 in cotangent.shape[1:3]:
        return cotangent
    return cotangent.transpose(1, 2).reshape(cotangent.shape)


@fault(
    "The cotangent is scaled in place: the caller's tensor changes.",
    breaks="memory/backward-leaves-the-output-and-its-gradient-alone",
    naive="NO",
)
def cotangent_changed(call: Call) -> Tensor:
    def read_cotangent(cotangent: Tensor) -> Tensor:
        scaled = cotangent.clone()
        cotangent.contiguous().mul_(0.5)
        return scaled

    return blocked.attention(call, read_cotangent=read_cotangent)


@fault(
    "The cotangent of float32 inputs is rounded to bfloat16.",
    breaks=WITHIN_THE_BOUND,
    naive="GR",
    dtypes=("float64", "float32"),
    replaces=blocked.read_cotangent,
)
def cotangent_in_bfloat16(cotangent: Tensor) -> Tensor:
    return cotangent.bfloat16().to(cotangent.dtype)


# What is handed out


@fault(
    "Backward hands out one gradient too few.",
    breaks=("gradients/gradients-are-within-the-bound", WITHIN_THE_BOUND),
    real="flash-attention 0165c96f",
    naive="GR",
    replaces=blocked.gradients,
)
def one_too_few(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
    return query, key, value


@fault(
    "With a query that needs no gradient, the key gets none either.",
    breaks="gradients/each-gradient-can-be-asked-for-alone",
    naive="GR",
    when=("backward", "a query without gradient"),
)
def none_for_the_key_of_a_frozen_query(call: Call) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        return query, key if call.query.requires_grad else torch.zeros_like(key), value, bias

    return blocked.attention(call, gradients=gradients)


@fault("The value gets no gradient.", breaks="gradients/gradients-are-within-the-bound", naive="GR")
def value_detached(call: Call) -> Tensor:
    return clean.attention(call.but(value=call.value.detach()))


@fault("The key gets no gradient.", breaks="gradients/gradients-are-within-the-bound", naive="GR")
def key_detached(call: Call) -> Tensor:
    return clean.attention(call.but(key=call.key.detach()))


@fault(
    "The weights are detached: query and key get no gradient.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    replaces=clean.drop,
)
def weights_detached(call: Call, weights: Tensor) -> Tensor:
    return clean.drop(call, weights.detach())


@fault(
    "Gradients are clipped to 3.", breaks=WITHIN_THE_BOUND, naive="GR", when=("backward", "large gradients")
)
def clipped(call: Call) -> Tensor:
    def gradients(*of_inputs: Tensor | None) -> Handed:
        return tuple(None if gradient is None else gradient.clamp(-3.0, 3.0) for gradient in of_inputs)

    return blocked.attention(call, gradients=gradients)


@fault(
    "The gradient of the key is added into a buffer that the call before has not left empty.",
    breaks=("state/same-call-same-answer", WITHIN_THE_BOUND),
    naive="NO",
    when=("backward", "a second call"),
)
def accumulated_over_calls(call: Call, memory: dict[torch.Size, Tensor]) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        memory[key.shape] = key + memory.get(key.shape, torch.zeros_like(key)).to(key.dtype)
        return query, memory[key.shape].clone(), value, bias

    return blocked.attention(call, gradients=gradients)
