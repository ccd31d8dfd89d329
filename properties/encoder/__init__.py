"""Laws of an encoder: states (batch, length, d_model) -> states, each of which sees all the others, or its past."""

FAMILIES = ("layers", "state", "residual", "paths", "causality", "padding", "symmetry", "batch", "gradients")
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
