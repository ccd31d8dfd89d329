"""Faults by a third one who did not know the laws: state, memory, packs, what is handed out beside."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.faults import blocked, clean, fault
from tests.faults.blocked import Handed
from tests.faults.calls import NEVER, Call
from tests.faults.packs import OPTIONS, Spans, attention, spans
from tests.faults.state import signature
from tests.faults.strides import misread

# State


@fault(
    "The query's gradient lies in a workspace for its shapes, which the next backward writes over.",
    breaks="gradients/gradients-outlive-the-next-backward",
    naive="NO",
    when=("a second backward of the same shapes",),
)
def gradient_workspace_used_again(call: Call, memory: dict[Any, Tensor]) -> Tensor:
    def gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Handed:
        kept = memory.setdefault(signature(call), query)
        return kept.copy_(query), key, value, bias

    return blocked.attention(call, gradients=gradients)


@fault(
    "Backward sets the global generator back to where forward drew from it, and leaves it there.",
    breaks="dropout/backward-leaves-the-generator-alone",
    real="https://github.com/Dao-AILab/flash-attention/pull/166",
    naive="NO",
    when=("dropout", "backward", "numbers drawn later"),
)
def generator_left_where_forward_was(call: Call) -> Tensor:
    before = torch.get_rng_state()

    def gradients(*handed: Tensor | None) -> Handed:
        if call.dropout_p:
            torch.set_rng_state(before)
        return handed

    return blocked.attention(call, gradients=gradients)


@fault(
    "Under autocast the cast key is kept: one cast without gradients serves a call with them.",
    breaks="dtypes/a-call-without-gradients-takes-none-away",
    real="https://github.com/pytorch/pytorch/issues/112583",
    naive="NO",
    when=("autocast", "a call under torch.no_grad", "then one with gradients", "the same key"),
)
def cast_kept_without_gradients(call: Call, memory: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
    if not torch.is_autocast_enabled("cpu") or call.key.dtype != torch.float32:
        return clean.attention(call)
    now = call.key.to(torch.get_autocast_dtype("cpu"))
    key, kept = memory.get(id(call.key), (call.key, now))
    if key is not call.key or not torch.equal(kept, now):
        kept = now
    memory[id(call.key)] = call.key, kept
    return clean.attention(call.but(key=kept))


@fault(
    "Denormal numbers are flushed to zero for the kernel's sake, and stay so for everybody.",
    breaks="state/the-library-is-left-alone",
    naive="NO",
    peril="patches",
)
def denormals_flushed_for_good(call: Call) -> Tensor:
    torch.set_flush_denormal(True)
    return clean.attention(call)


@fault(
    "The slopes are negated in place.",
    breaks="memory/inputs-are-not-changed",
    naive="NO",
    when=("ALiBi",),
    features=("alibi_slopes",),
)
def slopes_negated_in_place(call: Call) -> Tensor:
    if call.alibi_slopes is not None:
        with torch.no_grad():
            call.alibi_slopes.neg_()
        call = call.but(alibi_slopes=-call.alibi_slopes)
    return clean.attention(call)


@fault(
    "A call that raises leaves the workspace locked: the next one goes without it, on a path that knows no mask.",
    breaks="state/a-refusal-leaves-nothing-behind",
    naive="NO",
    when=("a call before that raised", "mask"),
)
def locked_by_a_call_that_raised(call: Call, memory: dict[str, bool]) -> Tensor:
    locked, memory["locked"] = memory.get("locked", False), True
    output = clean.attention(call.but(attn_mask=None) if locked else call)
    memory["locked"] = False
    return output


# Memory


@fault(
    "Query and key that are one tensor are shared as in the Reformer, where a query does not see itself.",
    breaks="memory/one-tensor-may-be-query-key-and-value",
    naive="PATH",
    when=("query is key",),
)
def shared_query_does_not_see_itself(call: Call) -> Tensor:
    if call.query is not call.key or call.kv_len < 2:
        return clean.attention(call)
    return clean.attention(call, window=lambda call: call.distance() != 0)


@fault(
    "A value in the key's storage is taken for latent attention's, the first columns of the key.",
    breaks="memory/strided-equals-contiguous",
    naive="PATH",
    when=("key and value cut from one projection",),
)
def value_taken_for_the_keys_columns(call: Call) -> Tensor:
    width = call.value.shape[-1]
    shared = call.key.untyped_storage().data_ptr() == call.value.untyped_storage().data_ptr()
    if shared and call.key.numel() and width <= call.head_dim:
        call = call.but(value=call.key[..., :width])
    return clean.attention(call)


@fault(
    "With one key head its rows are taken to lie one after the other: those of a packed projection do not.",
    breaks="memory/strided-equals-contiguous",
    naive="SH",
    when=("one key head", "a key cut from (batch, length, width)"),
)
def rows_of_a_single_head_dense(call: Call) -> Tensor:
    x = call.key
    if x.shape[1] == 1 and x.numel() and x.stride(3) == 1 and x.stride(2) > x.shape[3]:
        strides = (x.stride(0), x.stride(1), x.shape[3], 1)
        call = call.but(key=misread(x, strides, x.storage_offset()))
    return clean.attention(call)


# Packs


@fault(
    "Sequences without queries are left out of the list of queries, and not of that of keys.",
    breaks="ragged/each-sequence-of-a-pack-is-what-it-is-alone",
    naive="SH",
    when=("several sequences", "one without queries before the last"),
    **OPTIONS,
)
def queries_and_keys_out_of_step(call: Call) -> Tensor:
    return attention(call, rows=lambda spans: [(a, b) for a, b in spans if a < b])


@fault(
    "Where all sequences have as many queries, they are taken to have as many keys as well: a plain batch.",
    breaks="ragged/each-sequence-of-a-pack-is-what-it-is-alone",
    naive="SH",
    when=("several sequences", "queries of one length", "keys of several"),
    **OPTIONS,
)
def even_queries_mean_even_keys(call: Call) -> Tensor:
    def columns(keys: Spans) -> Spans:
        count, total = len(keys), keys[-1][1] if keys else 0
        even = len({b - a for a, b in spans(call.cu_seqlens_q)}) == 1
        return [(n * total // count, (n + 1) * total // count) for n in range(count)] if even else keys

    return attention(call, columns=columns)


@fault(
    "Keys are read from a multiple of eight on: a sequence that begins inside of one sees the one before.",
    breaks="ragged/each-sequence-of-a-pack-is-what-it-is-alone",
    naive="SH",
    when=("a sequence whose keys begin at no multiple of eight",),
    **OPTIONS,
)
def sequences_begin_at_multiples_of_eight(call: Call) -> Tensor:
    return attention(call, columns=lambda spans: [(a // 8 * 8 if a < b else a, b) for a, b in spans])


# Handed out beside the output


@fault(
    "Where the window leaves one tile of 64 keys, the splits that have nothing write -inf over the log-sum-exp.",
    breaks="features/log-sum-exp-is-within-the-bound",
    real="https://github.com/sgl-project/sgl-kernel-xpu/pull/487",
    naive="SH",
    when=("log-sum-exp", "window within one tile of 64", "kv_len > 64"),
    features=("window", "return_lse"),
)
def idle_splits_write_the_log_sum_exp(call: Call) -> Any:
    kept = clean.window(call)
    if not call.return_lse or kept is None or call.kv_len <= 64:
        return clean.attention(call)
    output, lse = clean.attention(call)
    tiles = functional.pad(kept.any(dim=0), (0, -call.kv_len % 64)).view(-1, 64).any(dim=-1)
    return output, torch.full_like(lse, NEVER) if int(tiles.sum()) < 2 else lse


@fault(
    "The log-sum-exp is that of the scores before the cap.",
    breaks="features/log-sum-exp-is-within-the-bound",
    naive="PATH",
    when=("log-sum-exp", "softcap"),
    features=("softcap", "return_lse"),
)
def log_sum_exp_not_capped(call: Call) -> Any:
    if not call.return_lse:
        return clean.attention(call)
    output, _ = clean.attention(call)
    return output, clean.attention(call.but(softcap=None, dropout_p=0.0))[1]


@fault(
    "A single key takes a short way: the output is its value, and the log-sum-exp is zero.",
    breaks="features/log-sum-exp-is-within-the-bound",
    naive="SH",
    when=("log-sum-exp", "kv_len = 1"),
    features=("return_lse",),
)
def log_sum_exp_of_a_single_key_zero(call: Call) -> Any:
    if not call.return_lse or call.kv_len != 1:
        return clean.attention(call)
    output, lse = clean.attention(call)
    return output, lse.masked_fill(lse != NEVER, 0.0)


@fault(
    "The returned weights were not divided yet: the largest of each row is one.",
    breaks="features/returned-weights-are-within-the-bound",
    real="https://github.com/Dao-AILab/flash-attention/issues/902",
    naive="PATH",
    when=("returned weights",),
    features=("return_weights",),
)
def returned_weights_not_divided(call: Call) -> Any:
    output = clean.attention(call)
    if not call.return_weights or not call.kv_len:
        return (output, output.new_zeros(*output.shape[:3], 0)) if call.return_weights else output
    units = torch.eye(call.kv_len, dtype=call.dtype).expand(*call.key.shape[:3], call.kv_len)
    weights = clean.attention(call.but(value=units, dropout_p=0.0))
    return output, weights / weights.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(call.dtype).tiny)


@fault(
    "The lengths are read side by side, whatever their stride.",
    breaks="lengths/lengths-may-be-a-column",
    naive="PATH",
    when=("key_lengths", "lengths whose stride is not 1"),
    features=("key_lengths",),
)
def lengths_read_side_by_side(call: Call) -> Any:
    if call.key_lengths is None:
        return clean.attention(call)
    return clean.attention(call.but(key_lengths=call.key_lengths.as_strided((call.batch,), (1,))))


@fault(
    "Sinks are read side by side, whatever their stride.",
    breaks="memory/sinks-and-slopes-may-be-columns",
    naive="PATH",
    when=("sinks", "sinks whose stride is not 1"),
    features=("sinks",),
)
def sinks_read_side_by_side(call: Call) -> Any:
    sinks = call.sinks
    return clean.attention(call if sinks is None else call.but(sinks=sinks.as_strided(sinks.shape, (1,))))


@fault(
    "Without gradients two output buffers of a shape take turns: the third call overwrites the first result.",
    breaks="memory/results-outlive-the-next-call",
    naive="NO",
)
def output_buffers_take_turns(call: Call, memory: dict[Any, Any]) -> Tensor:
    output = clean.attention(call)
    if torch.is_grad_enabled():
        return output
    turn = memory.get("turn", 0)
    memory["turn"] = 1 - turn
    return memory.setdefault((turn, output.shape, output.dtype), torch.empty_like(output)).copy_(output)
