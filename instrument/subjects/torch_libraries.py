"""Attention of libraries on torch: torchtune, litgpt, curated-transformers, fla, diffusers, timm, whisper.

Where a library has a module only, its projections are the identity, and what is left is its attention.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from headcheck.arithmetic import named
from headcheck.declarations import FOUR_AXES, Attention
from headcheck.subjects import builtin

ROUNDS = {"bfloat16": "flash", "float16": "flash"}


def _given(tensor: Any) -> Any:
    """A module in the place of a projection, which gives a tensor whatever it is handed."""
    from torch import nn

    class Given(nn.Module):
        def forward(self, states: Any) -> Any:
            return tensor

    return Given()


@builtin(
    "torchtune-attention",
    "torchtune's attention behind its MultiHeadAttention.",
    needs=("torchtune", "torchao"),
    install="pip install torchtune torchao==0.9.0",
)
def torchtune_attention() -> Attention:
    """The function that its modules call; its mask has no axis of heads: these are given as batches beside it."""
    import torch
    from torch import Tensor
    from torchtune.modules.attention_utils import _sdpa_or_flex_attention

    function = _sdpa_or_flex_attention()

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
    ) -> Any:
        if attn_mask is None:
            return function(query, key, value, None, dropout_p, is_causal)
        whole = torch.broadcast_to(attn_mask, (*query.shape[:3], key.shape[2])).flatten(0, 1)
        alone = [x.flatten(0, 1)[:, None] for x in (query, key, value)]
        return function(*alone, whole, dropout_p, is_causal).reshape(*query.shape[:3], value.shape[3])

    return Attention(
        attention,
        name="torchtune-attention",
        masks=("boolean",),
        grouped_heads=False,
        scale=False,
        nan_scores="may-vanish",
        arithmetic=ROUNDS,
    )


@builtin(
    "litgpt-attention",
    "litgpt's CausalSelfAttention.scaled_dot_product_attention.",
    needs=("litgpt",),
    install="pip install litgpt",
)
def litgpt_attention() -> Attention:
    """Causal where no mask is given, and with a softcap by a path of its own."""
    from types import SimpleNamespace

    from litgpt.model import CausalSelfAttention
    from torch import Tensor

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Any:
        if not is_causal and attn_mask is None:
            attn_mask = query.new_zeros((query.shape[2], key.shape[2]))
        if is_causal and attn_mask is not None:
            raise ValueError("a mask takes the place of the causal one")
        if scale is not None and scale <= 0:
            raise NotImplementedError("the scale is one over a root")
        scalar = None if scale is None else 1 / scale**2
        config = SimpleNamespace(
            attention_scores_scalar=scalar, head_size=query.shape[-1], attention_logit_softcapping=softcap
        )
        holder = SimpleNamespace(config=config, mscale=1.0)
        output = CausalSelfAttention.scaled_dot_product_attention(holder, query, key, value, attn_mask)
        return output.transpose(1, 2)

    return Attention(
        attention,
        name="litgpt-attention",
        masks=("additive",),
        mask_with_causal="refused",
        causal="top-left",
        rectangular=False,
        empty_rows="undefined",
        grouped_heads=False,
        softcap=True,
        may_refuse=True,
        dropout=False,
        nan_scores="may-vanish",
        arithmetic={
            "float64": replace(named("native"), softmax="float32", accumulate="float32"),  # with a softcap
            "bfloat16": "eager",
            "float16": "eager",
        },
    )


@builtin(
    "curated-transformers-attention",
    "curated_transformers' ScaledDotProductAttention.",
    needs=("curated_transformers",),
    install="pip install curated-transformers",
)
def curated_attention() -> Attention:
    """By matmul; masks by the smallest number, so that a row without keys gives the mean."""
    import torch
    from curated_transformers.layers.attention import AttentionMask, ScaledDotProductAttention
    from torch import Tensor

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Any:
        scorer = ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None).eval()
        keep = (
            query.new_ones((query.shape[0], 1, 1, key.shape[2]), dtype=torch.bool)
            if attn_mask is None
            else attn_mask
        )
        return scorer(
            query=query, key=key, value=value, attention_mask=AttentionMask(keep), use_causal_mask=is_causal
        )

    return Attention(
        attention,
        name="curated-transformers-attention",
        masks=("boolean",),
        mask_shapes=FOUR_AXES,
        mask_with_causal="and",
        causal="bottom-right",
        empty_rows="undefined",
        grouped_heads=False,
        scale=False,
        dropout=False,
    )


@builtin(
    "fla-naive",
    "flash-linear-attention's naive_parallel_attn, to which its kernels are held.",
    needs=("fla",),
    install="pip install flash-linear-attention",
)
def fla_naive() -> Attention:
    """BLHD; a window of W keys, the query's own among them, with causal only."""
    from fla.ops.attn.naive import naive_parallel_attn
    from torch import Tensor

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
        sinks: Tensor | None = None,
    ) -> Any:
        return naive_parallel_attn(query, key, value, scale, causal=is_causal, sink_bias=sinks)[0]

    return Attention(
        attention,
        name="fla-naive",
        layout="bshd",
        masks=(),
        rectangular=False,
        grouped_heads="interleaved",
        scale=True,
        sinks=True,
        dropout=False,
    )


@builtin(
    "diffusers-attn-processor",
    "diffusers' Attention with the processor by baddbmm.",
    needs=("diffusers",),
    install="pip install diffusers",
)
def diffusers_processor() -> Attention:
    """Masks are added."""
    from diffusers.models.attention_processor import AttnProcessor

    return _diffusers("diffusers-attn-processor", AttnProcessor)


