"""Laws of multi-head attention: a module of (d_model, num_heads), its weights given, against the reference and itself."""

FAMILIES = (
    "construction",
    "state",
    "batch",
    "paths",
    "dropout",
    "returned",
    "masks",
    "padding",
    "autocast",
    "heads",
    "scores",
    "symmetry",
    "memory",
    "gradients",
    "accuracy",
)
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
