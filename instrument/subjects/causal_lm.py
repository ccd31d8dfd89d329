"""Causal language models."""

from functools import partial

from headcheck.modules.causal_lm import CausalLM
from headcheck.subjects import builtin


@builtin(
    "reference-causal-lm", "headcheck's own decoder-only model: pre-norm, rotary, grouped heads, SwiGLU."
)
def reference_causal_lm() -> CausalLM:
    """With a key-value cache and padding on either side."""
    from headcheck import reference

    def make() -> reference.CausalLM:
        config = reference.LayerConfig(
            d_model=16,
            num_heads=4,
            d_ff=32,
            norm_order="pre",
            activation="swiglu",
            norm="rms",
            bias=False,
            kv_heads=2,
            rotate=partial(reference.rotary, pairing="half"),
        )
        embedding = reference.Embedding(17, 16, scaled=False, positions="none")
        return reference.CausalLM(embedding, reference.Encoder(config, 2, final_norm=True), tied=True)

    return CausalLM(make, name="reference-causal-lm")
