"""Laws of an encoder-decoder: source and target tokens -> logits (batch, target_len, vocab)."""

FAMILIES = (
    "start",
    "layers",
    "state",
    "paths",
    "halves",
    "source",
    "target",
    "padding",
    "batch",
    "gradients",
    "variants",
)
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
