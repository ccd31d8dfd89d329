"""Laws of a layer norm: f(x, weight, bias, eps)."""

FAMILIES = (
    "memory",
    "dtypes",
    "symmetry",
    "affine",
    "epsilon",
    "statistics",
    "state",
    "gradients",
    "accuracy",
)
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
