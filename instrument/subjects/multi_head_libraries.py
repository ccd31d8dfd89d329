"""Multi-head attention of transformers and other libraries of layers, made from its width and its heads."""

from typing import Any

from headcheck.modules.multi_head.conventions import MultiHeadAttention
from headcheck.subjects import builtin


def _bart(name: str, implementation: str) -> MultiHeadAttention:
    """The mask is additive, (batch, 1, q_len, kv_len), as the library's documentation of its layers says."""
    from torch import nn
    from transformers import BartConfig
    from transformers.models.bart.modeling_bart import BartAttention

    def make(d_model: int, num_heads: int) -> nn.Module:
        config = BartConfig(d_model=d_model, attn_implementation=implementation)
        module: nn.Module = BartAttention(d_model, num_heads, config=config)
        return module

    return MultiHeadAttention(
        make,
        name=name,
        masks=("additive",),
        mask_shapes=("b1qk", "bhqk"),
        empty_rows="undefined",
        weights="per-head" if implementation == "eager" else False,
    )


@builtin("hf-bart-mha", "transformers' BartAttention, eager.", needs=("transformers",))
def hf_bart_mha() -> MultiHeadAttention:
    """Weights are returned for each head."""
    return _bart("hf-bart-mha", "eager")


@builtin("hf-bart-mha-sdpa", "transformers' BartAttention, by torch's function.", needs=("transformers",))
def hf_bart_mha_sdpa() -> MultiHeadAttention:
    """Without weights."""
    return _bart("hf-bart-mha-sdpa", "sdpa")


