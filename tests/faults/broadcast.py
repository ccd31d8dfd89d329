"""A mask of fewer axes than the scores: who reads which part of it."""

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import Call


def with_mask(call: Call, attn_mask: Tensor) -> Tensor:
    return clean.attention(call.but(attn_mask=attn_mask))


def shape_of_mask(call: Call) -> tuple[int, ...]:
    """The shape of the mask, with ones in front up to four axes; all ones without a mask."""
    shape = () if call.attn_mask is None else call.attn_mask.shape
    return (1,) * (4 - len(shape)) + tuple(shape)


@fault(
    "Every sequence of the batch uses the mask of the first.",
    breaks=("symmetry/batches-do-not-hear-each-other", "masks/masked-keys-do-not-matter"),
    naive="T",
)
def mask_of_the_first_sequence(call: Call) -> Tensor:
    if shape_of_mask(call)[0] > 1:
        return with_mask(call, call.attn_mask[:1])
    return clean.attention(call)


@fault(
    "Every head uses the mask of the first.",
    breaks=(
        "masks/masked-keys-do-not-matter",
        "distribution/masked-weights-are-zero",
        "accuracy/output-is-within-the-bound",
    ),
    naive="T",
)
def mask_of_the_first_head(call: Call) -> Tensor:
    if shape_of_mask(call)[1] > 1:
        return with_mask(call, call.attn_mask[..., :1, :, :])
    return clean.attention(call)


@fault(
    "A square mask is transposed.",
    breaks="masks/masked-keys-do-not-matter",
    real="https://github.com/keras-team/keras/issues/21483",
    naive="T",
)
def mask_transposed(call: Call) -> Tensor:
    rows, columns = shape_of_mask(call)[2:]
    return with_mask(call, call.attn_mask.mT) if rows == columns > 1 else clean.attention(call)


@fault(
    "A mask of the keys is laid along the queries when there are as many of them.",
    breaks=(
        "masks/padding-equals-truncation",
        "masks/masked-keys-do-not-matter",
        "accuracy/output-is-within-the-bound",
    ),
    real="https://github.com/keras-team/keras/issues/21483",
    naive="SH",
    when=("a mask of keys alone", "q_len = kv_len"),
)
def padding_along_the_queries(call: Call) -> Tensor:
    rows, columns = shape_of_mask(call)[2:]
    if rows == 1 < columns == call.q_len:
        return with_mask(call, call.attn_mask.mT)
    return clean.attention(call)


@fault(
    "The mask is repeated batch by batch while the scores run head by head: head h of sequence b reads the "
    "mask of sequence (b x heads + h) mod batch.",
    breaks=("masks/the-masks-of-others-do-not-matter", "symmetry/batches-do-not-hear-each-other"),
    real="https://github.com/lsdefine/attention-is-all-you-need-keras/issues/28",
    naive="T",
)
def repeated_in_the_wrong_order(call: Call) -> Tensor:
    batch, heads = shape_of_mask(call)[:2]
    if batch == 1 or heads > 1:
        return clean.attention(call)
    repeated = call.attn_mask.repeat(call.heads, 1, 1, 1)
    return with_mask(call, repeated.reshape(batch, call.heads, *call.attn_mask.shape[2:]))


@fault(
    "The batch axis of a mask meets the head axis of the scores when both have one size.",
    breaks="masks/the-masks-of-others-do-not-matter",
    real="https://github.com/ml-explore/mlx-lm/issues/1467",
    naive="SH",
    when=("a mask for each sequence", "batch = heads"),
)
def batch_meets_heads(call: Call) -> Tensor:
    batch, heads = shape_of_mask(call)[:2]
    if heads == 1 < batch == call.heads:
        return with_mask(call, call.attn_mask.transpose(0, 1))
    return clean.attention(call)


@fault(
    "A mask of three axes is read as one for each sequence instead of one for each head.",
    breaks=("masks/broadcast-equals-expanded", "masks/the-masks-of-others-do-not-matter"),
    naive="SH",
    when=("a mask of three axes", "batch = heads"),
)
def three_axes_start_with_the_batch(call: Call) -> Tensor:
    if call.attn_mask is not None and call.attn_mask.ndim == 3 and len(call.attn_mask) == call.batch > 1:
        return with_mask(call, call.attn_mask[:, None])
    return clean.attention(call)