@builtin(
    "diffusers-attn-processor-2",
    "diffusers' Attention with the processor by torch's function.",
    needs=("diffusers",),
    install="pip install diffusers",
)
def diffusers_processor_2() -> Attention:
    """Masks are added."""
    from diffusers.models.attention_processor import AttnProcessor2_0

    return _diffusers("diffusers-attn-processor-2", AttnProcessor2_0).but(
        nan_scores="may-vanish", arithmetic=ROUNDS, empty_rows="zeros"
    )


def _diffusers(name: str, processor: Any) -> Attention:
    import torch
    from diffusers.models.attention_processor import Attention as Block
    from torch import Tensor, nn

    @cache
    def made(heads: int, head_dim: int) -> Any:
        with torch.random.fork_rng(devices=()):
            module = Block(heads * head_dim, heads=heads, dim_head=head_dim, processor=processor())
        module.to_q = module.to_k = module.to_out[0] = nn.Identity()
        return module.eval()

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
        batch, heads, q_len, head_dim = query.shape
        module = made(heads, head_dim)
        rows = [x.transpose(1, 2).flatten(2) for x in (query, key, value)]
        module.to_v = _given(rows[2])  # One tensor is read for keys and for values.
        mask = None
        if attn_mask is not None:
            mask = attn_mask.expand(batch, heads, q_len, key.shape[2]).flatten(0, 1)
        output = module(rows[0], encoder_hidden_states=rows[1], attention_mask=mask)
        return output.unflatten(2, (heads, head_dim)).transpose(1, 2)

    return Attention(
        attention,
        name=name,
        masks=("additive",),
        causal=False,
        empty_rows="undefined",
        grouped_heads=False,
        scale=False,
        dropout=False,
        value_dim=False,
    )


@builtin(
    "timm-attention",
    "timm's Attention, its manual path.",
    needs=("timm", "torchvision"),
    install="pip install timm torchvision",
)
def timm_attention() -> Attention:
    """Packed q, k and v of one length."""
    return _timm("timm-attention", fused=False).but(
        empty_rows="nan",
        arithmetic={kind: replace(named("eager"), scaled="input") for kind in ("bfloat16", "float16")},
    )


@builtin(
    "timm-attention-fused",
    "timm's Attention, its path by torch's function.",
    needs=("timm", "torchvision"),
    install="pip install timm torchvision",
)
def timm_attention_fused() -> Attention:
    """Packed q, k and v of one length."""
    return _timm("timm-attention-fused", fused=True).but(nan_scores="may-vanish", arithmetic=ROUNDS)


def _timm(name: str, *, fused: bool) -> Attention:
    import torch
    from timm.layers.attention import Attention as Block
    from torch import Tensor, nn

    @cache
    def made(heads: int, head_dim: int) -> Any:
        with torch.random.fork_rng(devices=()):
            module = Block(heads * head_dim, num_heads=heads, qkv_bias=False)
        module.proj = nn.Identity()
        module.fused_attn = fused
        return module.eval()

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Any:
        _, heads, _, head_dim = query.shape
        module = made(heads, head_dim)
        packed = torch.cat([x.transpose(1, 2).flatten(2) for x in (query, key, value)], dim=-1)
        module.qkv = _given(packed)
        output = module(packed[..., : heads * head_dim], attn_mask=attn_mask, is_causal=is_causal)
        return output.unflatten(2, (heads, head_dim)).transpose(1, 2)

    return Attention(
        attention,
        name=name,
        masks=("boolean", "additive"),
        rectangular=False,
        grouped_heads=False,
        scale=False,
        dropout=False,
        value_dim=False,
    )


@builtin(
    "whisper-attention",
    "openai-whisper's MultiHeadAttention.qkv_attention, by matmul.",
    needs=("whisper",),
    install="pip install openai-whisper",
)
def whisper_attention() -> Attention:
    """The scale is split between query and key, and the softmax is in float32."""
    return _whisper("whisper-attention", sdpa=False).but(
        arithmetic={
            "float64": replace(named("native"), softmax="float32", accumulate="float32"),
            **{kind: replace(named("eager"), scaled="input") for kind in ("bfloat16", "float16")},
        },
    )


@builtin(
    "whisper-attention-sdpa",
    "openai-whisper's MultiHeadAttention.qkv_attention, by torch's function.",
    needs=("whisper",),
    install="pip install openai-whisper",
)
def whisper_attention_sdpa() -> Attention:
    """As it is by default."""
    return _whisper("whisper-attention-sdpa", sdpa=True).but(nan_scores="may-vanish", arithmetic=ROUNDS)


def _whisper(name: str, *, sdpa: bool) -> Attention:
    """A mask means causal, whatever stands in it (by torch's function), or is cut to be so."""
    import torch
    from torch import Tensor
    from whisper.model import MultiHeadAttention, disable_sdpa

    with torch.random.fork_rng(devices=()):
        module = MultiHeadAttention(1, 1)

    def attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Any:
        module.n_head, q_len, head_dim = query.shape[1:]
        mask = query.new_full((q_len, key.shape[2]), -torch.inf).triu(1) if is_causal else None
        rows = [x.transpose(1, 2).flatten(2) for x in (query, key, value)]
        if sdpa:
            output, _ = module.qkv_attention(*rows, mask)
        else:
            with disable_sdpa():
                output, _ = module.qkv_attention(*rows, mask)
        return output.unflatten(2, (module.n_head, head_dim)).transpose(1, 2)

    return Attention(
        attention,
        name=name,
        masks=(),
        rectangular=False,
        grouped_heads=False,
        scale=False,
        dropout=False,
        value_dim=False,
    )
