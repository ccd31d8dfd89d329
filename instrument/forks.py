"""Something is tried in a copy of this process, which it may end or hang."""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Literal

from headcheck.calling import Clock, NeverReturned
from headcheck.time_limits import Stopwatch

Fate = Literal["yes", "no", "died", "hung"]

PATIENCE_S = 10.0
"""Seconds for a first look at what a subject does."""

_ANSWERS: dict[int, Fate] = {86: "yes", 87: "no", 88: "yes", 89: "no", 90: "hung"}
"""Exit codes of a copy that came back; unlikely ones for a subject to choose."""
_HUNG = (88, 89)
"""Those of a copy in which a call was given up for lost."""
_PR_SET_PDEATHSIG = 1
"""Of <sys/prctl.h>."""
_LOOK_AGAIN_S = 1.0
"""Where the system does not tell of a parent's end, it is looked for so often."""


def end_with(parent: int) -> None:
    """End this process when that parent ends: a subject that hangs must not compute on for nobody.

    Linux kills it, native code or not, when the thread that started it ends; here that thread waits for it.
    Elsewhere a thread looks, which code that keeps the interpreter lock can hold off.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)  # It ended before it could be told.


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_AGAIN_S)
    os._exit(1)


def can_fork() -> bool:
    """Whether this process can be copied: not on Windows, and not once it has used CUDA, or JAX, whose threads a copy
    lacks.
    """
    import torch

    used_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return hasattr(os, "fork") and not used_cuda and not _used_jax()


def _used_jax() -> bool:
    """Whether a JAX that was imported has started its threads; where it cannot be asked, it is taken to have."""
    if "jax" not in sys.modules:
        return False
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", lambda: True)
    return bool(started())


def fate_of(question: Callable[[], bool], patience_s: float) -> Fate:
    """What becomes of a question asked in a copy of this process. An exception is a no."""
    parent = os.getpid()
    with warnings.catch_warnings():
        # JAX warns as soon as it is imported, long before it has the threads that a copy lacks.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
        child = os.fork()
    if child == 0:
        end_with(parent)
        answer = False
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        faulthandler.disable()  # pytest's writes to a descriptor of its own: a crash here is an answer, no alarm.
        hung = _calls_that_hung()
        try:
            answer = question()
        except NeverReturned:
            os._exit(90)
        except BaseException:  # noqa: BLE001, S110 - whatever it is, the answer is no
            pass
        os._exit((86 if answer else 87) + 2 * (_calls_that_hung() > hung))
    watch = Stopwatch(child)
    while watch.seconds < patience_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if code in _HUNG and Clock.patience:
                Clock.patience.hung += 1  # The next ones are waited for less.
            return _ANSWERS.get(code, "died")
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def _calls_that_hung() -> int:
    return Clock.patience.hung if Clock.patience else 0


def asked_apart(question: Callable[[], bool], device: str) -> bool:
    """The answer of a copy of this process, which a subject may end or hang: then a law will meet that too."""
    return fate_apart(question, device) == "yes"


def fate_apart(question: Callable[[], bool], device: str) -> Fate:
    """What becomes of such a question; where no copy can be made, it is asked here."""
    if device != "cpu" or not can_fork():
        return "yes" if question() else "no"
    return fate_of(question, PATIENCE_S)
