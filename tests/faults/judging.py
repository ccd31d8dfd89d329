"""An entry of the corpus as a subject."""

from headcheck.declarations import Attention
from tests.faults import Entry


def declared(entry: Entry) -> Attention:
    """What the entry says of itself."""
    return entry.declaration()