@fault(
    "A full mask is flattened heads first.",
    breaks="symmetry/batches-do-not-hear-each-other",
    naive="T",
    when=("a mask for each sequence and head",),
)
def flattened_heads_first(call: Call) -> Tensor:
    batch, heads = shape_of_mask(call)[:2]
    if batch == 1 or heads == 1:
        return clean.attention(call)
    return with_mask(call, call.attn_mask.transpose(0, 1).reshape(call.attn_mask.shape))


@fault(
    "With one query, every head reads the bias of the first.",
    breaks=(
        "symmetry/heads-do-not-hear-each-other",
        "gradients/the-bias-gets-its-gradient",
        "masks/boolean-equals-additive",
    ),
    real="facebookresearch/xformers 4f7ffaa3",
    naive="SH",
    when=("a bias for each head", "one query"),
)
def decoding_reads_the_bias_of_the_first_head(call: Call) -> Tensor:
    if call.q_len == 1 and call.bias is not None and shape_of_mask(call)[1] > 1:
        return with_mask(call, call.bias[..., :1, :, :])
    return clean.attention(call)


@fault(
    "A mask with one row for all queries is applied to the first query only.",
    breaks="masks/broadcast-equals-expanded",
    naive="SH",
)
def one_row_for_the_first_query(call: Call) -> Tensor:
    if call.mask is None or shape_of_mask(call)[2] > 1:
        return clean.attention(call)
    later = torch.arange(call.q_len)[:, None] > 0
    return with_mask(call, call.mask | later)


@fault(
    "A mask with one column for all keys is applied to the first key only.",
    breaks="masks/broadcast-equals-expanded",
    naive="SH",
)
def one_column_for_the_first_key(call: Call) -> Tensor:
    if call.mask is None or shape_of_mask(call)[3] > 1:
        return clean.attention(call)
    later = torch.arange(call.kv_len) > 0
    return with_mask(call, call.mask | later)


@fault(
    "Beyond the first sequence, the heads share the mask of the first head.",
    breaks=(
        "symmetry/heads-do-not-hear-each-other",
        "distribution/masked-weights-are-zero",
        "masks/each-query-is-blind-to-its-own-masked-keys",
    ),
    naive="SH",
    when=("a mask for each sequence and head", "batch > 1"),
)
def heads_share_beyond_the_first_sequence(call: Call) -> Tensor:
    batch, heads = shape_of_mask(call)[:2]
    if batch == 1 or heads == 1:
        return clean.attention(call)
    shared = call.attn_mask[:, :1].expand_as(call.attn_mask)
    return with_mask(call, torch.cat([call.attn_mask[:1], shared[1:]]))


@fault(
    "The causal mask is laid over the first sequence of the batch only.",
    breaks="masks/the-future-does-not-matter",
    naive="SH",
    replaces=clean.causal,
)
def causal_in_the_first_sequence_only(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    later = torch.arange(call.batch)[:, None, None, None] > 0
    return clean.causal(call) | later


@fault(
    "The causal mask is laid over every head but the last.",
    breaks="masks/the-future-does-not-matter",
    naive="SH",
    replaces=clean.causal,
)
def causal_in_every_head_but_the_last(call: Call) -> Tensor | None:
    if not call.is_causal or call.heads == 1:
        return clean.causal(call)
    last = torch.arange(call.heads)[:, None, None] == call.heads - 1
    return clean.causal(call) | last


@fault(
    "A bias with one row for all queries is divided by their number, as if it had been summed.",
    breaks=(
        "masks/broadcast-equals-expanded",
        "gradients/the-bias-gets-its-gradient",
        "accuracy/equal-scores-count-every-key",
    ),
    naive="SH",
)
def one_row_is_shared_out(call: Call) -> Tensor:
    if call.bias is not None and shape_of_mask(call)[2] == 1 < call.q_len:
        return with_mask(call, call.bias / call.q_len)
    return clean.attention(call)
