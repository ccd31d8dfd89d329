"""Something is tried in a copy of this process, which it may end or hang."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

Fate = Literal["yes", "no", "died", "hung"]

_ANSWERS: dict[int, Fate] = {86: "yes", 87: "no"}
"""Exit codes of a copy that came back; unlikely ones for a subject to choose."""


def can_fork() -> bool:
    """Whether this process can be copied: not on Windows, and not once it has used CUDA."""
    import torch

    return hasattr(os, "fork") and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def fate_of(question: Callable[[], bool], patience_s: float) -> Fate:
    """What becomes of a question asked in a copy of this process. An exception is a no."""
    child = os.fork()
    if child == 0:
        answer = False
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with suppress(BaseException):
            answer = question()
        os._exit(86 if answer else 87)
    patience = time.monotonic() + patience_s
    while time.monotonic() < patience:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return _ANSWERS.get(os.waitstatus_to_exitcode(status), "died")
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"
