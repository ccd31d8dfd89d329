"""The compact transformer, one file for each idea, to be read in the order of the paper."""

from headcheck.reference.attention import (
    Attended,
    Gradients,
    attention,
    attention_gradients,
    group_heads,
    log_sum_exp,
    softmax,
)
from headcheck.reference.blocks import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LayerConfig,
    Residual,
)
from headcheck.reference.embedding import Embedding, output_layer
from headcheck.reference.feed_forward import FeedForward, gelu, relu, swish
from headcheck.reference.generation import generate, generate_target, next_token, token_probabilities
from headcheck.reference.models import Cache, CausalLM, Classifier, Seq2Seq
from headcheck.reference.multi_head import (
    KeyValues,
    MultiHeadAttention,
    Rotation,
    ScaledDotProductAttention,
    attention_weights,
    merge_heads,
    split_heads,
)
from headcheck.reference.norms import LayerNorm, RMSNorm, layer_norm, rms_norm
from headcheck.reference.positions import (
    LearnedPositions,
    alibi_bias,
    alibi_slopes,
    rotary,
    rotary_angles,
    sinusoidal,
    sinusoidal_at,
    token_positions,
)
from headcheck.reference.self_attention import SingleHeadAttention, attention_without_weights
from headcheck.reference.vision import PatchEmbedding, VisionTransformer, unfold_patches

__all__ = [
    "Attended",
    "Cache",
    "CausalLM",
    "Classifier",
    "Decoder",
    "DecoderLayer",
    "Embedding",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "Gradients",
    "KeyValues",
    "LayerConfig",
    "LayerNorm",
    "LearnedPositions",
    "MultiHeadAttention",
    "PatchEmbedding",
    "RMSNorm",
    "Residual",
    "Rotation",
    "ScaledDotProductAttention",
    "Seq2Seq",
    "SingleHeadAttention",
    "VisionTransformer",
    "alibi_bias",
    "alibi_slopes",
    "attention",
    "attention_gradients",
    "attention_weights",
    "attention_without_weights",
    "gelu",
    "generate",
    "generate_target",
    "group_heads",
    "layer_norm",
    "log_sum_exp",
    "merge_heads",
    "next_token",
    "output_layer",
    "relu",
    "rms_norm",
    "rotary",
    "rotary_angles",
    "sinusoidal",
    "sinusoidal_at",
    "softmax",
    "split_heads",
    "swish",
    "token_positions",
    "token_probabilities",
    "unfold_patches",
]
