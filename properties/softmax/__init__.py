"""Laws of a softmax: f(x, dim)."""

FAMILIES = ("state", "memory", "limits", "distribution", "symmetry", "gradients", "accuracy")
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
