"""Whether what a module of states is given has an influence on the states that it gives."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from headcheck.comparison import Comparison, LawBroken, NotApplicable, none
from headcheck.modules.fading import fades
from headcheck.modules.states import AnyStates, StatesSubject
from headcheck.modules.weights import moderate, weights_changed

ENOUGH = 4
"""From this d_model on, a norm leaves a state more freedom than its sign."""
TRIES = 4
"""So many other numbers are tried, since some may happen to be overlooked."""


def require_freedom(module: StatesSubject[AnyStates]) -> None:
    """NotApplicable where states are so narrow that little can be seen of them behind a norm."""
    if module.d_model < ENOUGH:
        raise NotApplicable(f"d_model is below {ENOUGH}: a norm leaves next to nothing of a state")


def moves_states(
    module: StatesSubject[AnyStates],
    x: AnyStates,
    other: Callable[[str], AnyStates],
    what: str,
    states: Iterable[int],
    *,
    may_fade: bool = False,
) -> Comparison:
    """Each of these states, in each sequence, is changed by one at least of several other inputs.

    other: of a purpose, the input with other numbers at `what`. Matrices are brought to a moderate size for it.
    may_fade: the states are farther and farther from it. NotApplicable: what they hear of it fades, below rounding.
    """
    require_freedom(module)
    assert module.module is not None
    states = list(states)
    with weights_changed(module.module, moderate):
        before = module(x)
        after = [module(other(f"other {number}")) for number in range(TRIES)]
        for row in range(len(x.x)):
            for state in states:
                if not any(module.moves(each[row, state], before[row, state], x) for each in after):
                    if may_fade and _fades(
                        [(each - before)[row] for each in after], states, state, module.bound(x)
                    ):
                        raise NotApplicable(
                            f"what a state hears of {what} fades with the distance, below rounding"
                        )
                    if not _most_stay(before, after, states):
                        module.require_fine(x)
                    raise LawBroken(f"state {state} of sequence {row} does not depend on {what}")
    return none(f"states that do not depend on {what}")


def _fades(moved: Sequence[Tensor], states: Sequence[int], state: int, hidden: float) -> bool:
    """Whether the states from the first of these on are moved by less and less, and this one by less than rounding."""
    sizes = torch.stack([each.abs().amax(dim=-1) for each in moved]).amax(dim=0)
    return fades(lambda distance: float(sizes[states[0] + distance]), state - states[0], hidden)


def _most_stay(before: Tensor, after: Sequence[Tensor], states: Sequence[int]) -> bool:
    """Whether all states but one at most are the same to the bit, several at least: no rounding hides as much."""
    still = [
        state for state in states if all(torch.equal(each[:, state], before[:, state]) for each in after)
    ]
    return len(still) >= max(2, len(states) - 1)
