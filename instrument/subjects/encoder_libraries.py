"""Encoders and blocks of libraries on torch, of width 8 with two heads."""

from typing import Any

from headcheck.modules.encoder import Encoder
from headcheck.subjects import builtin


def _x_transformers(name: str, **options: Any) -> Encoder:
    """True keeps in its mask, as its README says."""
    from x_transformers import Encoder as Layers

    return Encoder(
        # Without its final norm, whose gain stands outside of the module that a law would watch.
        lambda: Layers(dim=8, depth=2, heads=2, attn_dim_head=4, pre_norm_has_final_norm=False, **options),
        name=name,
        true_means="real",
        d_model=8,
    )


@builtin(
    "x-transformers-encoder",
    "x_transformers' Encoder, pre-norm.",
    needs=("x_transformers",),
    install="pip install x-transformers",
)
def x_transformers_encoder() -> Encoder:
    """Without positions, which its wrapper adds."""
    return _x_transformers("x-transformers-encoder")


@builtin(
    "x-transformers-encoder-rotary",
    "x_transformers' Encoder with rotary positions and flash.",
    needs=("x_transformers",),
    install="pip install x-transformers",
)
def x_transformers_encoder_rotary() -> Encoder:
    """Relative positions, so that a batch may be padded on either side."""
    return _x_transformers(
        "x-transformers-encoder-rotary", rotary_pos_emb=True, rotary_emb_dim=4, attn_flash=True
    ).but(positions=True)


@builtin(
    "x-transformers-encoder-alibi",
    "x_transformers' Encoder with ALiBi.",
    needs=("x_transformers",),
    install="pip install x-transformers",
)
def x_transformers_encoder_alibi() -> Encoder:
    """Linear biases of the distance, on both sides."""
    return _x_transformers("x-transformers-encoder-alibi", alibi_pos_bias=True, alibi_num_heads=2).but(
        positions=True
    )


@builtin(
    "timm-block",
    "timm's Block of a vision transformer.",
    needs=("timm", "torchvision"),
    install="pip install timm torchvision",
)
def timm_block() -> Encoder:
    """Pre-norm; its mask is (q_len, kv_len) or with heads, and not one of padding: none is given."""
    from timm.models.vision_transformer import Block
    from torch import Tensor, nn

    class Unmasked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block(8, 2, qkv_bias=True)

        def forward(self, x: Tensor) -> Any:
            return self.block(x)

    return Encoder(Unmasked, name="timm-block", norm_order="pre")


@builtin("monai-block", "MONAI's TransformerBlock.", needs=("monai",))
def monai_block() -> Encoder:
    """Pre-norm; attn_mask is (batch, length), as the documentation of its attention says."""
    from monai.networks.blocks.transformerblock import TransformerBlock

    return Encoder(
        lambda: TransformerBlock(8, 16, 2),
        name="monai-block",
        arguments={"is_real": "attn_mask"},
        true_means="real",
        empty_rows=False,
        norm_order="pre",
    )


@builtin(
    "whisper-block",
    "openai-whisper's ResidualAttentionBlock.",
    needs=("whisper",),
    install="pip install openai-whisper",
)
def whisper_block() -> Encoder:
    """Pre-norm, of its encoder: without a mask, which would mean causal."""
    from torch import Tensor, nn
    from whisper.model import ResidualAttentionBlock

    class Unmasked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = ResidualAttentionBlock(8, 2)

        def forward(self, x: Tensor) -> Any:
            return self.block(x)

    return Encoder(Unmasked, name="whisper-block", norm_order="pre")


@builtin(
    "esm-layer",
    "fair-esm's TransformerLayer with rotary positions.",
    needs=("esm",),
    install="pip install fair-esm",
)
def esm_layer() -> Encoder:
    """The length first; True is padding in self_attn_padding_mask."""
    from esm.modules import TransformerLayer

    return Encoder(
        lambda: TransformerLayer(8, 16, 2, add_bias_kv=False, use_rotary_embeddings=True),
        name="esm-layer",
        batch_first=False,
        arguments={"is_real": "self_attn_padding_mask"},
        true_means="padding",
        empty_rows=False,
        positions=True,
        norm_order="pre",
    )


@builtin("torchscale-encoder", "torchscale's Encoder.", needs=("torchscale",))
def torchscale_encoder() -> Encoder:
    """Two layers, pre-norm with sub-norms, without positions; True is padding in encoder_padding_mask."""
    from torch import Tensor, nn
    from torchscale.architecture.config import EncoderConfig
    from torchscale.architecture.encoder import Encoder as Layers

    class OfStates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"encoder_embed_dim": 8, "encoder_attention_heads": 2, "encoder_ffn_embed_dim": 16}
            self.encoder = Layers(
                EncoderConfig(encoder_layers=2, no_output_layer=True, **sizes), nn.Identity()
            )

        def forward(self, x: Tensor, encoder_padding_mask: Tensor | None = None) -> Any:
            found = self.encoder(
                src_tokens=None, token_embeddings=x, encoder_padding_mask=encoder_padding_mask
            )
            return found["encoder_out"]

    return Encoder(OfStates, name="torchscale-encoder", true_means="padding", d_model=8)


@builtin(
    "curated-transformers-layer",
    "curated_transformers' EncoderLayer.",
    needs=("curated_transformers",),
    install="pip install curated-transformers",
)
def curated_transformers_layer() -> Encoder:
    """Post-norm; True keeps in its AttentionMask."""
    from functools import partial

    from curated_transformers.layers.activations import Activation
    from curated_transformers.layers.attention import (
        AttentionHeads,
        AttentionMask,
        QkvMode,
        QkvSplitGroupedByHead,
        ScaledDotProductAttention,
        SelfAttention,
    )
    from curated_transformers.layers.feedforward import PointwiseFeedForward
    from curated_transformers.layers.transformer import (
        EncoderLayer,
        TransformerDropouts,
        TransformerLayerNorms,
    )
    from torch import Tensor, nn

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            norm = partial(nn.LayerNorm, 8)
            self.layer = EncoderLayer(
                attention_layer=SelfAttention(
                    attention_heads=AttentionHeads.uniform(2, QkvSplitGroupedByHead()),
                    attention_scorer=ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None),
                    hidden_width=8,
                    qkv_mode=QkvMode.SEPARATE,
                    use_bias=True,
                ),
                feed_forward_layer=PointwiseFeedForward(
                    activation=Activation.GELU.module(),
                    hidden_width=8,
                    intermediate_width=16,
                    use_bias=True,
                    use_gate=False,
                ),
                dropouts=TransformerDropouts.layer_output_dropouts(0.0),
                layer_norms=TransformerLayerNorms(
                    attn_residual_layer_norm=norm(), ffn_residual_layer_norm=norm()
                ),
                use_parallel_attention=False,
            )

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
            kept = x.new_ones(x.shape[:2]).bool() if mask is None else mask
            return self.layer(x, AttentionMask(kept))[0]

    return Encoder(Masked, name="curated-transformers-layer", true_means="real", norm_order="post")
