"""Laws of sinusoidal positions: f(length, d_model)."""

FAMILIES = ("memory", "tables", "waves", "conventions", "shifts", "state", "accuracy")
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
