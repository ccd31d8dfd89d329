"""Positions as the indices of rows of a table."""

from typing import Any


def whole_rows(positions: Any, batch: int) -> Any:
    """(batch, length) of positions that a table has; an index below zero would count from its end."""
    if positions.is_floating_point() or bool((positions < 0).any()):
        raise NotImplementedError("a table has rows 0, 1, 2, ...")
    one_each = positions.ndim == 2 and positions.shape[0] == batch
    return positions if one_each else positions.expand(batch, -1).contiguous()
