"""A subject that crashes, hangs or eats memory is a finding, and the other laws are judged all the same."""

import ctypes
import math
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headcheck
from headcheck import isolation
from headcheck.engine import Profile
from headcheck.errors import SubjectError
from headcheck.isolation import Limits, Workers
from headcheck.judging import Watcher, judged_apart, make_plan
from headcheck.laws import all_laws
from headcheck.python_front import verify
from headcheck.verdict import LawResult, Verdict

KERNELS = Path(__file__).parent / "kernels.py"
ROOT = Path(__file__).parent.parent
TINY = Profile("tiny", seeded=3, drawn=1, shrinks=20, limit_s=1.0)
STRICT = Limits(memory_growth=200 << 20, grace_s=0.5)
ONE_KEY = "attention/distribution/one-key-gives-its-value"
MASKED = "attention/distribution/masked-weights-are-zero"
LAWS = (ONE_KEY, MASKED)


def dangerous_with_one_key(danger: Callable[[], Any]) -> Callable[..., Tensor]:
    """Right, but for a call with one key, which one of LAWS makes and the other does not."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        if key.shape[2] == 1:
            danger()
        return scaled_dot_product_attention(query, key, value, attn_mask)

    return attention


def judged(subject: Any, processes: int = 1, profile: Profile = TINY, **plan: Any) -> Verdict:
    options = {"dtype": "float32", "profile": profile, **plan}
    with Workers(make_plan(subject, **options), processes, STRICT) as workers:
        return judged_apart(workers, LAWS)


def one_key_and_masked(verdict: Verdict) -> tuple[LawResult, LawResult]:
    rows = {row.id: row for row in verdict.laws}
    return rows[ONE_KEY], rows[MASKED]


def loop_in_python() -> None:
    while True:
        pass


def hang_in_native_code() -> None:
    """The interpreter lock is kept, so that no Python code runs, signal handlers among it."""
    while True:
        ctypes.PyDLL(None).sleep(1000)


def swallow_everything() -> None:
    while True:
        try:
            time.sleep(10)
        except BaseException:  # noqa: BLE001 - that is what this one does
            continue


def interrupt() -> None:
    raise KeyboardInterrupt


def eat_memory() -> None:
    eaten = []
    for _ in range(100):
        eaten.append(b"x" * (16 << 20))
        time.sleep(0.01)
    time.sleep(10)


DANGERS: dict[Callable[[], Any], str] = {
    lambda: os.kill(os.getpid(), signal.SIGSEGV): "the process died with signal 11 (SIGSEGV)",
    os.abort: "the process died with signal 6 (SIGABRT)",
    lambda: os._exit(0): "the process ended with exit status 0",
    lambda: sys.exit(3): "raised SystemExit: 3",
    interrupt: "raised KeyboardInterrupt",
    loop_in_python: "did not return within 0.5 s",  # In the smallest case; once one has hung it is waited less.
    hang_in_native_code: "did not return within 0.5 s",
    swallow_everything: "did not return within 1 s",
}


@pytest.mark.parametrize(("danger", "message"), DANGERS.items())
def test_a_danger_is_a_finding_of_its_law(danger: Callable[[], Any], message: str) -> None:
    """However the subject ends its process, the case in flight breaks its law, and the other law holds."""
    verdict = judged(dangerous_with_one_key(danger))
    broken, other = one_key_and_masked(verdict)
    assert (broken.outcome, other.outcome) == ("breaks", "holds")
    assert broken.reason == message
    assert broken.counterexample is not None
    assert broken.counterexample.case in broken.counterexample.replay


def test_eaten_memory_is_a_finding() -> None:
    """A worker that grows over its limit is ended."""
    verdict = judged(dangerous_with_one_key(eat_memory), profile=replace(TINY, limit_s=10.0))
    broken, other = one_key_and_masked(verdict)
    assert (broken.outcome, other.outcome) == ("breaks", "holds")
    assert broken.reason == "took more than 0.195 GiB of memory"


def large_when_first_called() -> Callable[..., Tensor]:
    """Right; what it keeps is made by its first call."""
    kept: list[bytes] = []

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        if not kept:
            kept.append(b"x" * (300 << 20))
            time.sleep(0.5)  # The parent looks at it meanwhile.
        return scaled_dot_product_attention(query, key, value, attn_mask)

    return attention


def test_what_a_subject_takes_before_it_is_judged_is_no_fault() -> None:
    """A large module and its copies are there when the first law is asked: the limit is of what is taken after."""
    assert judged(large_when_first_called()).conforms


def test_a_law_may_take_what_the_preparation_took() -> None:
    """It copies a large module likewise: only what is beyond that, and the limit, is the subject's."""
    large = large_when_first_called()

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        copied = b"x" * (250 << 20) if key.shape[2] == 1 else b""
        time.sleep(0.2 if copied else 0.0)
        return large(query, key, value, attn_mask)

    assert judged(attention, profile=replace(TINY, limit_s=10.0)).conforms


