"""The engine: one seed gives one verdict, examples are counted honestly, every break is a finding."""

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs, build
from headcheck.attention.role import role
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, LawBroken, NotApplicable, within
from headcheck.declarations import Attention
from headcheck.engine import PROFILES, describe
from headcheck.laws import Law, all_laws, choose
from headcheck.reference.canonical import canonical_attention
from headcheck.subjects import builtins
from headcheck.time_limits import OutOfTime, time_limit
from tests.engines import OUTPUT, PLAIN, TINY, a_law, engine_of, on_reference, reference, timeless

# The same seed, the same verdict


def laws_to_compare() -> list[Law]:
    return choose("attention")[::5]


def test_the_same_seed_gives_the_same_verdict() -> None:
    """Judged twice, by two engines, every row is the same but for the time it took."""
    first = [timeless(on_reference().judge(each)) for each in laws_to_compare()]
    again = [timeless(on_reference().judge(each)) for each in laws_to_compare()]
    assert first == again


def test_the_order_of_the_laws_does_not_matter() -> None:
    """One engine that judges the laws from last to first gives the same rows."""
    engine = on_reference()
    forward = {each.id: timeless(engine.judge(each)) for each in laws_to_compare()}
    backward = {each.id: timeless(engine.judge(each)) for each in reversed(laws_to_compare())}
    assert forward == backward


def test_a_break_does_not_wait_for_the_laws_before_it() -> None:
    """A law that breaks at the first look comes first, as its full examples would have shown it; each has one row."""
    law_to_break = replace(a_law(lambda attention, x: broken()), id="attention/a-test/broken")
    holding = [all_laws()[OUTPUT], all_laws()["attention/symmetry/linear-in-the-values"]]
    engine = on_reference()
    rows = list(engine.rows([*holding, law_to_break]))
    assert [row.id for row in rows] == [law_to_break.id, *(law.id for law in holding)]
    assert timeless(rows[0]) == timeless(engine.judge(law_to_break))
    assert [timeless(row) for row in rows[1:]] == [timeless(engine.judge(law)) for law in holding]


def broken() -> None:
    raise LawBroken("always")


def test_the_verdict_does_not_hang_on_the_generators_of_the_process() -> None:
    """What torch's and Python's global generators hold changes no row of a subject that does not use them."""
    import random

    rows = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        rows.append(timeless(on_reference().judge(all_laws()[OUTPUT])))
    assert rows[0] == rows[1]


def cases_of(seed: int, law_: Law) -> list[str]:
    seen: list[str] = []
    engine = on_reference(seed)
    engine.watch = lambda law, case: seen.append(str(case))
    engine.judge(law_)
    return seen


def test_the_seed_matters() -> None:
    """Another seed draws other cases, and so does another law; the same seed and law the same."""
    one, other = all_laws()[OUTPUT], all_laws()["attention/symmetry/linear-in-the-values"]
    assert cases_of(0, one) == cases_of(0, one)
    # The first that Hypothesis draws is always its simplest.
    for others in (cases_of(1, one), cases_of(0, other)):
        assert len(set(cases_of(0, one)) & set(others)) <= 1
        assert not set(cases_of(0, one)[: TINY.seeded]) & set(others)


def test_both_kinds_of_cases_are_run() -> None:
    """Seeded cases first, then drawn ones, whose numbers are written out; as many as the profile says."""
    written = [Case.parse(text).written_out for text in cases_of(0, a_law(lambda attention, x: None))]
    assert written == [False] * 6 + [True] * 3


@pytest.mark.parametrize(
    ("share", "effort", "seeded"), [(1.0, 1.0, 6), (0.5, 1.0, 3), (2.0, 0.5, 6), (1e-3, 1.0, 1)]
)
def test_a_share_scales_the_examples(share: float, effort: float, seeded: int) -> None:
    """The law's share times the subject's effort, and one example at least."""
    declaration = builtins()["reference"].declaration().but(effort=effort)
    engine, count = engine_of(declaration), 0

    def counting(attention: AttentionSubject, x: Inputs) -> None:
        nonlocal count
        count += not x.case.written_out

    engine.judge(a_law(counting, share=share))
    assert count == seeded


