"""What a call remembers, and what it changes around it."""

from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import Call

Memory = dict[Any, Any]

SECOND_CALL = "state/one-thing-changed-is-noticed"


def signature(call: Call) -> tuple[Any, ...]:
    """What a compiled kernel is usually kept under."""
    return call.query.shape, call.key.shape, call.value.shape, call.dtype


@fault(
    "The compiled kernel is kept under the shapes, with the scale of the first call inside.",
    breaks=SECOND_CALL,
    real="flashinfer 82784bb11 (#4014)",
    naive="NO",
    when=("a second call", "another scale"),
)
def scale_of_the_first_call(call: Call, memory: Memory) -> Tensor:
    scale = memory.setdefault(signature(call), clean.scale(call))
    return clean.attention(call.but(scale=scale))


@fault(
    "An explicit scale becomes the default of later calls.",
    breaks=SECOND_CALL,
    naive="NO",
    when=("a second call", "a scale before"),
)
def scale_remembered(call: Call, memory: Memory) -> Tensor:
    if call.scale is not None:
        memory["scale"] = call.scale
    return clean.attention(call.but(scale=call.scale or memory.get("scale")))


@fault(
    "The compiled kernel is kept under the shapes: is_causal is that of the first call.",
    breaks=SECOND_CALL,
    naive="NO",
    when=("a second call", "is_causal changed"),
)
def causal_of_the_first_call(call: Call, memory: Memory) -> Tensor:
    return clean.attention(call.but(is_causal=memory.setdefault(signature(call), call.is_causal)))


@fault(
    "The causal mask is made once, for the first lengths; keys beyond it are visible.",
    breaks=(SECOND_CALL, "masks/causal-equals-its-mask"),
    real="facebookresearch/xformers 7f4fdce0 (#660)",
    naive="NO",
    when=("causal", "a longer call after a shorter"),
)
def causal_mask_of_the_first_length(call: Call, memory: Memory) -> Tensor:
    def causal(call: Call) -> Tensor | None:
        if not call.is_causal:
            return None
        made = memory.setdefault("mask", clean.causal(call))[: call.q_len, : call.kv_len]
        kept = torch.ones(call.q_len, call.kv_len, dtype=torch.bool)
        kept[: made.shape[0], : made.shape[1]] = made
        return kept

    return clean.attention(call, causal=causal)


@fault(
    "A mask is remembered: a later call of the same shapes without one gets it too.",
    breaks=SECOND_CALL,
    real="https://github.com/NVIDIA/TransformerEngine/issues/629",
    naive="NO",
    when=("a second call", "a mask before, none now"),
)
def mask_remembered(call: Call, memory: Memory) -> Tensor:
    if call.attn_mask is not None:
        memory[signature(call)] = call.attn_mask.detach()
        return clean.attention(call)
    return clean.attention(call.but(attn_mask=memory.get(signature(call))))


@fault(
    "The boolean mask is converted once for each shape; its contents are those of the first.",
    breaks=(SECOND_CALL, "masks/boolean-equals-additive"),
    naive="NO",
    when=("a second call", "another mask of that shape"),
)
def first_mask_of_its_shape(call: Call, memory: Memory) -> Tensor:
    if call.mask is None:
        return clean.attention(call)
    return clean.attention(call.but(attn_mask=memory.setdefault(call.mask.shape, call.mask.clone())))


@fault(
    "The transposed key is kept under its address: a key changed in place is not seen.",
    breaks="state/inputs-changed-in-place-are-read-again",
    naive="NO",
    when=("a second call", "the key changed in place"),
)
def key_kept_under_its_address(call: Call, memory: Memory) -> Tensor:
    address = (call.key.data_ptr(), call.key.shape, call.key.stride(), call.dtype)
    kept, owner = memory.setdefault(address, (call.key.detach().clone(), call.key))
    key = call.key + (kept - call.key).detach() if owner is call.key else call.key
    return clean.attention(call.but(key=key))


