"""torch.nn.MultiheadAttention with identity projections: its attention, by its slow and its fast path."""

from dataclasses import replace
from typing import Any

from headcheck.arithmetic import named
from headcheck.declarations import Attention
from headcheck.subjects import builtin


@builtin(
    "torch-mha", "torch.nn.MultiheadAttention with identity projections, need_weights on: the slow path."
)
def torch_mha() -> Attention:
    """baddbmm, softmax, bmm in the dtype of the inputs, the query scaled first; a row without keys is NaN
    in all heads.
    """
    rounds = replace(named("eager"), scaled="input")
    return _declared(_multi_head(weights=True)).but(
        name="torch-mha",
        weights=True,
        empty_rows="undefined",
        arithmetic={"bfloat16": rounds, "float16": rounds},
    )


@builtin("torch-mha-fast", "torch.nn.MultiheadAttention with identity projections, need_weights off.")
def torch_mha_fast() -> Attention:
    """Its forward goes through scaled_dot_product_attention when weights are not asked for."""
    return _declared(_multi_head(weights=False)).but(
        name="torch-mha-fast",
        nan_scores="may-vanish",
        arithmetic={"bfloat16": "flash", "float16": "flash"},
    )


@builtin(
    "torch-mha-native", "torch.nn.MultiheadAttention in its native fast path: self-attention, no gradients."
)
def torch_mha_native() -> Attention:
    """The fast path takes one tensor as query, key and value: they stand side by side in it, and the projections
    pick them apart. A row without keys is NaN in all heads; an additive mask is left to the slow path.
    """
    rounds = replace(named("eager"), scaled="input")
    return _declared(_native()).but(
        name="torch-mha-native",
        arithmetic={"bfloat16": rounds, "float16": rounds},
        rectangular=False,
        gradients=False,
        empty_rows="undefined",
        masks=("boolean",),
        operator="aten::_native_multi_head_attention",
    )


def _native() -> Any:
    import torch
    from torch import Tensor

    modules: dict[tuple[int, int, torch.dtype], torch.nn.MultiheadAttention] = {}

    def module(heads: int, head_dim: int, dtype: torch.dtype) -> torch.nn.MultiheadAttention:
        """Four times as many heads, an even number, as the fast path asks; only the first quarter is read."""
        key = (heads, head_dim, dtype)
        if key not in modules:
            width, whole = heads * head_dim, 4 * heads * head_dim
            with torch.random.fork_rng(devices=()), torch.no_grad():
                made = torch.nn.MultiheadAttention(whole, 4 * heads, batch_first=True, dtype=dtype)
                made.in_proj_weight.zero_()
                for place in range(3):  # The rows of W_q, W_k and W_v that make the first heads.
                    rows = made.in_proj_weight[place * whole :][:width]
                    rows[:, place * width :][:, :width] = torch.eye(width)
                made.out_proj.weight.copy_(torch.eye(whole))
            modules[key] = made.eval()
        return modules[key]

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
        batch, heads, length, head_dim = query.shape
        rows = [x.transpose(1, 2).flatten(2) for x in (query, key, value)]
        together = torch.cat([*rows, torch.zeros_like(rows[0])], dim=2)
        if attn_mask is not None:
            whole = attn_mask.expand(batch, heads, length, length).repeat(1, 4, 1, 1)
            attn_mask = whole.reshape(4 * batch * heads, length, length)
        made = module(heads, head_dim, query.dtype)
        output, _ = made(together, together, together, attn_mask=attn_mask, need_weights=False)
        return output[..., : heads * head_dim].unflatten(2, (heads, head_dim)).transpose(1, 2)

    return attention


def _declared(function: Any) -> Attention:
    return Attention(
        function,
        true_means="block",
        causal=False,
        masks=("boolean", "additive"),
        mask_gradient=False,
        grouped_heads=False,
        scale=False,
        dropout=False,
        weights=False,
        value_dim=False,
        dtypes=("float32", "float64", "bfloat16", "float16"),
    )


def _multi_head(*, weights: bool) -> Any:
    import torch
    from torch import Tensor

    modules: dict[tuple[int, int, torch.dtype, torch.device], torch.nn.MultiheadAttention] = {}

    def module(heads: int, like: Tensor) -> torch.nn.MultiheadAttention:
        """The identity in all four projections: what is left is attention."""
        key = (heads, like.shape[-1], like.dtype, like.device)
        if key not in modules:
            width = heads * like.shape[-1]
            with torch.random.fork_rng(devices=()), torch.inference_mode(False), torch.no_grad():
                made = torch.nn.MultiheadAttention(
                    width, heads, bias=False, batch_first=True, dtype=like.dtype
                )
                made.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
                made.out_proj.weight.copy_(torch.eye(width))
                modules[key] = made.to(like.device).eval()
        return modules[key]

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        return_weights: bool = False,
    ) -> Any:
        batch, heads, q_len, head_dim = query.shape
        rows = [x.transpose(1, 2).flatten(2) for x in (query, key, value)]
        if attn_mask is not None:
            whole = attn_mask.expand(batch, heads, q_len, key.shape[2])
            attn_mask = whole.reshape(batch * heads, q_len, key.shape[2])
        output, seen = module(heads, query)(
            *rows, attn_mask=attn_mask, need_weights=weights, average_attn_weights=False
        )
        output = output.unflatten(2, (heads, head_dim)).transpose(1, 2)
        return (output, seen) if return_weights else output

    return attention
