"""Subjects on a device that is not the CPU's: nothing that laws, inputs and oracle do mixes the two.

A GPU is asked by tests/test_cuda.py, where there is one; here tensors only claim to lie elsewhere.
"""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from headcheck import calling
from headcheck.attention.layouts import LAYOUTS
from headcheck.engine import PROFILES, Engine
from headcheck.laws import choose
from headcheck.layouts import moved
from headcheck.recognising import role_name
from headcheck.roles import role
from headcheck.subjects import builtins
from tests.second_device import AWAY, Elsewhere, SecondDevice

SUBJECTS = (
    "torch-sdpa-math",
    "torch-mha",
    "reference",
    "reference-packed",
    "reference-rotary",
    "reference-sinusoidal",
    "reference-softmax",
    "torch-layer-norm",
    "reference-encoder",
    "reference-decoder",
    "reference-seq2seq",
    "reference-causal-lm",
    "reference-vit",
    "reference-multi-head-attention",
)
NOT_SHOWN = "inference-mode"
"""Laws of which nothing can be said here: tensors that are made in inference mode are the CPU's own."""


@pytest.fixture
def second_device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its tensors pass for plain ones, and autocast, of which it has none, for a region without effect."""

    def answered(name: str, there: Any) -> None:
        usual = getattr(torch, name)
        monkeypatch.setattr(
            torch,
            name,
            lambda kind, *more, **named: there if kind == AWAY.type else usual(kind, *more, **named),
        )

    answered("autocast", nullcontext())
    answered("is_autocast_enabled", there=True)
    answered("get_autocast_dtype", torch.bfloat16)
    monkeypatch.setattr(calling, "PLAIN", (*calling.PLAIN, Elsewhere))
    with SecondDevice():
        yield


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.usefixtures("second_device")
def test_no_tensor_is_on_another_device(name: str) -> None:
    """Each law at a first look: a right subject breaks none, and none of our own operations mixes devices."""
    declaration = builtins()[name].declaration()
    if hasattr(declaration, "autocast"):
        declaration = declaration.but(autocast=False)
    of_role = role(role_name(declaration))
    subject, _ = of_role.prepare(declaration, dtypes=(), device=AWAY.type, seed=0)
    engine = Engine(of_role, subject, replace(PROFILES["quick"], shrinks=0), 0, lambda law, case: "")
    laws = [law for law in choose(of_role.name) if NOT_SHOWN not in law.id]
    rows = [engine.judge(law, glance=True) for law in laws]
    assert not {row.id: row.reason for row in rows if row.outcome == "breaks"}
    assert sum(row.outcome == "holds" for row in rows) > len(rows) / 2


@pytest.mark.usefixtures("second_device")
def test_two_devices_do_not_mix() -> None:
    """What torch says of a GPU is said here: else the test above could not fail."""
    there = torch.ones(2, device=AWAY)
    assert there.device.type == AWAY.type and (there * 2).tolist() == [2, 2]
    assert (there + torch.tensor(1.0)).device.type == AWAY.type
    with pytest.raises(RuntimeError, match="same device"):
        _ = there + torch.ones(2)


@pytest.mark.usefixtures("second_device")
@pytest.mark.parametrize("layout", ["expanded", "packed", "sliced", "transposed", "dim-first"])
def test_what_is_moved_lies_there_as_it_lay_here(layout: str) -> None:
    """Gaps, and strides of zero, are what laws of memory are about."""
    here = LAYOUTS[layout](torch.ones(2, 2, 3, 4))
    there = moved(here, torch.ones(1, device=AWAY))
    assert there.device.type == AWAY.type and there.stride() == here.stride()
    assert torch.equal(there.cpu(), here)
