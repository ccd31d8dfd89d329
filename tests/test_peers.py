"""The benchmark against other ways to test: each peer passes what is right and catches what is plainly wrong."""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from benchmarks.peers import corpus
from benchmarks.peers.__main__ import PEERS, behind, work
from benchmarks.peers.onnx_vectors import HOW_TO_GET
from benchmarks.peers.page import Run, page
from benchmarks.peers.rules import Outcome, Peer, judged
from benchmarks.peers.subjects import NotTaken, Subject
from tests.faults import FAULTS, VARIANTS

PLAINLY_WRONG = {"attention": "scale/multiplied-by-the-root", "rotary": "rotary/turned-the-other-way"}
RIGHT = {"attention": "variants/plain", "rotary": "rotary/exact-angles"}
OTHERS = [name for name in PEERS if not name.startswith("headcheck")]


def installed(names: Iterable[str]) -> list[Any]:
    """The peers, those skipped that need a package which is not here."""
    missing = {
        name: PEERS[name].needs for name in names if PEERS[name].needs and not find_spec(PEERS[name].needs)
    }
    skip = {
        name: [pytest.mark.skip(f"{needs} is not installed: {HOW_TO_GET}")] for name, needs in missing.items()
    }
    return [pytest.param(name, marks=skip.get(name, [])) for name in names]


@pytest.mark.parametrize("name", installed(OTHERS))
def test_a_peer_passes_what_is_right(name: str) -> None:
    """The plain formula, in float32 inside, satisfies every rule."""
    peer = PEERS[name]
    outcome = judged(peer, corpus.subject(peer.role, RIGHT[peer.role]))
    assert not outcome.failed, outcome.complaint
    assert outcome.made


@pytest.mark.parametrize("name", installed(["assert_close", "flash", "onnx", "kernelbench", "fudge"]))
def test_a_function_that_writes_into_what_it_is_given_spoils_nothing(name: str) -> None:
    """Inputs and cotangents are handed out as copies: what comes after a wrong function is judged as before."""
    right = VARIANTS["variants/plain"]
    for wrong in (
        "state/query-scaled-in-place",
        "state/mask-inverted-in-place",
        "gradients/cotangent-changed",
    ):
        judged(PEERS[name], Subject(FAULTS[wrong]))
    assert not judged(PEERS[name], Subject(right)).failed


@pytest.mark.parametrize("name", ["assert_close", "kernelbench", "hypothesis"])
def test_a_peer_in_float32_passes_the_attention_of_torch(name: str) -> None:
    """torch's own function satisfies the rules that are asked in float32."""
    outcome = judged(PEERS[name], Subject(VARIANTS["variants/library"]))
    assert not outcome.failed, outcome.complaint


@pytest.mark.parametrize("name", installed(PEERS))
def test_a_peer_catches_what_is_plainly_wrong(name: str) -> None:
    """A score that is multiplied by the root of the dim, a turn in the other direction."""
    peer = PEERS[name]
    assert judged(peer, corpus.subject(peer.role, PLAINLY_WRONG[peer.role])).failed


def test_a_call_that_is_not_taken_is_left_out() -> None:
    """What a function has no argument for, or refuses as not implemented, is neither passed nor failed."""
    subject = Subject(VARIANTS["variants/plain"])
    query = torch.ones(1, 1, 2, 4)
    with pytest.raises(NotTaken, match="softcap"):
        subject(query, query, query, softcap=2.0)

    def asks(subject: Any) -> None:
        subject(query, query, query, softcap=2.0)

    outcome = judged(_peer(asks), subject)
    assert (outcome.made, outcome.complaint) == (0, "")


def test_a_function_of_some_dtypes_is_given_the_closest() -> None:
    """float32 where it is taken, else the nearest in precision."""
    half = Subject(VARIANTS["variants/weights-in-half-precision"])
    wide = Subject(VARIANTS["variants/summed-one-by-one"])
    assert Subject(VARIANTS["variants/plain"]).dtype(torch.bfloat16) == torch.bfloat16
    assert half.dtype(torch.float32) == torch.float16
    assert wide.dtype(torch.bfloat16) == torch.float32


def test_whatever_a_function_raises_is_a_failure() -> None:
    """An error of a wrong function is told in one line, with its kind."""

    def trips(subject: Any) -> None:
        raise RuntimeError("two\nlines")

    assert judged(_peer(trips), Subject(VARIANTS["variants/plain"])).complaint == "RuntimeError: two lines"


def test_faults_that_do_harm_are_left_out() -> None:
    """Nothing that hangs or patches the process is called in it; everything else is."""
    assert not set(corpus.perilous()) & set(corpus.wrong("attention"))
    assert set(corpus.perilous()) | set(corpus.wrong("attention")) == set(FAULTS)


def test_a_peer_that_is_ahead_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    """A fault that a peer catches and headcheck does not is on the page, on stderr, and in the exit code."""
    peers = [PEERS["headcheck"], PEERS["flash"]]
    quiet, loud = (
        Outcome(name, "scale/multiplied-by-the-root", said, 1, 0.0)
        for name, said in (("headcheck", ""), ("flash", "off"))
    )
    run = Run("attention", peers, {("headcheck", quiet.id): quiet, ("flash", loud.id): loud})
    assert behind(run)
    assert (
        "flash-attention's tests: twice the naive error catches scale/multiplied-by-the-root"
        in capsys.readouterr().err
    )
    text = page([run], "python", [])
    assert "- flash-attention's tests: twice the naive error: scale/multiplied-by-the-root." in text
    assert "| headcheck, quick profile | 0 of 1 | 0 of 0 | 0 | 0 |" in text


def test_each_peer_meets_the_same_functions() -> None:
    """The pairs of a run: every function of the role for every peer."""
    pairs = work(["flash", "fudge"], "variants/")
    usual = [name for name, entry in VARIANTS.items() if "variants/" in name and not entry.declares]
    assert [name for peer, name in pairs if peer == "flash"] == usual
    assert [name for peer, name in pairs if peer == "fudge"] == usual


def _peer(trial: Any) -> Peer:
    return Peer("own", "own", "", "", lambda: [trial])
