"""Laws of a softmax: f(x, dim)."""

FAMILIES = (
    "memory",
    "dtypes",
    "scale",
    "distribution",
    "limits",
    "symmetry",
    "gradients",
    "state",
    "accuracy",
)
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
