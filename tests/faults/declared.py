"""What is declared is not so."""

from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import Call


@fault(
    "NaN in masked slots is declared to stay out, and is multiplied by a weight of zero.",
    breaks="masks/masked-nan-does-not-leak",
    naive="SV",
    declares={"masked_nan": "stopped"},
)
def zero_times_nan(call: Call) -> Tensor:
    return clean.attention(call)


@fault(
    "A softcap is declared unsupported, taken, and ignored.",
    breaks="features/what-is-declared-unsupported-is-refused",
    naive="PATH",
    features=("softcap",),
    declares={"softcap": False},
)
def softcap_taken_and_ignored(call: Call) -> Tensor:
    return clean.attention(call.but(softcap=None))


@fault(
    "The kernel that is declared never runs: each step is written out.",
    breaks="backends/the-declared-operator-runs",
    naive="NO",
    declares={"operator": "scaled_dot_product_flash_attention_for_cpu"},
)
def kernel_never_called(call: Call) -> Tensor:
    return clean.attention(call)


@fault(
    "The returned weights have the default scale, whatever was given.",
    breaks="features/returned-weights-are-within-the-bound",
    naive="PATH",
    when=("returned weights", "explicit scale"),
    features=("return_weights",),
)
def weights_with_the_default_scale(call: Call) -> Any:
    output = clean.attention(call.but(return_weights=False))
    if not call.return_weights:
        return output
    each_key = torch.eye(call.kv_len, dtype=call.dtype).expand(*call.key.shape[:3], call.kv_len)
    return output, clean.attention(call.but(value=each_key, scale=None, dropout_p=0.0, return_weights=False))