# Examples are counted honestly


def equal_to_itself(attention: AttentionSubject, x: Inputs) -> Comparison:
    return within(x.query, x.query, 0.0)


def test_an_example_that_compares_nothing_is_not_counted() -> None:
    """A law that has something to say about some cases counts those alone, and their dtypes."""
    judged: list[str] = []

    def sometimes(attention: AttentionSubject, x: Inputs) -> Comparison | None:
        if x.dtype != torch.float16:
            return None
        judged.append(x.case.dtype)
        return equal_to_itself(attention, x)

    row = on_reference(profile=replace(TINY, seeded=40)).judge(a_law(sometimes))
    assert 0 < len(judged) < 43
    assert (row.outcome, row.examples, row.dtypes) == ("holds", len(judged), ["float16"])


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_a_law_that_never_compares_is_not_applicable(nothing: Any) -> None:
    """Not applicable is not a pass: without one comparison there is no verdict."""
    row = on_reference().judge(a_law(lambda attention, x: nothing))
    assert (row.outcome, row.examples) == ("not-applicable", 0)
    assert row.reason == "no case reached what the law speaks of"


def test_an_example_of_which_nothing_is_claimed_is_not_counted() -> None:
    """Where every bound is infinite the law has said nothing, and such a skip is no pass."""

    def boundless(attention: AttentionSubject, x: Inputs) -> Comparison:
        return within(x.query, x.query + 1, torch.inf)

    row = on_reference().judge(a_law(boundless))
    assert (row.outcome, row.examples) == ("not-applicable", 0)


def test_a_law_that_does_not_apply_says_why() -> None:
    """The reason is the one that the law gives; if some cases are judged, the law holds on those."""

    def declined(attention: AttentionSubject, x: Inputs) -> Comparison:
        raise NotApplicable("it is declared otherwise")

    def now_and_then(attention: AttentionSubject, x: Inputs) -> Comparison:
        if x.case.seed % 2:
            raise NotApplicable("odd seeds are not spoken of")
        return equal_to_itself(attention, x)

    row = on_reference().judge(a_law(declined))
    assert (row.outcome, row.reason, row.examples) == ("not-applicable", "it is declared otherwise", 0)
    row = on_reference(profile=replace(TINY, seeded=20)).judge(a_law(now_and_then))
    assert (row.outcome, row.reason) == ("holds", "")
    assert 0 < row.examples < 23


