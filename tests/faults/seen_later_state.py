"""More faults by somebody who did not know the laws: state, memory, modes of torch, what is handed out beside."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.faults import blocked, clean, fault
from tests.faults.blocked import Handed
from tests.faults.calls import Call
from tests.faults.state import signature
from tests.faults.strides import as_if_contiguous, misread


def seeing(call: Call, kept: Tensor) -> Tensor:
    """Right attention in which some keys are lost."""
    return clean.attention(call, window=lambda call: kept)


# State


@fault(
    "The copy into dense memory is made where the kernel is compiled: later calls of those shapes go without.",
    breaks="memory/strided-equals-contiguous",
    real="https://github.com/Dao-AILab/flash-attention/issues/2886",
    naive="NO",
    when=("a second call of the same shapes", "a query that is not contiguous"),
)
def copied_when_compiled(call: Call, memory: dict[Any, bool]) -> Tensor:
    compiled = memory.get(signature(call), False)
    memory[signature(call)] = True
    return clean.attention(call.but(query=as_if_contiguous(call.query)) if compiled else call)


@fault(
    "A call of more than 256 keys leaves its counters behind: the next one begins with its second tile of 16.",
    breaks="state/one-thing-changed-is-noticed",
    naive="NO",
    when=("a call of more than 256 keys before", "kv_len > 16"),
)
def counters_left_by_a_long_call(call: Call, memory: dict[str, bool]) -> Tensor:
    left, memory["long"] = memory.get("long", False), call.kv_len > 256
    if not left or call.kv_len <= 16:
        return clean.attention(call)
    return seeing(call, torch.arange(call.kv_len) >= 16)


@fault(
    "The tuner runs the first backward of each shape three times, all into one query gradient.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("the first backward of its shapes",),
)
def tuner_adds_up_gradients(call: Call, memory: dict[Any, int]) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        runs, memory[signature(call)] = memory.get(signature(call), 3), 1
        return query * runs, key, value, bias

    return blocked.attention(call, gradients=gradients)


@fault(
    "One query, and one key more than in the call before, is taken for its next step: only the last key is read.",
    breaks="symmetry/parts-merge-to-the-whole",
    naive="NO",
    when=("q_len = 1", "a call with one key less before", "other keys"),
)
def next_step_reads_the_last_key(call: Call, memory: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
    new = call.key, call.value
    old = memory.get("cache", new)
    fits = all(b.dtype == n.dtype and b.shape == n[:, :, 1:].shape for b, n in zip(old, new, strict=True))
    if fits and call.q_len == 1:
        new = tuple(torch.cat([b, n[:, :, -1:]], dim=2) for b, n in zip(old, new, strict=True))
    memory["cache"] = new[0].detach(), new[1].detach()
    return clean.attention(call.but(key=new[0], value=new[1]))


@fault(
    "ALiBi's distances are kept from the call with the most queries, and a shorter one takes their last rows.",
    breaks="features/alibi-lowers-scores-by-distance",
    naive="NO",
    when=("ALiBi", "a call of more queries before"),
    features=("alibi_slopes",),
)
def distances_of_the_longest_call(call: Call, memory: dict[str, int]) -> Tensor:
    def alibi(call: Call, scores: Tensor) -> Tensor:
        if call.alibi_slopes is None:
            return scores
        memory["longest"] = max(call.q_len, memory.get("longest", 0))
        distance = (call.distance() - (memory["longest"] - call.q_len)).abs()
        return scores - call.alibi_slopes.to(scores.dtype)[:, None, None] * distance

    return clean.attention(call, alibi=alibi)


@fault(
    "The precision of float32 products is lowered for the kernel, and stays so.",
    breaks="state/the-library-is-left-alone",
    naive="NO",
    peril="patches",
)
def matmul_precision_left_low(call: Call) -> Tensor:
    output = clean.attention(call)
    torch.set_float32_matmul_precision("medium")
    return output


@fault(
    "The compiled kernel is kept under the shapes and the size of an element: float16 and bfloat16 share one.",
    breaks="state/one-thing-changed-is-noticed",
    naive="NO",
    when=("float16 first", "then bfloat16", "the same shapes"),
)
def kernel_of_the_other_half_type(call: Call, memory: dict[Any, torch.dtype]) -> Tensor:
    compiled = memory.setdefault((*signature(call)[:3], call.dtype.itemsize), call.dtype)
    if compiled != call.dtype:
        read = call.value.detach().contiguous().view(compiled).to(call.dtype)
        call = call.but(value=call.value + (read - call.value).detach())
    return clean.attention(call)


# Modes


@fault(
    "Where gradients are off this is evaluation: nothing is dropped.",
    breaks="dropout/the-rate-is-kept",
    naive="PATH",
    when=("dropout", "torch.no_grad"),
)
def nothing_dropped_without_gradients(call: Call) -> Tensor:
    return clean.attention(call if torch.is_grad_enabled() else call.but(dropout_p=0.0))


# Memory


@fault(
    "Lengths are padded to 64 by a copy, which a multiple of 64 goes without: then the query is read as dense.",
    breaks="memory/strided-equals-contiguous",
    real="https://github.com/torch-spyre/torch-spyre/issues/4331",
    naive="SH",
    when=("q_len % 64 = 0", "a query that is not contiguous"),
)
def full_tiles_not_copied(call: Call) -> Tensor:
    if call.q_len % 64 == 0:
        call = call.but(query=as_if_contiguous(call.query))
    return clean.attention(call)


@fault(
    "The rows of an additive mask are sought at multiples of eight.",
    breaks="masks/boolean-equals-additive",
    real="https://github.com/facebookresearch/xformers/issues/932",
    naive="SH",
    when=("additive mask of several rows", "rows not a multiple of eight apart"),
)
def bias_rows_at_multiples_of_eight(call: Call) -> Tensor:
    x = call.bias
    if x is not None and x.ndim > 1 and x.shape[-2] > 1:
        strides = (*x.stride()[:-2], -(-x.stride(-2) // 8) * 8, x.stride(-1))
        call = call.but(attn_mask=misread(x, strides, x.storage_offset()))
    return clean.attention(call)


@fault(
    "In half precision an additive mask is read by pairs: a row that begins inside of one begins with its neighbour.",
    breaks="masks/boolean-equals-additive",
    naive="LP",
    when=("half precision", "dense additive mask", "kv_len odd", "several rows"),
)
def bias_read_by_pairs(call: Call) -> Tensor:
    x = call.bias
    if x is not None and x.ndim > 1 and x.itemsize == 2 and x.numel() and x.is_contiguous():
        width = x.shape[-1]
        start = torch.arange(x.numel() // width) * width // 2 * 2
        call = call.but(attn_mask=x.flatten()[start[:, None] + torch.arange(width)].view(x.shape))
    return clean.attention(call)


@fault(
    "A key laid out by length is taken to be alone there: one cut from a packed projection is misread.",
    breaks="memory/strided-equals-contiguous",
    naive="SH",
    when=("a key that is a slice of (batch, length, 3 x heads x dim)",),
)
def packed_key_taken_to_be_alone(call: Call) -> Tensor:
    x = call.key
    row = x.shape[1] * x.shape[3]
    if x.stride(3) == 1 and x.stride(1) == x.shape[3] and x.stride(2) > row:
        call = call.but(key=misread(x, (x.stride(0), x.shape[3], row, 1), x.storage_offset()))
    return clean.attention(call)


@fault(
    "Keys that the batch shares, by a stride of zero, are there for its first sequence: the others read zeros.",
    breaks="memory/strided-equals-contiguous",
    naive="SH",
    when=("a key expanded over the batch", "batch > 1"),
)
def shared_keys_for_the_first_sequence(call: Call) -> Tensor:
    if call.batch > 1 and call.key.stride(0) == 0:
        first = torch.arange(call.batch) == 0
        call = call.but(key=call.key * first[:, None, None, None])
    return clean.attention(call)


@fault(
    "A query that is one row expanded is computed once, although its rows see other keys.",
    breaks="memory/strided-equals-contiguous",
    naive="SH",
    when=("query with a stride of zero along the length", "causal, or a mask that differs by query"),
)
def expanded_query_computed_once(call: Call) -> Tensor:
    output = clean.attention(call)
    same = call.q_len > 1 and call.query.stride(2) == 0
    return output[:, :, :1].repeat(1, 1, call.q_len, 1) if same else output


@fault(
    "Query and key in one storage are taken for a packed projection, whose kernel has no argument for a mask.",
    breaks=("masks/masked-keys-do-not-matter", "gradients/the-bias-gets-its-gradient"),
    naive="PATH",
    when=("query and key in one storage", "mask"),
)
def one_storage_drops_the_mask(call: Call) -> Tensor:
    packed = call.query.untyped_storage().data_ptr() == call.key.untyped_storage().data_ptr()
    return clean.attention(call.but(attn_mask=None) if packed and call.key.numel() else call)


@fault(
    "Key rows are read in vectors of four numbers: one that begins between two is read from the first of them.",
    breaks="accuracy/output-is-within-the-bound",
    naive="SH",
    when=("head_dim % 4 != 0", "more than one key row"),
)
def key_rows_at_multiples_of_four(call: Call) -> Tensor:
    width = call.head_dim
    if width % 4 == 0 or not call.key.numel():
        return clean.attention(call)
    start = torch.arange(call.key.numel() // width) * width // 4 * 4
    read = call.key.flatten()[start[:, None] + torch.arange(width)]
    return clean.attention(call.but(key=read.view(call.key.shape)))


# Handed out beside the output


@fault(
    "With grouped heads the log-sum-exp comes in the order of the packed heads.",
    breaks="features/log-sum-exp-is-within-the-bound",
    naive="PATH",
    when=("log-sum-exp", "grouped heads", "several key heads"),
    features=("return_lse",),
)
def log_sum_exp_of_packed_heads(call: Call) -> Any:
    if not call.return_lse or call.group == 1:
        return clean.attention(call)
    output, lse = clean.attention(call)
    return output, lse.unflatten(1, (-1, call.group)).transpose(1, 2).flatten(1, 2)


@fault(
    "The log-sum-exp is as long as the padded queries.",
    breaks="features/log-sum-exp-is-within-the-bound",
    naive="SH",
    when=("log-sum-exp", "q_len % 16 != 0"),
    features=("return_lse",),
)
def log_sum_exp_as_long_as_the_padding(call: Call) -> Any:
    if not call.return_lse:
        return clean.attention(call)
    output, lse = clean.attention(call)
    return output, functional.pad(lse, (0, -call.q_len % 16))


@fault(
    "In a causal call ALiBi is slope x j: the output does not change by it, the log-sum-exp does.",
    breaks="features/log-sum-exp-is-within-the-bound",
    real="https://github.com/Dao-AILab/flash-attention/issues/1585",
    naive="PATH",
    when=("log-sum-exp", "ALiBi", "causal"),
    features=("alibi_slopes", "return_lse"),
)
def log_sum_exp_shifted_by_slopes(call: Call) -> Any:
    if not call.return_lse or call.alibi_slopes is None or not call.is_causal:
        return clean.attention(call)
    output, lse = clean.attention(call)
    return output, lse + call.alibi_slopes.to(lse.dtype)[:, None] * torch.arange(call.q_len)


@fault(
    "The mean key is subtracted for the sake of eight bits, and the log-sum-exp is not told.",
    breaks="features/log-sum-exp-is-within-the-bound",
    naive="PATH",
    when=("log-sum-exp",),
    features=("return_lse",),
)
def log_sum_exp_of_centred_keys(call: Call) -> Any:
    if not call.return_lse or not call.kv_len:
        return clean.attention(call)
    output, lse = clean.attention(call)
    wide = clean.read(call)
    mean = clean.group(wide, wide.key).mean(dim=2, keepdim=True)
    return output, lse - clean.scale(call) * (wide.query * mean).sum(dim=-1)


@fault(
    "With dropout the log-sum-exp is that of the weights that were kept.",
    breaks="features/dropout-is-not-in-the-log-sum-exp",
    naive="PATH",
    when=("log-sum-exp", "dropout"),
    features=("return_lse",),
)
def log_sum_exp_of_what_was_kept(call: Call) -> Any:
    sums: list[Tensor] = []

    def drop(call: Call, weights: Tensor) -> Tensor:
        left = clean.drop(call, weights)
        sums.append(left.sum(dim=-1))
        return left

    if not call.return_lse or not call.dropout_p:
        return clean.attention(call)
    output, lse = clean.attention(call, drop=drop)
    return output, lse + torch.log(sums[0])


def weights_of(call: Call) -> Tensor:
    """The weights, as the output of values that are unit vectors."""
    units = torch.eye(call.kv_len, dtype=call.dtype).expand(*call.key.shape[:3], call.kv_len)
    return clean.attention(call.but(value=units, dropout_p=0.0))


@fault(
    "The returned weights were taken before the causal mask.",
    breaks="features/returned-weights-are-within-the-bound",
    naive="PATH",
    when=("returned weights", "causal"),
    features=("return_weights",),
)
def returned_weights_not_causal(call: Call) -> Any:
    output = clean.attention(call)
    return (output, weights_of(call.but(is_causal=False))) if call.return_weights else output
