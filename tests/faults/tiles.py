"""Keys in tiles: bounds, tails, the running maximum, splits and their merge."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.faults import blocked, clean, fault
from tests.faults.blocked import Tile, Tiled
from tests.faults.calls import NEVER, Call

# Bounds


@fault(
    "The number of tiles is rounded down: a last tile that is not full is dropped.",
    breaks=("accuracy/equal-scores-count-every-key", "distribution/equal-scores-give-the-mean"),
    real="https://github.com/huggingface/diffusers/issues/8837",
    naive="SH",
    when=("kv_len % 16 != 0", "kv_len > 16"),
    replaces=blocked.tiles,
)
def tail_dropped(call: Call, block: int) -> list[Tile]:
    tiles = blocked.tiles(call, block)
    return tiles[: max(call.kv_len // block, 1)]


@fault(
    "Tiles are taken two by two; an odd last one is dropped.",
    breaks=("accuracy/equal-scores-count-every-key", "distribution/equal-scores-give-the-mean"),
    naive="SH",
    when=("more than one tile", "an odd number of tiles"),
    replaces=blocked.tiles,
)
def odd_tile_dropped(call: Call, block: int) -> list[Tile]:
    tiles = blocked.tiles(call, block)
    return tiles if len(tiles) == 1 else tiles[: len(tiles) // 2 * 2]


@fault(
    "The last tile starts early enough to be full: some keys count twice.",
    breaks=("accuracy/equal-scores-count-every-key", "distribution/equal-scores-give-the-mean"),
    real="https://github.com/FlagOpen/FlagAttention/issues/25",
    naive="SH",
    when=("kv_len % 16 != 0", "kv_len > 16"),
    replaces=blocked.tiles,
)
def last_tile_overlaps(call: Call, block: int) -> list[Tile]:
    latest = max(call.kv_len - block, 0)
    return [slice(min(tile.start, latest), tile.stop) for tile in blocked.tiles(call, block)]


@fault(
    "The first key of every tile but the first is lost.",
    breaks=("accuracy/equal-scores-count-every-key", "distribution/equal-scores-give-the-mean"),
    naive="SH",
    when=("kv_len > 16",),
    replaces=blocked.tiles,
)
def first_key_of_a_tile_lost(call: Call, block: int) -> list[Tile]:
    tiles = blocked.tiles(call, block)
    return [slice(tile.start + (tile.start > 0), tile.stop) for tile in tiles if tile.stop - tile.start > 1]


@fault(
    "From the third tile on, every tile is the second one again.",
    breaks=("accuracy/equal-scores-count-every-key", "distribution/equal-scores-give-the-mean"),
    naive="SH",
    when=("kv_len > 128",),
)
def third_tile_is_the_second(call: Call) -> Tensor:
    def tiles(call: Call, block: int) -> list[Tile]:
        right = blocked.tiles(call, block)
        return right[:2] + right[1:2] * (len(right) - 2)

    return blocked.attention(call, block=64, tiles=tiles)


@fault(
    "The padding of the last tile scores zero and counts in the denominator.",
    breaks=("distribution/weights-sum-to-one", "distribution/constant-values-come-back"),
    real="flashinfer 7f33b2084 (#3717)",
    naive="SH",
    when=("kv_len % 16 != 0", "not causal"),
)
def padding_counts(call: Call) -> Tensor:
    missing = 0 if call.is_causal else -call.kv_len % 16

    def total(call: Call, raised: Tensor, top: Tensor) -> Tensor:
        return clean.total(call, raised, top) + missing * torch.exp(-top)

    return clean.attention(call, total=total)


@fault(
    "In a causal call the end of the visible tiles is rounded down.",
    breaks=("masks/causal-equals-its-mask", "distribution/constant-values-come-back"),
    naive="SH",
    when=("causal", "the diagonal inside of a tile beyond the first"),
    replaces=clean.causal,
)
def causal_end_rounded_down(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    visible = torch.arange(1, call.q_len + 1)[:, None]
    end = torch.where(visible > 16, visible // 16 * 16, visible)
    return clean.causal(call) & (torch.arange(call.kv_len) < end)


@fault(
    "The causal diagonal is cut in the first tile only: later tiles are seen whole.",
    breaks="masks/the-future-does-not-matter",
    naive="SH",
    when=("causal", "kv_len > 17"),
    replaces=clean.causal,
)
def diagonal_in_the_first_tile_only(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    i, j = torch.arange(call.q_len)[:, None], torch.arange(call.kv_len)
    return torch.where(j < 16, j <= i, j // 16 <= i // 16)


@fault(
    "Queries beyond the 64th are not computed.",
    breaks=("distribution/constant-values-come-back", "symmetry/permuting-queries-permutes-rows"),
    naive="SH",
    when=("q_len > 64",),
    replaces=clean.write,
)
def queries_beyond_64_zero(call: Call, output: Tensor) -> Tensor:
    return clean.write(call, output * (torch.arange(call.q_len)[:, None] < 64))


@fault(
    "A last query alone in its tile of 16 repeats the row before.",
    breaks="symmetry/permuting-queries-permutes-rows",
    naive="SH",
    when=("q_len % 16 = 1", "q_len > 1"),
    replaces=clean.write,
)
def lonely_last_query(call: Call, output: Tensor) -> Tensor:
    if call.q_len % 16 == 1 < call.q_len:
        output = torch.cat([output[:, :, :-1], output[:, :, -2:-1]], dim=2)
    return clean.write(call, output)


@fault(
    "A key alone in its tile is lost when key and value are expanded and a mask is given.",
    breaks=(
        "memory/strided-equals-contiguous",
        "memory/strided-gradients-equal-contiguous",
        "heads/a-key-head-hears-its-whole-group",
    ),
    real="https://github.com/pytorch/pytorch/issues/191937",
    naive="SH",
    when=("kv_len % 32 = 1", "key expanded", "mask"),
    replaces=clean.causal,
)
def lonely_key_of_expanded_keys(call: Call) -> Tensor | None:
    kept = clean.causal(call)
    expanded = 0 in call.key.stride()[:2] and call.attn_mask is not None
    if not (expanded and call.kv_len % 32 == 1 < call.kv_len):
        return kept
    inside = torch.arange(call.kv_len) < call.kv_len - 1
    return inside if kept is None else kept & inside


@fault(
    "One key beyond a window of full tiles the kernel waits for a tile that never comes.",
    breaks="accuracy/output-is-within-the-bound",
    real="flashinfer b701cee1d (#3578)",
    naive="SH",
    when=("causal", "kv_len % 16 = 1"),
    peril="hangs",
)
def waits_for_a_tile(call: Call) -> Tensor:
    while call.is_causal and call.kv_len % 16 == 1 < call.kv_len:
        pass
    return clean.attention(call)


# The running maximum


@fault(
    "The output is not rescaled when the maximum rises.",
    breaks="accuracy/a-moving-maximum-rescales-all",
    naive="SH",
    when=("kv_len > 16",),
    replaces=blocked.add_output,
)
def output_not_rescaled(output: Tensor, factor: Tensor, tile_output: Tensor) -> Tensor:
    return output + tile_output


@fault(
    "The total is not rescaled when the maximum rises.",
    breaks="accuracy/a-moving-maximum-rescales-all",
    naive="SH",
    when=("kv_len > 16",),
    replaces=blocked.add_total,
)
def total_not_rescaled(total: Tensor, factor: Tensor, raised: Tensor) -> Tensor:
    return total + raised.sum(dim=-1, keepdim=True)


@fault(
    "In tiles of 64 keys nothing is rescaled when the maximum rises.",
    breaks="accuracy/a-moving-maximum-rescales-all",
    naive="SH",
    when=("kv_len > 64",),
)
def nothing_rescaled_in_wide_tiles(call: Call) -> Tensor:
    return blocked.attention(call, block=64, rescale=lambda before, top: torch.ones_like(top))


@fault(
    "The rescale factor is in base 2.",
    breaks="accuracy/a-moving-maximum-rescales-all",
    naive="SH",
    when=("kv_len > 16",),
    replaces=blocked.rescale,
)
def rescaled_in_base_two(before: Tensor, top: Tensor) -> Tensor:
    return torch.exp2(before - blocked.shift(top))


@fault(
    "The running maximum starts at zero: scores that are all very negative lose their weights.",
    breaks=("accuracy/large-logits-do-no-harm", "symmetry/a-common-score-shift-changes-nothing"),
    naive="SV",
    replaces=blocked.start,
)
def maximum_starts_at_zero(call: Call) -> Tensor:
    return torch.zeros_like(blocked.start(call))


@fault(
    "A row that is hidden in its first tile keeps a maximum of zero: later scores far below it lose their weights.",
    breaks="accuracy/low-biases-keep-their-differences",
    naive="SV",
    when=("a first tile that is hidden", "later scores below -104"),
    replaces=blocked.raise_top,
)
def zero_for_a_hidden_tile(top: Tensor, scores: Tensor) -> Tensor:
    raised = blocked.raise_top(top, scores)
    return raised.masked_fill(raised == NEVER, 0.0)


@fault(
    "The maximum of the first tile serves for all tiles.",
    breaks=(
        "accuracy/a-moving-maximum-rescales-all",
        "accuracy/large-logits-do-no-harm",
        "accuracy/output-is-within-the-bound",
    ),
    naive="SV",
    when=("kv_len > 16", "later scores larger by 88"),
    replaces=blocked.raise_top,
)
def maximum_of_the_first_tile(top: Tensor, scores: Tensor) -> Tensor:
    return torch.where(top == NEVER, blocked.raise_top(top, scores), top)


@fault(
    "Each tile has its own maximum, so that the factor of a falling one overflows.",
    breaks=("accuracy/a-moving-maximum-rescales-all", "accuracy/output-is-within-the-bound"),
    naive="SV",
    when=("kv_len > 16", "later scores smaller by 88"),
)
def maximum_of_the_tile(call: Call) -> Tensor:
    def raise_top(top: Tensor, scores: Tensor) -> Tensor:
        highest = scores.amax(dim=-1, keepdim=True)
        return torch.where(highest == NEVER, top, highest)

    return blocked.attention(call, raise_top=raise_top)


@fault(
    "A first tile that is fully masked is NaN: exp(-inf - -inf) is not guarded.",
    breaks=("masks/padding-equals-truncation", "accuracy/output-is-within-the-bound"),
    real="https://github.com/pytorch/pytorch/issues/127055",
    naive="SV",
    when=("kv_len > 16", "a dead prefix of 16 keys"),
    replaces=blocked.rescale,
)
def dead_first_tile_is_nan(before: Tensor, top: Tensor) -> Tensor:
    first = (before == NEVER) & (top != NEVER)
    return torch.exp(torch.where(first, NEVER, before - top))


@fault(
    "Tiles that are all masked weigh 1 for each key, where no other follows: exp(-inf - -inf) is taken for 1.",
    breaks="masks/dead-rows-follow-the-convention",
    naive="SV",
    when=("a dead row",),
    replaces=blocked.exponential,
)
def dead_first_tile_counts(scores: Tensor, top: Tensor) -> Tensor:
    return torch.where(top == NEVER, 1.0, blocked.exponential(scores, top))


@fault(
    "The total holds only the last tile.",
    breaks=("distribution/weights-sum-to-one", "accuracy/equal-scores-count-every-key"),
    naive="SH",
    when=("kv_len > 16",),
    replaces=blocked.add_total,
)
def total_of_the_last_tile(total: Tensor, factor: Tensor, raised: Tensor) -> Tensor:
    return raised.sum(dim=-1, keepdim=True)


# Masks by tile


@fault(
    "Every tile reads the mask of the first.",
    breaks="masks/masked-keys-do-not-matter",
    naive="SH",
    when=("mask", "kv_len > 16"),
    replaces=blocked.hide,
)
def mask_of_the_first_tile(on: Tiled, scores: Tensor, tile: Tile) -> Tensor:
    return blocked.hide(on, scores, slice(0, tile.stop - tile.start))


@fault(
    "The bias is added in the first tile only.",
    breaks="masks/a-bias-of-log-two-counts-a-key-twice",
    naive="SH",
    when=("bias", "kv_len > 16"),
    replaces=blocked.score,
)
def bias_in_the_first_tile_only(on: Tiled, tile: Tile) -> Tensor:
    scores = blocked.score(on, tile)
    if on.call.bias is None or tile.start == 0:
        return scores
    return on.call.query @ on.key[:, :, tile].mT * on.scale


@fault(
    "A tile is skipped when its first query sees none of its keys.",
    breaks=("masks/boolean-equals-additive", "accuracy/output-is-within-the-bound"),
    naive="SV",
    when=("mask", "a tile dead for the first query", "alive for another"),
    replaces=blocked.hide,
)
def skipped_by_the_first_query(on: Tiled, scores: Tensor, tile: Tile) -> Tensor:
    hidden = blocked.hide(on, scores, tile)
    dead = (hidden[..., :1, :] == NEVER).all(dim=-1, keepdim=True)
    return hidden.masked_fill(dead, NEVER)


@fault(
    "A tile whose corners are kept is taken for full: its mask is not looked at.",
    breaks="masks/each-query-is-blind-to-its-own-masked-keys",
    naive="SV",
    when=("a mask with its corners True", "False inside"),
    replaces=blocked.hide,
)
def full_by_its_corners(on: Tiled, scores: Tensor, tile: Tile) -> Tensor:
    hidden = blocked.hide(on, scores, tile)
    full = (hidden[..., [0, 0, -1, -1], [0, -1, 0, -1]] != NEVER).all(dim=-1)
    return torch.where(full[..., None, None], scores, hidden)


# Splits


def halves(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output and log-sum-exp over the first and over the second half of the keys."""
    middle = (call.kv_len + 1) // 2
    first = torch.arange(call.kv_len) < middle
    parts = []
    for half in (first, ~first):

        def kept(call: Call, half: Tensor = half) -> Tensor:
            return half if clean.causal(call) is None else half & clean.causal(call)

        parts += clean.attention(call.but(return_lse=True), causal=kept, write=lambda call, output: output)
    return tuple(parts)


