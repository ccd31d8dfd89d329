"""Laws of a module that reads images: (batch, channels, height, width) -> logits, or states of the patches."""

FAMILIES = ("layers", "state", "paths", "patches", "image", "batch", "gradients")
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
