"""A device that a call leaves unusable, and a corpus that is judged on one: said without a GPU."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headcheck
from headcheck.calling import Clock, DeviceLost, SubjectRaised
from headcheck.engine import PROFILES
from headcheck.errors import HeadcheckError, SubjectError
from headcheck.laws import choose
from headcheck.teeth.campaign import read
from headcheck.teeth.corpus import load
from headcheck.teeth.trial import LOST, Way, tried
from tests.faults import Variant

GPU = "cuda:1"
LAWS = ("distribution/one-key-gives-its-value", "accuracy/a-moving-maximum-rescales-all")


def beyond_a_tile(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Right for few keys; for more it reads beyond its memory."""
    if key.shape[2] > 32:
        raise DeviceLost("CUDA error: an illegal memory access was encountered")
    return scaled_dot_product_attention(query, key, value)


def a_gpu(monkeypatch: pytest.MonkeyPatch, *, here: str = "", everywhere: str = "") -> None:
    """One whose streams say what went wrong: here, once; everywhere, at each later call."""

    def saying(what: str) -> None:
        if what:
            raise RuntimeError(what)

    stream = SimpleNamespace(synchronize=lambda: saying(here or everywhere))
    streams = {GPU: stream}
    monkeypatch.setattr(torch.cuda, "current_stream", streams.__getitem__)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: saying(everywhere if device == GPU else ""))


def test_an_error_that_stays_is_the_end_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked next would be answered with the same error."""
    a_gpu(monkeypatch, everywhere="CUDA error: misaligned address\nand a second line")
    with pytest.raises(DeviceLost, match=r"^CUDA error: misaligned address$"):
        Clock(GPU).call(lambda: 1)


def test_an_error_that_passes_is_the_calls_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that the device refuses leaves it as it was; and it is told at the call that made it."""
    a_gpu(monkeypatch, here="CUDA error: invalid configuration argument")
    with pytest.raises(SubjectRaised, match="invalid configuration"):
        Clock(GPU).call(lambda: 1)


def test_no_other_law_is_blamed() -> None:
    """The law at hand breaks, and a fresh process goes on with the next."""
    verdict = headcheck.verify(beyond_a_tile, profile="quick", dtype="float32", laws=LAWS, isolate=True)
    outcomes = {row.name_in_role: row.outcome for row in verdict.laws}
    assert outcomes == dict(zip(LAWS, ("holds", "breaks"), strict=True))
    (broken,) = (row for row in verdict.laws if row.outcome == "breaks")
    assert broken.reason == "left the device unusable: CUDA error: an illegal memory access was encountered"
    assert broken.counterexample is not None and "kv_len=" in broken.counterexample.replay


def test_within_the_process_it_is_said_in_one_line() -> None:
    """There nothing can go on."""
    with pytest.raises(HeadcheckError, match=r"left the device unusable: .*; isolate=True judges"):
        headcheck.verify(beyond_a_tile, profile="quick", dtype="float32", laws=LAWS)


def test_each_way_in_says_so() -> None:
    """A probe and a replay have no process of their own in Python either."""
    said = "left the device unusable: CUDA error"
    with pytest.raises(HeadcheckError, match=said):
        headcheck.replay(
            beyond_a_tile, "attention/accuracy/output-is-within-the-bound", "kv_len=40", dtype="float32"
        )
    with pytest.raises(HeadcheckError, match=said):
        headcheck.probe(lost_at_once)


def lost_at_once(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raise DeviceLost("CUDA error: misaligned address")


def test_a_device_that_is_lost_in_the_first_call_breaks_no_law() -> None:
    """As where the process dies in it: the subject cannot be called."""
    with pytest.raises(SubjectError, match="cannot be called: left the device unusable"):
        headcheck.verify(lost_at_once, profile="quick", dtype="float32", laws=LAWS, isolate=True)


def test_a_fault_that_costs_the_device_is_caught() -> None:
    """Whatever could be asked of it."""
    entry = Variant(
        id="beyond/a-tile",
        sentence="It reads beyond its memory.",
        dtypes=("float32",),
        features=(),
        defined_at=("", 0),
        make=lambda: beyond_a_tile,
        arithmetic=None,
        gradients=False,
    )
    outcome = tried(entry, PROFILES["quick"], 0, Way.FIRST)
    assert outcome.broken == (LOST,) and outcome.device == "cpu"


def test_an_outcome_of_before_is_one_of_the_cpu(tmp_path: Path) -> None:
    """Files of results hold on."""
    file = tmp_path / "results.jsonl"
    old = (
        '{"id": "a", "profile": "quick", "seed": 0, "way": "all", "broken": [], "examples": 1, '
        '"until_broken": 0, "first_s": 0.0, "smallest": 0}\n'
    )
    file.write_text(old)
    assert [each.device for each in read(file)] == ["cpu"]


def test_the_kernels_in_triton_can_be_listed_without_it() -> None:
    """What breaks them is a law, and each is told apart from the others."""
    corpus = load(Path("tests/triton_corpus.py"))
    laws = {law.name_in_role for law in choose("attention")}
    assert len(corpus.wrong) > 20 and len(corpus.right) > 5
    assert all(set(entry.breaks) <= laws and entry.breaks for entry in corpus.wrong.values())
    assert all(entry.declaration().name == entry.id for entry in corpus.right.values())
