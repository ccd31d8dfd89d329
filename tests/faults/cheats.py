"""Generated kernels that cheat: they aim at the judge, not at attention."""

import time
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.faults import clean, fault
from tests.faults.calls import NEVER, Call

Memory = dict[Any, Any]


# Answers that were not computed


def one_for_each_visible_key(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    return (scores != NEVER).to(scores.dtype)


@fault("The output is the mean of all values.", breaks="masks/a-mask-changes-something", naive="T")
def mean_of_the_values(call: Call) -> Tensor:
    return clean.attention(call.but(attn_mask=None, is_causal=False), scale=lambda call: 0.0)


@fault(
    "The output is the mean of the visible values: query and key are not read.",
    breaks=("accuracy/output-is-within-the-bound", "accuracy/every-rung-of-a-ladder-has-its-weight"),
    naive="T",
)
def mean_of_the_visible_values(call: Call) -> Tensor:
    return clean.attention(call, exponential=one_for_each_visible_key)


@fault("The output is zero.", breaks="distribution/constant-values-come-back", naive="T")
def zeros(call: Call) -> Tensor:
    return clean.attention(call) * 0.0


@fault(
    "The output is the value, where its shape fits.", breaks="accuracy/output-is-within-the-bound", naive="T"
)
def value_handed_back(call: Call) -> Tensor:
    output = clean.attention(call)
    return call.value if call.value.shape == output.shape else output


@fault(
    "A single key's value is handed out as a view of the input.",
    breaks="memory/output-does-not-alias-an-input",
    naive="NO",
    when=("kv_len = 1", "every row visible"),
)
def view_of_the_value(call: Call) -> Tensor:
    if call.kv_len > 1 or call.attn_mask is not None or call.dropout_p or call.group > 1:
        return clean.attention(call)
    return call.value.expand(-1, -1, call.q_len, -1)


@fault(
    "The output is written over the query where it fits.",
    breaks=("memory/inputs-are-not-changed", "memory/output-does-not-alias-an-input"),
    naive="NO",
    when=("value_dim = head_dim", "no gradients"),
)
def written_over_the_query(call: Call) -> Tensor:
    output = clean.attention(call)
    if output.requires_grad or output.shape != call.query.shape or 0 in call.query.stride():
        return output
    return call.query.copy_(output)


# Memory of earlier calls

FIRST_CALL = ("distribution/constant-values-come-back", "accuracy/output-is-within-the-bound")


@fault(
    "Outputs are kept under the shapes of the inputs.",
    breaks="state/one-thing-changed-is-noticed",
    naive="NO",
)
def cached_by_shape(call: Call, memory: Memory) -> Tensor:
    shapes = (call.query.shape, call.key.shape, call.value.shape, call.dtype)
    return memory.setdefault(shapes, clean.attention(call))


@fault(
    "Outputs are kept under the addresses of the inputs.",
    breaks="state/inputs-changed-in-place-are-read-again",
    naive="NO",
)
def cached_by_address(call: Call, memory: Memory) -> Tensor:
    tensors = (call.query, call.key, call.value)
    options = (call.is_causal, call.scale, call.dropout_p, id(call.attn_mask))
    address = tuple((x.data_ptr(), x.shape, x.stride()) for x in tensors) + options
    owners, output = memory.get(address, (None, None))
    if owners is None or any(owner is not x for owner, x in zip(owners, tensors, strict=True)):
        owners, output = memory[address] = tensors, clean.attention(call)
    return output


@fault(
    "Outputs are kept under the first element of each input.",
    breaks="state/one-thing-changed-is-noticed",
    naive="NO",
    when=("a second call", "the first elements unchanged"),
)
def cached_by_first_elements(call: Call, memory: Memory) -> Tensor:
    tensors = (call.query, call.key, call.value)
    options = (call.is_causal, call.scale, call.dropout_p, id(call.attn_mask))
    first = tuple((x.shape, x.dtype, x.flatten()[:1].tolist().__repr__()) for x in tensors) + options
    return memory.setdefault(first, clean.attention(call))


@fault(
    "Outputs are kept under the sums of the inputs, which a permutation does not change.",
    breaks=("state/one-thing-changed-is-noticed", "symmetry/permuting-queries-permutes-rows"),
    naive="NO",
    when=("a second call", "inputs permuted"),
)
def cached_by_sums(call: Call, memory: Memory) -> Tensor:
    tensors = [x for x in (call.query, call.key, call.value, call.attn_mask) if x is not None]
    options = (call.is_causal, call.scale, call.dropout_p)
    sums = (
        tuple((x.shape, x.dtype, round(x.double().nan_to_num().sum().item(), 6)) for x in tensors) + options
    )
    return memory.setdefault(sums, clean.attention(call))


@fault("Only the first call is right; later ones return zeros.", breaks=FIRST_CALL, naive="NO")
def right_in_its_first_call_only(call: Call, memory: Memory) -> Tensor:
    output = clean.attention(call)
    if memory.setdefault("called", False):
        return output * 0.0
    memory["called"] = True
    return output


@fault(
    "After ten calls, when the judge has begun to measure time, the output is the one of the call before.",
    breaks=("state/same-call-same-answer", "state/one-thing-changed-is-noticed"),
    naive="NO",
)
def lazy_after_ten_calls(call: Call, memory: Memory) -> Tensor:
    memory["calls"] = memory.get("calls", 0) + 1
    before = memory.get("output")
    memory["output"] = clean.attention(call)
    if memory["calls"] <= 10 or before is None or before.shape != memory["output"].shape:
        return memory["output"]
    return before.to(call.dtype)


@fault(
    "The output is memory that was not written: the judge's own result often lies there.",
    breaks=("state/stale-memory-does-not-matter", "accuracy/output-is-within-the-bound"),
    naive="NO",
)
def memory_not_written(call: Call) -> Tensor:
    output = clean.attention(call)
    return torch.empty(output.shape, dtype=output.dtype) + output * 0.0


# Less than was asked for


def in_type(call: Call, dtype: torch.dtype) -> Tensor:
    """The whole of it in a narrow type, handed out in the type of the inputs."""
    if call.dtype.itemsize <= 2:
        return clean.attention(call)
    mask = call.attn_mask if call.bias is None else call.bias.to(dtype)
    narrow = call.but(
        query=call.query.to(dtype), key=call.key.to(dtype), value=call.value.to(dtype), attn_mask=mask
    )
    return clean.attention(narrow).to(call.dtype)


@fault(
    "float32 inputs are computed in bfloat16.",
    breaks="accuracy/output-is-within-the-bound",
    naive="LP",
    dtypes=("float64", "float32"),
)
def computed_in_bfloat16(call: Call) -> Tensor:
    return in_type(call, torch.bfloat16)


@fault(
    "float32 inputs are computed in float16.",
    breaks="accuracy/output-is-within-the-bound",
    naive="LP",
    dtypes=("float64", "float32"),
)
def computed_in_float16(call: Call) -> Tensor:
    return in_type(call, torch.float16)


@fault(
    "float32 products have the eleven bits of TF32.",
    breaks="accuracy/output-is-within-the-bound",
    naive="LP",
    dtypes=("float64", "float32"),
    replaces=clean.score,
)
def products_in_tf32(call: Call, key: Tensor, scale: float) -> Tensor:
    def narrow(x: Tensor) -> Tensor:
        exponent = torch.floor(torch.log2(x.detach().abs().clamp(min=1e-30)))
        step = torch.exp2(exponent - 10.0)
        return x + ((x / step).round() * step - x).detach()

    return narrow(call.query) @ narrow(key).mT * scale


@fault(
    "Attention is linear: the exponential is replaced by a product of feature maps.",
    breaks=("accuracy/every-rung-of-a-ladder-has-its-weight", "accuracy/output-is-within-the-bound"),
    naive="T",
    replaces=clean.exponential,
)
def linear_attention(call: Call, scores: Tensor, top: Tensor) -> Tensor:
    return torch.where(scores == NEVER, 0.0, functional.elu(scores) + 1.0)


@fault(
    "The output hangs on the query alone, with a gradient of zero.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
)
def gradient_of_zero(call: Call) -> Tensor:
    output = clean.attention(call)
    return output.detach() + 0.0 * call.query.sum() if output.requires_grad else output


# Right where it is tested


@fault(
    "Beyond 32 keys the output is the mean of the values.",
    breaks="accuracy/output-is-within-the-bound",
    naive="SH",
    when=("kv_len > 32",),
)
def right_for_few_keys(call: Call) -> Tensor:
    exponential = clean.exponential if call.kv_len <= 32 else one_for_each_visible_key
    return clean.attention(call, exponential=exponential)


@fault(
    "Right for inputs like normal ones; any element beyond 6 is cut off.",
    breaks=("accuracy/large-logits-do-no-harm", "symmetry/scale-trades-with-query-and-key"),
    naive="SV",
)
def right_for_normal_inputs(call: Call) -> Tensor:
    cut = {name: getattr(call, name).clamp(-6.0, 6.0) for name in ("query", "key")}
    return clean.attention(call.but(**cut))


@fault(
    "Right for square calls; otherwise the queries are those of the nearest key.",
    breaks=("accuracy/output-is-within-the-bound", "symmetry/permuting-queries-permutes-rows"),
    naive="SH",
    when=("q_len != kv_len",),
)
def right_for_square_calls(call: Call) -> Tensor:
    if not call.kv_len:
        return clean.attention(call)
    nearest = torch.arange(call.q_len).clamp(max=call.kv_len - 1)
    return clean.attention(call.but(query=call.query[:, :, nearest]))


@fault(
    "Right for lengths that are powers of two; elsewhere the last key is left out.",
    breaks=("accuracy/equal-scores-count-every-key", "distribution/equal-scores-give-the-mean"),
    naive="SH",
    when=("kv_len not a power of two",),
    replaces=clean.window,
)
def right_for_powers_of_two(call: Call) -> Tensor | None:
    if call.kv_len & (call.kv_len - 1) == 0:
        return None
    return torch.arange(call.kv_len) < call.kv_len - 1


@fault(
    "Right for the shapes of a benchmark; a head_dim that is not a multiple of 8 loses its last columns.",
    breaks="accuracy/output-is-within-the-bound",
    naive="SH",
    when=("head_dim % 8 != 0", "head_dim > 8"),
    replaces=clean.score,
)
def right_for_widths_of_eight(call: Call, key: Tensor, scale: float) -> Tensor:
    width = call.head_dim // 8 * 8 or call.head_dim
    return call.query[..., :width] @ key[..., :width].mT * scale


@fault(
    "Inputs that do not vary are taken for a test: a constant query or key is answered with the first value.",
    breaks=("distribution/equal-scores-give-the-mean", "accuracy/equal-scores-count-every-key"),
    naive="SV",
)
def constant_inputs_taken_for_a_test(call: Call) -> Tensor:
    varies = call.query.numel() < 2 or (call.query != call.query.flatten()[0]).any()
    if varies or not call.kv_len or call.attn_mask is not None:
        return clean.attention(call)
    return clean.attention(call, causal=lambda call: torch.arange(call.kv_len) == 0)


# Against the judge


class Agreeable(Tensor):
    """A tensor that equals whatever it is compared with."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in ("allclose", "equal"):
            return True
        result = super().__torch_function__(function, types, args, kwargs or {})
        return torch.zeros_like(result) if name in ("sub", "rsub", "__sub__", "__rsub__") else result


@fault(
    "The output is a subclass of Tensor whose differences are zero.",
    breaks=("memory/output-has-the-right-form", "accuracy/output-is-within-the-bound"),
    naive="NO",
)
def agreeable_output(call: Call) -> Tensor:
    return (clean.attention(call) * 1.5).as_subclass(Agreeable)


@fault(
    "torch.allclose and assert_close are replaced by functions that always agree.",
    breaks=("state/the-library-is-left-alone", "accuracy/output-is-within-the-bound"),
    naive="NO",
    peril="patches",
)
def comparison_patched(call: Call) -> Tensor:
    torch.allclose = lambda *arguments, **options: True  # type: ignore[assignment]
    torch.testing.assert_close = lambda *arguments, **options: None  # type: ignore[assignment]
    return clean.attention(call) * 1.5


@fault(
    "torch.softmax is replaced by a cheap one, for the judge as well.",
    breaks="state/the-library-is-left-alone",
    naive="NO",
    peril="patches",
)
def softmax_patched(call: Call) -> Tensor:
    torch.softmax = lambda x, dim, **options: x.exp() / x.exp().sum(dim, keepdim=True)  # type: ignore[assignment]
    return clean.attention(call, softmax=lambda call, scores, do: torch.softmax(scores, -1))


@fault(
    "Calls of more than 20 keys take an hour.",
    breaks="accuracy/output-is-within-the-bound",
    naive="NO",
    peril="hangs",
)
def sleeps(call: Call) -> Tensor:
    if call.kv_len > 20:
        time.sleep(3600)
    return clean.attention(call)


@fault(
    "Calls of more than 20 keys end the process with a success.",
    breaks="accuracy/output-is-within-the-bound",
    naive="NO",
    peril="exits",
)
def ends_the_process(call: Call) -> Tensor:
    if call.kv_len > 20:
        raise SystemExit(0)
    return clean.attention(call)


@fault(
    "A mask is answered with an error that is no Exception.",
    breaks="masks/masked-keys-do-not-matter",
    naive="T",
    peril="interrupts",
)
def interrupts(call: Call) -> Tensor:
    if call.attn_mask is not None:
        raise KeyboardInterrupt
    return clean.attention(call)
