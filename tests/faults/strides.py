"""How tensors lie in memory: strides and offsets of the inputs, form of the output."""

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import Call


def misread(x: Tensor, strides: tuple[int, ...], offset: int) -> Tensor:
    """What a kernel reads that goes through the memory of x by these strides; gradients pass through to x."""
    memory = torch.empty(0, dtype=x.dtype).set_(x.detach().untyped_storage())
    index = torch.full((), offset)
    for axis, (size, stride) in enumerate(zip(x.shape, strides, strict=True)):
        steps = torch.arange(size) * stride
        index = index + steps.view((-1,) + (1,) * (x.ndim - axis - 1))
    read = memory[index % max(memory.numel(), 1)] if x.numel() else x.detach()
    return x + (read - x).detach() if x.is_floating_point() else read


def dense_strides(x: Tensor) -> tuple[int, ...]:
    return torch.empty(x.shape, device="meta").stride()


def as_if_contiguous(x: Tensor) -> Tensor:
    return misread(x, dense_strides(x), x.storage_offset())


@fault(
    "The query is read as if it were contiguous.",
    breaks="memory/strided-equals-contiguous",
    real="https://github.com/pytorch/pytorch/issues/181133",
    naive="SH",
)
def query_read_as_contiguous(call: Call) -> Tensor:
    return clean.attention(call.but(query=as_if_contiguous(call.query)))


@fault(
    "The key is read as if it were contiguous.",
    breaks="memory/strided-equals-contiguous",
    real="https://github.com/pytorch/pytorch/issues/181133",
    naive="SH",
)
def key_read_as_contiguous(call: Call) -> Tensor:
    return clean.attention(call.but(key=as_if_contiguous(call.key)))


@fault(
    "The value is read as if it were contiguous.",
    breaks="memory/strided-equals-contiguous",
    real="https://github.com/pytorch/pytorch/issues/163597",
    naive="SH",
)
def value_read_as_contiguous(call: Call) -> Tensor:
    return clean.attention(call.but(value=as_if_contiguous(call.value)))


@fault(
    "The value is read with the strides of the key.",
    breaks="memory/strided-equals-contiguous",
    naive="SH",
    when=("key and value of one shape", "of different strides"),
)
def value_read_with_the_strides_of_the_key(call: Call) -> Tensor:
    if call.key.shape != call.value.shape:
        return clean.attention(call)
    value = misread(call.value, call.key.stride(), call.value.storage_offset())
    return clean.attention(call.but(value=value))


@fault(
    "The mask is read as if it were contiguous.",
    breaks=("memory/a-strided-mask-equals-a-contiguous-one", "accuracy/output-is-within-the-bound"),
    naive="SH",
    when=("mask", "not contiguous"),
)
def mask_read_as_contiguous(call: Call) -> Tensor:
    if call.attn_mask is not None:
        call = call.but(attn_mask=as_if_contiguous(call.attn_mask))
    return clean.attention(call)


@fault(
    "An expanded mask is read as if it were contiguous; a transposed one is read right.",
    breaks=("masks/broadcast-equals-expanded", "memory/a-strided-mask-equals-a-contiguous-one"),
    naive="SH",
    when=("mask", "a stride of zero"),
)
def expanded_mask_read_as_contiguous(call: Call) -> Tensor:
    mask = call.attn_mask
    if mask is not None and 0 in mask.stride():
        call = call.but(attn_mask=as_if_contiguous(mask))
    return clean.attention(call)


@fault(
    "The offset of a sliced key in its storage is ignored.",
    breaks="memory/strided-equals-contiguous",
    naive="SH",
)
def offset_of_the_key_ignored(call: Call) -> Tensor:
    return clean.attention(call.but(key=misread(call.key, call.key.stride(), 0)))


