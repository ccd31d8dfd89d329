"""Decoders: torch's layer and stack, which are given a causal mask, and the reference's."""

from typing import Any

from headcheck.modules.decoder import Decoder
from headcheck.subjects import builtin


def _torch_layer(**options: Any) -> Any:
    from torch import nn

    return nn.TransformerDecoderLayer(8, 2, dim_feedforward=16, **options)


def _causal(decoder: Any) -> Any:
    """The reference's decoder in the canonical call; there, a mask is given for each query and key."""
    from torch import Tensor, nn

    from headcheck.reference.models import causal_and_real

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = decoder

        def forward(
            self,
            x: Tensor,
            memory: Tensor,
            is_real: Tensor | None = None,
            memory_is_real: Tensor | None = None,
        ) -> Any:
            is_real = x.new_ones(x.shape[:2]).bool() if is_real is None else is_real
            of_memory = None if memory_is_real is None else memory_is_real[:, None, None, :]
            may_attend = causal_and_real(is_real, x.shape[1])
            return self.decoder(x, memory, may_attend=may_attend, memory_may_attend=of_memory)

    return Causal()


@builtin("torch-decoder-layer", "torch.nn.TransformerDecoderLayer, post-norm, ReLU, with a causal tgt_mask.")
def torch_decoder_layer() -> Decoder:
    """As in the paper."""
    return Decoder(lambda: _torch_layer(batch_first=True), name="torch-decoder-layer")


@builtin("torch-decoder-layer-pre-norm", "torch.nn.TransformerDecoderLayer, pre-norm, GELU.")
def torch_decoder_layer_pre_norm() -> Decoder:
    """With a causal tgt_mask."""
    return Decoder(
        lambda: _torch_layer(batch_first=True, norm_first=True, activation="gelu"),
        name="torch-decoder-layer-pre-norm",
    )


@builtin("torch-decoder-layer-length-first", "torch.nn.TransformerDecoderLayer with batch_first=False.")
def torch_decoder_layer_length_first() -> Decoder:
    """torch's default order of axes: (length, batch, d_model)."""
    return Decoder(_torch_layer, name="torch-decoder-layer-length-first")


@builtin("torch-decoder", "torch.nn.TransformerDecoder, pre-norm, with a final norm and a causal tgt_mask.")
def torch_decoder() -> Decoder:
    """Two layers, padded on the right only.

    With padding on the left the first rows of the mask have no key. Without gradients torch's attention then
    gives NaN, which the second layer spreads (torch 2.13; with gradients it does not).
    """
    from torch import nn

    def make() -> nn.Module:
        return nn.TransformerDecoder(_torch_layer(batch_first=True, norm_first=True), 2, nn.LayerNorm(8))

    return Decoder(make, name="torch-decoder", padding=("right",))


@builtin("reference-decoder-layer", "headcheck's own decoder layer: post-norm, ReLU.")
def reference_decoder_layer() -> Decoder:
    """As in the paper."""
    from headcheck import reference

    config = reference.LayerConfig(d_model=8, num_heads=2, d_ff=16, norm_order="post", activation="relu")
    return Decoder(lambda: _causal(reference.DecoderLayer(config)), name="reference-decoder-layer")


@builtin("reference-decoder", "headcheck's own decoder: pre-norm, grouped heads, RMS norm, SwiGLU.")
def reference_decoder() -> Decoder:
    """Two layers and a final norm."""
    from headcheck import reference

    config = reference.LayerConfig(
        d_model=8, num_heads=2, d_ff=16, norm_order="pre", activation="swiglu", norm="rms", kv_heads=1
    )
    return Decoder(lambda: _causal(reference.Decoder(config, 2, final_norm=True)), name="reference-decoder")
