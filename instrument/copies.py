"""What a function without gradients keeps between calls may be of no use after an unusual one: a copy makes that call."""

from collections.abc import Callable, Iterable

from headcheck.comparison import Comparison, LawBroken, NotApplicable
from headcheck.forks import can_fork, fate_of

PATIENCE_S = 10.0
"""Wall seconds for a call in a copy of the process."""


def require_right_in_a_copy(compare: Callable[[], Iterable[Comparison]], device: str, where: str) -> None:
    """LawBroken: one of the comparisons, made in a copy of this process, is broken. NotApplicable: none could be asked.

    A buffer that is made in torch.inference_mode can be written to there only, one that is made under torch.func.vmap
    nowhere else: the calls of `compare` would break those that come after. where: 'in torch.inference_mode'.
    """
    if device != "cpu" or not can_fork():
        raise NotApplicable("has no gradients, and cannot be asked in a copy of the process")
    fate = fate_of(lambda: not any(each.broken for each in compare()), PATIENCE_S)
    if fate == "no" and fate_of(lambda: _does_not_apply(compare), PATIENCE_S) == "yes":
        raise NotApplicable(f"cannot be called {where}, as a copy of the process found")
    if fate in ("no", "died"):
        raise LawBroken(f"{where} the output is another than outside, or the call raises or crashes")
    if fate == "hung":
        raise NotApplicable("has no gradients, and a copy of the process that was asked hung")


def _does_not_apply(compare: Callable[[], Iterable[Comparison]]) -> bool:
    try:
        list(compare())
    except NotApplicable:
        return True
    return False
