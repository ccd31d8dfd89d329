"""Code that may not come back is given so much time."""

import inspect
import os
import signal
import threading
import time
from types import FrameType
from typing import Self

LONGEST_S = 1e9
"""More seconds than anybody waits."""
NOT_SECONDS = f"is no number of seconds between 0 and {LONGEST_S:.0e}"
AGAIN_S = 0.05
"""Seconds until it is looked again whether an import has ended."""
SWALLOWED_S = 1.0
"""Seconds until it is rung again in code that went on."""


class OutOfTime(BaseException):
    """Not an Exception: a subject that catches those must not swallow it, nor seem to have raised it."""


class Stopwatch:
    """Seconds of a process from now on, less those in which it stood ready and no core took it.

    On a machine with too much to do a right call takes long by the clock. Linux tells of its waiting; elsewhere all
    seconds count.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._began, self._waited = time.monotonic(), _waited_s(pid)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began - max(0.0, _waited_s(self._pid) - self._waited)


def _waited_s(pid: int | None) -> float:
    """How long the first thread of a process, by default of this one, has waited for a core; 0 where nobody says."""
    try:
        # Before each call: as fast as can be.
        file = os.open(f"/proc/{pid or 'self'}/schedstat", os.O_RDONLY)
        try:
            return int(os.read(file, 99).split()[1]) / 1e9
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return 0.0


class time_limit:  # noqa: N801 - used as a function, in a with statement
    """Raise OutOfTime in code that runs longer, where the platform and the thread allow it.

    It reaches everything that executes Python; what hangs inside native code is ended by the process
    around it (`headcheck.isolation`). A module that is being imported is waited for: half of one would stay
    behind, and whatever needs it later would fail. An alarm of somebody else's, such as that of a test runner,
    comes when it is due, or when the code in between has ended.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> Self:
        self.armed = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
        if self.armed:
            self.imports = _imports_in(inspect.currentframe())
            self.began, self.watch = time.monotonic(), Stopwatch()
            self.before = signal.signal(signal.SIGALRM, self._ring)
            self.around = signal.setitimer(signal.ITIMER_REAL, self.seconds, AGAIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self.armed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self.before)
            left, then = self.around
            due = left - (time.monotonic() - self.began)
            if left and due > 0:
                signal.setitimer(signal.ITIMER_REAL, due, then)
            elif left:
                signal.setitimer(signal.ITIMER_REAL, then, then)
                signal.raise_signal(signal.SIGALRM)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        over = frame is not None and frame.f_code is time_limit.__exit__.__code__
        if not over and self.watch.seconds >= self.seconds and _imports_in(frame) <= self.imports:
            signal.setitimer(signal.ITIMER_REAL, SWALLOWED_S, SWALLOWED_S)
            raise OutOfTime


def _imports_in(frame: FrameType | None) -> int:
    """How many imports are under way, as the stack shows."""
    found = 0
    while frame is not None:
        found += frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back
    return found
