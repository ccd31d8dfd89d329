"""Laws of an attention function: f(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)."""

FAMILIES = (
    "backends",
    "state",
    "memory",
    "masks",
    "heads",
    "windows",
    "caches",
    "packed",
    "ragged",
    "features",
    "dropout",
    "distribution",
    "symmetry",
    "gradients",
    "dtypes",
    "accuracy",
)
"""From the most specific to the most general: of several broken laws, the first says most about the fault."""
