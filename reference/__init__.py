"""The compact transformer, one file for each idea, to be read in the order of the paper."""

from headcheck.reference.attention import (
    Attended,
    Gradients,
    attention,
    attention_gradients,
    group_heads,
    log_sum_exp,
    softmax,
)

__all__ = [
    "Attended",
    "Gradients",
    "attention",
    "attention_gradients",
    "group_heads",
    "log_sum_exp",
    "softmax",
]
