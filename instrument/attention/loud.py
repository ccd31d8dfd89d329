"""Keys and values so loud that they show wherever they have any weight: what stands in slots that nobody may read."""

import torch
from torch import Tensor

from headcheck.attention.inputs import Inputs


def poisoned(x: Inputs, slots: Tensor, key: float, value: float) -> Inputs:
    """Other keys and values in some slots (batch, kv_heads, kv_len)."""
    here = slots[..., None]
    return x.but(
        key=torch.where(here, key, x.key).to(x.dtype),
        value=torch.where(here, value, x.value).to(x.dtype),
        generic=False,
    )


def loudest_key(x: Inputs) -> float:
    """A key so large that its score would win everywhere, and still finite in every product on the way."""
    largest = float(x.query.double().abs().sum(dim=-1).max()) * max(1.0, abs(x.resolved_scale))
    room = torch.finfo(x.dtype).max / 4 if x.dtype != torch.float64 else torch.finfo(torch.float32).max / 4
    return min(1e4, room / max(largest, 1e-3))


def loudest_value(x: Inputs) -> float:
    """A value that would show wherever it had any weight."""
    return 6e4 if x.dtype == torch.float16 else 1e30


def with_loud_slots(x: Inputs, slots: Tensor) -> list[Inputs]:
    """The same call with the loudest keys in some slots (batch, kv_heads, kv_len), of either sign, and loud values."""
    return [poisoned(x, slots, sign * loudest_key(x), loudest_value(x)) for sign in (1.0, -1.0)]
