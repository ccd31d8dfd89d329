"""What is passed for an argument that a call cannot leave out, where nothing is asked of it, and for no limit."""

from typing import Any

from torch import nn

from headcheck.attention.inputs import Inputs


def unsaid(x: Inputs, no_limit: int | None, no_rate: float | nn.Module) -> dict[str, Any]:
    """The canonical arguments as a call without them has it.

    no_limit: the subject's own word for a side of a window without limit. no_rate: that for no dropout.
    """
    return {
        "attn_mask": None,
        "dropout_p": no_rate,
        "training": False,
        "is_causal": x.is_causal,
        "scale": x.resolved_scale,
        "enable_gqa": False,
        "window": (no_limit, no_limit),
        "softcap": 0.0,
        "sinks": None,
        "alibi_slopes": None,
        "return_lse": False,
        "return_weights": False,
    }


def as_window(
    window: tuple[int | None, int | None] | None, no_limit: int | None
) -> tuple[int | None, ...] | None:
    """(left, right) with the subject's own word for a side without limit."""
    return window and tuple(no_limit if side is None else side for side in window)