@fault(
    "The outputs of two splits are averaged.",
    breaks=("symmetry/parts-merge-to-the-whole", "accuracy/output-is-within-the-bound"),
    real="https://github.com/vllm-project/vllm/issues/26042",
    naive="T",
)
def splits_averaged(call: Call) -> Tensor:
    first, _, second, _ = halves(call)
    return ((first + second) / 2).to(call.dtype)


@fault(
    "Two splits that are both empty are merged to NaN.",
    breaks="masks/dead-rows-follow-the-convention",
    real="flashinfer d7f2c6464 (#4401)",
    naive="SV",
)
def empty_splits_merge_to_nan(call: Call) -> Tensor:
    first, first_sum, second, second_sum = halves(call)
    highest = torch.maximum(first_sum, second_sum)
    weights = torch.exp(first_sum - highest)[..., None], torch.exp(second_sum - highest)[..., None]
    return ((weights[0] * first + weights[1] * second) / (weights[0] + weights[1])).to(call.dtype)


@fault(
    "Splits are merged without the maximum: large scores overflow in the merge alone.",
    breaks=("accuracy/large-logits-do-no-harm", "symmetry/a-common-score-shift-changes-nothing"),
    naive="SV",
)
def merged_without_the_maximum(call: Call) -> Tensor:
    first, first_sum, second, second_sum = halves(call)
    weights = torch.exp(first_sum)[..., None], torch.exp(second_sum)[..., None]
    total = weights[0] + weights[1]
    merged = (weights[0] * first + weights[1] * second) / total.masked_fill(total == 0, 1.0)
    return merged.to(call.dtype)


