"""Right attention with conventions of its own, which it declares: no law may break."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headcheck.declarations import FOUR_AXES
from tests.faults import clean, packs, variant
from tests.faults.calls import NEVER, Call


def _in_order(call: Call, layout: str, **steps: Any) -> Any:
    """The right function, its tensors in another order of the axes than b, h, s, d."""
    names = ("query", "key", "value")
    inside = call.but(**{name: torch.einsum(f"{layout}->bhsd", getattr(call, name)) for name in names})
    return torch.einsum(f"bhsd->{layout}", clean.attention(inside, **steps))


def _aligned_right(call: Call) -> Tensor | None:
    """The last query sees all keys."""
    return call.distance() <= call.kv_len - call.q_len if call.is_causal else None


def _of_head(call: Call, x: Tensor) -> Tensor:
    """Query head h reads key head h modulo their number."""
    return x.repeat(1, call.group, 1, 1)


def _equal_where_dead(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    """The weights, equal in a row without keys."""
    dead = (scores == NEVER).all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(dead, 0.0), dim=-1)


def _inf_without_keys(call: Call, scores: Tensor) -> Tensor:
    """The log-sum-exp, +inf in a row without keys."""
    found = clean.lse(call, scores)
    return found.masked_fill(found == NEVER, -NEVER)


@variant("True blocks a key.", declares={"true_means": "block"}, replaces=clean.mask)
def true_blocks(call: Call) -> Tensor | None:
    return None if call.mask is None else ~call.mask


@variant("is_causal is aligned at the last key.", declares={"causal": "bottom-right"}, replaces=clean.causal)
def aligned_at_the_last_key(call: Call) -> Tensor | None:
    return _aligned_right(call)


@variant("Grouped heads are tiled.", declares={"grouped_heads": "tiled"}, replaces=clean.group)
def heads_tiled(call: Call, x: Tensor) -> Tensor:
    return _of_head(call, x)


@variant(
    "Grouped heads are tiled, with sinks and slopes of ALiBi for each.",
    declares={"grouped_heads": "tiled"},
    replaces=clean.group,
    features=("sinks", "alibi_slopes"),
)
def heads_tiled_with_sinks_and_slopes(call: Call, x: Tensor) -> Tensor:
    return _of_head(call, x)


@variant(
    "The log-sum-exp is divided by log 2.",
    declares={"log_sum_exp": "base-2"},
    replaces=clean.lse,
    features=("return_lse",),
)
def log_sum_exp_of_base_two(call: Call, scores: Tensor) -> Tensor:
    return clean.lse(call, scores) / math.log(2)


@variant(
    "The log-sum-exp of a query without keys is +inf, as in flash-attention.",
    declares={"empty_log_sum_exp": "inf", "causal": "bottom-right"},
    features=("return_lse",),
)
def log_sum_exp_of_no_keys_is_inf(call: Call) -> Any:
    return clean.attention(call, causal=_aligned_right, lse=_inf_without_keys)


@variant("The length stands before the heads.", declares={"layout": "bshd"})
def length_before_heads(call: Call) -> Tensor:
    return _in_order(call, "bshd")


@variant("The length stands first, the heads tiled.", declares={"layout": "sbhd", "grouped_heads": "tiled"})
def length_first_heads_tiled(call: Call) -> Tensor:
    return _in_order(call, "sbhd", group=_of_head)


@variant(
    "A query without keys gives the mean of all values.",
    declares={"empty_rows": "mean"},
    replaces=clean.softmax,
)
def mean_without_keys(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return _equal_where_dead(call, scores, do)


@variant("A query without keys gives NaN.", declares={"empty_rows": "nan"}, replaces=clean.softmax)
def nan_without_keys(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return torch.softmax(scores, dim=-1)


@variant(
    "Masks have four axes and are added; queries are as many as keys, values as wide as keys.",
    declares={"masks": ("additive",), "mask_shapes": FOUR_AXES, "rectangular": False, "value_dim": False},
)
def narrow_in_what_it_takes(call: Call) -> Any:
    if call.bias is not None and call.bias.ndim != 4:
        raise NotImplementedError("masks have four axes")
    if call.mask is not None:
        raise NotImplementedError("masks are numbers")
    if call.q_len != call.kv_len or call.value.shape[-1] != call.head_dim:
        raise NotImplementedError("queries are as many as keys, values as wide as keys")
    return clean.attention(call)


@variant(
    "A mask beside is_causal is refused, is_causal with a scale below zero too.",
    declares={"mask_with_causal": "refused", "scale_with_causal": "positive"},
)
def careful_with_is_causal(call: Call) -> Any:
    if call.is_causal and (call.attn_mask is not None or not (call.scale is None or call.scale > 0)):
        raise NotImplementedError("is_causal comes alone, with a scale above zero")
    return clean.attention(call)


@variant(
    "Numbers of hidden keys and values never count, NaN as little as others.",
    declares={"masked_nan": "stopped"},
    without=("attn_mask", "dropout_p"),
)
def hidden_numbers_cleared(call: Call) -> Any:
    seen = clean.causal(call)
    if seen is None or not seen.numel():
        return clean.attention(call)
    rows = [
        clean.attention(call.but(query=call.query[:, :, i : i + 1], key=key, value=value, is_causal=False))
        for i, (key, value) in enumerate(
            (call.key[:, :, : i + 1], call.value[:, :, : i + 1]) for i in range(call.q_len)
        )
    ]
    return torch.cat(rows, dim=2)


@variant(
    "All at once: length before heads, True blocks, aligned at the last key, heads tiled, means for dead rows.",
    declares={
        "layout": "bshd",
        "true_means": "block",
        "causal": "bottom-right",
        "grouped_heads": "tiled",
        "empty_rows": "mean",
        "masks": ("boolean",),
    },
)
def everything_otherwise(call: Call) -> Tensor:
    kept = call.but(attn_mask=None if call.attn_mask is None else ~call.attn_mask)
    return _in_order(kept, "bshd", group=_of_head, causal=_aligned_right, softmax=_equal_where_dead)


def _whole(call: Call) -> tuple[int, ...]:
    return call.query.shape[0], call.heads, call.q_len, call.kv_len


@variant(
    "The output has the length before the heads, as transformers' do.", declares={"output_layout": "bshd"}
)
def output_with_the_length_first(call: Call) -> Tensor:
    output: Tensor = clean.attention(call)
    return output.transpose(1, 2).contiguous()


@variant("Masks are whole and added: others are refused, and nothing is declared.")
def whole_biases_alone(call: Call) -> Tensor:
    if call.mask is not None:
        raise TypeError("masks are numbers")
    if call.bias is not None and call.bias.shape != _whole(call):
        raise ValueError(f"attn_mask is {_whole(call)}")
    output: Tensor = clean.attention(call)
    return output


@variant("Masks are whole, as is declared.", declares={"mask_shapes": ("bhqk",)})
def whole_masks_declared(call: Call) -> Tensor:
    assert call.attn_mask is None or call.attn_mask.shape == _whole(call)
    output: Tensor = clean.attention(call)
    return output


@variant("Masks have two axes: others are refused, and nothing is declared.")
def masks_of_two_axes(call: Call) -> Tensor:
    if call.attn_mask is not None and call.attn_mask.ndim != len(_whole(call)[2:]):
        raise ValueError("attn_mask is (q_len, kv_len)")
    output: Tensor = clean.attention(call)
    return output


@variant("Masks have three axes, as is declared.", declares={"mask_shapes": ("hqk",)})
def masks_of_three_axes(call: Call) -> Tensor:
    assert call.attn_mask is None or call.attn_mask.ndim == len(_whole(call)[1:])
    output: Tensor = clean.attention(call)
    return output


@variant("Masks are of the keys (batch, kv_len), as is declared.", declares={"mask_shapes": ("bk",)})
def masks_of_the_keys(call: Call) -> Tensor:
    mask = None if call.attn_mask is None else call.attn_mask.view(call.batch, 1, 1, call.kv_len)
    output: Tensor = clean.attention(call.but(attn_mask=mask))
    return output


@variant("Masks (batch, q_len, kv_len) are for all heads, and nothing is declared.")
def masks_for_all_heads(call: Call) -> Tensor:
    mask = call.attn_mask
    if mask is not None:
        mask = mask.view(call.batch, call.q_len, call.kv_len).unsqueeze(1)
    output: Tensor = clean.attention(call.but(attn_mask=mask))
    return output


@variant(
    "A key and value for as many heads as the query has: fewer are read as memory has them.",
    without=("enable_gqa",),
)
def numbers_read_as_of_all_heads(call: Call) -> Tensor:
    key, value = (x.reshape(call.batch, call.heads, -1, x.shape[-1]) for x in (call.key, call.value))
    output: Tensor = clean.attention(call.but(key=key, value=value))
    return output


@variant(
    "Heads are tiled in a pack.",
    **(packs.OPTIONS | {"declares": {**packs.OPTIONS["declares"], "grouped_heads": "tiled"}}),
)
def heads_tiled_in_a_pack(call: Call) -> Tensor:
    return packs.attention(call, one=partial(clean.attention, group=_of_head))


@variant("The output of a pack ends with its last sequence, whatever stands behind it.", **packs.OPTIONS)
def output_of_the_packed_tokens_alone(call: Call) -> Tensor:
    assert call.cu_seqlens_q is not None
    return packs.attention(call)[: int(call.cu_seqlens_q[-1])]


@variant("Tensors have no axis for heads, and nothing is declared.", without=("enable_gqa",))
def one_head_without_an_axis(call: Call) -> Tensor:
    query, key, value = (torch.bmm(x, _eye(x)) for x in (call.query, call.key, call.value))
    inner = call.but(
        query=query[:, None], key=key[:, None], value=value[:, None], attn_mask=_with_heads(call)
    )
    output: Tensor = clean.attention(inner)
    return output[:, 0]


def _eye(x: Tensor) -> Tensor:
    """torch.bmm takes tensors of three axes only."""
    return torch.eye(x.shape[-1], dtype=x.dtype).expand(x.shape[0], -1, -1)


def _with_heads(call: Call) -> Tensor | None:
    mask = call.attn_mask
    return mask[:, None] if mask is not None and mask.ndim == call.query.ndim else mask


@variant("All heads stand on the last axis of the output.", declares={"output_layout": "bs(hd)"})
def heads_merged_in_the_output(call: Call) -> Tensor:
    output: Tensor = clean.attention(call)
    return output.transpose(1, 2).flatten(-2)


@variant("The length stands first, the output merges the heads, and nothing is declared.")
def length_first_and_heads_merged(call: Call) -> Tensor:
    output: Tensor = _in_order(call, "sbhd")
    return output.flatten(-2)


@variant("All heads stand on the last axis of the output, beside something else, and nothing is declared.")
def heads_merged_beside_something(call: Call) -> Any:
    output: Tensor = clean.attention(call)
    return output.transpose(1, 2).flatten(-2), None


@variant("Tensors are the tokens of one sequence (length, heads, dim), and nothing is declared.")
def one_sequence_length_first(call: Call) -> Tensor:
    inner = {name: torch.einsum("shd->hsd", getattr(call, name))[None] for name in ("query", "key", "value")}
    output: Tensor = clean.attention(call.but(**inner))
    return output[0].transpose(0, 1)


@variant(
    "Every call is causal, and no argument says so.",
    declares={"always": {"is_causal": True}},
    without=("is_causal",),
)
def causal_in_every_call(call: Call) -> Tensor:
    output: Tensor = clean.attention(call.but(is_causal=True))
    return output


@variant("No call scales, and no argument says so.", declares={"always": {"scale": 1.0}}, without=("scale",))
def scaled_in_no_call(call: Call) -> Tensor:
    output: Tensor = clean.attention(call.but(scale=1.0))
    return output


@variant("The output is written into a buffer that is kept from call to call.", gradients=False)
def written_into_a_kept_buffer(call: Call, memory: dict[Any, Tensor]) -> Tensor:
    output = clean.attention(call)
    kept = memory.setdefault((output.shape, output.dtype), torch.empty_like(output))
    return kept.copy_(output).clone()