def test_a_subject_too_large_to_be_tried_is_refused() -> None:
    """It breaks no law: what helps is told."""
    plan = make_plan(large_when_first_called(), dtype="float32", profile=TINY)
    said = (
        r"took more than 0\.0977 GiB of memory before any law .* a smaller configuration .* headcheck\.verify"
    )
    with (
        Workers(plan, limits=replace(STRICT, to_prepare=100 << 20)) as workers,
        pytest.raises(SubjectError, match=said),
    ):
        judged_apart(workers, LAWS)


def test_a_fatal_case_is_made_small() -> None:
    """A case that ends the process is shrunk too: what is shown is the smallest that does."""
    crash = dangerous_with_one_key(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    example = one_key_and_masked(judged(crash, profile=replace(TINY, shrinks=200)))[0].counterexample
    assert example is not None
    assert "query" in example.inputs
    assert "heads=" not in example.case
    assert "batch=" not in example.case


def test_a_crash_that_needs_earlier_calls_says_so() -> None:
    """Where the case alone does not end the process, the message does not pretend that it does."""
    calls = []

    def crash_in_the_end() -> None:
        calls.append(1)
        if len(calls) > 2:
            os._exit(9)

    verdict = judged(dangerous_with_one_key(crash_in_the_end), profile=replace(TINY, seeded=8))
    alone = "; not by this case alone, so the calls before it matter"
    assert one_key_and_masked(verdict)[0].reason == f"the process ended with exit status 9{alone}"


def test_a_subject_that_crashes_on_every_call_cannot_be_called() -> None:
    """There is one thing to say of it, and no law to judge: as where every call raises."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        os._exit(5)

    said = r"^the subject cannot be called: .* exit status 5 in its first and plainest call$"
    with pytest.raises(SubjectError, match=said):
        judged(attention, dtype=None)


def test_a_subject_that_crashes_while_it_is_tried_breaks_one_law() -> None:
    """It was called before: that is a finding, told once, and the other laws are not asked."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        if attn_mask is not None:
            os._exit(5)
        return scaled_dot_product_attention(query, key, value)

    verdict = judged(attention, dtype=None)
    crash = "the process ended with exit status 5 when it was first tried"
    assert (verdict.verdict, len(verdict.broken), verdict.broken[0].reason) == ("breaks", 1, crash)
    assert {row.reason for row in verdict.laws if row not in verdict.broken} == {f"not asked: {crash}"}
    assert verdict.unfinished == f"no law could be judged: {crash}"


def test_a_process_that_cannot_be_had_again_does_not_lose_what_was_found(tmp_path: Path) -> None:
    """One law crashes the subject for good: its row stays, one law says why no other is asked, and nothing is raised."""
    mark = tmp_path / "crashed"

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        reads_the_weights = value.shape[2] > 1 and bool(((value == 0) | (value == 1)).all())
        if mark.exists() or reads_the_weights:  # As the law of masked weights does.
            mark.touch()
            os._exit(7)
        return scaled_dot_product_attention(query, key, value, attn_mask)

    verdict = judged(attention)
    reasons = [row.reason for row in one_key_and_masked(verdict) if row.outcome == "breaks"]
    assert verdict.verdict == "breaks"
    assert any(each.startswith("the process ended with exit status 7") for each in reasons)
    refused = (
        "in a new process the subject cannot be called: the process ended with exit status 7 in its first and"
    )
    assert verdict.unfinished.startswith(f"not every law could be judged: {refused}")


def test_a_hang_in_inference_mode_alone_is_a_finding() -> None:
    """Of a function without gradients that call is made in a copy of the process, which hangs for it."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():
            loop_in_python()
        return scaled_dot_product_attention(query, key, value).detach()

    subject = headcheck.Attention(attention, gradients=False)
    with Workers(make_plan(subject, dtype="float32", profile=TINY), 1, STRICT) as workers:
        verdict = judged_apart(workers, ("inference-mode-changes-nothing",))
    assert [row.reason for row in verdict.broken] == ["did not return within 1 s"]


def test_a_hang_that_nothing_ends_is_made_small() -> None:
    """In copies of the process, by its sizes; what returns is said."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        if key.shape[2] > 9:
            swallow_everything()
        return scaled_dot_product_attention(query, key, value, attn_mask)

    row = one_key_and_masked(judged(attention, profile=replace(TINY, seeded=12)))[1]
    assert row.reason == "did not return within 1 s; with kv_len=9 it does"
    assert row.counterexample is not None
    assert "kv_len=10" in row.counterexample.case


class Listens(Watcher):
    def __init__(self) -> None:
        self.heard: set[str] = set()

    def tick(self, awaited: list[str]) -> None:
        self.heard |= set(awaited)


def test_a_subject_that_never_comes_back_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call came back in all dtypes: one dtype alone would hang likewise; meanwhile it is told what is awaited."""
    started: list[Any] = []
    start = isolation.start
    monkeypatch.setattr(isolation, "start", lambda *given: started.append(given) or start(*given))

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        hang_in_native_code()
        raise AssertionError

    listens = Listens()
    said = r"did not return from .* call in 1 s; .* --timeout \(timeout= in Python\)$"
    with (
        Workers(make_plan(attention, profile=TINY, timeout=1.0), limits=STRICT) as workers,
        pytest.raises(SubjectError, match=said),
    ):
        judged_apart(workers, LAWS, listens)
    assert len(started) == 1
    assert "trying the subject on small cases, 1 s at most" in listens.heard


def test_a_dtype_that_hangs_does_not_hide_the_others() -> None:
    """Some call came back before another hung: what is left is judged in float32, and is not said to conform."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        if query.element_size() == 2:
            loop_in_python()
        return scaled_dot_product_attention(query, key, value, attn_mask)

    with Workers(make_plan(attention, profile=TINY), limits=replace(STRICT, answer_s=2.0)) as workers:
        verdict = judged_apart(workers, LAWS)
    assert {row.outcome for row in verdict.laws} == {"holds"}
    hung = "did not return within 2 s when all dtypes were tried"
    assert verdict.unfinished == f"judged in float32 only: {hung}"


def test_small_cases_may_take_long_together() -> None:
    """A kernel may compile itself for each: it is given up when no answer comes, or after a longer time in all."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        time.sleep(0.03)
        return scaled_dot_product_attention(query, key, value)

    plan = make_plan(attention, profile=TINY, declare={"deterministic": False})
    for prepare_s, said in ((60.0, r"$"), (2.5, r"[a-z0-9 ]+: did not return within 2\.5 s when ")):
        limits = replace(STRICT, grace_s=0.0, answer_s=2.0, prepare_s=prepare_s)
        with Workers(plan, limits=limits) as workers:
            verdict = judged_apart(workers, (ONE_KEY,))
        assert re.match(said, verdict.unfinished), prepare_s


def test_a_dtype_that_crashes_does_not_hide_the_others() -> None:
    """What crashes when all dtypes are tried is judged in float32, and is not said to conform."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        if query.element_size() == 2:
            os._exit(5)
        return scaled_dot_product_attention(query, key, value, attn_mask)

    verdict = judged(attention, dtype=None)
    assert {row.outcome for row in verdict.laws} == {"holds"}
    assert verdict.verdict == "untested"
    ended = "the process ended with exit status 5 when all dtypes were tried"
    assert verdict.unfinished == f"judged in float32 only: {ended}"


def test_a_crash_while_importing_is_an_error(tmp_path: Path) -> None:
    """A subject that cannot even be imported is no finding: nothing could be judged."""
    (tmp_path / "crash.py").write_text("import os\nos._exit(7)\n")
    with pytest.raises(SubjectError, match="cannot be imported: the process ended with exit status 7"):
        judged(f"{tmp_path}/crash.py:f")


def without_time(verdict: Verdict) -> list[LawResult]:
    return [replace(row, duration_s=0.0, subject_s=0.0) for row in verdict.laws]


def test_the_number_of_processes_changes_nothing() -> None:
    """Each law is seeded by the seed and its id alone."""
    one, three = (judged(f"{KERNELS}:wrong_scale", processes) for processes in (1, 3))
    assert without_time(one) == without_time(three)


def test_an_isolated_verdict_is_the_one_found_in_process() -> None:
    """There is one engine: `verify` gives the same rows with and without processes around it."""
    options: dict[str, Any] = {"profile": TINY, "laws": LAWS, "dtype": "float32"}
    here, apart = (verify(f"{KERNELS}:wrong_scale", isolate=isolate, **options) for isolate in (False, True))
    assert without_time(here) == without_time(apart)


OWN_STEP = """
import headcheck
from torch import nn

class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 7)

    def forward(self, tokens):
        return self.table(tokens)

def step(module, tokens, cache):
    return module(tokens), cache

subject = headcheck.CausalLM(Bigram, step=step)
"""


def test_a_function_of_a_users_file_is_introduced_by_its_name(tmp_path: Path) -> None:
    """The parent does not import the file: what a worker tells of a declaration holds no function of it."""
    (tmp_path / "own_step.py").write_text(OWN_STEP)
    with Workers(make_plan(f"{tmp_path}/own_step.py:subject")) as workers:
        assert workers.introduce().declaration == {"step": "step"}


class InterruptsAfterOne(Watcher):
    def row(self, row: LawResult) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_keeps_what_was_found_and_leaves_no_process() -> None:
    """Ctrl-C gives the rows so far; laws that had no turn keep it from conforming."""
    with Workers(make_plan(f"{KERNELS}:right", profile=TINY, dtype="float32"), 2) as workers:
        verdict = judged_apart(workers, LAWS, InterruptsAfterOne())
    assert len(verdict.laws) == 1
    assert verdict.unfinished == "interrupted after 1 of 2 laws"
    assert verdict.verdict == "untested"
    assert multiprocessing.active_children() == []


HANGS = """
import ctypes

def in_python(query, key, value):
    while True:
        pass

def in_native_code(query, key, value):
    while True:
        ctypes.PyDLL(None).sleep(1000)
"""


def waited_for(what: Callable[[], Any]) -> Any:
    """What it gives once it is something, within a minute."""
    until = time.monotonic() + 60
    while not (found := what()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # The thread has ended.
            found += map(int, task.read_text().split())
    return found


def is_running(pid: int) -> bool:
    """Not even as a zombie, where the process that took it over does not wait for it."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize(
    ("command", "hang", "number"),
    [
        ("verify", "in_native_code", signal.SIGKILL),
        ("probe", "in_python", signal.SIGKILL),
        ("verify", "in_python", signal.SIGTERM),
        ("probe", "in_native_code", signal.SIGTERM),
    ],
)
def test_what_hangs_goes_down_with_the_command(tmp_path: Path, command: str, hang: str, number: int) -> None:
    """Whatever ends the command, no process of it computes on for nobody; where it can, it says so in one line."""
    (tmp_path / "hangs.py").write_text(HANGS)
    line = [sys.executable, "-m", "headcheck", command, f"{tmp_path}/hangs.py:{hang}"]
    with Popen(line, stdout=PIPE, stderr=PIPE, text=True) as running:
        children = waited_for(lambda: children_of(running.pid))
        time.sleep(0.5)  # One that has not begun ends likewise.
        running.send_signal(number)
        _, said = running.communicate(timeout=60)
    assert children
    assert waited_for(lambda: not any(map(is_running, children)))
    interrupted = "headcheck: interrupted before the end\n"
    assert said == ("" if number == signal.SIGKILL else interrupted)


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize(
    "line",
    [
        ["teeth", "--only", "alignment/", "--profile", "deep", "--matrix", "-n", "2"],
        ["matrix", "reference", "torch-sdpa", "--profile", "deep", "-n", "2"],
    ],
)
def test_a_campaign_ends_when_it_is_told_to(line: list[str]) -> None:
    """Not once its processes are done with what they are in the middle of, which may take minutes."""
    command = [sys.executable, "-m", "headcheck", *line]
    with Popen(command, stdout=PIPE, stderr=PIPE, text=True, cwd=ROOT) as running:
        children = waited_for(lambda: children_of(running.pid))
        time.sleep(2.0)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=20)
    assert len(children) > 0
    assert waited_for(lambda: not any(map(is_running, children)))
    assert said.startswith("headcheck: interrupted before the end")


def test_headchecks_own_failure_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law that fails by itself is told as a bug of headcheck, and the other law is judged."""

    def fails(attention: Any, x: Any) -> None:
        raise ZeroDivisionError("in the law")

    monkeypatch.setitem(all_laws(), ONE_KEY, replace(all_laws()[ONE_KEY], check=fails))
    with Workers(make_plan(f"{KERNELS}:right", profile=TINY, dtype="float32")) as workers:
        verdict = judged_apart(workers, LAWS)
    failed, other = one_key_and_masked(verdict)
    assert (failed.outcome, other.outcome) == ("not-applicable", "holds")
    assert failed.reason == "a bug in headcheck: ZeroDivisionError: in the law"
    assert verdict.exit_code == 2
    assert f"law {ONE_KEY}, case '" in workers.bugs[0]


def test_a_crash_is_a_finding_though_it_cannot_be_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no copy can be made of a worker that is short of memory, or none of any: the first case stands."""

    def no_memory(question: Callable[[], bool], patience_s: float) -> str:
        raise OSError("cannot allocate memory")

    crash = dangerous_with_one_key(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    monkeypatch.setattr("headcheck.worker.fate_of", no_memory)
    broken, other = one_key_and_masked(judged(crash))
    assert (broken.outcome, other.outcome) == ("breaks", "holds")
    monkeypatch.setattr("headcheck.worker.can_fork", lambda: False)
    verdict = judged(crash)
    broken, other = one_key_and_masked(verdict)
    assert (broken.reason, other.outcome, verdict.unfinished) == (
        "the process died with signal 11 (SIGSEGV)",
        "holds",
        "",
    )


def test_fuzzing_goes_on_until_its_time_is_over() -> None:
    """Passes with fresh seeds add their examples to the same rows."""
    with Workers(make_plan(f"{KERNELS}:right", profile=TINY, dtype="float32")) as workers:
        began = time.monotonic()
        verdict = judged_apart(workers, LAWS, fuzz_s=2.0)
    assert 2.0 <= time.monotonic() - began < 20
    assert verdict.laws[0].examples > 2 * (TINY.seeded + TINY.drawn)


def test_a_time_box_covers_examples_and_shrinking() -> None:
    """When it is over, what was seen at a first look stands: a slow subject does not take a whole pass."""

    def slow_and_wrong(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        time.sleep(0.02)
        return scaled_dot_product_attention(query, key, value, attn_mask) * (
            1.1 if key.shape[2] == 1 else 1.0
        )

    many = replace(TINY, seeded=5000, drawn=0, shrinks=100_000)
    with Workers(make_plan(slow_and_wrong, profile=many, dtype="float32")) as workers:
        began = time.monotonic()
        broken, other = one_key_and_masked(judged_apart(workers, LAWS, fuzz_s=3.0))
    assert time.monotonic() - began < 60
    assert (broken.outcome, other.outcome) == ("breaks", "holds")
    assert 0 < other.examples <= 200


class SetsOff(Watcher):
    """Tells all processes when to crash: a little before the time box ends."""

    def __init__(self, crash_at: Any, fuzz_s: float) -> None:
        self.crash_at, self.fuzz_s = crash_at, fuzz_s

    def expect(self, laws: int) -> None:
        if self.crash_at.value == math.inf:
            self.crash_at.value = time.monotonic() + self.fuzz_s - 0.5


@pytest.mark.parametrize("seeded", [5000, 3], ids=["in the first pass", "in a later one"])
def test_a_crash_at_the_end_of_a_time_box_is_a_finding(seeded: int) -> None:
    """A row that comes when the time is over does not throw away what waits to be made smaller."""
    crash_at, crashed = multiprocessing.Value("d", math.inf), multiprocessing.Value("i", 0)
    waiting, slow_s = multiprocessing.Array("d", 2), [2.0]

    def both_in_work(mine: bool) -> bool:
        """Each law waits a moment for the other."""
        since = waiting[mine] = time.monotonic()
        while waiting[not mine] < since - 0.1 and time.monotonic() < since + 0.1:
            time.sleep(0.001)
        return waiting[not mine] >= since - 0.1

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        one_key = key.shape[2] == 1
        if time.monotonic() > crash_at.value and not crashed.value and both_in_work(one_key):
            crashed.value = 1
            if one_key:
                os._exit(9)
        if crashed.value:
            time.sleep(slow_s.pop() if slow_s else 0.0)  # One that starts now is late; the other ends soon.
        elif slow_s:
            slow_s[:] = [1.0]
        return scaled_dot_product_attention(query, key, value, attn_mask)

    profile = replace(TINY, seeded=seeded, drawn=0, limit_s=10.0)
    with Workers(make_plan(attention, profile=profile, dtype="float32"), 2) as workers:
        verdict = judged_apart(workers, LAWS, SetsOff(crash_at, 2.0), fuzz_s=2.0)
    broken, other = one_key_and_masked(verdict)
    assert (broken.outcome, other.outcome, crashed.value) == ("breaks", "holds", 1)
    assert broken.reason.startswith("the process ended with exit status 9")


def test_without_fork_a_fresh_process_imports_the_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUDA processes are spawned: a subject with a name is judged, another is refused."""
    monkeypatch.setattr("headcheck.processes._context", lambda plan: multiprocessing.get_context("spawn"))
    assert judged(f"{KERNELS}:right").conforms
    with pytest.raises(SubjectError, match=r"cannot import this subject.*name it as module:attr"):
        judged(dangerous_with_one_key(interrupt))
