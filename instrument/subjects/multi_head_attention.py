"""Multi-head attention: torch's module in its forms, and the reference's."""

from typing import Any

from headcheck.modules.multi_head.conventions import MultiHeadAttention
from headcheck.subjects import builtin


def _torchs(name: str, make: Any, **more: Any) -> MultiHeadAttention:
    from headcheck.modules.multi_head.role import TORCHS

    return MultiHeadAttention(make, name=name, **(TORCHS | more))


@builtin("torch-mha-module", "torch.nn.MultiheadAttention, its weights loaded; batch first.")
def torch_mha_module() -> MultiHeadAttention:
    """A row without keys is NaN where weights are asked for, and zeros where they are not: declared undefined."""
    from torch import nn

    def make(d_model: int, num_heads: int) -> nn.MultiheadAttention:
        return nn.MultiheadAttention(d_model, num_heads, batch_first=True)

    return _torchs("torch-mha-module", make)


@builtin(
    "torch-mha-module-length-first", "torch.nn.MultiheadAttention as it is by default: the batch second."
)
def torch_mha_module_length_first() -> MultiHeadAttention:
    """As the module with batch_first."""
    from torch import nn

    return _torchs("torch-mha-module-length-first", nn.MultiheadAttention)


@builtin(
    "torch-mha-module-fast", "torch.nn.MultiheadAttention, weights never asked for: its fast paths only."
)
def torch_mha_module_fast() -> MultiHeadAttention:
    """By scaled_dot_product_attention, or in evaluation by a kernel of its own."""
    from torch import Tensor, nn

    class Fast(nn.MultiheadAttention):
        def forward(  # type: ignore[override]
            self,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            key_padding_mask: Tensor | None = None,
            attn_mask: Tensor | None = None,
            is_causal: bool = False,
        ) -> Tensor:
            output, _ = super().forward(
                query, key, value, key_padding_mask, False, attn_mask, is_causal=is_causal
            )
            return output

    def make(d_model: int, num_heads: int) -> nn.MultiheadAttention:
        return Fast(d_model, num_heads, batch_first=True)

    return _torchs("torch-mha-module-fast", make, weights=False)


@builtin("reference-multi-head-attention", "headcheck's own multi-head attention.")
def reference_multi_head_attention() -> MultiHeadAttention:
    """A row without keys gives zeros, to which the output projection adds its bias."""
    from headcheck import reference

    return MultiHeadAttention(
        reference.MultiHeadAttention, name="reference-multi-head-attention", empty_rows="zeros"
    )


@builtin(
    "reference-grouped-query-attention",
    "headcheck's own multi-head attention, two query heads to a key head.",
)
def reference_grouped_query_attention() -> MultiHeadAttention:
    """Where the number of heads is odd, one to one."""
    from headcheck import reference

    def make(d_model: int, num_heads: int) -> reference.MultiHeadAttention:
        kv_heads = num_heads // 2 if num_heads % 2 == 0 else num_heads
        return reference.MultiHeadAttention(d_model, num_heads, kv_heads=kv_heads, bias=False)

    return MultiHeadAttention(make, name="reference-grouped-query-attention")
