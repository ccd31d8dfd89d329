"""Code that may not come back is given so much time."""

import inspect
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LONGEST_S = 1e9
"""More seconds than anybody waits."""
AGAIN_S = 0.05
"""Seconds until it is looked again whether an import has ended."""


class OutOfTime(BaseException):
    """Not an Exception: a subject that catches those must not swallow it, nor seem to have raised it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in code that runs longer, where the platform and the thread allow it.

    It reaches everything that executes Python; what hangs inside native code is ended by the process
    around it (`headcheck.isolation`). A module that is being imported is waited for: half of one would stay
    behind, and whatever needs it later would fail.
    """
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    begun = _imports_in(inspect.currentframe())

    def ring(number: int, frame: FrameType | None) -> None:
        if _imports_in(frame) > begun:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, before)


def _imports_in(frame: FrameType | None) -> int:
    """How many imports are under way, as the stack shows."""
    found = 0
    while frame is not None:
        found += frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back
    return found
