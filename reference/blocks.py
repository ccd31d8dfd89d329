"""Sub-layers joined by residual connections: encoder and decoder layers, and stacks of them.

Vaswani et al. 2017, section 3.1, is post-norm without a final norm; documents 000 and 002 are pre-norm.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcheck.reference.attention import MayAttend
from headcheck.reference.choices import require_choice
from headcheck.reference.feed_forward import Activation, FeedForward
from headcheck.reference.multi_head import KeyValues, MultiHeadAttention, Positions, Rotation
from headcheck.reference.norms import LayerNorm, RMSNorm

Hidden = Float[Tensor, "batch length d_model"]
NormOrder = Literal["pre", "post"]
"""pre: x + f(norm(x)), the skip path is the identity. post: norm(x + f(x)), as in the paper."""
Norm = Literal["layer", "rms"]


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """What the layers of a stack have in common; those that the documents choose differently have no default.

    dropout: on attention weights, inside the feed-forward, and on what each sub-layer adds, as in torch.
    bias: of every projection and of the layer norms.
    """

    d_model: int
    num_heads: int
    d_ff: int
    norm_order: NormOrder
    activation: Activation
    norm: Norm = "layer"
    norm_eps: float = 1e-5
    dropout: float = 0.0
    bias: bool = True
    kv_heads: int | None = None
    rotate: Rotation | None = None
    """Rotary positions in self-attention."""

    def __post_init__(self) -> None:
        require_choice("norm_order", self.norm_order, NormOrder)
        require_choice("norm", self.norm, Norm)

    def new_norm(self) -> nn.Module:
        if self.norm == "rms":
            return RMSNorm(self.d_model, eps=self.norm_eps)
        return LayerNorm(self.d_model, eps=self.norm_eps, bias=self.bias)

    def new_feed_forward(self) -> FeedForward:
        return FeedForward(self.d_model, self.d_ff, self.activation, bias=self.bias, dropout=self.dropout)

    def new_attention(self, rotate: Rotation | None = None) -> MultiHeadAttention:
        return MultiHeadAttention(
            self.d_model,
            self.num_heads,
            kv_heads=self.kv_heads,
            bias=self.bias,
            dropout=self.dropout,
            rotate=rotate,
        )


class Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)).  Vaswani et al. 2017, section 5.4; Xiong et al. 2020, figure 1."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.norm_order = config.norm_order
        self.norm = config.new_norm()
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "*rows d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*rows d_model"]:
        if self.norm_order == "pre":
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; with a causal mask, the layer of a decoder-only model."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.self_attention = config.new_attention(config.rotate)
        self.feed_forward = config.new_feed_forward()
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(
        self,
        x: Hidden,
        *,
        may_attend: MayAttend = None,
        positions: Positions = None,
        cache: KeyValues | None = None,
    ) -> Hidden:
        around_attention, around_feed_forward = self.residuals
        attend = partial(self.self_attention, may_attend=may_attend, positions=positions, cache=cache)
        x = around_attention(x, attend)
        return around_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Self-attention, attention to the memory (the encoder's output), feed-forward."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.self_attention = config.new_attention(config.rotate)
        self.cross_attention = config.new_attention()
        self.feed_forward = config.new_feed_forward()
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self,
        x: Hidden,
        memory: Float[Tensor, "batch kv_len d_model"],
        *,
        may_attend: Bool[Tensor, "#batch #heads #length #length"]
        | Bool[Tensor, "#length #length"]
        | None = None,
        memory_may_attend: MayAttend = None,
        positions: Positions = None,
    ) -> Hidden:
        """may_attend: among the tokens of x. memory_may_attend: from a token of x to the memory."""
        around_attention, around_reading, around_feed_forward = self.residuals
        attend = partial(self.self_attention, may_attend=may_attend, positions=positions)
        read = partial(self.cross_attention, key=memory, may_attend=memory_may_attend)
        x = around_reading(around_attention(x, attend), read)
        return around_feed_forward(x, self.feed_forward)


class Encoder(nn.Module):
    """`num_layers` encoder layers, then a norm where `final_norm` asks for it (a pre-norm stack needs one)."""

    def __init__(self, config: LayerConfig, num_layers: int, *, final_norm: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(num_layers))
        self.norm = config.new_norm() if final_norm else nn.Identity()

    def forward(
        self, x: Hidden, *, cache: Sequence[KeyValues] | None = None, **options: Tensor | None
    ) -> Hidden:
        """cache: one for each layer. options: may_attend and positions, the same for all of them."""
        for number, layer in enumerate(self.layers):
            x = layer(x, cache=None if cache is None else cache[number], **options)
        return self.norm(x)


class Decoder(nn.Module):
    """`num_layers` decoder layers, every one reading the same memory, then a norm where asked for."""

    def __init__(self, config: LayerConfig, num_layers: int, *, final_norm: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(num_layers))
        self.norm = config.new_norm() if final_norm else nn.Identity()

    def forward(
        self, x: Hidden, memory: Float[Tensor, "batch kv_len d_model"], **options: Tensor | None
    ) -> Hidden:
        """options: may_attend, memory_may_attend and positions, the same for all layers."""
        for layer in self.layers:
            x = layer(x, memory, **options)
        return self.norm(x)