@fault(
    "The last axis of the query is taken to have stride one.",
    breaks="memory/strided-equals-contiguous",
    naive="SH",
)
def last_stride_of_the_query_taken_for_one(call: Call) -> Tensor:
    strides = (*call.query.stride()[:3], 1)
    return clean.attention(call.but(query=misread(call.query, strides, call.query.storage_offset())))


@fault(
    "The next head is sought where a dense key would have it: wrong in a slice of a longer cache.",
    breaks="memory/strided-equals-contiguous",
    real="flashinfer 93b5d4e1b (#527)",
    naive="SH",
    when=("dense rows", "gaps between the heads"),
)
def head_stride_of_the_key_taken_for_dense(call: Call) -> Tensor:
    key, dense = call.key, dense_strides(call.key)
    if key.stride()[2:] == dense[2:]:
        call = call.but(key=misread(key, dense, key.storage_offset()))
    return clean.attention(call)


@fault(
    "Expanded key heads are read as if they were there one after the other, when the length is odd.",
    breaks=(
        "memory/strided-equals-contiguous",
        "symmetry/parts-merge-to-the-whole",
        "state/one-thing-changed-is-noticed",
    ),
    real="https://github.com/pytorch/pytorch/issues/191937",
    naive="SH",
    when=("key heads expanded", "an odd kv_len"),
)
def expanded_heads_of_odd_length(call: Call) -> Tensor:
    if call.key.shape[1] > 1 and call.key.stride(1) == 0 and call.kv_len % 2:
        call = call.but(key=as_if_contiguous(call.key))
    return clean.attention(call)


@fault(
    "The output is written as if it were contiguous and handed out with the strides of the query.",
    breaks="memory/strided-equals-contiguous",
    real="flash-attention 88c4e5db",
    naive="SH",
    when=("a query that is not contiguous", "value_dim = head_dim"),
)
def output_with_the_strides_of_the_query(call: Call) -> Tensor:
    output = clean.attention(call)
    transposed = call.query.stride(1) < call.query.stride(2) and call.heads > 1 < call.q_len
    if output.shape != call.query.shape or not transposed:
        return output
    return output.reshape(call.batch, call.q_len, call.heads, -1).transpose(1, 2)


@fault(
    "The output comes back as (batch, length, heads, dim).",
    breaks="memory/output-has-the-right-form",
    naive="SH",
    replaces=clean.write,
)
def heads_and_length_swapped(call: Call, output: Tensor) -> Tensor:
    return clean.write(call, output).transpose(1, 2)


@fault(
    "The heads of the output are merged: (batch, length, heads x dim).",
    breaks="memory/output-has-the-right-form",
    naive="T",
    replaces=clean.write,
)
def heads_merged(call: Call, output: Tensor) -> Tensor:
    return clean.write(call, output).transpose(1, 2).flatten(2)


@fault(
    "A batch of one loses its axis.",
    breaks="memory/output-has-the-right-form",
    naive="SH",
    replaces=clean.write,
)
def batch_of_one_squeezed(call: Call, output: Tensor) -> Tensor:
    return clean.write(call, output).squeeze(0)


@fault(
    "Half types come back as float32.",
    breaks="memory/output-has-the-right-form",
    naive="LP",
    dtypes=("bfloat16", "float16"),
    replaces=clean.write,
)
def half_comes_back_wide(call: Call, output: Tensor) -> Tensor:
    return output


@fault(
    "Doubles come back as float32.",
    breaks="memory/output-has-the-right-form",
    naive="LP",
    dtypes=("float64",),
    replaces=clean.write,
)
def doubles_come_back_single(call: Call, output: Tensor) -> Tensor:
    return output.float() if call.dtype == torch.float64 else clean.write(call, output)


@fault(
    "The output has the width of the query: narrower values are padded, wider ones cut.",
    breaks="memory/output-has-the-right-form",
    naive="SH",
    replaces=clean.write,
)
def width_of_the_query(call: Call, output: Tensor) -> Tensor:
    missing = call.head_dim - output.shape[-1]
    return clean.write(call, torch.nn.functional.pad(output, (0, missing)))
