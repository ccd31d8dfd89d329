"""An entry of the corpus as a subject."""

from headcheck.declarations import Attention
from tests.faults import Entry


def declared(entry: Entry) -> Attention:
    """The entry's function; its arithmetic is inferred unless the corpus says that it must be declared."""
    arithmetic = getattr(entry, "arithmetic", None)
    return Attention(
        entry.call,
        name=entry.id,
        dtypes=entry.dtypes,
        gradients=getattr(entry, "gradients", None),
        arithmetic={"bfloat16": arithmetic, "float16": arithmetic} if arithmetic else None,
    )