def test_what_was_compared_before_a_law_stopped_applying_counts() -> None:
    """A second half of which the law does not speak takes back no break of the first."""

    def in_halves(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
        yield within(x.query, x.query + 1, 0.0)
        raise NotApplicable("the second half is not spoken of")

    assert on_reference().judge(a_law(in_halves)).outcome == "breaks"


def test_a_lacking_feature_is_the_reason() -> None:
    """A law that needs what the subject has not is not run, and the row names each feature."""
    engine = engine_of(Attention(lambda query, key, value: query, name="bare"))
    row = engine.judge(a_law(equal_to_itself, needs=("softcap", "sinks")))
    assert (row.outcome, row.examples) == ("not-applicable", 0)
    assert row.reason == "takes no softcap; takes no sinks"
    engine = engine_of(Attention(canonical_attention, softcap=False))
    assert engine.judge(a_law(equal_to_itself, needs=("softcap",))).reason == "takes no softcap, as declared"


def test_the_worst_of_several_comparisons_counts() -> None:
    """A law may yield many: the row tells the largest ratio over all of them and all examples."""

    def several(attention: AttentionSubject, x: Inputs) -> list[Comparison]:
        zero = torch.zeros(1)
        return [within(zero + share, zero, 1.0) for share in (0.25, 0.75, 0.5)]

    row = on_reference().judge(a_law(several))
    assert (row.outcome, row.worst_error_over_bound, row.examples) == ("holds", 0.75, 9)


def test_a_break_ends_the_search() -> None:
    """The examples up to the first break are counted, the break among them."""
    calls = 0

    def third(attention: AttentionSubject, x: Inputs) -> Comparison:
        nonlocal calls
        calls += 1
        return within(x.query + (calls == 3), x.query, 0.0)

    row = on_reference().judge(a_law(third))
    assert (row.outcome, row.examples) == ("breaks", 3)
    assert row.counterexample is not None
    assert row.counterexample.found_after == 3


# A broken law


def off_by_one(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    output = canonical_attention(query, key, value, attn_mask)
    return output + 1 if attn_mask is not None else output  # type: ignore[operator]


def test_a_broken_law_is_reported_with_a_case_that_breaks_it_again() -> None:
    """The case in the row, read from its text by a fresh engine, breaks the law as the row says."""
    row = engine_of(Attention(off_by_one)).judge(all_laws()[OUTPUT])
    assert row.outcome == "breaks"
    assert row.counterexample is not None
    shown = row.counterexample
    again = engine_of(Attention(off_by_one)).example(all_laws()[OUTPUT], Case.parse(shown.case))
    assert again.broken
    assert again.comparison is not None
    assert (again.comparison.ratio, list(again.comparison.index)) == (shown.factor, shown.index)
    assert describe(role, reference(), again, shown.replay, shown.found_after) == shown
    assert row.reason == shown.message
    assert row.worst_error_over_bound > 1


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (ValueError("no such kernel\nand more"), r"raised ValueError: no such kernel"),
        (RuntimeError(), r"raised RuntimeError"),
        (MemoryError("30 GiB"), r"raised MemoryError: 30 GiB"),
        (SystemExit(3), r"raised SystemExit: 3"),
        (RecursionError("too deep"), r"raised RecursionError: too deep"),
        (AssertionError(), r"raised AssertionError"),
        (StopIteration(), r"raised StopIteration"),
    ],
)
def test_whatever_the_subject_throws_is_a_finding(problem: BaseException, message: str) -> None:
    """The law is broken, by an error in one line, and the engine goes on with the next law."""

    def throws(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if key.shape[2] == 3:  # As in the plain call: one that never works is no subject.
            return value
        raise problem

    engine = engine_of(Attention(throws, dtypes=("float32",)))
    judged = engine.example(all_laws()[OUTPUT], PLAIN)
    assert judged.broken
    with pytest.raises(LawBroken, match=f"^{message}$"):
        raise LawBroken(judged.error)
    assert engine.judge(all_laws()[OUTPUT]).outcome == "breaks"
    assert engine.judge(a_law(equal_to_itself)).outcome == "holds"


def test_a_law_that_runs_out_of_memory_is_broken() -> None:
    """Memory may run out in the law itself, on what the subject gave it."""

    def hungry(attention: AttentionSubject, x: Inputs) -> Comparison:
        raise MemoryError

    assert on_reference().example(a_law(hungry), PLAIN).error == "ran out of memory"


def test_a_subject_that_hangs_is_a_finding() -> None:
    """It is stopped at the limit, though it catches all exceptions; the next example has its own time."""

    tried = False

    def hangs(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        end = time.perf_counter() + (30 if tried else 0)
        while time.perf_counter() < end:
            with suppress(Exception):
                time.sleep(0.01)
        return query

    engine = engine_of(Attention(hangs, dtypes=("float32",), arithmetic="native"), replace(TINY, limit_s=0.2))
    tried, began = True, time.perf_counter()
    row = engine.judge(all_laws()[OUTPUT])
    assert time.perf_counter() - began < 5
    assert (row.outcome, row.reason) == ("breaks", "did not return within 0.2 s")
    assert row.counterexample is not None
    assert engine.example(a_law(equal_to_itself), PLAIN).comparison is not None


def test_a_hang_that_was_one_by_chance_is_not_made_small() -> None:
    """On a busy machine a call may take long once: cases that are just slower than is waited for are no hangs."""
    waits: list[float] = []

    def hangs_once(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if waits:  # After the trial: the first call takes long, each other one a little.
            time.sleep(waits.pop(0) if len(waits) > 1 else waits[0])
        return scaled_dot_product_attention(query, key, value)

    profile = replace(TINY, limit_s=2.0, after_a_hang_s=0.1)
    engine = engine_of(Attention(hangs_once, dtypes=("float32",), arithmetic="native"), profile)
    waits += [60.0, 0.3]
    row = engine.judge(all_laws()[OUTPUT])
    assert (row.outcome, row.reason) == ("breaks", "did not return within 2 s; not each time")


def test_the_time_limit_gives_the_alarm_back() -> None:
    """The caller's alarm is there afterwards, with its handler; without a hang nothing rings."""
    rang: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rang.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 50.0)
        with time_limit(5.0):
            pass
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0.0)
        assert 40 < left <= 50
        with pytest.raises(OutOfTime, match=r"^$"), time_limit(0.05):
            time.sleep(5)
        signal.raise_signal(signal.SIGALRM)
        assert rang == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_an_alarm_of_the_callers_comes_though_limits_are_set_again_and_again() -> None:
    """As of a test runner around a verdict: what a limit took of its time is taken off, and it rings when it is due."""
    rang: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rang.append(time.monotonic()))
    try:
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        while not rang and time.monotonic() < began + 10:
            with time_limit(5.0):
                time.sleep(0.1)
        assert 0.3 <= rang[0] - began < 5
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_a_limit_that_is_swallowed_rings_again() -> None:
    """A subject that catches everything goes on for as long as it was caught, not for ever."""
    swallowed = []

    def goes_on() -> None:
        while True:
            try:
                time.sleep(30)
            except OutOfTime:
                if swallowed:
                    raise
                swallowed.append(True)

    with pytest.raises(OutOfTime), time_limit(0.05):
        goes_on()
    assert swallowed


