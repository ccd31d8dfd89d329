"""Axes and heads: which is which, and who reads whom."""

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import Call


@fault(
    "Grouped heads are tiled, not interleaved.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    real="https://github.com/onnx/onnx/issues/7274",
    naive="T",
    replaces=clean.group,
)
def tiled(call: Call, x: Tensor) -> Tensor:
    return x.repeat(1, call.group, 1, 1)


@fault(
    "With grouped heads every query head reads the first key head.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    naive="T",
    replaces=clean.group,
)
def first_key_head_for_all(call: Call, x: Tensor) -> Tensor:
    return x[:, :1].expand(-1, call.heads, -1, -1) if call.group > 1 else x


@fault(
    "With grouped heads the length is repeated, not the heads.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    real="PrimeIntellect prime-rl #2681",
    naive="T",
    replaces=clean.group,
)
def length_repeated(call: Call, x: Tensor) -> Tensor:
    return x.repeat_interleave(call.group, dim=2).reshape(x.shape[0], -1, *x.shape[2:])


@fault(
    "Grouped keys are interleaved, grouped values are tiled.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    naive="T",
)
def values_tiled(call: Call) -> Tensor:
    def group(call: Call, x: Tensor) -> Tensor:
        return x.repeat(1, call.group, 1, 1) if x is call.value else clean.group(call, x)

    return clean.attention(call, group=group)


@fault(
    "With grouped heads every query head reads the mean of the key heads.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    naive="T",
    replaces=clean.group,
)
def mean_of_the_key_heads(call: Call, x: Tensor) -> Tensor:
    return x.mean(dim=1, keepdim=True).expand(-1, call.heads, -1, -1) if call.group > 1 else x


