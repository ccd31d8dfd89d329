"""Encoders: torch's layer and stack, and the reference's."""

from collections.abc import Callable
from typing import Any

from headcheck.modules.encoder import Encoder
from headcheck.subjects import builtin


def _torch_layer(**options: Any) -> Any:
    from torch import nn

    return nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True, **options)


def _torch_stack(*, final_norm: bool, **options: Any) -> Any:
    from torch import nn

    norm = nn.LayerNorm(8) if final_norm else None
    nested = not options.get("norm_first", False)
    return nn.TransformerEncoder(_torch_layer(**options), 2, norm, enable_nested_tensor=nested)


def _reference(make: Callable[[Any, Any], Any], name: str, **choices: Any) -> Encoder:
    from headcheck import reference

    config = reference.LayerConfig(d_model=8, num_heads=2, d_ff=16, **choices)
    return Encoder(
        lambda: make(reference, config), name=name, arguments={"is_real": "may_attend"}, mask_rank=4
    )


@builtin("torch-encoder-layer", "torch.nn.TransformerEncoderLayer, post-norm, ReLU.")
def torch_encoder_layer() -> Encoder:
    """With its fused kernel for inference."""
    return Encoder(_torch_layer, name="torch-encoder-layer")


@builtin("torch-encoder-layer-pre-norm", "torch.nn.TransformerEncoderLayer, pre-norm, GELU.")
def torch_encoder_layer_pre_norm() -> Encoder:
    """With its fused kernel for inference."""
    return Encoder(
        lambda: _torch_layer(norm_first=True, activation="gelu"), name="torch-encoder-layer-pre-norm"
    )


@builtin("torch-encoder-layer-length-first", "torch.nn.TransformerEncoderLayer with batch_first=False.")
def torch_encoder_layer_length_first() -> Encoder:
    """torch's default order of axes: (length, batch, d_model)."""
    from torch import nn

    return Encoder(
        lambda: nn.TransformerEncoderLayer(8, 2, dim_feedforward=16), name="torch-encoder-layer-length-first"
    )


@builtin("torch-encoder", "torch.nn.TransformerEncoder, post-norm, GELU: padding becomes nested tensors.")
def torch_encoder() -> Encoder:
    """Two layers, without a final norm, as in the paper."""
    return Encoder(lambda: _torch_stack(final_norm=False, activation="gelu"), name="torch-encoder")


@builtin("torch-encoder-pre-norm", "torch.nn.TransformerEncoder, pre-norm, ReLU, with a final norm.")
def torch_encoder_pre_norm() -> Encoder:
    """Two layers."""
    return Encoder(lambda: _torch_stack(final_norm=True, norm_first=True), name="torch-encoder-pre-norm")


@builtin("torch-encoder-causal", "torch.nn.TransformerEncoder under a causal mask, as the blocks of a GPT.")
def torch_encoder_causal() -> Encoder:
    """Two pre-norm layers, and a final norm. Padding on the left would leave its first queries no key."""
    import torch
    from torch import Tensor, nn

    class Causal(nn.Module):
        """The stack, told of the mask twice, as torch asks for it."""

        def __init__(self) -> None:
            super().__init__()
            self.stack = _torch_stack(final_norm=True, norm_first=True, activation="gelu")

        def forward(self, x: Tensor, src_key_padding_mask: Tensor | None = None) -> Any:
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            return self.stack(x, future, src_key_padding_mask, is_causal=True)

    return Encoder(Causal, name="torch-encoder-causal", causal=True, padding=("right",))


@builtin("reference-encoder-layer", "headcheck's own encoder layer: post-norm, ReLU.")
def reference_encoder_layer() -> Encoder:
    """As in the paper."""
    return _reference(
        lambda ref, config: ref.EncoderLayer(config),
        "reference-encoder-layer",
        norm_order="post",
        activation="relu",
    )


@builtin("reference-encoder", "headcheck's own encoder: pre-norm, grouped heads, RMS norm, SwiGLU.")
def reference_encoder() -> Encoder:
    """Two layers and a final norm."""
    return _reference(
        lambda ref, config: ref.Encoder(config, 2, final_norm=True),
        "reference-encoder",
        norm_order="pre",
        activation="swiglu",
        norm="rms",
        kv_heads=1,
    )


@builtin("reference-encoder-rotary", "headcheck's own encoder with rotary positions: the order counts.")
def reference_encoder_rotary() -> Encoder:
    """Two pre-norm layers, without a final norm."""
    from functools import partial

    from headcheck import reference

    subject = _reference(
        lambda ref, config: ref.Encoder(config, 2, final_norm=False),
        "reference-encoder-rotary",
        norm_order="pre",
        activation="gelu",
        rotate=partial(reference.rotary, pairing="half"),
    )
    return subject.but(positions=True)
