"""x-transformers: the class Attend, by einsum and by torch's function."""

from dataclasses import replace
from typing import Any

from headcheck.arithmetic import named
from headcheck.declarations import Attention
from headcheck.subjects import builtin

NEEDS = ("x_transformers",)
INSTALL = "pip install x-transformers"


@builtin("x-transformers-attend", "x_transformers' Attend, by einsum.", needs=NEEDS, install=INSTALL)
def x_transformers_attend() -> Attention:
    """Masks by the smallest number, softmax in float32, rows without keys set to zero."""
    in_float32 = replace(named("native"), softmax="float32", accumulate="float32")
    return _declared("x-transformers-attend", flash=False).but(
        arithmetic={"float64": in_float32, "bfloat16": "eager", "float16": "eager"}
    )


@builtin(
    "x-transformers-attend-flash", "x_transformers' Attend with flash=True.", needs=NEEDS, install=INSTALL
)
def x_transformers_attend_flash() -> Attention:
    """By torch's scaled_dot_product_attention, behind masks of its own."""
    # Another scale than the default is folded into the query.
    rounds = replace(named("flash"), scaled="input")
    return _declared("x-transformers-attend-flash", flash=True).but(
        nan_scores="may-vanish", arithmetic={"bfloat16": rounds, "float16": rounds}
    )


def _declared(name: str, *, flash: bool) -> Attention:
    from torch import Tensor
    from x_transformers.attend import Attend

    from headcheck.subjects._arrays import split_mask

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Any:
        attend = Attend(dropout=dropout_p, causal=is_causal, scale=scale, flash=flash)
        mask, bias = split_mask(attn_mask)
        return attend(query, key, value, mask=mask, attn_bias=bias)[0]

    return Attention(
        attention,
        name=name,
        masks=("boolean", "additive"),
        causal="bottom-right",  # Shown by its cached decoding, where the last query sees all keys.
        mask_with_causal="and",
        empty_rows="undefined",  # Zeros for those of the mask, the mean of all values for those of causal.
        grouped_heads="tiled",
        scale=True,
        dropout=True,
        gradients=True,
    )
