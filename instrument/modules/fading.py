"""Whether an influence fades with the distance, as that of a token does in a recurrence that forgets."""

from collections.abc import Callable


def fades(size_at: Callable[[int], float], distance: int, hidden: float) -> bool:
    """Whether an influence that is not seen at a distance is one that went on to fade until rounding hides it.

    size_at: of a smaller distance, by how much the output moves; 0 where no bit does. It goes on at the rate of the last
    two distances, powers of two, at which it moves at all. What is cut off, by a mask, has not faded before. hidden: what
    rounding hides.
    """
    sizes = {each: size_at(each) for each in (2**n for n in range(distance.bit_length())) if each < distance}
    seen = [(each, size) for each, size in sizes.items() if size > 0]
    if len(seen) < 2:
        return False
    (near, larger), (far, size) = seen[-2:]
    rate: float = (size / larger) ** (1 / (far - near))
    return bool(size * rate ** (distance - far) <= hidden)
