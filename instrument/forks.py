"""Something is tried in a copy of this process, which it may end or hang."""

import ctypes
import faulthandler
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Literal, NoReturn, cast

from headcheck.calling import Clock, NeverReturned
from headcheck.comparison import Comparison, LawBroken, NotApplicable
from headcheck.time_limits import Stopwatch

Fate = Literal["yes", "no", "died", "hung"]

PATIENCE_S = 10.0
"""Seconds for a first look at what a subject does."""

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
    """Whether this process can be copied: not on Windows, and not once it has used CUDA, JAX or MLX, whose threads a
    copy lacks.
    """
    import torch

    used_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return hasattr(os, "fork") and not used_cuda and not _used_jax() and "mlx.core" not in sys.modules


def _used_jax() -> bool:
    """Whether a JAX that was imported has started its threads; where it cannot be asked, it is taken to have."""
    if "jax" not in sys.modules:
        return False
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", lambda: True)
    return bool(started())


def fate_of(question: Callable[[], bool], patience_s: float) -> Fate:
    """What becomes of a question asked in a copy of this process. An exception is a no."""
    parent = os.getpid()
    hear, tell = os.pipe()
    with warnings.catch_warnings():
        # JAX warns as soon as it is imported, long before it has the threads that a copy lacks.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
        child = os.fork()
    if child == 0:
        end_with(parent)
        _tell(question, tell)
    os.close(tell)
    ended, watch = 0, Stopwatch(child)
    try:
        while not ended and watch.seconds < patience_s:
            ended, _ = os.waitpid(child, os.WNOHANG)
            time.sleep(0 if ended else 0.002)
        return _heard(hear) if ended else "hung"
    finally:
        os.close(hear)
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _tell(question: Callable[[], bool], told: int) -> NoReturn:
    """The inside of a copy: the fate is written, and then the copy ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    faulthandler.disable()  # pytest's writes to a descriptor of its own: a crash here is an answer, no alarm.
    before, fate = _calls_that_hung(), "no"
    try:
        fate = "yes" if question() else "no"
    except NeverReturned:
        fate = "hung"
    except BaseException:  # noqa: BLE001, S110 - whatever it is, the answer is no
        pass
    os.write(told, f"{fate} {_calls_that_hung() - before}".encode())
    os._exit(0)


def _heard(told: int) -> Fate:
    """What a copy that has ended wrote. Nothing, if the subject ended it: what it started may still hold the pipe."""
    os.set_blocking(told, False)
    try:
        fate, late = os.read(told, 99).decode().split()
    except (BlockingIOError, ValueError):
        return "died"
    if fate != "hung" and int(late) and Clock.patience:
        Clock.patience.hung += 1  # The next ones are waited for less.
    return cast("Fate", fate)


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


def require_right_in_a_copy(compare: Callable[[], Iterable[Comparison]], device: str, where: str) -> None:
    """LawBroken: one of the comparisons, made in a copy of this process, is broken. NotApplicable: none could be asked.

    What a function without gradients keeps between calls may be of no use after an unusual one: a buffer that is made
    in torch.inference_mode can be written to there only, one that is made under torch.func.vmap nowhere else. So a copy
    makes that call. It is waited for as long as the example may take. where: 'in torch.inference_mode'.
    """
    if device != "cpu" or not can_fork():
        raise NotApplicable("has no gradients, and cannot be asked in a copy of the process")
    fate = fate_of(lambda: not any(each.broken for each in compare()), math.inf)
    if fate == "no" and fate_of(lambda: _does_not_apply(compare), math.inf) == "yes":
        raise NotApplicable(f"cannot be called {where}, as a copy of the process found")
    if fate != "yes":
        raise LawBroken(f"{where} the output is another than outside, or the call raises, crashes or hangs")


def _does_not_apply(compare: Callable[[], Iterable[Comparison]]) -> bool:
    try:
        list(compare())
    except NotApplicable:
        return True
    return False
