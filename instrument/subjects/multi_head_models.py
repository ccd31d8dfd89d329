"""Multi-head attention of MONAI, timm, openai-whisper, fair-esm and torchscale, made from its width and its heads."""

from typing import Any

from headcheck.modules.multi_head.conventions import MultiHeadAttention
from headcheck.subjects import builtin


def _monai(name: str, *, dropout: float = 0.0, masked: bool = True, **options: Any) -> MultiHeadAttention:
    """attn_mask is (batch, kv_len), as its documentation says; True is kept, as its source shows."""
    from monai.networks.blocks.selfattention import SABlock
    from torch import nn

    def make(d_model: int, num_heads: int) -> nn.Module:
        module: nn.Module = SABlock(d_model, num_heads, dropout_rate=dropout, qkv_bias=True, **options)
        return module

    return MultiHeadAttention(
        make,
        name=name,
        masks=("boolean",) if masked else (),
        mask_shapes=("bk",) if masked else (),
        true_means="keep",
        fused="by-part",
        empty_rows="undefined",
        weights=False,
    )


@builtin("monai-mha", "MONAI's SABlock, by einsum.", needs=("monai",))
def monai_mha() -> MultiHeadAttention:
    """Self-attention with one projection."""
    return _monai("monai-mha", dropout=0.1)


@builtin("monai-mha-flash", "MONAI's SABlock with use_flash_attention.", needs=("monai",))
def monai_mha_flash() -> MultiHeadAttention:
    """By torch's function; made without dropout, which would hide the rest."""
    return _monai("monai-mha-flash", use_flash_attention=True)


@builtin("monai-mha-flash-dropout", "MONAI's SABlock with use_flash_attention and dropout.", needs=("monai",))
def monai_mha_flash_dropout() -> MultiHeadAttention:
    """As the one before, made with dropout, which evaluation should turn off; without masks."""
    return _monai("monai-mha-flash-dropout", dropout=0.1, masked=False, use_flash_attention=True)


@builtin("monai-cross-mha", "MONAI's CrossAttentionBlock.", needs=("monai",))
def monai_cross_mha() -> MultiHeadAttention:
    """Keys and values are of one context."""
    from monai.networks.blocks.crossattention import CrossAttentionBlock
    from torch import nn

    def make(d_model: int, num_heads: int) -> nn.Module:
        module: nn.Module = CrossAttentionBlock(d_model, num_heads, dropout_rate=0.1, qkv_bias=True)
        return module

    return MultiHeadAttention(make, name="monai-cross-mha", weights=False)


def _timm(name: str, *, fused: bool) -> MultiHeadAttention:
    from timm.layers.attention import Attention
    from torch import nn

    def make(d_model: int, num_heads: int) -> nn.Module:
        made: Any = Attention(d_model, num_heads, qkv_bias=True)
        made.fused_attn = fused
        module: nn.Module = made
        return module

    return MultiHeadAttention(
        make,
        name=name,
        masks=("boolean", "additive"),
        mask_shapes=("qk", "b1qk", "bhqk"),
        true_means="keep",
        causal_hint=False,
        empty_rows="undefined",
        fused="by-part",
        weights=False,
    )


@builtin(
    "timm-mha",
    "timm's Attention, its manual path.",
    needs=("timm", "torchvision"),
    install="pip install timm torchvision",
)
def timm_mha() -> MultiHeadAttention:
    """As torch's function in its masks, by a comment in its source."""
    return _timm("timm-mha", fused=False)


@builtin(
    "timm-mha-fused",
    "timm's Attention, by torch's function.",
    needs=("timm", "torchvision"),
    install="pip install timm torchvision",
)
def timm_mha_fused() -> MultiHeadAttention:
    """Its default."""
    return _timm("timm-mha-fused", fused=True)


def _whisper(name: str, *, sdpa: bool) -> MultiHeadAttention:
    """Any mask means causal, so that none is given; no bias of the keys."""
    from torch import Tensor, nn
    from whisper.model import MultiHeadAttention as Module
    from whisper.model import disable_sdpa

    class Unmasked(nn.Module):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__()
            self.attention = Module(d_model, num_heads)

        def forward(self, x: Tensor, key: Tensor | None = None) -> Any:
            if sdpa:
                return self.attention(x, key)[0]
            with disable_sdpa():
                return self.attention(x, key)[0]

    return MultiHeadAttention(Unmasked, name=name, weights=False)


@builtin(
    "whisper-mha",
    "openai-whisper's MultiHeadAttention, by matmul.",
    needs=("whisper",),
    install="pip install openai-whisper",
)
def whisper_mha() -> MultiHeadAttention:
    """Its softmax is in float32."""
    return _whisper("whisper-mha", sdpa=False)


@builtin(
    "whisper-mha-sdpa",
    "openai-whisper's MultiHeadAttention, by torch's function.",
    needs=("whisper",),
    install="pip install openai-whisper",
)
def whisper_mha_sdpa() -> MultiHeadAttention:
    """As it is by default."""
    return _whisper("whisper-mha-sdpa", sdpa=True)


@builtin("esm-mha", "fair-esm's MultiheadAttention.", needs=("esm",), install="pip install fair-esm")
def esm_mha() -> MultiHeadAttention:
    """The length first, masks as torch's module has them; attn_mask is added."""
    from esm.multihead_attention import MultiheadAttention
    from torch import nn

    def make(d_model: int, num_heads: int) -> nn.Module:
        module: nn.Module = MultiheadAttention(d_model, num_heads, self_attention=False)
        return module

    return MultiHeadAttention(
        make, name="esm-mha", batch_first=False, empty_rows="undefined", key_true_means="block"
    )


@builtin("torchscale-mha", "torchscale's MultiheadAttention.", needs=("torchscale",))
def torchscale_mha() -> MultiHeadAttention:
    """attn_mask is added; True is padding in key_padding_mask, as in torch's module."""
    from types import SimpleNamespace

    from torch import Tensor
    from torchscale.component.multihead_attention import MultiheadAttention

    class Booleans(MultiheadAttention):  # type: ignore[misc]  # The package has no types.
        def __init__(self, d_model: int, num_heads: int) -> None:
            asked = SimpleNamespace(multiway=False, xpos_rel_pos=False, layernorm_eps=1e-5)
            super().__init__(asked, d_model, num_heads, encoder_decoder_attention=True)

        def forward(
            self,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            key_padding_mask: Tensor | None = None,
            attn_mask: Tensor | None = None,
        ) -> Any:
            if key_padding_mask is not None and key_padding_mask.is_floating_point():
                raise TypeError("key_padding_mask is made boolean there: numbers would all be True")
            return super().forward(query, key, value, key_padding_mask=key_padding_mask, attn_mask=attn_mask)

    return MultiHeadAttention(
        Booleans, name="torchscale-mha", mask_shapes=("qk",), key_true_means="block", empty_rows="undefined"
    )
