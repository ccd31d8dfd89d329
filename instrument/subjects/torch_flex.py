"""torch.nn.attention.flex_attention, run without the compiler."""

import warnings
from typing import Any

from headcheck.declarations import Attention
from headcheck.subjects import builtin


@builtin("torch-flex", "torch's flex_attention, eager: masks and biases as a function of the scores.")
def torch_flex() -> Attention:
    """On a CPU it has no backward; eager, it computes in float32 or wider and rounds once."""
    import torch
    from torch import Tensor
    from torch.nn.attention.flex_attention import flex_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
    ) -> Any:
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        mask = None if attn_mask is None else attn_mask.expand(shape)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if mask is not None and mask.dtype == torch.bool:
                s = torch.where(mask[b, h, i, j], s, -float("inf"))
            elif mask is not None:
                s = s + mask[b, h, i, j]
            return torch.where(i >= j, s, -float("inf")) if is_causal else s

        plain = attn_mask is None and not is_causal
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return flex_attention(  # type: ignore[call-overload]  # it annotates score_mod too narrowly
                query,
                key,
                value,
                score_mod=None if plain else score,
                scale=scale,
                enable_gqa=enable_gqa,
                return_lse=return_lse,
            )

    return Attention(
        attention,
        name="torch-flex",
        causal="top-left",
        masks=("boolean", "additive"),
        mask_with_causal="and",
        scale_with_causal="any",
        grouped_heads="interleaved",
        scale=True,
        log_sum_exp=True,
        gradients=False,
        effort=0.1,
        dtypes=("float32", "float64", "bfloat16", "float16"),
    )
