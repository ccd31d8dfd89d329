"""Laws of rotary positions: f(x, positions)."""

FAMILIES = (
    "memory",
    "dtypes",
    "positions",
    "frequencies",
    "rotation",
    "state",
    "conventions",
    "gradients",
    "accuracy",
)
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
