"""Whether what stands at a place counts later, or fades with the distance, as tokens do in a recurrence that forgets."""

from collections.abc import Callable

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.modules.subject import AnyInputs, ModuleSubject


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


def require_heard(
    model: ModuleSubject[AnyInputs],
    x: AnyInputs,
    other: Callable[[int], AnyInputs],
    place: int,
    last: int,
    what: str,
) -> None:
    """LawBroken: what stands at a place does not count for the logits at the last one, in some row.

    other: the input with something else at a place. NotApplicable: it counts for less than rounding, as a recurrence
    forgets.
    """

    def counts() -> bool:
        differs = model.differing(model(other(place)), model(x), x)[:, -1]
        return bool(differs.any(dim=1).all())

    if model.shows(counts, x):
        return
    still = model(x)[:, -1]  # By the weights as they are.

    def moved(distance: int) -> float:
        there = model(other(last - distance))[:, -1]
        return float((there - still).abs().amax(dim=1).min())

    if fades(moved, last - place, model.bound(x)):
        raise NotApplicable(f"what an earlier {what} counts for fades with the distance, below rounding")
    raise LawBroken(
        f"the logits of position {last} do not depend on the {what} at {place} "
        "(where that is meant, declare full_context=False)"
    )
