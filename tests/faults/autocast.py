"""What goes wrong under torch.autocast only, and with inputs of several dtypes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import Call

OUTPUT = "dtypes/under-autocast-the-output-is-within-the-lower-bound"
OF_FLOAT16 = "dtypes/under-autocast-to-half-the-output-is-within-its-bound"
GRADIENTS = "dtypes/under-autocast-gradients-are-within-the-lower-bound"


def under_autocast() -> bool:
    return torch.is_autocast_enabled("cpu")


def cast(call: Call, dtype: torch.dtype) -> Call:
    return call.but(query=call.query.to(dtype), key=call.key.to(dtype), value=call.value.to(dtype))


def by_hand(change: Callable[[Call], Call], call: Call) -> Tensor:
    """The call as it is changed under autocast, and answered where autocast is disabled."""
    if not under_autocast():
        change = Call.but
    with torch.autocast("cpu", enabled=False):
        answer: Tensor = clean.attention(change(call))
        return answer


@fault(
    "Under autocast the boolean mask is cast with the rest, and zeros and ones are added to the scores.",
    breaks=OUTPUT,
    naive="PATH",
    when=("autocast", "boolean mask"),
)
def mask_cast_with_the_rest(call: Call) -> Tensor:
    def change(call: Call) -> Call:
        return call if call.mask is None else call.but(attn_mask=call.mask.to(call.dtype))

    return by_hand(change, call)


@fault(
    "Under autocast the answer is in float16, whatever dtype the region has.",
    breaks=(OUTPUT, "dtypes/inputs-in-the-dtype-of-autocast-are-left-alone"),
    naive="PATH",
    real="https://github.com/pytorch/pytorch/issues/87979",
)
def float16_whatever_was_asked(call: Call) -> Tensor:
    return by_hand(lambda call: cast(call, torch.float16), call)


@fault(
    "Under autocast the answer is in bfloat16, whatever dtype the region has.",
    breaks=OF_FLOAT16,
    naive="PATH",
    when=("autocast", "float16"),
)
def bfloat16_whatever_was_asked(call: Call) -> Tensor:
    return by_hand(lambda call: cast(call, torch.bfloat16), call)


@fault(
    "Under autocast inputs are rounded to bfloat16 on the way to float16, and lose three bits.",
    breaks=OF_FLOAT16,
    naive="LP",
    when=("autocast", "float16"),
)
def rounded_twice_under_autocast(call: Call) -> Tensor:
    return by_hand(lambda call: cast(cast(call, torch.bfloat16), torch.get_autocast_dtype("cpu")), call)


@fault(
    "A fill of -1e9, which the scores under autocast to float16 cannot hold: the call raises.",
    breaks=OF_FLOAT16,
    naive="PATH",
    when=("autocast", "float16", "mask"),
)
def fill_beyond_float16(call: Call) -> Tensor:
    if under_autocast() and torch.get_autocast_dtype("cpu") == torch.float16 and call.mask is not None:
        torch.zeros(1, dtype=torch.float16).masked_fill(torch.ones(1, dtype=torch.bool), -1e9)
    return clean.attention(call)


@fault(
    "Under autocast inputs of double precision are cast down as well.",
    breaks="dtypes/float-sixty-four-is-left-alone",
    naive="PATH",
    when=("autocast", "float64"),
)
def double_precision_cast_down(call: Call) -> Tensor:
    return by_hand(lambda call: cast(call, torch.bfloat16), call).to(call.dtype)


@fault(
    "The path for autocast knows no causal flag.",
    breaks=OUTPUT,
    naive="PATH",
    when=("autocast", "causal"),
)
def causal_flag_lost_under_autocast(call: Call) -> Tensor:
    return by_hand(lambda call: call.but(is_causal=False), call)


@fault(
    "Under autocast the value is cast on a copy that autograd does not see.",
    breaks=GRADIENTS,
    naive="GR",
    when=("autocast", "gradients"),
)
def value_cast_out_of_sight(call: Call) -> Tensor:
    return by_hand(lambda call: call.but(value=call.value.detach()), call)


class _Steps(torch.autograd.Function):
    """Weights times values; what it keeps for its backward was cast, and the gradient was not."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor) -> Tensor:
        lower = torch.get_autocast_dtype("cpu") if under_autocast() else value.dtype
        ctx.save_for_backward(weights.to(lower), value.to(lower))
        return (weights.float() @ value.float()).to(value.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        weights, value = ctx.saved_tensors
        return gradients[0] @ value.mT, weights.mT @ gradients[0]


@fault(
    "A backward of its own meets what autocast has cast and what it has not, and raises.",
    breaks=GRADIENTS,
    naive="GR",
    real="https://github.com/fla-org/flash-linear-attention/issues/70",
    when=("autocast", "gradients"),
    dtypes=("float32",),
    declares={"autocast": True},
    without=("dropout_p",),
)
def backward_of_two_dtypes(call: Call) -> Any:
    def combine(call: Call, weights: Tensor, value: Tensor) -> Any:
        return _Steps.apply(weights.float(), value)  # type: ignore[no-untyped-call]

    return clean.attention(call, combine=combine)


@fault(
    "After a call under autocast the next one is cast too, wherever it is made.",
    breaks="dtypes/a-disabled-region-changes-nothing",
    naive="NO",
    when=("a call under autocast", "a call after it"),
    dtypes=("float32",),
)
def autocast_remembered(call: Call, memory: dict[str, bool]) -> Tensor:
    just_left = memory.get("on", False) and not under_autocast()
    memory["on"] = under_autocast()
    answer: Tensor = clean.attention(cast(call, torch.bfloat16) if just_left else call)
    return answer.to(call.dtype)


@fault(
    "A key and a value of 16 bits are read as the query's type, whatever they are.",
    breaks="dtypes/inputs-of-two-dtypes-are-refused-or-right",
    naive="PATH",
    when=("bfloat16", "float16"),
)
def sixteen_bits_are_sixteen_bits(call: Call) -> Tensor:
    def read(x: Tensor) -> Tensor:
        alike = x.dtype != call.dtype and x.element_size() == call.query.element_size()
        return x.view(call.dtype) if alike else x.to(call.dtype)

    answer: Tensor = clean.attention(call.but(key=read(call.key), value=read(call.value)))
    return answer
