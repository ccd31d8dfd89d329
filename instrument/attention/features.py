"""What a subject of attention may or may not do beyond query, key and value."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """One thing that a subject may or may not do: its field in the declaration and its argument."""

    field: str
    argument: str | None
    absent: str


FEATURES: Mapping[str, Feature] = {
    "attn_mask": Feature("masks", "attn_mask", "takes no attn_mask"),
    "boolean": Feature("masks", "attn_mask", "takes no boolean attn_mask"),
    "additive": Feature("masks", "attn_mask", "takes no additive attn_mask"),
    "is_causal": Feature("causal", "is_causal", "takes no is_causal"),
    "scale": Feature("scale", "scale", "takes no scale"),
    "dropout": Feature("dropout", "dropout_p", "takes no dropout_p"),
    "grouped_heads": Feature("grouped_heads", "enable_gqa", "takes no enable_gqa"),
    "window": Feature("window", "window", "takes no window"),
    "softcap": Feature("softcap", "softcap", "takes no softcap"),
    "sinks": Feature("sinks", "sinks", "takes no sinks"),
    "alibi": Feature("alibi", "alibi_slopes", "takes no alibi_slopes"),
    "key_lengths": Feature("key_lengths", "key_lengths", "takes no key_lengths"),
    "log_sum_exp": Feature("log_sum_exp", "return_lse", "takes no return_lse"),
    "weights": Feature("weights", "return_weights", "takes no return_weights"),
    "lengths": Feature("layout", None, "takes no sequences of several lengths (layout='thd')"),
    "rectangular": Feature("rectangular", None, "takes as many queries as keys only"),
    "autocast": Feature("autocast", None, "is not held to work under torch.autocast"),
}
"""A feature of the declaration is a row here and an argument in `attention.edge`; one that cases draw has a field in
`attention.case`, too, and its place in drawing, simpler and inputs (ARCHITECTURE.md)."""

RETURN_ARGUMENTS = {name: str(FEATURES[name].argument) for name in ("log_sum_exp", "weights")}
"""What may be returned beside the output -> the argument that asks for it."""