def test_a_module_that_is_being_imported_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is whole when the time has run out: half a module would fail whoever needs it later."""
    (tmp_path / "slowly_imported.py").write_text("import time\ntime.sleep(0.3)\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OutOfTime), time_limit(0.05):
        import_and_wait()
    assert sys.modules["slowly_imported"].whole


def import_and_wait() -> None:
    import_module("slowly_imported")
    time.sleep(5)


def test_the_profiles_grow() -> None:
    """quick, gate and deep: each has more examples, and no fewer tries for the smallest."""
    sizes = [
        (PROFILES[name].seeded, PROFILES[name].drawn, PROFILES[name].shrinks)
        for name in ("quick", "gate", "deep")
    ]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 3


def test_the_watcher_hears_of_a_case_before_it_is_run() -> None:
    """When all goes dark, a front knows what was running."""
    heard: list[str] = []
    engine = on_reference()
    engine.watch = lambda law, case: heard.append(str(case))

    def hears(attention: AttentionSubject, x: Inputs) -> Comparison:
        assert heard[-1] == str(x.case)
        return equal_to_itself(attention, x)

    assert engine.judge(a_law(hears)).examples == len(heard) == 9


def test_laws_only_see_what_the_case_describes() -> None:
    """The inputs of an example are those that the case builds, bit for bit."""
    seen: list[Inputs] = []

    def keeps(attention: AttentionSubject, x: Inputs) -> Comparison:
        seen.append(x)
        return equal_to_itself(attention, x)

    on_reference().judge(a_law(keeps))
    assert len(seen) == 9
    assert all(torch.equal(x.query, build(x.case).query) for x in seen)


def test_a_wrong_number_is_not_made_small_into_a_hang() -> None:
    """What is wrong everywhere and hangs on the smallest inputs is told by a number, on inputs that return."""

    def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.numel() == key.numel() == 1:
            time.sleep(5)
        return query @ key.mT @ value

    row = engine_of(Attention(unscaled), replace(TINY, limit_s=0.5)).judge(all_laws()[OUTPUT])
    assert row.outcome == "breaks"
    assert not row.hung
    assert row.counterexample is not None
    assert row.counterexample.factor is not None


def test_a_wrong_number_is_not_made_small_into_a_nan() -> None:
    """What is NaN on the smallest inputs alone is told by a number all the same."""

    def sharper(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT
        return (scores / scores.std(dim=-1, keepdim=True)).softmax(dim=-1) @ value

    row = engine_of(Attention(sharper), TINY).judge(all_laws()[OUTPUT])
    example = row.counterexample
    assert example is not None
    assert isinstance(example.observed, float)
    assert math.isfinite(example.observed)
    assert example.case is not None
    assert "kv_len=2" in example.case
