"""What becomes of a question that is asked in a copy of the process, and when there is no copy."""

import os
import signal
import sys
import time
import types

import pytest
import torch

from headcheck.forks import can_fork, fate_of
from headcheck.time_limits import OutOfTime, time_limit


def test_a_copy_answers_dies_or_hangs() -> None:
    """Each fate has its name, and none reaches the process that asked."""
    assert fate_of(lambda: True, 10.0) == "yes"
    assert fate_of(lambda: False, 10.0) == "no"
    assert fate_of(lambda: bool(1 / 0), 10.0) == "no"
    assert fate_of(lambda: bool(os.kill(os.getpid(), signal.SIGKILL)), 10.0) == "died"
    assert fate_of(lambda: bool(time.sleep(60)), 0.2) == "hung"


def test_an_exit_code_is_no_answer() -> None:
    """A subject may end the copy with any: only what the copy writes counts."""
    assert {fate_of(lambda code=code: os._exit(code), 10.0) for code in (0, 86, 87, 88)} == {"died"}  # type: ignore[misc]


def test_a_copy_ends_with_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is interrupted while it is asked leaves no process behind."""
    copies: list[int] = []
    fork = os.fork

    def noted() -> int:
        copies.append(fork())
        return copies[-1]

    monkeypatch.setattr(os, "fork", noted)
    with pytest.raises(OutOfTime), time_limit(0.3):
        fate_of(lambda: bool(time.sleep(60)), 60.0)
    assert len(copies) == 1
    with pytest.raises(ChildProcessError):  # It was killed and waited for: it is nobody's child any more.
        os.waitpid(copies[0], os.WNOHANG)


def test_a_process_that_uses_jax_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads are not in the copy, which would wait for them; JAX warns at each fork."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    assert can_fork()
    bridge = types.ModuleType("jax._src.xla_bridge")
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    monkeypatch.setitem(sys.modules, bridge.__name__, bridge)
    assert not can_fork()
    monkeypatch.setattr(bridge, "backends_are_initialized", lambda: False, raising=False)
    assert can_fork(), "it was imported, and has no threads yet"


def test_a_process_that_uses_mlx_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of it in a copy waits for a thread for ever."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setitem(sys.modules, "mlx.core", types.ModuleType("mlx.core"))
    assert not can_fork()
