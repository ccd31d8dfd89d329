"""Faults by a third one who did not know the laws: tiles, masks, heads, arithmetic."""

import torch
from torch import Tensor
from torch.nn import functional

from tests.faults import clean, fault
from tests.faults.calls import Call

HALF = (torch.float16, torch.bfloat16)


def seeing(call: Call, kept: Tensor) -> Tensor:
    """Right attention in which some keys are lost."""
    return clean.attention(call, window=lambda call: kept)


# Tiles


@fault(
    "In decoding eight threads write four columns each: those beyond the width add to the last four.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/microsoft/onnxruntime/pull/29593",
    naive="SH",
    when=("q_len = 1", "value_dim <= 28"),
    replaces=clean.write,
)
def idle_threads_add_to_the_last_four(call: Call, output: Tensor) -> Tensor:
    fours = -(-output.shape[-1] // 4)
    last = torch.arange(output.shape[-1]) // 4 == fours - 1
    decoding = call.q_len == 1 and fours < 8
    return clean.write(call, torch.where(last, output * (9 - fours), output) if decoding else output)


@fault(
    "The merge of the splits has no stride for the batch: all sequences are written over the first.",
    breaks="symmetry/permuting-batches-permutes-batches",
    real="https://github.com/vllm-project/flash-attention/pull/176",
    naive="SH",
    when=("1 < q_len <= 8", "kv_len > 64", "batch > 1"),
    replaces=clean.write,
)
def merged_into_the_first_sequence(call: Call, output: Tensor) -> Tensor:
    output = clean.write(call, output)
    if not 1 < call.q_len <= 8 or call.kv_len <= 64 or call.batch < 2:
        return output
    return output[-1:] * (torch.arange(call.batch) == 0)[:, None, None, None]


@fault(
    "Query and key rows are read as wide as the next power of two: what follows in memory counts in q.k.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/turboderp-org/exllamav3/pull/316",
    naive="SH",
    when=("head_dim no power of two",),
)
def rows_as_wide_as_a_power_of_two(call: Call) -> Tensor:
    wide = 1 << (call.head_dim - 1).bit_length()

    def read(x: Tensor) -> Tensor:
        start = torch.arange(x.numel() // call.head_dim)[:, None] * call.head_dim
        return x.flatten()[(start + torch.arange(wide)) % max(x.numel(), 1)].view(*x.shape[:3], wide)

    if not call.head_dim:
        return clean.attention(call)
    return clean.attention(call.but(query=read(call.query), key=read(call.key), scale=clean.scale(call)))


@fault(
    "A head wider than 128 is computed as two heads: each half of it has weights of its own.",
    breaks="accuracy/output-is-within-the-bound",
    naive="SH",
    when=("head_dim > 128",),
)
def wide_head_taken_for_two(call: Call) -> Tensor:
    if call.head_dim <= 128 or call.value.shape[-1] < 2:
        return clean.attention(call)
    halves = zip(*(x.chunk(2, dim=-1) for x in (call.query, call.key, call.value)), strict=True)
    parts = [call.but(query=q, key=k, value=v, scale=clean.scale(call)) for q, k, v in halves]
    return torch.cat([clean.attention(part) for part in parts], dim=-1)


@fault(
    "A grid has 64 blocks for batch and heads together: the heads beyond are zero.",
    breaks="accuracy/output-is-within-the-bound",
    naive="SH",
    when=("batch x heads > 64",),
    replaces=clean.write,
)
def blocks_beyond_64_zero(call: Call, output: Tensor) -> Tensor:
    block = torch.arange(call.batch * call.heads).view(call.batch, call.heads, 1, 1)
    return clean.write(call, output.masked_fill(block >= 64, 0.0))


@fault(
    "Queries are taken in chunks of 256, and the causal mask counts them from zero in each.",
    breaks="masks/causal-equals-its-mask",
    naive="SH",
    when=("causal", "q_len > 256"),
    replaces=clean.causal,
)
def causal_positions_of_the_chunk(call: Call) -> Tensor | None:
    i = torch.arange(call.q_len)[:, None] % 256
    return torch.arange(call.kv_len) <= i if call.is_causal else None


@fault(
    "In bfloat16 keys are packed in pairs, and an odd last one is paired with itself: it counts twice.",
    breaks="accuracy/equal-scores-count-every-key",
    naive="LP",
    when=("bfloat16", "kv_len odd", "not causal"),
)
def odd_last_key_counts_twice(call: Call) -> Tensor:
    def paired(x: Tensor, dim: int) -> Tensor:
        return torch.cat([x, x.narrow(dim, x.shape[dim] - 1, 1)], dim=dim)

    if call.dtype == torch.bfloat16 and call.kv_len % 2 and not call.is_causal:
        mask = call.attn_mask
        if mask is not None and mask.ndim and mask.shape[-1] == call.kv_len:
            mask = paired(mask, -1)
        call = call.but(key=paired(call.key, 2), value=paired(call.value, 2), attn_mask=mask)
    return clean.attention(call)


# Masks


@fault(
    "A boolean mask is packed into bytes, whose first key is the highest bit here and the lowest there.",
    breaks="accuracy/equal-scores-count-every-key",
    naive="SV",
    when=("boolean mask",),
)
def first_key_in_the_highest_bit(call: Call) -> Tensor:
    mask = call.mask
    if mask is not None and mask.ndim and mask.shape[-1] == call.kv_len > 1:
        packed = functional.pad(mask, (0, -call.kv_len % 8)).unflatten(-1, (-1, 8))
        call = call.but(attn_mask=packed.flip(-1).flatten(-2)[..., : call.kv_len])
    return clean.attention(call)


@fault(
    "With one key head all heads are rows of one matrix, and each row of the mask is repeated for the next ones.",
    breaks="accuracy/output-is-within-the-bound",
    naive="SH",
    when=("one key head", "mask that differs by query, not by head"),
)
def rows_of_the_mask_one_by_one(call: Call) -> Tensor:
    mask = call.attn_mask
    if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1 and call.group == call.heads > 1:
        if mask.ndim < 3 or mask.shape[-3] == 1:
            plane = mask if mask.ndim < 3 else mask[..., 0, :, :]
            row = torch.arange(call.heads * call.q_len) // call.heads
            mask = plane[..., row, :].unflatten(-2, (call.heads, call.q_len))
        call = call.but(attn_mask=mask)
    return clean.attention(call)


@fault(
    "Each row of a boolean mask becomes a span, from its first key to its last: holes are seen.",
    breaks="masks/each-query-is-blind-to-its-own-masked-keys",
    naive="SV",
    when=("boolean mask that hides a key between visible ones",),
)
def holes_of_a_span_seen(call: Call) -> Tensor:
    mask = call.mask
    if mask is not None and mask.ndim and mask.shape[-1]:
        begun = mask.int().cummax(dim=-1).values
        going_on = mask.int().flip(-1).cummax(dim=-1).values.flip(-1)
        call = call.but(attn_mask=(begun * going_on).bool())
    return clean.attention(call)


@fault(
    "The tiles of 16 keys that a boolean mask leaves are counted, and as many are read from the first on.",
    breaks="packed/blocks-without-a-key-may-be-left-out",
    naive="SH",
    when=("boolean mask", "a tile of 16 that it hides from all", "a visible one behind"),
)
def as_many_tiles_as_the_mask_leaves(call: Call) -> Tensor:
    mask = call.mask
    if mask is None or mask.ndim == 0 or not mask.numel() or mask.shape[-1] != call.kv_len:
        return clean.attention(call)
    seen = functional.pad(mask.reshape(-1, call.kv_len).any(dim=0), (0, -call.kv_len % 16))
    left = int(seen.view(-1, 16).any(dim=-1).sum())
    return seeing(call, torch.arange(call.kv_len) < left * 16)


@fault(
    "An element of the mask is found by an index of sixteen bits: behind 65536 the first rows are read again.",
    breaks="masks/each-query-is-blind-to-its-own-masked-keys",
    real="https://github.com/pytorch/pytorch/issues/162588",
    naive="SH",
    when=("mask of more than 65536 queries x keys",),
)
def mask_index_in_sixteen_bits(call: Call) -> Tensor:
    mask, shape = call.attn_mask, (call.q_len, call.kv_len)
    if mask is not None and mask.shape[-2:] == shape and call.q_len * call.kv_len > 65536:
        index = torch.arange(call.q_len * call.kv_len) % 65536
        call = call.but(attn_mask=mask.flatten(-2)[..., index].unflatten(-1, shape))
    return clean.attention(call)


@fault(
    "In a causal call the scores are multiplied by a triangle, and what is zero is hidden.",
    breaks="accuracy/equal-scores-count-every-key",
    naive="SV",
    when=("causal", "a score of exactly zero"),
    replaces=clean.hide,
)
def zero_scores_hidden(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return clean.hide(call, scores, kept & (scores != 0) if call.is_causal else kept)


@fault(
    "Keys whose numbers sum to zero are taken for padding, and hidden.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/Kyubyong/transformer/pull/69",
    naive="SV",
    when=("a key of zeros, or of opposite numbers",),
)
def zero_sums_taken_for_padding(call: Call) -> Tensor:
    kept = clean.group(call, call.key).sum(dim=-1) != 0
    return seeing(call, kept[:, :, None])


@fault(
    "In a causal call the additive mask counts twice: merged with the triangle, and by itself.",
    breaks="masks/mask-and-causal-compose",
    naive="PATH",
    when=("additive mask", "causal"),
    replaces=clean.bias,
)
def bias_counts_twice_when_causal(call: Call, scores: Tensor) -> Tensor:
    if call.bias is None:
        return scores
    return scores + call.bias * (2 if call.is_causal else 1)


@fault(
    "The causal mask compares positions in the type of the query: in bfloat16, beyond 256 neighbours are one.",
    breaks="masks/the-future-does-not-matter",
    naive="LP",
    when=("bfloat16", "causal", "q_len > 256"),
)
def causal_positions_in_the_type_of_the_query(call: Call) -> Tensor:
    i, j = torch.arange(call.q_len).to(call.dtype), torch.arange(call.kv_len).to(call.dtype)
    return clean.attention(call, causal=lambda inside: j <= i[:, None] if call.is_causal else None)


# Arithmetic


@fault(
    "A scale that is a whole number is no float, and is taken for none.",
    breaks="accuracy/a-whole-scale-is-a-scale",
    naive="SV",
    when=("scale of type int",),
    replaces=clean.scale,
)
def whole_scale_ignored(call: Call) -> float:
    return call.scale if isinstance(call.scale, float) else call.head_dim**-0.5
