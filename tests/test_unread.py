"""Which part of a projection nobody reads: side by side or within each head, but no few rows that happen to be idle."""

import pytest
import torch

from headcheck.modules.unread import idle_part


@pytest.mark.parametrize(
    ("rows", "idle", "found"),
    [
        (24, range(16, 24), range(16, 24)),  # The last of query, key and value.
        (24, range(8), range(8)),
        (
            24,
            [*range(8, 12), *range(20, 24)],
            [*range(8, 12), *range(20, 24)],
        ),  # Of each of two heads the last third.
        (24, range(2, 24, 3), range(2, 24, 3)),  # Of each dim the last of three.
        (24, [], None),
        (24, [3], None),
        (24, [1, 2, 7], None),
        (24, range(4), range(4)),
        (24, range(3), None),  # Fewer than the input is wide: a head that is left out.
        (8, range(4), range(4)),
    ],
)
def test_a_part_is_found_by_its_idle_rows(
    rows: int, idle: range | list[int], found: range | list[int] | None
) -> None:
    """The largest part whose rows are all idle."""
    which = torch.zeros(rows, dtype=torch.bool)
    which[list(idle)] = True
    part = idle_part(which, width=4)
    assert (None if part is None else part.nonzero().flatten().tolist()) == (found and list(found))
