"""torch's nested tensors, jagged layout: a batch without padding, through scaled_dot_product_attention."""

import warnings
from dataclasses import replace
from typing import Any

from headcheck.arithmetic import named
from headcheck.declarations import Attention
from headcheck.subjects import builtin


@builtin("torch-nested", "torch's scaled_dot_product_attention on jagged nested tensors.")
def torch_nested() -> Attention:
    """On a CPU it is the math path, one sequence after another: no attn_mask and no is_causal."""
    import torch
    from torch import Tensor
    from torch.nn.functional import scaled_dot_product_attention

    rounds = replace(named("eager"), scaled="input")

    def jagged(x: Tensor) -> Tensor:
        """(batch, heads, length, dim) as a nested tensor of that form."""
        batch, _, length, _ = x.shape
        offsets = torch.arange(batch + 1, device=x.device) * length
        rows = x.transpose(1, 2).flatten(0, 1).contiguous()
        return torch.nested.nested_tensor_from_jagged(
            rows, offsets, min_seqlen=length, max_seqlen=length
        ).transpose(1, 2)

    def attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # The math path goes through the older layout, which is a prototype.
            nested = scaled_dot_product_attention(jagged(query), jagged(key), jagged(value), scale=scale)
        rows = nested.transpose(1, 2).values()
        return rows.reshape(query.shape[0], query.shape[2], *rows.shape[1:]).transpose(1, 2)

    return Attention(
        attention,
        name="torch-nested",
        causal=False,
        masks=(),
        grouped_heads=False,
        scale=True,
        dropout=False,
        operator="_scaled_dot_product_attention_math",
        dtypes=("float32", "float64", "bfloat16", "float16"),
        arithmetic={"bfloat16": rounds, "float16": rounds},
        effort=0.3,
    )
