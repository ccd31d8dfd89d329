"""The reference of headcheck itself, in the canonical call: it is judged as anybody else's is."""

from headcheck.declarations import Attention
from headcheck.subjects import builtin


@builtin("reference", "The compact reference transformer's attention, with every feature.")
def reference() -> Attention:
    """Computed in the dtype of its inputs (half precision in float32), by autograd."""
    from headcheck.reference.canonical import canonical_attention

    return Attention(
        canonical_attention,
        name="reference",
        causal="top-left",
        mask_with_causal="and",
        scale_with_causal="any",
        masks=("boolean", "additive"),
        grouped_heads="interleaved",
        window=True,
        softcap=True,
        sinks=True,
        alibi=True,
        key_lengths=True,
        log_sum_exp=True,
        weights=True,
        gradients=True,
        dtypes=("float32", "float64", "bfloat16", "float16"),
        arithmetic={"bfloat16": "wide", "float16": "wide"},
    )
