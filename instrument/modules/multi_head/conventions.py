"""What a module of multi-head attention may have to declare."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from headcheck.declarations import Declaration, EmptyRows
from headcheck.modules.masks import LENGTHS, OF_SOURCE

Weights = Mapping[str, Tensor]
"""w_q, w_k, w_v, w_o of shape (out, in), as in nn.Linear, and b_q, b_k, b_v, b_o where there are biases."""

MASK_SHAPES = ("qk", "b1qk", "bhqk", "bqk", "(bh)qk", "b11k", "bk", "b1k")
"""The axes of a mask: batch, heads, q_len, kv_len; (bh) is batch x heads in one axis, 1 an axis of length 1."""


@dataclass(frozen=True)
class MultiHeadAttention(Declaration):
    """A module of multi-head attention with its conventions.

    function: f(d_model, num_heads) that makes the module, a class for one, or an nn.Module. The module is
    called with query (batch, q_len, d_model), and with key, value (batch, kv_len, d_model) where it takes them.
    """

    d_model: int | None = None
    num_heads: int | None = None
    """The sizes, where they are fixed; None: the module's own, or any for what makes one."""
    kv_heads: int | None = None
    """How many heads of key and value there are, interleaved; None: as the shape of w_k says, or num_heads."""
    load: Callable[[nn.Module, Weights], object] | None = None
    """load(module, weights) puts the weights in their places; None: they are found by their names."""
    bias: bool = True
    """Whether `load` has biases to put in."""
    fused: Literal["by-part", "by-head"] | None = None
    """In a weight that holds q, k and v: all of q first, or q, k, v of each head; None: found out."""
    bare: Literal["in-out", "out-in"] | None = None
    """The axes of a weight that is a bare parameter: x @ w, or x @ w.T; None: found out."""
    batch_first: bool | None = None
    """Whether the batch is the first axis, or the second; None: as the module's own batch_first says, or True."""
    max_length: int | None = None
    """The most tokens that a sequence may have; None: any, but for what plain calls refuse in so many words."""
    causal: bool | Literal["unless-masked"] = False
    """Whether every query sees itself and what is before it only, without being told; 'unless-masked': so it is in a
    call without attn_mask, which otherwise says everything, as `is_causal = attention_mask is None` has it."""
    masks: tuple[str, ...] | None = None
    """The kinds of attn_mask: 'boolean', 'additive'; () where none is ever given; None: those that work on a plain
    call."""
    key_masks: tuple[str, ...] | None = None
    """The kinds of key_mask; None: as `masks` where that names 'boolean', and otherwise those that work on a plain
    call, 'additive' if a finite number is added too: a mask that knows -inf alone is one of booleans. An argument called
    as `lengths` below, or declared to be, takes how many keys of each sequence are real, if a plain call shows it."""
    mask_shapes: tuple[str, ...] | None = None
    """In which shapes attn_mask may come, as of attention; '(bh)qk' has one axis for batch and heads, in this order.
    None: those that work on a plain call."""
    true_means: Literal["keep", "block"] | None = None
    """What True says in attn_mask; None: keep, or what the module shows where the mask has torch's name."""
    key_true_means: Literal["keep", "block"] | None = None
    """What True says in key_mask; None: block where the mask has torch's name, key_padding_mask."""
    causal_hint: bool | None = None
    """Whether is_causal comes beside a mask that says so; None: where there is torch's key_padding_mask."""
    empty_rows: EmptyRows | None = None
    """What attention is for a query that may attend to nothing: zeros, the mean of all values, NaN; 'undefined'
    claims nothing. None: zeros, and if not, other laws avoid such rows."""
    weights: Literal["averaged", "per-head", False] | None = None
    """The weights that come second in what the module returns; None: as a plain call shows."""
    dropped_weights: bool | None = None
    """Whether the weights that are returned in training are those after dropout; None claims nothing of them."""

    role = "multi_head_attention"
    ARGUMENTS: ClassVar = {
        "query": ("query", "queries", "q", "Q", "x", "hidden_states", "x_query", "x_q", "inputs"),
        "key": (
            *("key", "keys", "k", "K", "x_key", "x_k", "context", "memory", "kv", "x_kv"),
            *("key_value_states", "encoder_hidden_states", "encoder_output", "enc_output"),
        ),
        "value": ("value", "values", "v", "V", "x_value", "x_v"),
        "attn_mask": ("attn_mask", "mask", "attention_mask", "may_attend", "src_mask"),
        "key_mask": ("key_padding_mask", "key_mask", "padding_mask", "kv_mask", "is_real"),
        "cross_mask": (
            *("encoder_attention_mask", "cross_attention_mask", "cross_attn_mask", "context_mask"),
            *("memory_mask", "enc_mask"),
        ),
        "lengths": (*LENGTHS, *OF_SOURCE),
        "is_causal": ("is_causal", "causal"),
        "need_weights": (
            *("need_weights", "return_weights", "return_attention", "output_attentions"),
            *("return_attn", "return_attention_weights", "need_attn"),
        ),
        "average": ("average_attn_weights",),
    }
    EACH: ClassVar = {
        "masks": ("boolean", "additive"),
        "key_masks": ("boolean", "additive"),
        "mask_shapes": MASK_SHAPES,
    }