def _llama(name: str, implementation: str) -> MultiHeadAttention:
    """Two query heads to a key head where their number is even; positions that turn nothing."""
    from torch import Tensor, nn
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    class Unturned(nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.attention = LlamaAttention(config, layer_idx=0)
            self.attention.is_causal = False  # Otherwise causal where no mask is given.

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Any:
            shape = *x.shape[:2], self.attention.head_dim
            turn = x.new_ones(shape), x.new_zeros(shape)
            return self.attention(x, turn, attention_mask)

    def make(d_model: int, num_heads: int) -> nn.Module:
        if d_model % num_heads:
            raise ValueError("the configuration refuses it, by an error of another class")
        kv_heads = num_heads // 2 if num_heads % 2 == 0 else num_heads
        return Unturned(
            LlamaConfig(
                hidden_size=d_model,
                num_attention_heads=num_heads,
                num_key_value_heads=kv_heads,
                head_dim=d_model // num_heads,
                attn_implementation=implementation,
            )
        )

    return MultiHeadAttention(
        make,
        name=name,
        masks=("additive",),
        mask_shapes=("b1qk", "bhqk"),
        empty_rows="undefined",
        weights="per-head" if implementation == "eager" else False,
    )


@builtin("hf-llama-mha", "transformers' LlamaAttention, eager, grouped heads.", needs=("transformers",))
def hf_llama_mha() -> MultiHeadAttention:
    """Its softmax is in float32."""
    return _llama("hf-llama-mha", "eager")


@builtin(
    "hf-llama-mha-sdpa",
    "transformers' LlamaAttention, by torch's function, grouped.",
    needs=("transformers",),
)
def hf_llama_mha_sdpa() -> MultiHeadAttention:
    """Grouped by a repetition of the keys, or by torch."""
    return _llama("hf-llama-mha-sdpa", "sdpa")


def _x_transformers(name: str, **options: Any) -> MultiHeadAttention:
    """True keeps in context_mask and attn_mask, as its README says."""
    from torch import Tensor, nn
    from x_transformers.x_transformers import Attention

    class OneMask(nn.Module):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__()
            if d_model % num_heads:
                raise ValueError("the library is told the width of a head")
            self.attention = Attention(
                d_model, dim_head=d_model // num_heads, heads=num_heads, project_out=True, **options
            )

        def forward(
            self,
            x: Tensor,
            context: Tensor | None = None,
            key_mask: Tensor | None = None,
            attn_mask: Tensor | None = None,
        ) -> Any:
            if context is None and key_mask is not None:
                context = x  # With mask in the place of context_mask, answers at padding are zeros.
            return self.attention(x, context=context, context_mask=key_mask, attn_mask=attn_mask)

    return MultiHeadAttention(
        OneMask,
        name=name,
        masks=("boolean",),
        mask_shapes=("qk", "b1qk", "bhqk"),
        true_means="keep",
        weights=False,
        # In float64 the smallest number, by which it masks, is minus infinity to its softmax in float32.
        dtypes=("float32",),
    )


@builtin(
    "x-transformers-mha",
    "x_transformers' Attention, by einsum.",
    needs=("x_transformers",),
    install="pip install x-transformers",
)
def x_transformers_mha() -> MultiHeadAttention:
    """Without biases."""
    return _x_transformers("x-transformers-mha")


@builtin(
    "x-transformers-mha-flash",
    "x_transformers' Attention with flash=True.",
    needs=("x_transformers",),
    install="pip install x-transformers",
)
def x_transformers_mha_flash() -> MultiHeadAttention:
    """Without biases."""
    return _x_transformers("x-transformers-mha-flash", flash=True)


@builtin(
    "torchtune-mha",
    "torchtune's MultiHeadAttention.",
    needs=("torchtune", "torchao"),
    install="pip install torchtune torchao==0.9.0",
)
def torchtune_mha() -> MultiHeadAttention:
    """True attends, (batch, q_len, kv_len), as its documentation says; two query heads to a key head where even."""
    from torch import Tensor, nn
    from torchtune.modules import MultiHeadAttention as Module

    class WithKeys(nn.Module):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__()
            kv_heads = num_heads // 2 if num_heads % 2 == 0 else num_heads
            head_dim = d_model // num_heads
            self.attention = Module(
                embed_dim=d_model,
                num_heads=num_heads,
                num_kv_heads=kv_heads,
                head_dim=head_dim,
                q_proj=nn.Linear(d_model, d_model),
                k_proj=nn.Linear(d_model, kv_heads * head_dim),
                v_proj=nn.Linear(d_model, kv_heads * head_dim),
                output_proj=nn.Linear(d_model, d_model),
                is_causal=False,
            )

        def forward(self, x: Tensor, key: Tensor | None = None, mask: Tensor | None = None) -> Any:
            return self.attention(x, x if key is None else key, mask=mask)

    return MultiHeadAttention(
        WithKeys, name="torchtune-mha", masks=("boolean",), mask_shapes=("bqk",), weights=False
    )


@builtin(
    "litgpt-mha",
    "litgpt's CausalSelfAttention without rotary positions.",
    needs=("litgpt",),
    install="pip install litgpt",
)
def litgpt_mha() -> MultiHeadAttention:
    """Always causal; q, k and v are one projection."""
    from litgpt.config import Config
    from litgpt.model import CausalSelfAttention
    from torch import Tensor, nn

    class Unturned(nn.Module):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__()
            config = Config(n_layer=1, n_embd=d_model, n_head=num_heads, rotary_percentage=0.0, bias=True)
            self.attention = CausalSelfAttention(config, 0)

        def forward(self, x: Tensor) -> Any:
            empty = x.new_zeros(1, x.shape[1], 0)
            return self.attention(x, empty, empty)

    return MultiHeadAttention(Unturned, name="litgpt-mha", causal=True, weights=False)


@builtin(
    "curated-transformers-mha",
    "curated_transformers' SelfAttention.",
    needs=("curated_transformers",),
    install="pip install curated-transformers",
)
def curated_transformers_mha() -> MultiHeadAttention:
    """True keeps, (batch, 1, 1, kv_len) for padding, as its AttentionMask says."""
    from curated_transformers.layers.attention import (
        AttentionHeads,
        AttentionMask,
        QkvMode,
        QkvSplitGroupedByHead,
        ScaledDotProductAttention,
        SelfAttention,
    )
    from torch import Tensor, nn

    class Masked(nn.Module):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__()
            self.attention = SelfAttention(
                attention_heads=AttentionHeads.uniform(num_heads, QkvSplitGroupedByHead()),
                attention_scorer=ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None),
                hidden_width=d_model,
                qkv_mode=QkvMode.SEPARATE,
                use_bias=True,
            )

        def forward(self, x: Tensor, key_mask: Tensor | None = None, is_causal: bool = False) -> Any:
            kept = x.new_ones(x.shape[:2]).bool() if key_mask is None else key_mask
            return self.attention(x, AttentionMask(kept), use_causal_mask=is_causal)[0]

    return MultiHeadAttention(
        Masked, name="curated-transformers-mha", masks=("boolean",), empty_rows="undefined", weights=False
    )


@builtin(
    "diffusers-mha",
    "diffusers' Attention, by torch's function.",
    needs=("diffusers",),
    install="pip install diffusers",
)
def diffusers_mha() -> MultiHeadAttention:
    """Its mask is additive, (batch x heads, q_len, kv_len); a mask of the keys is repeated for the heads."""
    from diffusers.models.attention_processor import Attention
    from torch import Tensor, nn

    class Named(nn.Module):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__()
            if d_model % num_heads:
                raise ValueError("the library is told the width of a head")
            self.attention = Attention(d_model, heads=num_heads, dim_head=d_model // num_heads, bias=True)

        def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Any:
            return self.attention(x, encoder_hidden_states=context, attention_mask=mask)

    def load(module: Any, weights: Any) -> None:
        places = {"q": "to_q", "k": "to_k", "v": "to_v"}
        for letter in "qkvo":
            layer = module.attention.to_out[0] if letter == "o" else getattr(module.attention, places[letter])
            layer.weight.copy_(weights[f"w_{letter}"])
            layer.bias.copy_(weights[f"b_{letter}"])

    return MultiHeadAttention(
        Named,
        name="diffusers-mha",
        load=load,
        masks=("additive",),
        mask_shapes=("(bh)qk",),
        empty_rows="undefined",
        weights=False,
    )
