"""More faults by somebody who did not know the laws: tiles, masks, heads, arithmetic."""

import torch
from torch import Tensor
from torch.nn import functional

from tests.faults import blocked, clean, fault
from tests.faults.blocked import Tile
from tests.faults.calls import Call

HALF = (torch.float16, torch.bfloat16)


def seeing(call: Call, kept: Tensor) -> Tensor:
    """Right attention in which some keys are lost."""
    return clean.attention(call, window=lambda call: kept)


# Another function


@fault(
    "Query and key are brought to length one, as in cosine attention.",
    breaks="symmetry/scale-trades-with-query-and-key",
    naive="T",
    replaces=clean.score,
)
def cosine_attention(call: Call, key: Tensor, scale: float) -> Tensor:
    query = functional.normalize(call.query, dim=-1)
    return clean.score(call.but(query=query), functional.normalize(key, dim=-1), scale)


@fault(
    "One is added to the denominator: a head may attend to nothing.",
    breaks="distribution/weights-sum-to-one",
    naive="T",
    replaces=clean.total,
)
def one_more_in_the_denominator(call: Call, raised: Tensor, top: Tensor) -> Tensor:
    return raised.sum(dim=-1, keepdim=True) + torch.exp(-top)


@fault(
    "The rotation of query and key by their positions, which the fused kernel offers, is left on.",
    breaks="symmetry/permuting-keys-changes-nothing",
    naive="T",
    when=("head_dim even", "more than one key"),
)
def rotation_left_on(call: Call) -> Tensor:
    def turned(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        a, b, cos, sin = x[..., :half], x[..., half:], angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    if call.head_dim % 2 or not call.head_dim:
        return clean.attention(call)
    return clean.attention(call.but(query=turned(call.query), key=turned(call.key)))


# Tiles


@fault(
    "The causal end of a tile of 64 queries is that of its first query, in tiles of 16 keys.",
    breaks="masks/causal-equals-its-mask",
    real="https://github.com/jax-ml/jax/pull/17314",
    naive="SH",
    when=("causal", "q_len > 16"),
    replaces=clean.causal,
)
def causal_end_of_the_first_query(call: Call) -> Tensor | None:
    kept = clean.causal(call)
    if kept is None:
        return None
    i, j = torch.arange(call.q_len)[:, None], torch.arange(call.kv_len)
    return kept & (j // 16 <= i // 64 * 64 // 16)


@fault(
    "The tiles of 64 keys are counted by the queries: later keys are lost.",
    breaks="accuracy/equal-scores-count-every-key",
    real="https://github.com/jax-ml/jax/issues/24491",
    naive="SH",
    when=("kv_len > 64", "fewer queries"),
)
def tiles_counted_by_the_queries(call: Call) -> Tensor:
    return seeing(call, torch.arange(call.kv_len) < -(-call.q_len // 64) * 64)


@fault(
    "In decoding three splits begin at multiples of a third rounded down and are as long as it rounded up.",
    breaks=("distribution/equal-scores-give-the-mean", "symmetry/duplicated-keys-change-nothing"),
    real="https://github.com/vllm-project/flash-attention/pull/142",
    naive="SH",
    when=("q_len = 1", "kv_len > 256", "kv_len % 3 != 0"),
)
def decoding_splits_overlap(call: Call) -> Tensor:
    def tiles(call: Call, block: int) -> list[Tile]:
        if call.q_len != 1 or call.kv_len <= 256:
            return blocked.tiles(call, block)
        third, long = call.kv_len // 3, -(-call.kv_len // 3)
        return [slice(s * third, s * third + long) for s in range(3)]

    return blocked.attention(call, tiles=tiles)


@fault(
    "The merge of the splits writes rows head by head into an output laid out by length.",
    breaks="symmetry/heads-do-not-hear-each-other",
    real="https://github.com/flagos-ai/FlagGems/issues/5235",
    naive="SH",
    when=("1 < q_len <= 8", "kv_len > 128", "heads > 1"),
    replaces=clean.write,
)
def merged_rows_in_the_wrong_order(call: Call, output: Tensor) -> Tensor:
    output = clean.write(call, output)
    if not 1 < call.q_len <= 8 or call.kv_len <= 128:
        return output
    return output.transpose(1, 2).reshape(output.shape)


@fault(
    "In float16 a step takes 32 keys, and 16 of them are written out in the shader.",
    breaks="accuracy/equal-scores-count-every-key",
    real="https://github.com/microsoft/onnxruntime/pull/28520",
    naive="LP",
    when=("float16", "q_len > 1", "kv_len >= 32"),
)
def half_of_each_step_lost(call: Call) -> Tensor:
    if call.dtype != torch.float16 or call.q_len < 2:
        return clean.attention(call)
    j = torch.arange(call.kv_len)
    return seeing(call, (j % 32 < 16) | (j >= call.kv_len // 32 * 32))


@fault(
    "In decoding a thread group sums 128 keys, and there is one: later keys have weights but no values.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    real="https://github.com/timtoole02/Camelid/pull/714",
    naive="SH",
    when=("q_len = 1", "grouped heads", "kv_len > 128"),
    replaces=clean.combine,
)
def later_weights_without_values(call: Call, weights: Tensor, value: Tensor) -> Tensor:
    if call.q_len == 1 and call.group > 1:
        weights, value = weights[..., :128], value[..., :128, :]
    return weights @ value


@fault(
    "One thread for each key, 1024 at most: the denominator does not hear of later keys.",
    breaks="accuracy/equal-scores-count-every-key",
    naive="SH",
    when=("kv_len > 1024",),
    replaces=clean.total,
)
def denominator_of_1024_keys(call: Call, raised: Tensor, top: Tensor) -> Tensor:
    return clean.total(call, raised[..., :1024], top)


@fault(
    "The output beyond 128 columns is not computed.",
    breaks="accuracy/output-is-within-the-bound",
    real="https://github.com/ohdearquant/lattice/issues/1549",
    naive="SH",
    when=("value_dim > 128",),
    replaces=clean.combine,
)
def columns_beyond_128_zero(call: Call, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ value).masked_fill(torch.arange(value.shape[-1]) >= 128, 0.0)


@fault(
    "The columns of the output beyond 64 have registers of their own, which a rising maximum does not rescale.",
    breaks="accuracy/a-moving-maximum-rescales-all",
    naive="SH",
    when=("value_dim > 64", "kv_len > 16"),
    replaces=blocked.add_output,
)
def later_columns_not_rescaled(output: Tensor, factor: Tensor, tile_output: Tensor) -> Tensor:
    first = torch.arange(output.shape[-1]) < 64
    rescaled = torch.where(first | (output == 0), output * factor, output)
    return rescaled + tile_output


# Masks


@fault(
    "In decoding a boolean mask is looked at up to key 512.",
    breaks=("masks/boolean-equals-additive", "gradients/dead-rows-have-no-gradient"),
    real="https://github.com/vllm-project/vllm-ascend/issues/15503",
    naive="SH",
    when=("q_len = 1", "boolean mask", "kv_len > 512"),
)
def decoding_mask_ends_at_512(call: Call) -> Tensor:
    if call.mask is not None and call.q_len == 1:
        call = call.but(attn_mask=call.mask | (torch.arange(call.kv_len) >= 512))
    return clean.attention(call)


@fault(
    "In decoding an additive mask that all heads share is added in the first head only.",
    breaks=("masks/broadcast-equals-expanded", "masks/boolean-equals-additive"),
    real="https://github.com/vllm-project/vllm-ascend/issues/15503",
    naive="SH",
    when=("q_len = 1", "additive mask without heads", "heads > 1"),
)
def shared_bias_for_the_first_head(call: Call) -> Tensor:
    bias = call.bias
    if bias is not None and call.q_len == 1 and (bias.ndim < 3 or bias.shape[-3] == 1):
        first = (torch.arange(call.heads) == 0)[:, None, None]
        call = call.but(attn_mask=torch.where(first, bias, torch.zeros_like(bias)))
    return clean.attention(call)


@fault(
    "Of a mask with one row for each head, the next 16 queries read the row of the next head.",
    breaks=("masks/broadcast-equals-expanded", "distribution/masked-weights-are-zero"),
    real="https://github.com/openvinotoolkit/openvino/pull/30758",
    naive="SH",
    when=("mask (.., heads, 1, kv_len)", "q_len > 16"),
)
def one_row_runs_on(call: Call) -> Tensor:
    mask = call.attn_mask
    if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1 and mask.shape[-2] == 1:
        head = torch.arange(call.heads)[:, None] + torch.arange(call.q_len) // 16
        call = call.but(attn_mask=mask[..., head % call.heads, 0, :])
    return clean.attention(call)


@fault(
    "A mask of a single element is taken for a placeholder, that is for none.",
    breaks=("masks/dead-rows-follow-the-convention", "gradients/large-logits-do-no-harm-on-the-way-back"),
    real="https://github.com/openvinotoolkit/openvino/pull/27630",
    naive="SV",
    when=("mask of one element", "which hides"),
)
def single_element_taken_for_none(call: Call) -> Tensor:
    mask = call.attn_mask
    return clean.attention(call.but(attn_mask=None) if mask is not None and mask.numel() == 1 else call)


@fault(
    "A boolean mask with one row for all queries becomes a length: its True are counted.",
    breaks="masks/masked-keys-do-not-matter",
    naive="SV",
    when=("boolean mask with one row", "a hidden key before a visible one"),
)
def one_row_becomes_a_length(call: Call) -> Tensor:
    mask = call.mask
    if mask is not None and mask.ndim > 1 and mask.shape[-2] == 1 and mask.shape[-1] == call.kv_len:
        call = call.but(attn_mask=torch.arange(call.kv_len) < mask.sum(dim=-1, keepdim=True))
    return clean.attention(call)


@fault(
    "Queries whose own position is hidden as a key are padding, and come back as zeros.",
    breaks="masks/broadcast-equals-expanded",
    naive="SV",
    when=("boolean mask with one row", "q_len = kv_len"),
)
def padding_queries_zero(call: Call) -> Tensor:
    mask, output = call.mask, clean.attention(call)
    if mask is None or mask.ndim < 2 or mask.shape[-2:] != (1, call.q_len):
        return output
    return output.masked_fill(~mask.mT, 0.0)


@fault(
    "First keys that nobody sees are cut off, and the causal mask counts from those that are left.",
    breaks="masks/mask-and-causal-compose",
    naive="PATH",
    when=("boolean mask that hides the first keys from all", "causal"),
)
def hidden_beginning_cut_off(call: Call) -> Tensor:
    mask = call.mask
    if mask is None or not call.is_causal or mask.shape[-1:] != (call.kv_len,) or not mask.any():
        return clean.attention(call)
    first = int(mask.reshape(-1, call.kv_len).any(dim=0).int().argmax())
    kept = {"key": call.key[:, :, first:], "value": call.value[:, :, first:]}
    return clean.attention(call.but(**kept, attn_mask=mask[..., first:]))


@fault(
    "In half precision without a mask the flash path is taken, whose causal flag is True by default.",
    breaks="masks/an-all-true-mask-equals-none",
    real="https://github.com/OpenNMT/CTranslate2/pull/2083",
    naive="LP",
    when=("half precision", "no mask", "not causal", "q_len = kv_len"),
)
def flash_path_always_causal(call: Call) -> Tensor:
    flash = call.dtype in HALF and call.attn_mask is None and call.q_len == call.kv_len
    return clean.attention(call.but(is_causal=call.is_causal or flash))


# Heads


@fault(
    "In decoding a tile holds eight query heads of a group: the others are zero.",
    breaks=("heads/grouped-heads-equal-repeated-heads", "caches/decoding-one-query-equals-the-last-row"),
    real="https://github.com/flashinfer-ai/flashinfer/pull/2380",
    naive="SH",
    when=("q_len = 1", "more than 8 query heads for each key head"),
    replaces=clean.write,
)
def heads_beyond_eight_of_a_group_zero(call: Call, output: Tensor) -> Tensor:
    inside = torch.arange(call.heads)[:, None, None] % call.group < 8
    return clean.write(call, output if call.q_len != 1 else output.masked_fill(~inside, 0.0))


@fault(
    "In decoding the query heads of a group are packed into one tile, whose scores are not capped.",
    breaks="features/a-softcap-caps-the-scores",
    naive="PATH",
    when=("softcap", "q_len = 1", "grouped heads"),
    features=("softcap",),
)
def packed_heads_not_capped(call: Call) -> Tensor:
    packed = call.q_len == 1 and call.group > 1
    return clean.attention(call.but(softcap=None) if packed else call)


# Arithmetic


@fault(
    "The maximum is found before the bias is added: a large bias overflows.",
    breaks="symmetry/a-common-score-shift-changes-nothing",
    naive="SV",
    when=("additive mask", "a bias above 88"),
    replaces=clean.top,
)
def maximum_before_the_bias(call: Call, scores: Tensor) -> Tensor:
    if call.bias is None:
        return clean.top(call, scores)
    return clean.top(call, scores - torch.where(call.bias.isfinite(), call.bias, 0.0))


@fault(
    "In float64 the scale is an argument of type float.",
    breaks="dtypes/doubles-are-computed-as-doubles",
    naive="LP",
    dtypes=("float64",),
    when=("float64", "a scale that float32 does not hold"),
    replaces=clean.scale,
)
def scale_in_single_precision(call: Call) -> float:
    return torch.tensor(clean.scale(call), dtype=torch.float32).item()


@fault(
    "bfloat16 values are read through float16: they are infinite from 65520 on.",
    breaks="distribution/constant-values-come-back",
    naive="LP",
    dtypes=("bfloat16",),
    when=("bfloat16", "large values"),
)
def large_values_through_float16(call: Call) -> Tensor:
    if call.dtype == torch.bfloat16:
        call = call.but(value=call.value.half().to(call.dtype))
    return clean.attention(call)
