"""Language models and what they keep: a factor in some format, a cache in slabs that its branches share."""

from typing import Any, NamedTuple

from torch import Tensor, nn

from tests import dropped
from tests.kept import COARSE, OF_AUTOCAST, OF_FLOAT32, with_kept_third
from tests.roles import right, wrong
from tests.roles.causal_lm import Small

ROOM = 8
"""So many more tokens than it begins with fit into a slab."""


@right("A factor that is kept, and made anew where the format is another.")
def factor_of_each_format() -> nn.Module:
    return with_kept_third(Small(), "head", anew=True)


@wrong(COARSE, breaks=(OF_AUTOCAST, OF_FLOAT32))
def factor_of_autocast_kept() -> nn.Module:
    return with_kept_third(Small(), "head")


class Slab:
    """Numbers (batch, ..., capacity, ...) of which the first `filled` along a dim are written."""

    def __init__(self, numbers: Tensor, filled: int) -> None:
        self.numbers, self.filled = numbers, filled


class Entry(NamedTuple):
    """The first `used` places of a slab, which others may share."""

    slab: Slab
    used: int


class Branch:
    """What `Small` keeps of one way on: its entries alone are its own."""

    copies = True
    """Whether an entry that is not the last of its slab is copied before it grows."""

    def __init__(self, entries: dict[Any, Entry]) -> None:
        self.kept = entries

    def extend(self, name: Any, new: Tensor, dim: int) -> Tensor:
        slab, used = self.kept.get(name) or Entry(Slab(new, 0), 0)
        total = used + new.shape[dim]
        fits = used > 0 and total <= slab.numbers.shape[dim]
        if not fits or (self.copies and slab.filled != used):
            shape = [*new.shape]
            shape[dim] = total + ROOM
            larger = Slab(new.new_zeros(shape), used)
            if used:
                larger.numbers.narrow(dim, 0, used).copy_(slab.numbers.narrow(dim, 0, used))
            slab = larger
        slab.numbers.narrow(dim, used, new.shape[dim]).copy_(new)
        slab.filled = total
        self.kept[name] = Entry(slab, total)
        return slab.numbers.narrow(dim, 0, total)


class OverwrittenBranch(Branch):
    copies = False


def _branching(kind: type[Branch]) -> Any:
    def step(module: nn.Module, tokens: Tensor, cache: Branch | None) -> tuple[Tensor, Branch]:
        grown = kind({} if cache is None else dict(cache.kept))
        return module(tokens, cache=grown), grown

    return step


@right(
    "A cache in slabs, which its branches share as far as they go together.",
    step=_branching(Branch),
    forked_cache=True,
)
def branches_share_a_slab() -> nn.Module:
    return Small()


@wrong(
    "Of a cache in slabs an entry that is not the last grows in place: one way on writes over another's keys.",
    breaks="cache/a-cache-may-be-continued-in-two-ways",
    step=_branching(OverwrittenBranch),
    forked_cache=True,
)
def branches_overwrite_each_other() -> nn.Module:
    return Small()


@wrong(dropped.FAULT, breaks="causality/later-tokens-do-not-matter-in-training", real=dropped.REAL)
def scores_dropped_once_masked() -> nn.Module:
    model = Small(attend=dropped.attend)
    model.drop = dropped.RATE
    return model
