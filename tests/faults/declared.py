"""What is declared is not so."""

from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import NEVER, Call


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


@fault(
    "All heads stand on the last axis of the output, as is declared, and are not put behind the length before.",
    breaks="accuracy/output-is-within-the-bound",
    naive="SH",
    when=("heads > 1", "q_len > 1"),
    declares={"output_layout": "bs(hd)"},
)
def heads_merged_where_they_stand(call: Call) -> Any:
    output: Tensor = clean.attention(call)
    return output.reshape(call.batch, call.q_len, -1)


@fault(
    "Every call is causal, as is declared, and the first query sees the second key.",
    breaks="masks/the-future-does-not-matter",
    naive="SV",
    declares={"always": {"is_causal": True}},
    without=("is_causal",),
)
def causal_in_every_call_but_the_first_row(call: Call) -> Any:
    def causal(call: Call) -> Tensor:
        seen = torch.ones(call.q_len, call.kv_len, dtype=torch.bool).tril()
        seen[:1, :2] = True
        return seen

    return clean.attention(call.but(is_causal=True), causal=causal)


@fault(
    "The mask of the keys (batch, kv_len), as is declared, is that of the first sequence.",
    breaks="masks/the-masks-of-others-do-not-matter",
    naive="SV",
    when=("a mask", "batch > 1"),
    declares={"mask_shapes": ("bk",)},
)
def keys_hidden_as_in_the_first_sequence(call: Call) -> Any:
    mask = call.attn_mask
    if mask is not None:
        mask = mask[:1].expand(mask.shape).view(call.batch, 1, 1, call.kv_len)
    return clean.attention(call.but(attn_mask=mask))


@fault(
    "Masked scores of float16 inputs are set to -1e4, though scores are in float32, and can be lower.",
    breaks="distribution/low-scores-leave-masked-keys-no-weight",
    naive="SV",
    real="https://github.com/huggingface/transformers/issues/17306",
    when=("float16", "scores of all visible keys below -1e4"),
    dtypes=("float16",),
)
def fill_of_sixteen_bits_below_no_score(call: Call) -> Any:
    fill = -1e4 if call.dtype == torch.float16 else NEVER

    def hide(_: Call, scores: Tensor, kept: Tensor) -> Tensor:
        return scores.masked_fill(~kept, fill).masked_fill(~kept.any(dim=-1, keepdim=True), NEVER)

    return clean.attention(call, hide=hide)


@fault(
    "The mask of the keys (batch, kv_len) is dropped beside is_causal, where no call scales, as is declared.",
    breaks="masks/mask-and-causal-compose",
    naive="SV",
    when=("a mask", "is_causal"),
    declares={"mask_shapes": ("bk",), "always": {"scale": 1.0}},
    without=("scale",),
)
def mask_of_the_keys_dropped_beside_causal(call: Call) -> Any:
    mask = None if call.attn_mask is None or call.is_causal else call.attn_mask.view(call.batch, 1, 1, -1)
    return clean.attention(call.but(attn_mask=mask, scale=1.0))