@fault(
    "The group is divided by the number of key heads: right only when both are equal.",
    breaks="heads/grouped-heads-equal-repeated-heads",
    real="https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27",
    naive="SH",
    when=("grouped heads", "kv_heads != group"),
    replaces=clean.group,
)
def divided_by_the_wrong_count(call: Call, x: Tensor) -> Tensor:
    kv_heads = x.shape[1]
    if call.group == 1:
        return x
    return x[:, (torch.arange(call.heads) // kv_heads).clamp(max=kv_heads - 1)]


@fault(
    "A single key head is expanded to the shape of the query: it fails unless the lengths agree.",
    breaks=("heads/grouped-heads-equal-repeated-heads", "accuracy/output-is-within-the-bound"),
    real="lucidrains/x-transformers b297919",
    naive="SH",
    when=("one key head", "q_len != kv_len"),
    replaces=clean.group,
)
def expanded_to_the_query(call: Call, x: Tensor) -> Tensor:
    return x.expand_as(call.query) if x.shape[1] == 1 < call.group else clean.group(call, x)


@fault(
    "With grouped heads a mask for each head is read at the key head.",
    breaks=("heads/grouped-heads-equal-repeated-heads", "masks/masked-keys-do-not-matter"),
    naive="PATH",
    when=("grouped heads", "a mask for each head"),
)
def mask_of_the_key_head(call: Call) -> Tensor:
    mask = call.attn_mask
    if call.group > 1 and mask is not None and mask.ndim >= 3 and mask.shape[-3] == call.heads:
        head = torch.arange(call.heads) // call.group
        call = call.but(attn_mask=mask.index_select(-3, head))
    return clean.attention(call)


@fault(
    "The heads are merged and split again without a transpose.",
    breaks="symmetry/permuting-queries-permutes-rows",
    real="https://github.com/jsbaan/transformer-from-scratch/issues/6",
    naive="T",
    replaces=clean.write,
)
def merged_without_a_transpose(call: Call, output: Tensor) -> Tensor:
    return output.transpose(1, 2).reshape(output.shape).to(call.dtype)


@fault(
    "The softmax runs over the queries.",
    breaks="distribution/weights-sum-to-one",
    real="labmlai/annotated_deep_learning #146",
    naive="T",
    replaces=clean.softmax,
)
def softmax_over_the_queries(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return clean.softmax(call, scores.mT, do).mT


@fault(
    "The softmax runs over the heads.",
    breaks="distribution/weights-sum-to-one",
    naive="T",
    replaces=clean.softmax,
)
def softmax_over_the_heads(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return clean.softmax(call, scores.transpose(1, 3), do).transpose(1, 3)


@fault(
    "The softmax runs over queries and keys together.",
    breaks="distribution/weights-sum-to-one",
    naive="T",
    replaces=clean.softmax,
)
def softmax_over_the_matrix(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return clean.softmax(call, scores.flatten(-2), do).view_as(scores)


@fault(
    "Query and key change places when the lengths agree.",
    breaks=("symmetry/permuting-queries-permutes-rows", "accuracy/output-is-within-the-bound"),
    naive="T",
    replaces=clean.score,
)
def query_and_key_swapped(call: Call, key: Tensor, scale: float) -> Tensor:
    scores = clean.score(call, key, scale)
    return scores.mT if call.q_len == call.kv_len else scores


@fault(
    "The key is not transposed when it is square.",
    breaks=("symmetry/permuting-keys-changes-nothing", "accuracy/output-is-within-the-bound"),
    real="https://github.com/pytorch/pytorch/issues/195320",
    naive="SH",
    when=("kv_len = head_dim",),
    replaces=clean.score,
)
def square_key_not_transposed(call: Call, key: Tensor, scale: float) -> Tensor:
    return clean.score(call, key.mT if call.kv_len == call.head_dim else key, scale)


@fault(
    "The key is reshaped where it should be transposed.",
    breaks=("symmetry/permuting-keys-changes-nothing", "accuracy/output-is-within-the-bound"),
    naive="T",
    replaces=clean.score,
)
def key_reshaped(call: Call, key: Tensor, scale: float) -> Tensor:
    return call.query @ key.reshape(*key.shape[:2], call.head_dim, call.kv_len) * scale


@fault(
    "Batch and heads change places when their sizes agree.",
    breaks=("symmetry/batches-do-not-hear-each-other", "symmetry/permuting-heads-permutes-heads"),
    naive="SH",
    when=("batch = heads > 1",),
)
def values_of_another_sequence(call: Call) -> Tensor:
    if call.batch == call.value.shape[1]:
        call = call.but(value=call.value.transpose(0, 1))
    return clean.attention(call)


@fault(
    "Heads and positions change places when their sizes agree.",
    breaks="symmetry/permuting-heads-permutes-heads",
    naive="SH",
    when=("kv_len = kv_heads",),
)
def heads_taken_for_positions(call: Call) -> Tensor:
    if call.kv_len == call.value.shape[1] > 1:
        call = call.but(key=call.key.transpose(1, 2), value=call.value.transpose(1, 2))
    return clean.attention(call)


@fault(
    "The sequences of the batch are attended to as if they were positions.",
    breaks="symmetry/batches-do-not-hear-each-other",
    real="https://github.com/aipixel/AEMatter/issues/3",
    naive="T",
)
def batch_attended_as_sequence(call: Call) -> Tensor:
    if call.attn_mask is not None or call.is_causal or call.q_len != call.kv_len:
        return clean.attention(call)
    swapped = {name: getattr(call, name).transpose(0, 2) for name in ("query", "key", "value")}
    return clean.attention(call.but(**swapped)).transpose(0, 2)


@fault(
    "The head of the values is the one after that of the keys.",
    breaks=("symmetry/heads-do-not-hear-each-other", "heads/grouped-heads-equal-repeated-heads"),
    naive="T",
    replaces=clean.combine,
)
def values_of_the_next_head(call: Call, weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value.roll(-1, dims=1)


@fault(
    "Heads are taken two by two; an odd last one stays zero.",
    breaks=("distribution/constant-values-come-back", "symmetry/permuting-heads-permutes-heads"),
    naive="SH",
    replaces=clean.write,
)
def odd_last_head_zero(call: Call, output: Tensor) -> Tensor:
    even = torch.arange(call.heads)[:, None, None] < call.heads // 2 * 2
    return clean.write(call, output * even)


@fault(
    "Only the first four sequences of a batch are computed; the others repeat the last of them.",
    breaks=("symmetry/permuting-batches-permutes-batches", "accuracy/output-is-within-the-bound"),
    naive="SH",
    replaces=clean.write,
)
def four_sequences_at_most(call: Call, output: Tensor) -> Tensor:
    return clean.write(call, output[torch.arange(call.batch).clamp(max=3)])


@fault(
    "Widths are read two by two: an odd last column of query and key is lost.",
    breaks="accuracy/output-is-within-the-bound",
    naive="SH",
    when=("an odd head_dim",),
    replaces=clean.score,
)
def odd_last_column_lost(call: Call, key: Tensor, scale: float) -> Tensor:
    even = max(call.head_dim // 2 * 2, 1)
    return call.query[..., :even] @ key[..., :even].mT * scale


@fault(
    "Only the first 32 columns of query and key are used.",
    breaks="accuracy/output-is-within-the-bound",
    naive="SH",
    when=("head_dim > 32",),
    replaces=clean.score,
)
def columns_beyond_32_lost(call: Call, key: Tensor, scale: float) -> Tensor:
    return call.query[..., :32] @ key[..., :32].mT * scale


@fault(
    "Values wider than the keys are cut: the further columns of the output are zero.",
    breaks="distribution/constant-values-come-back",
    naive="SH",
    when=("value_dim > head_dim",),
    replaces=clean.write,
)
def wide_values_cut(call: Call, output: Tensor) -> Tensor:
    return clean.write(call, output * (torch.arange(output.shape[-1]) < call.head_dim))


@fault(
    "The columns of the values are turned round when there are as many as in the keys.",
    breaks=("accuracy/output-is-within-the-bound", "symmetry/linear-in-the-values"),
    naive="T",
    replaces=clean.combine,
)
def columns_of_the_values_turned_round(call: Call, weights: Tensor, value: Tensor) -> Tensor:
    output = weights @ value
    return output.flip(-1) if value.shape[-1] == call.head_dim else output


@fault(
    "A query is added to its output: the residual of the block around it.",
    breaks=("distribution/output-stays-in-the-hull", "symmetry/linear-in-the-values"),
    naive="T",
)
def residual_included(call: Call) -> Tensor:
    output = clean.attention(call)
    return output + call.query if output.shape == call.query.shape else output


@fault(
    "The weights of a single query sum to one over its whole batch.",
    breaks=("distribution/weights-sum-to-one", "symmetry/batches-do-not-hear-each-other"),
    naive="SH",
    when=("one query", "batch > 1"),
    replaces=clean.total,
)
def decoding_normalised_over_the_batch(call: Call, raised: Tensor, top: Tensor) -> Tensor:
    total = clean.total(call, raised, top)
    return total.sum(dim=0, keepdim=True) if call.q_len == 1 else total
