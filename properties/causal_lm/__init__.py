"""Laws of a causal language model: tokens (batch, length) -> logits (batch, length, vocab)."""

FAMILIES = (
    "tying",
    "targets",
    "start",
    "layers",
    "state",
    "paths",
    "windows",
    "variants",
    "causality",
    "padding",
    "cache",
    "batch",
    "gradients",
)
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