@fault(
    "The kernel compiled for dense keys serves expanded ones of the same shape, and reads past them.",
    breaks=(
        "state/one-thing-changed-is-noticed",
        "memory/strided-equals-contiguous",
        "symmetry/batches-do-not-hear-each-other",
    ),
    real="flash-attention a0f9f418",
    naive="NO",
    when=("a dense call", "then an expanded one of the same shape"),
)
def dense_kernel_for_expanded_keys(call: Call, memory: Memory) -> Tensor:
    expanded = 0 in call.key.stride()
    if not expanded:
        memory[signature(call)] = "dense"
    elif memory.get(signature(call)) == "dense" and call.key.shape[1] > 1:
        call = call.but(key=call.key.roll(1, dims=-1))
    return clean.attention(call)


@fault(
    "The workspace has the type of the first call: float64 after float32 is computed in float32.",
    breaks="dtypes/doubles-are-computed-as-doubles",
    naive="NO",
    dtypes=("float32", "float64"),
    when=("float32 first", "then float64"),
)
def workspace_of_the_first_type(call: Call, memory: Memory) -> Tensor:
    first = memory.setdefault("type", torch.promote_types(call.dtype, torch.float32))

    def drop(call: Call, weights: Tensor) -> Tensor:
        return clean.drop(call, weights.to(first).to(weights.dtype))

    return clean.attention(call, drop=drop)


@fault(
    "The output buffer is used again: the second call overwrites the first result.",
    breaks="memory/results-outlive-the-next-call",
    naive="NO",
)
def output_buffer_used_again(call: Call, memory: Memory) -> Tensor:
    output = clean.attention(call)
    if output.requires_grad:
        return output
    buffer = memory.setdefault((output.shape, output.dtype), torch.empty_like(output))
    return buffer.copy_(output)


@fault(
    "The first call changes the kernel: from the second on the last key is lost.",
    breaks=("state/same-call-same-answer", "accuracy/equal-scores-count-every-key"),
    real="https://github.com/huggingface/diffusers/issues/8610",
    naive="NO",
)
def changed_by_its_first_call(call: Call, memory: Memory) -> Tensor:
    again = bool(memory)
    memory["called"] = True
    if not again or call.kv_len < 2:
        return clean.attention(call)
    inside = torch.arange(call.kv_len) < call.kv_len - 1
    return clean.attention(call, window=lambda call: inside)


@fault(
    "The second call raises.",
    breaks="state/same-call-same-answer",
    real="https://github.com/huggingface/diffusers/issues/8610",
    naive="NO",
)
def raises_in_its_second_call(call: Call, memory: Memory) -> Tensor:
    if memory.setdefault(signature(call), 0):
        raise RuntimeError("the processor was consumed by its first call")
    memory[signature(call)] += 1
    return clean.attention(call)


@fault(
    "The maximum of the call before is the shift of this one.",
    breaks=("state/same-call-same-answer", "accuracy/large-logits-do-no-harm"),
    naive="NO",
    when=("a second call", "scores far from those before"),
)
def shift_of_the_call_before(call: Call, memory: Memory) -> Tensor:
    def top(call: Call, scores: Tensor) -> Tensor:
        now = clean.top(call, scores)
        before, memory["top"] = memory.get("top", now), now.amax() if now.numel() else now
        return before.to(now.dtype).expand_as(now) if before.ndim == 0 else now

    return clean.attention(call, top=top)


@fault(
    "A running mean of the keys over all calls is subtracted, from the values as well.",
    breaks="state/same-call-same-answer",
    naive="NO",
)
def running_mean_of_the_values(call: Call, memory: Memory) -> Tensor:
    if not call.value.numel():
        return clean.attention(call)
    mean = memory.get("mean", 0.0)
    memory["mean"] = 0.9 * mean + 0.1 * call.value.detach().double().mean().item()
    return clean.attention(call.but(value=call.value - mean))


