"""Laws of a decoder: states (batch, length, d_model) and a memory -> states, each blind to the future."""

FAMILIES = ("layers", "state", "residual", "paths", "causality", "memory", "padding", "batch", "gradients")
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
