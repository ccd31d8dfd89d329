"""Laws of an attention function: f(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)."""

FAMILIES = (
    "backends",
    "features",
    "windows",
    "ragged",
    "memory",
    "masks",
    "broadcasting",
    "lengths",
    "accuracy",
    "symmetry",
    "paths",
    "gradients",
    "sizes",
    "heads",
    "packed",
    "caches",
    "dropout",
    "state",
    "dtypes",
    "distribution",
)
"""In the order in which broken laws are shown, of those that ask for no more than each other (`headcheck.ranking`):
measured on the corpus, by how often the law that was named for a fault comes first. Laws of one family stand in the
order of their module."""
