"""Faults written by somebody who did not know the laws: tiles, masks, heads, scale."""

import torch
from torch import Tensor

from tests.faults import blocked, clean, fault
from tests.faults.blocked import Tile
from tests.faults.calls import NEVER, Call

HALF = (torch.float16, torch.bfloat16)


def rows_of(mask: Tensor, index: Tensor) -> Tensor:
    """The mask with query i reading row index[i]."""
    return mask if mask.shape[-2] == 1 else mask[..., index, :]


# Tiles


@fault(
    "Beyond the first 64 queries, each chunk of 64 reads the mask of its first query.",
    breaks="masks/each-query-is-blind-to-its-own-masked-keys",
    real="https://github.com/google-research/tabfm/pull/40",
    naive="SH",
    when=("mask that differs by query", "q_len > 65"),
)
def later_chunks_read_one_row(call: Call) -> Tensor:
    if call.attn_mask is not None:
        i = torch.arange(call.q_len)
        call = call.but(attn_mask=rows_of(call.attn_mask, torch.where(i < 64, i, i // 64 * 64)))
    return clean.attention(call)


@fault(
    "With few queries the lanes beyond the last key read the keys of the next head.",
    breaks="accuracy/equal-scores-count-every-key",
    real="https://github.com/pytorch/pytorch/pull/169222",
    naive="SH",
    when=("q_len <= 8", "not causal, no mask", "kv_len > 32", "kv_len % 32 != 0"),
)
def few_queries_read_past_the_keys(call: Call) -> Tensor:
    missing = -call.kv_len % 32
    if call.q_len > 8 or call.is_causal or call.attn_mask is not None or call.kv_len < 32:
        missing = 0
    key, value = (torch.cat([x, x.roll(-1, dims=1)[:, :, :missing]], dim=2) for x in (call.key, call.value))
    return clean.attention(call.but(key=key, value=value))


@fault(
    "In half precision a few queries decoded at once are not causal: the kernel only bounds the keys.",
    breaks="masks/the-future-does-not-matter",
    real="https://github.com/lightseekorg/tokenspeed/pull/469",
    naive="LP",
    when=("half precision", "causal", "1 < q_len <= 8"),
)
def few_half_queries_not_causal(call: Call) -> Tensor:
    several = call.dtype in HALF and 1 < call.q_len <= 8
    return clean.attention(call.but(is_causal=call.is_causal and not several))


@fault(
    "In a causal call whose keys fill all tiles of 64, the earlier tiles are not rescaled.",
    breaks="accuracy/a-moving-maximum-rescales-all",
    naive="SH",
    when=("causal", "kv_len % 64 = 0", "kv_len > 64"),
)
def full_causal_tiles_not_rescaled(call: Call) -> Tensor:
    def rescale(before: Tensor, top: Tensor) -> Tensor:
        full = call.is_causal and call.kv_len % 64 == 0
        return torch.ones_like(top) if full else blocked.rescale(before, top)

    return blocked.attention(call, block=64, rescale=rescale)


@fault(
    "There are (kv_len - 1) // 64 full tiles and a rest: keys that fill the last tile exactly lose it.",
    breaks="accuracy/a-moving-maximum-rescales-all",
    naive="SH",
    when=("kv_len % 64 = 0", "kv_len > 64"),
)
def last_tile_lost_when_full(call: Call) -> Tensor:
    def tiles(call: Call, block: int) -> list[Tile]:
        every = blocked.tiles(call, block)
        return every[:-1] if call.kv_len % block == 0 and len(every) > 1 else every

    return blocked.attention(call, block=64, tiles=tiles, tiles_backward=tiles)


@fault(
    "In bfloat16 the causal mask is not laid over a last tile of 16 that is not full.",
    breaks="masks/the-future-does-not-matter",
    naive="LP",
    when=("bfloat16", "causal", "kv_len % 16 != 0", "kv_len > 16"),
)
def causal_tail_open_in_bfloat16(call: Call) -> Tensor:
    def causal(inside: Call) -> Tensor | None:
        kept = clean.causal(inside)
        if kept is None or call.dtype != torch.bfloat16 or call.kv_len < 16:
            return kept
        return kept | (torch.arange(call.kv_len) >= call.kv_len // 16 * 16)

    return clean.attention(call, causal=causal)


@fault(
    "Beyond 512 keys the second chunk reads the mask of the first.",
    breaks="accuracy/output-is-within-the-bound",
    naive="SH",
    when=("mask", "kv_len > 512"),
)
def second_chunk_reads_the_first_mask(call: Call) -> Tensor:
    mask = call.attn_mask
    if mask is not None and mask.shape[-1] > 512:
        call = call.but(attn_mask=mask[..., torch.arange(call.kv_len) % 512])
    return clean.attention(call)


@fault(
    "A single key has the whole weight, whether it may be attended to or not.",
    breaks="masks/dead-rows-follow-the-convention",
    naive="SV",
    when=("kv_len = 1", "mask that hides it"),
)
def single_key_never_hidden(call: Call) -> Tensor:
    return clean.attention(call.but(attn_mask=None) if call.kv_len == 1 else call)


@fault(
    "The number of splits is found by dividing by the size of the batch: an empty one is refused.",
    breaks="accuracy/empty-axes-are-allowed-or-refused",
    naive="SH",
    when=("batch = 0",),
)
def empty_batch_divides(call: Call) -> Tensor:
    splits = 108 // (call.batch * call.heads) + 1
    return blocked.attention(call, block=max(call.kv_len // splits, 16))


# Masks


@fault(
    "The batch stride of a mask without heads counts all heads: later sequences read another one's mask.",
    breaks="masks/the-masks-of-others-do-not-matter",
    real="https://github.com/microsoft/onnxruntime/pull/28963",
    naive="SH",
    when=("mask (batch, 1, q_len, kv_len)", "batch > 1", "heads > 1"),
)
def batch_stride_counts_all_heads(call: Call) -> Tensor:
    mask = call.attn_mask
    if mask is not None and mask.ndim == 4 and mask.shape[0] > 1 and mask.shape[1] == 1:
        call = call.but(attn_mask=mask[torch.arange(call.batch) * call.heads % call.batch])
    return clean.attention(call)


@fault(
    "A square boolean mask whose last row is all True is taken for the causal one.",
    breaks="masks/an-all-true-mask-equals-none",
    naive="SV",
    when=("boolean mask", "q_len = kv_len", "last row all True"),
)
def full_last_row_means_causal(call: Call) -> Tensor:
    mask = call.mask
    square = mask is not None and call.kv_len > 1 and mask.shape[-2:] == (call.kv_len, call.kv_len)
    if mask is not None and square and bool(mask[..., -1, :].all()):
        call = call.but(attn_mask=None, is_causal=True)
    return clean.attention(call)


@fault(
    "Heads beyond the eighth read the mask of the head eight before.",
    breaks="masks/the-masks-of-others-do-not-matter",
    naive="SH",
    when=("mask that differs by head", "heads > 8"),
)
def heads_beyond_eight_share_masks(call: Call) -> Tensor:
    mask = call.attn_mask
    if mask is not None and mask.ndim > 2 and mask.shape[-3] > 8:
        call = call.but(attn_mask=mask[..., torch.arange(call.heads) % 8, :, :])
    return clean.attention(call)


@fault(
    "Finite biases are clamped at -1e4: two far below it count alike.",
    breaks="accuracy/low-biases-keep-their-differences",
    naive="SV",
    when=("additive mask", "every bias of a row below -1e4"),
    replaces=clean.bias,
)
def biases_clamped_from_below(call: Call, scores: Tensor) -> Tensor:
    if call.bias is None:
        return scores
    return scores + torch.where(call.bias == NEVER, NEVER, call.bias.clamp(min=-1e4))


@fault(
    "A bias below half the least number is taken for -inf: a row of nothing else is dead.",
    breaks="accuracy/rows-of-low-biases-are-not-dead",
    naive="SV",
    when=("additive mask", "a row of the least number"),
)
def least_number_taken_for_infinity(call: Call) -> Tensor:
    if call.bias is not None:
        low = call.bias < torch.finfo(call.bias.dtype).min / 2
        call = call.but(attn_mask=call.bias.masked_fill(low, NEVER))
    return clean.attention(call)


# Heads


@fault(
    "The group is found by a shift: a group that is no power of two is rounded down to one.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    naive="SH",
    when=("grouped heads", "3, 5, 6 or 7 query heads for each key head"),
    replaces=clean.group,
)
def group_by_a_shift(call: Call, x: Tensor) -> Tensor:
    index = torch.arange(x.shape[1] * call.group) >> (call.group.bit_length() - 1)
    return x[:, index.clamp(max=x.shape[1] - 1)] if call.group > 1 else x


@fault(
    "With one query the heads of a group become queries, and a mask for each head is read in that order.",
    breaks="masks/the-masks-of-others-do-not-matter",
    real="https://github.com/HKUSTDial/flash-sparse-attention/pull/190",
    naive="SH",
    when=("grouped heads", "q_len = 1", "mask that differs by head"),
)
def packed_heads_read_masks_in_their_order(call: Call) -> Tensor:
    mask, group = call.attn_mask, call.group
    if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1 and group > 1 and call.q_len == 1:
        h, kv_heads = torch.arange(call.heads), call.heads // group
        call = call.but(attn_mask=mask[..., h % kv_heads * group + h // kv_heads, :, :])
    return clean.attention(call)


@fault(
    "The next sequence's keys are sought as many heads on as the query has.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    real="https://github.com/fla-org/flash-linear-attention/pull/384",
    naive="SH",
    when=("grouped heads", "batch > 1"),
    replaces=clean.group,
)
def key_batch_stride_of_the_query(call: Call, x: Tensor) -> Tensor:
    if call.group == 1:
        return x
    h = torch.arange(call.heads)
    index = torch.arange(call.batch)[:, None] * call.heads + h // call.group
    return x.flatten(0, 1)[index % max(x.shape[0] * x.shape[1], 1)]


# Scale


@fault(
    "The maximum is found before the scale is applied: with a negative one it is the minimum.",
    breaks="accuracy/explicit-scale-is-used",
    naive="SV",
    when=("scale < 0", "scores far apart"),
    replaces=clean.top,
)
def maximum_before_a_negative_scale(call: Call, scores: Tensor) -> Tensor:
    if (call.scale or 1.0) > 0 or call.bias is not None or scores.shape[-1] == 0:
        return clean.top(call, scores)
    lowest = scores.detach().masked_fill(scores == NEVER, torch.inf).amin(dim=-1, keepdim=True)
    return lowest.masked_fill(lowest == torch.inf, 0.0)


@fault(
    "In half precision a wide head is padded to a power of two, and the default scale is that of the padded one.",
    breaks="accuracy/default-scale-is-one-over-root-head-dim",
    naive="LP",
    when=("half precision", "default scale", "head_dim > 64, no power of two"),
)
def padded_wide_head_scales(call: Call) -> Tensor:
    if call.scale is None and call.dtype in HALF and call.head_dim > 64:
        call = call.but(scale=float(1 << (call.head_dim - 1).bit_length()) ** -0.5)
    return clean.attention(call)
