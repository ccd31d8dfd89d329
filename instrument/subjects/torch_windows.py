"""A sliding window by several means: a band as attn_mask, and only the keys that each query sees.

As a BlockMask and as a score_mod it is a feature of the subjects of flex_attention.
"""

from typing import Any

from headcheck.declarations import Attention
from headcheck.subjects import builtin

Window = tuple[int | None, int | None]


@builtin(
    "torch-sdpa-window", "A sliding window as a boolean band through torch's scaled_dot_product_attention."
)
def torch_sdpa_window() -> Attention:
    """left keys before the query's own and right ones after it; the band takes the place of attn_mask."""
    import torch
    from torch import Tensor
    from torch.nn.functional import scaled_dot_product_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        window: Window | None = None,
    ) -> Any:
        ones = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        left, right = window or (None, None)
        band = ones if left is None else ones.triu(-left)
        right = 0 if is_causal else right
        band = band if right is None else band.tril(right)
        return scaled_dot_product_attention(
            query, key, value, attn_mask=band, scale=scale, enable_gqa=enable_gqa
        )

    return _windowed(attention).but(
        name="torch-sdpa-window",
        grouped_heads="interleaved",
        nan_scores="may-vanish",
        arithmetic={"bfloat16": "flash", "float16": "flash"},
    )


@builtin("reference-window", "The reference's sliding window: no score outside of it is computed.")
def reference_window() -> Attention:
    """Each query attends to its own few keys, one query after another."""
    import torch
    from torch import Tensor

    from headcheck.reference.efficient import sliding_window_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
        window: Window | None = None,
    ) -> Any:
        left, right = window or (None, None)
        if is_causal:
            right = 0 if right is None else min(right, 0)
        wide = torch.promote_types(query.dtype, torch.float32)
        given = [x.to(wide) for x in (query, key, value)]
        return sliding_window_attention(*given, left=left, right=right, scale=scale).to(query.dtype)

    return _windowed(attention).but(
        name="reference-window",
        grouped_heads="interleaved",
        effort=0.5,
        arithmetic={"bfloat16": "wide", "float16": "wide"},
    )


def _windowed(function: Any) -> Attention:
    return Attention(
        function,
        causal="top-left",
        masks=(),
        scale_with_causal="any",
        scale=True,
        window=True,
        dropout=False,
        gradients=True,
        dtypes=("float32", "float64", "bfloat16", "float16"),
    )
