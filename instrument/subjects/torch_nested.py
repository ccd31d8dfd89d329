"""torch's nested tensors, jagged layout: sequences of several lengths through scaled_dot_product_attention."""

import warnings
from dataclasses import replace
from typing import Any

from headcheck.arithmetic import named
from headcheck.declarations import Attention
from headcheck.subjects import builtin


@builtin("torch-nested", "torch's scaled_dot_product_attention on jagged nested tensors.")
def torch_nested() -> Attention:
    """On a CPU it is the math path, one sequence after another: no attn_mask and no is_causal. Queries without keys
    are right in some packs and raise in others.
    """
    import torch
    from torch import Tensor
    from torch.nn.functional import scaled_dot_product_attention

    rounds = replace(named("eager"), scaled="input")

    def jagged(tokens: Tensor, starts: Tensor, longest: int) -> Tensor:
        """(tokens, heads, dim) as a nested tensor of the form (sequences, heads, length, dim)."""
        shortest = int(starts.diff().min())
        return torch.nested.nested_tensor_from_jagged(
            tokens.contiguous(), starts.long(), min_seqlen=shortest, max_seqlen=longest
        ).transpose(1, 2)

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        scale: float | None = None,
    ) -> Any:
        q = jagged(query, cu_seqlens_q, max_seqlen_q)
        k, v = (jagged(x, cu_seqlens_k, max_seqlen_k) for x in (key, value))
        with warnings.catch_warnings():
            # The math path goes through the older layout, which is a prototype.
            warnings.simplefilter("ignore")
            return scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).values()

    return Attention(
        attention,
        name="torch-nested",
        layout="thd",
        causal=False,
        empty_rows="undefined",
        grouped_heads=False,
        scale=True,
        dropout=False,
        operator="_scaled_dot_product_attention_math",
        dtypes=("float32", "float64", "bfloat16", "float16"),
        arithmetic={"bfloat16": rounds, "float16": rounds},
        effort=0.3,
    )
