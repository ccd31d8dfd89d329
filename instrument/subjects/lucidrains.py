"""The small packages of lucidrains: memory-efficient, ring, local attention."""

from typing import Any

from headcheck.declarations import FOUR_AXES, Attention
from headcheck.subjects import builtin

EFFICIENT = ("memory_efficient_attention_pytorch",)
CHUNKED = ("float32", "float64", "bfloat16")
"""Not float16: a huge score beside the smallest number is minus infinity there, and a chunk of these is NaN."""
INSTALL_EFFICIENT = "pip install memory-efficient-attention-pytorch"


@builtin(
    "memory-efficient-attention-plain",
    "memory_efficient_attention_pytorch's plain attention.",
    needs=EFFICIENT,
    install=INSTALL_EFFICIENT,
)
def plain() -> Attention:
    """The function `attention`: any four axes of a mask, causal by the last rows."""
    from memory_efficient_attention_pytorch.memory_efficient_attention import attention

    return _efficient("memory-efficient-attention-plain", attention).but(causal="bottom-right")


@builtin(
    "memory-efficient-attention-chunked",
    "memory_efficient_attention_pytorch's attention in chunks of queries and of keys.",
    needs=EFFICIENT,
    install=INSTALL_EFFICIENT,
)
def chunked() -> Attention:
    """Chunks of 4 queries and 8 keys, so that small cases have several.

    Its eps, which is added to the sum of the weights (1e-8), is set to zero; minus infinity in a bias is given as
    nine tenths of the smallest number, as a chunk of nothing else gives NaN (docs/deviations.md). Its checkpoints are
    reentrant: gradients come by backward(), which adds them up in leaves, and not by autograd.grad, by which laws ask.
    """
    from memory_efficient_attention_pytorch.memory_efficient_attention import memory_efficient_attention

    return _efficient(
        "memory-efficient-attention-chunked",
        memory_efficient_attention,
        q_bucket_size=4,
        k_bucket_size=8,
        eps=0.0,
    ).but(causal="top-left", masks=("additive",), mask_shapes=FOUR_AXES, gradients=False, dtypes=CHUNKED)


@builtin(
    "memory-efficient-flash",
    "memory_efficient_attention_pytorch's flash attention, forward and backward in tiles.",
    needs=EFFICIENT,
    install=INSTALL_EFFICIENT,
)
def flash() -> Attention:
    """Tiles of 4 queries and 8 keys."""
    from memory_efficient_attention_pytorch.flash_attention import FlashAttentionFunction
    from torch import Tensor

    from headcheck.subjects._arrays import split_mask

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Any:
        mask, _ = split_mask(attn_mask)
        return FlashAttentionFunction.apply(query, key, value, mask, is_causal, 4, 8)

    return Attention(
        attention,
        name="memory-efficient-flash",
        masks=("boolean",),
        causal="bottom-right",
        mask_with_causal="and",
        empty_rows="undefined",
        grouped_heads=False,
        scale=False,
        dropout=False,
        value_dim=False,
        dtypes=("float32",),  # Its sums are kept in float32, and in float64 its smallest number overflows.
        gradients=True,
    )


def _efficient(name: str, function: Any, **more: Any) -> Attention:
    import torch
    from torch import Tensor

    from headcheck.subjects._arrays import split_mask

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Any:
        mask, bias = split_mask(attn_mask)
        if bias is not None:
            bias = bias.clamp(min=0.9 * torch.finfo(bias.dtype).min)
            bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        return function(query, key, value, mask=mask, attn_bias=bias, causal=is_causal, **more)

    return Attention(
        attention,
        name=name,
        masks=("boolean", "additive"),
        mask_with_causal="and",
        empty_rows="undefined",
        grouped_heads=False,
        scale=False,
        dropout=False,
        gradients=True,
    )


@builtin(
    "ring-attention-default",
    "ring_attention_pytorch's attention of one process.",
    needs=("ring_attention_pytorch",),
    install="pip install ring-attention-pytorch",
)
def ring_default() -> Attention:
    """BLHD; the mask is one of padding."""
    from ring_attention_pytorch.ring_attention import default_attention
    from torch import Tensor

    def attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Any:
        return default_attention(query, key, value, causal=is_causal)

    return Attention(
        attention,
        name="ring-attention-default",
        layout="bshd",
        masks=(),
        causal="bottom-right",
        empty_rows="undefined",
        grouped_heads="tiled",
        scale=False,
        dropout=False,
        gradients=True,
    )


@builtin(
    "ring-flash-attention-cpu",
    "ring_attention_pytorch's flash attention of one process, in buckets.",
    needs=("ring_attention_pytorch",),
    install="pip install ring-attention-pytorch",
)
def ring_flash() -> Attention:
    """BLHD; buckets of 32; queries and keys are of one length, as parts of a ring are."""
    from ring_attention_pytorch.ring_flash_attention import ring_flash_attn
    from torch import Tensor

    def attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Any:
        return ring_flash_attn(query, key, value, causal=is_causal, bucket_size=32)

    return Attention(
        attention,
        name="ring-flash-attention-cpu",
        layout="bshd",
        masks=(),
        rectangular=False,
        grouped_heads="tiled",
        scale=False,
        dropout=False,
        value_dim=False,
        dtypes=("float32",),  # Its sums are kept in float32, and in float64 its smallest number overflows.
        gradients=True,
    )


@builtin(
    "local-attention",
    "local_attention's LocalAttention with windows around that reach all keys, padded by a mask.",
    needs=("local_attention",),
    install="pip install local-attention",
)
def local() -> Attention:
    """Windows of 8; the mask, True everywhere, is what hides the padding that autopad adds."""
    return _local("local-attention", masked=True)


@builtin(
    "local-attention-autopad",
    "local_attention's LocalAttention with windows around that reach all keys, autopad without a mask.",
    needs=("local_attention",),
    install="pip install local-attention",
)
def local_autopad() -> Attention:
    """Windows of 8."""
    return _local("local-attention-autopad", masked=False)


def _local(name: str, *, masked: bool) -> Attention:
    from local_attention import LocalAttention
    from torch import Tensor

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
        dropout_p: float = 0.0,
    ) -> Any:
        around = -(-query.shape[2] // 8)
        local = LocalAttention(
            window_size=8,
            causal=is_causal,
            look_backward=around,
            look_forward=0 if is_causal else around,
            dropout=dropout_p,
            scale=scale,
            autopad=True,
            use_rotary_pos_emb=False,
        )
        mask = query.new_ones((query.shape[0], query.shape[2])).bool() if masked else None
        return local(query, key, value, mask=mask)

    return Attention(
        attention,
        name=name,
        masks=(),
        rectangular=False,
        grouped_heads=False,
        scale=True,
        dropout=True,
        gradients=True,
    )
