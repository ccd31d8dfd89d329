"""Laws of two attention functions that should compute the same."""

FAMILIES = ("pairs",)
"""From the most specific to the most general."""
