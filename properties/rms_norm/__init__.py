"""Laws of an RMS norm: f(x, weight, eps)."""

FAMILIES = (
    "memory",
    "dtypes",
    "epsilon",
    "statistics",
    "affine",
    "symmetry",
    "state",
    "gradients",
    "accuracy",
)
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