@fault(
    "Every third call takes a fast path in half precision.",
    breaks="state/same-call-same-answer",
    naive="NO",
)
def every_third_call_is_cheap(call: Call, memory: Memory) -> Tensor:
    memory["calls"] = memory.get("calls", 0) + 1
    if memory["calls"] % 3:
        return clean.attention(call)
    return clean.attention(
        call, drop=lambda call, weights: clean.drop(call, weights.half().to(weights.dtype))
    )


@fault(
    "A batch of one takes another path, whose exponential is a little off.",
    breaks=("symmetry/batches-do-not-hear-each-other", "accuracy/every-rung-of-a-ladder-has-its-weight"),
    real="https://github.com/ml-explore/mlx/issues/3573",
    naive="PATH",
    dtypes=("float64", "float32"),
    when=("batch = 1",),
    replaces=clean.exponential,
)
def another_exponential_for_a_batch_of_one(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    raised = clean.exponential(call, scores, top)
    return raised if call.batch > 1 else raised * (1.0 + 1e-4 * (scores < top))


@fault(
    "Without gradients a fast path is taken, which has no argument for the mask.",
    breaks="masks/masked-keys-do-not-matter",
    naive="PATH",
    when=("no gradients", "mask"),
)
def mask_dropped_without_gradients(call: Call) -> Tensor:
    training = call.query.requires_grad or call.key.requires_grad or call.value.requires_grad
    return clean.attention(call if training else call.but(attn_mask=None))


@fault(
    "With gradients a slow path is taken, which divides by the root of the value width.",
    breaks=("accuracy/default-scale-is-one-over-root-head-dim", "gradients/gradients-are-within-the-bound"),
    naive="PATH",
    when=("gradients", "value_dim != head_dim"),
)
def another_scale_with_gradients(call: Call) -> Tensor:
    if call.query.requires_grad and call.scale is None:
        call = call.but(scale=call.value.shape[-1] ** -0.5)
    return clean.attention(call)


@fault(
    "The query is scaled in place.",
    breaks="memory/inputs-are-not-changed",
    naive="NO",
)
def query_scaled_in_place(call: Call) -> Tensor:
    query = call.query * clean.scale(call)
    call.query.detach().copy_(query.detach())
    return clean.attention(call.but(query=query, scale=1.0))


@fault(
    "The boolean mask is inverted in place, and inverted back only if no gradients are needed.",
    breaks=(
        "memory/inputs-are-not-changed",
        "gradients/cotangent-layout-changes-nothing",
        "gradients/dead-rows-have-no-gradient",
    ),
    naive="NO",
    when=("mask", "gradients"),
)
def mask_inverted_in_place(call: Call) -> Tensor:
    output = clean.attention(call if call.mask is None else call.but(attn_mask=call.mask.clone()))
    if call.mask is not None and call.query.requires_grad:
        call.mask.logical_not_()
    return output


@fault(
    "Values that no query of a causal call sees are zeroed in place.",
    breaks="memory/inputs-are-not-changed",
    naive="NO",
    when=("causal", "q_len < kv_len"),
)
def unseen_values_zeroed(call: Call) -> Tensor:
    output = clean.attention(call.but(value=call.value.clone()))
    if call.is_causal and call.q_len < call.kv_len:
        call.value.detach()[:, :, call.q_len :].zero_()
    return output


@fault(
    "The global generator is seeded again in every call.",
    breaks="state/the-global-generator-is-untouched",
    naive="NO",
    peril="reseeds",
)
def global_generator_reseeded(call: Call) -> Tensor:
    torch.manual_seed(0)
    return clean.attention(call)


@fault(
    "The default type is left at float64.",
    breaks="state/the-library-is-left-alone",
    naive="NO",
    peril="patches",
)
def default_type_changed(call: Call) -> Tensor:
    torch.set_default_dtype(torch.float64)
    return clean.attention(call)


@fault(
    "Gradients are switched off and stay off.",
    breaks="state/the-library-is-left-alone",
    naive="NO",
    peril="patches",
)
def gradients_switched_off(call: Call) -> Tensor:
    output = clean.attention(call)
    torch.set_grad_enabled(False)
    return output