@fault(
    "Beyond 256 keys the splits are merged with equal weights.",
    breaks=("accuracy/light-keys-add-up", "accuracy/output-is-within-the-bound"),
    real="https://github.com/vllm-project/vllm/issues/26042",
    naive="LP",
    when=("kv_len > 256",),
)
def long_splits_averaged(call: Call) -> Tensor:
    if call.kv_len <= 256:
        return clean.attention(call)
    first, _, second, _ = halves(call)
    return ((first + second) / 2).to(call.dtype)


@fault(
    "The log-sum-exp is that of the last split; the output is right.",
    breaks="features/log-sum-exp-is-within-the-bound",
    real="flashinfer ee3a7e822",
    naive="PATH",
    features=("return_lse",),
)
def log_sum_exp_of_the_last_split(call: Call) -> Any:
    output = clean.attention(call.but(return_lse=False))
    return (output, halves(call)[3]) if call.return_lse else output


@fault(
    "A tile of a single key takes the cheap way: its exponential is a polynomial.",
    breaks=("accuracy/output-is-within-the-bound", "accuracy/every-rung-of-a-ladder-has-its-weight"),
    real="https://github.com/ml-explore/mlx/issues/3573",
    naive="SH",
    when=("kv_len % 16 = 1",),
    replaces=blocked.exponential,
)
def cheap_exponential_in_small_tiles(scores: Tensor, top: Tensor) -> Tensor:
    if scores.shape[-1] != 1:
        return blocked.exponential(scores, top)
    x = ((scores - blocked.shift(top)) * math.log2(math.e)).clamp(min=-126.0)
    whole = torch.floor(x).detach()
    part = x - whole
    return torch.exp2(whole) * (1.0 + part * (0.6956 + part * (0.2262 + part * 0.0782))) * (scores != NEVER)
