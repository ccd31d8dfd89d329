"""The verdict: what it says, how it is written, and that judging leaves no trace in the caller's process."""

import contextlib
import io
import json
import math
import os
import random
import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

import headcheck
from headcheck.baseline import Known, compare
from headcheck.commands import probe
from headcheck.console import plain_console, show
from headcheck.engine import Profile
from headcheck.errors import HeadcheckError, SubjectError
from headcheck.judging import make_plan, merged
from headcheck.library import SETTINGS
from headcheck.plan import dtype_names
from headcheck.verdict import Counterexample, Hint, LawResult, Verdict, apart
from tests import kernels

KERNELS = Path(kernels.__file__)
SOME: dict[str, Any] = {
    "profile": Profile("tiny", seeded=4, drawn=2, shrinks=100),
    "laws": ("equal-scores", "duplicated-keys", "default-scale"),
    "dtype": "float32",
}

HOLDS = LawResult("attention/a/one", "One.", "holds", examples=1500, worst_error_over_bound=0.25)
BREAKS = LawResult(
    "attention/a/two",
    "Two.",
    "breaks",
    reason="output[0, 1] is nan, expected 0; they must be equal",
    examples=3,
    worst_error_over_bound=math.inf,
    dtypes=["float32"],
    counterexample=Counterexample(
        case="kv_len=2",
        replay="headcheck replay s attention/a/two kv_len=2",
        what="output",
        index=[0, 1],
        observed=math.nan,
        expected=0.0,
        bound=0.0,
        inputs={"query": [[[[1.0, 0.5]]]], "is_causal": True},
        only="headcheck verify s --law attention/a/two",
    ),
)
ABSENT = LawResult("attention/b/three", "Three.", "not-applicable", reason="takes no window")


def a_verdict(*rows: LawResult, **fields: Any) -> Verdict:
    return Verdict("s", "attention", "gate", 0, list(rows), 1.5, **fields)


VERDICTS = {
    "conforms": (a_verdict(HOLDS, ABSENT), 0),
    "breaks": (a_verdict(HOLDS, BREAKS, unfinished="interrupted"), 1),
    "untested": (a_verdict(ABSENT), 2),
}


@pytest.mark.parametrize(("word", "verdict", "exit_code"), [(w, *v) for w, v in VERDICTS.items()])
def test_the_verdict_follows_from_the_rows(word: str, verdict: Verdict, exit_code: int) -> None:
    """One broken law breaks; laws that hold conform; what is not applicable counts for nothing."""
    assert (verdict.verdict, verdict.exit_code, verdict.conforms) == (word, exit_code, word == "conforms")


def test_no_rows_are_no_pass() -> None:
    """Nothing judged is untested, and so is a run that was not finished."""
    assert a_verdict().verdict == "untested"
    assert a_verdict(HOLDS, unfinished="interrupted after 1 of 2 laws").verdict == "untested"


def test_json_is_strict_and_has_the_schema() -> None:
    """NaN and infinity are written as strings, since JSON has neither."""

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    plain = json.loads(a_verdict(HOLDS, BREAKS, ABSENT).to_json(), parse_constant=refuse)
    assert plain["schema"] == 1
    keys = ("headcheck", "subject", "role", "verdict", "profile", "seed", "duration_s", "examples")
    assert set(keys) | {"environment", "declaration", "laws"} <= set(plain)
    assert plain["laws"][1]["counterexample"]["observed"] == "NaN"
    assert plain["laws"][1]["worst_error_over_bound"] == "Infinity"


def test_the_text_says_all_that_a_reader_needs() -> None:
    """Law, statement, tensors, observed, expected, bound and both command lines stand in the message."""
    text = str(a_verdict(HOLDS, BREAKS, ABSENT))
    for part in (
        "BREAKS attention/a/two",
        "Two.",
        "query (1, 1, 1, 2) = [1, 0.5]",
        "is_causal = True",
        "observed: output[0, 1] = nan",
        "expected: 0",
        "bound:    0, they must be equal",
        "replay: headcheck replay s attention/a/two kv_len=2",
        "only this law: headcheck verify s --law attention/a/two",
        "not applicable, which does not count as passing: 1 law (--verbose names them)",
        "  takes no window (1)",
        "breaks: 1 of 2 laws broken, 1 hold, over 1,503 examples; 1 not applicable; 1.5 s",
    ):
        assert part in text


def test_a_summary_has_its_denominators() -> None:
    """It says by how many laws and examples a subject conforms, and how near its worst error comes."""
    last = str(a_verdict(HOLDS, ABSENT)).splitlines()[-1]
    worst = "worst error 0.25 of its bound (attention/a/one)"
    assert last == f"conforms: 1 law holds over 1,500 examples, {worst}; 1 not applicable; 1.5 s"


def test_a_summary_says_how_much_was_refused() -> None:
    """Where calls may be refused, a verdict of what is left must not look like one of all."""
    refused = replace(ABSENT, reason="refuses the call: raised ValueError: one query only")
    last = str(a_verdict(HOLDS, ABSENT, refused)).splitlines()[-1]
    assert last.endswith("; 2 not applicable, 1 of them as it refuses the calls; 1.5 s")


def test_a_hint_stands_beside_the_first_break() -> None:
    """Once, below the table; where nothing is broken it is a note like others."""
    hint = Hint("a plain call is right with --declare causal=bottom-right")
    text = str(a_verdict(HOLDS, BREAKS, notes=["a note", hint]))
    assert text.count(hint) == 1
    assert (
        text.index("a note")
        < text.index("attention/a")
        < text.index(f"hint: {hint}")
        < text.index("BREAKS attent")
    )
    assert f"hint: {hint}" in repr(a_verdict(BREAKS, notes=[hint]))
    assert f"\n{hint}\n" in str(a_verdict(HOLDS, notes=[hint]))


def test_the_short_form_names_the_break_and_replays_it() -> None:
    """repr has the most specific broken law, how far it is broken, the replay line and the summary, a line each."""
    assert BREAKS.counterexample is not None
    causal = replace(BREAKS, counterexample=replace(BREAKS.counterexample, case="kv_len=2 is_causal=true"))
    general = replace(causal, id="attention/accuracy/output-is-within-the-bound")
    specific = replace(causal, id="attention/masks/the-future-does-not-matter")
    first, replay, last = repr(a_verdict(HOLDS, general, specific)).splitlines()
    assert first == f"<breaks {specific.id}: {BREAKS.reason}"
    assert replay == "headcheck replay s attention/a/two kv_len=2"
    assert last.startswith("breaks: 2 of 3 laws broken")
    assert repr(a_verdict(HOLDS)).startswith("<conforms: 1 law holds")


FAILING = """
from tests.test_verdict import BREAKS, a_verdict

def test_whole():
    verdict = a_verdict(BREAKS)
    assert verdict.conforms, repr(verdict)

def test_cut():
    verdict = a_verdict(BREAKS)
    assert verdict.conforms, verdict
"""


def test_an_assertion_shows_the_break_in_a_log(tmp_path: Path) -> None:
    """pytest shows the message that README writes uncut; a verdict itself is cut in its middle, behind the law."""
    (tmp_path / "test_mine.py").write_text(FAILING, encoding="utf-8")
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    path = {"PYTHONPATH": str(KERNELS.parents[1]), "PATH": os.environ["PATH"]}
    log = subprocess.run(line, cwd=tmp_path, env=path, capture_output=True, text=True, check=False).stdout
    whole, cut = log.partition("test_cut")[::2]
    assert "AssertionError: <breaks attention/a/two: output[0, 1] is nan, expected 0" in whole
    assert "headcheck replay s attention/a/two kv_len=2" in whole
    assert "AssertionError: <breaks attention/a/two: output[0, 1] is nan" in cut


def test_laws_that_are_not_applicable_are_named_when_asked() -> None:
    """A reason that several laws share is told once, with their number; --verbose has their names."""
    rows = [replace(ABSENT, id=f"attention/b/{name}") for name in ("three", "four")]
    rows.append(replace(ABSENT, id="attention/b/five", reason="takes no mask"))
    verdict, file = a_verdict(HOLDS, *rows), io.StringIO()
    rows.append(replace(ABSENT, id="attention/b/six", reason="takes no mask; takes no window"))
    rows.append(replace(ABSENT, id="attention/b/seven", reason="has no time; takes no window"))
    absent = "takes no window (2), mask (1), mask and window (1)\n  1 has no time; takes no window\n"
    assert f"\n  {absent}" in str(a_verdict(HOLDS, *rows))
    show(verdict, plain_console(file), verbose=True)
    assert "2  takes no window: b/three, b/four" in file.getvalue()


@pytest.mark.parametrize(
    ("law", "observed", "told"),
    [
        (
            "masks/dead-rows-follow-the-convention",
            math.nan,
            "empty_rows=nan or --declare empty_rows=undefined",
        ),
        ("masks/dead-rows-follow-the-convention", 0.5, "empty_rows=mean or --declare empty_rows=undefined"),
        ("state/same-call-same-answer", 0.5, "deterministic=False"),
        ("state/same-call-same-answer", None, ""),
    ],
)
def test_what_declares_it_is_what_was_observed(law: str, observed: float | None, told: str) -> None:
    """A NaN is no mean, a number no NaN, and what raises no matter of chance."""
    assert BREAKS.counterexample is not None
    example = replace(BREAKS.counterexample, observed=observed)
    text = repr(a_verdict(replace(BREAKS, id=f"attention/{law}", counterexample=example)))
    assert re.findall("where that is meant: --declare (.*)", text) == [told] * bool(told)


def test_known_breaks_are_marked() -> None:
    """Beside a baseline the table tells what is known from what is new, and only the new is shown in full."""
    new, file = replace(BREAKS, id="attention/a/new"), io.StringIO()
    verdict = a_verdict(HOLDS, BREAKS, new)
    known = Known("s", (BREAKS.id,), "by the wrong sign", "bug", "", "none found")
    show(replace(verdict, baseline=compare(verdict, [known])), plain_console(file))
    text = file.getvalue()
    assert re.search(r"^  two +breaks \(known\)", text, re.MULTILINE)
    assert re.search(r"^  new +BREAKS", text, re.MULTILINE)
    assert "BREAKS attention/a/new" in text
    assert "BREAKS attention/a/two" not in text
    assert "attention/a/two: by the wrong sign" in text
    assert text.endswith("baseline: 1 broken law is a known deviation\nbaseline: new: attention/a/new\n")


def test_one_exception_is_shown_once() -> None:
    """Laws that the same exception breaks share one counterexample and are named beside it."""
    thrown = Counterexample("kv_len=2", "replay it", "call", message="raised RuntimeError: no")
    first = replace(BREAKS, id="attention/a/first", reason=thrown.message, counterexample=thrown)
    text = str(a_verdict(first, replace(first, id="attention/a/other"), BREAKS))
    assert text.count("observed: raised RuntimeError: no") == 1
    assert "The same breaks 1 more law: a/other" in text


def test_one_number_of_one_case_is_shown_once() -> None:
    """And one exception that names other sizes; another case with the same number is another break."""
    other = replace(BREAKS, id="attention/b/other")
    assert str(a_verdict(BREAKS, other)).count("BREAKS attention/") == 1
    assert BREAKS.counterexample is not None
    elsewhere = replace(other, counterexample=replace(BREAKS.counterexample, case="kv_len=9"))
    assert str(a_verdict(BREAKS, elsewhere)).count("BREAKS attention/") == 2
    thrown = [
        replace(BREAKS, id=f"attention/{size}/one", reason=message, counterexample=example)
        for size in (3, 40)
        for message in (f"output has shape ({size}, 1), expected (2, 1)",)
        for example in (Counterexample(f"kv_len={size}", "replay it", "call", message=message),)
    ]
    assert str(a_verdict(*thrown)).count("BREAKS attention/") == 1


def test_what_is_not_told_in_full_is_a_line_for_each_family() -> None:
    """One fault breaks many laws: the list stays short, and --verbose has each."""
    assert BREAKS.counterexample is not None
    rows = [
        replace(
            BREAKS, id=f"attention/{name}", counterexample=replace(BREAKS.counterexample, case=f"seed={name}")
        )
        for name in ("a/one", "b/one", "c/one", "c/two", "c/three")
    ]
    folded, whole = io.StringIO(), io.StringIO()
    show(a_verdict(*rows), plain_console(folded))
    show(a_verdict(*rows), plain_console(whole), verbose=True)
    assert folded.getvalue().count("BREAKS attention/") == 3
    assert "  attention/c/two (and 1 more): output[0, 1]" in folded.getvalue()
    assert "attention/c/three" not in folded.getvalue()
    assert "--verbose names each" in folded.getvalue()
    assert "  attention/c/three: output[0, 1]" in whole.getvalue()


def test_where_a_law_breaks_those_that_hold_are_counted() -> None:
    """A hundred lines of laws that hold stand between a reader and the one that does not; --verbose has them."""
    also = replace(HOLDS, id="attention/a/also", examples=2)
    counted, whole = io.StringIO(), io.StringIO()
    show(a_verdict(HOLDS, also, BREAKS), plain_console(counted))
    show(a_verdict(HOLDS, also, BREAKS), plain_console(whole), verbose=True)
    assert re.search(r"^attention/a +2 hold +1,502 +0.25$", counted.getvalue(), re.MULTILINE)
    assert not re.search(r"^  (one|also) ", counted.getvalue(), re.MULTILINE)
    assert re.search(r"^  also +holds ", whole.getvalue(), re.MULTILINE)
    assert re.search(r"^  one +holds ", str(a_verdict(HOLDS)), re.MULTILINE)


def test_the_same_seed_gives_the_same_verdict_again() -> None:
    """`verify` may be called many times in one process, and repeats itself."""
    first, second = (headcheck.verify(kernels.wrong_scale, seed=3, **SOME) for _ in range(2))
    assert first.verdict == "breaks"
    assert [replace(row, duration_s=0, subject_s=0) for row in first.laws] == [
        replace(row, duration_s=0, subject_s=0) for row in second.laws
    ]
    other = headcheck.verify(kernels.wrong_scale, seed=4, **SOME)
    assert [row.counterexample for row in other.laws] != [row.counterexample for row in first.laws]


def test_a_callable_a_declaration_and_a_name_are_subjects() -> None:
    """What Python has at hand and what the command line names are judged alike."""
    declared = headcheck.Attention(kernels.right, name="mine")
    for subject, name in (
        (kernels.right, "right"),
        (declared, "mine"),
        (f"{KERNELS}:right", f"{KERNELS}:right"),
    ):
        verdict = headcheck.verify(subject, **SOME)
        assert (verdict.subject, verdict.conforms) == (name, True)
    assert set(verdict.environment) == {"headcheck", "python", "torch", "hypothesis", "platform", "device"}


def test_a_counterexample_is_replayed_by_its_case() -> None:
    """`headcheck.replay` shows the break again, and that a right function keeps the law on that case."""
    (row, *_) = headcheck.verify(kernels.wrong_scale, **{**SOME, "laws": "default-scale"}).broken
    assert row.counterexample is not None
    case, options = row.counterexample.case, {"dtype": "float32"}
    again = headcheck.replay(kernels.wrong_scale, row.id, case, **options).counterexample
    assert again is not None
    assert (again.observed, again.expected) == (row.counterexample.observed, row.counterexample.expected)
    assert headcheck.replay(kernels.right, row.id, case, **options).outcome == "holds"


def test_a_keyword_that_there_is_not_is_told_with_the_one_that_is_meant() -> None:
    """Of `verify` and of `replay`, which has fewer."""
    with pytest.raises(TypeError, match=r"verify\(\) takes no law=; did you mean laws=\?"):
        headcheck.verify(kernels.right, law="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"replay\(\) takes no dtyp=; did you mean dtype=\?"):
        headcheck.replay(kernels.right, "x", "", dtyp="float32")


def test_the_line_of_one_law_gives_the_same_again() -> None:
    """With the seed where it would be drawn afresh, and a profile of one's own as Python writes it."""
    deep = make_plan(kernels.right, profile="deep", seed=0)
    assert deep.only("a/b").endswith("--profile deep --seed 0")
    assert make_plan(kernels.right, seed=0).only("a/b").endswith("--law a/b")
    mine = Profile("mine", seeded=3, drawn=0)
    line = make_plan(lambda query, key, value: value, profile=mine, seed=2).only("a/b")
    assert line == f"headcheck.verify(subject, laws='a/b', profile={mine!r}, seed=2)"
    line = make_plan("torch-sdpa", profile=mine).only("a/b")
    assert line == f"headcheck.verify('torch-sdpa', laws='a/b', profile={mine!r})"


def test_the_line_that_probes_says_what_probe_takes() -> None:
    """The device, a convention and the time a call may take; no dtype and no seed, which only judging has."""
    options = {"dtype": "float16", "device": "cuda", "declare": "layout=bshd", "timeout": 300, "seed": 7}
    line = make_plan("kernels:mine", role="attention", **options).probe.strip("`")
    assert line == (
        "headcheck probe kernels:mine --role attention --device cuda --declare layout=bshd --timeout 300"
    )
    parser = ArgumentParser()
    probe.add_arguments(parser)
    assert parser.parse_args(shlex.split(line)[2:]).device == "cuda"
    line = make_plan(lambda query, key, value: value, **options).probe
    assert line == "headcheck.probe(subject, device='cuda', declare=('layout=bshd',), timeout=300)"


def test_a_break_of_a_later_pass_is_found_after_the_examples_of_all() -> None:
    """As --fuzz makes them, one after the other."""
    shown = merged(replace(HOLDS, id=BREAKS.id, examples=130), BREAKS).counterexample
    assert shown is not None
    assert BREAKS.counterexample is not None
    assert shown.found_after == 130 + BREAKS.counterexample.found_after


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "fast"}, "no profile 'fast'; there are: quick, gate, deep"),
        ({"dtype": torch.int8}, "cannot judge dtype 'int8'"),
        ({"laws": "no-such-law"}, "no law of the role attention matches 'no-such-law'"),
        ({"device": "cuda:77"}, "torch cannot compute on 'cuda:77' here"),
        ({"role": "juggling"}, "no role 'juggling'"),
        ({"processes": 0}, "processes=0 is no number of processes"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    """Each option that cannot be honoured is named, with what could be."""
    with pytest.raises(HeadcheckError, match=message):
        headcheck.verify(kernels.right, **{**SOME, **options})


@pytest.mark.parametrize(
    ("keyword", "message"),
    [("law", "takes no law=; did you mean laws="), ("n", "takes no n=; it takes role, prof")],
)
def test_an_unknown_keyword_is_told_the_one_that_is_like_it(keyword: str, message: str) -> None:
    """--law of the command line is laws= in Python."""
    with pytest.raises(TypeError, match=message):
        headcheck.verify(kernels.right, **{keyword: "masks"})


@contextlib.contextmanager
def in_the_middle_of_things() -> Iterator[None]:
    """A caller with unusual settings of its own."""
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_verdict_does_not_depend_on_the_callers_settings() -> None:
    """Default dtype and device, autocast and inference mode of the caller change nothing."""
    options = {**SOME, "laws": ("equal-scores", "gradients-are-within", "default-scale")}
    plain = headcheck.verify(kernels.right, **options)
    with in_the_middle_of_things():
        amid = headcheck.verify(kernels.right, **options)
    assert [(r.outcome, r.worst_error_over_bound) for r in amid.laws] == [
        (r.outcome, r.worst_error_over_bound) for r in plain.laws
    ]
    assert plain.conforms


UNUSUAL: dict[str, Any] = {
    "the default dtype": torch.float64,
    "the number of threads": 3,
    "whether gradients are on": False,
    "the use of deterministic algorithms": 1,
    "the precision of float32 products": "medium",
    "whether denormal numbers are flushed to zero": True,
    "whether anomalies are looked for": True,
    "which kernels of attention may run": (False, True, True, True),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_an_unusual_setting_of_the_caller_is_left_as_it_is(name: str) -> None:
    """verify, replay and probe leave each of torch's settings as they found it."""
    read, write = SETTINGS[name]
    usual = read()
    assert usual != UNUSUAL[name]
    write(UNUSUAL[name])
    try:
        found = read()
        headcheck.verify(kernels.right, **SOME)
        assert read() == found
    finally:
        write(usual)


def test_one_thread_judges_and_the_callers_come_back() -> None:
    """Threads make the small tensors of laws slower by far on a busy machine: one, even where no verdict comes."""
    seen = set()

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        if refuses:
            raise RuntimeError("out of luck")
        return kernels.right(query, key, value)

    usual, refuses = torch.get_num_threads(), False
    torch.set_num_threads(3)
    try:
        headcheck.verify(attention, **SOME)
        headcheck.probe(attention)
        refuses = True
        with pytest.raises(SubjectError, match="out of luck"):
            headcheck.verify(attention, **SOME)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(usual)
    assert seen == {1}


def test_the_schema_of_a_row_holds_what_a_reader_needs() -> None:
    """Whether an example hung is for the process around; its reason says it."""
    (row,) = a_verdict(replace(BREAKS, hung=True)).as_dict()["laws"]
    assert {*row} == {each.name for each in fields(LawResult)} - {"hung"}


def state() -> tuple[Any, ...]:
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        *(read() for read, _ in SETTINGS.values()),
        hypothesis.settings.default,
    )


def test_judging_leaves_the_process_as_it_was() -> None:
    """Generators, torch's settings, Hypothesis' settings: whatever the subject does."""

    def meddles(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        for name, (_, write) in SETTINGS.items():
            write(UNUSUAL[name])
        return kernels.right(query, key, value)

    before = state()
    headcheck.verify(meddles, **SOME)
    assert state() == before


@pytest.mark.parametrize(
    "given", ["fp16,bfloat16", ["half", torch.bfloat16], "torch.float16, torch.bfloat16"]
)
def test_a_dtype_has_other_names(given: Any) -> None:
    """As kernels and papers call them; each once."""
    assert dtype_names(given) == ("float16", "bfloat16")


def test_numbers_that_differ_look_different() -> None:
    """Nine digits are enough for most, and not for doubles that are nearly right."""
    assert apart(0.5, 1.0) == ("0.5", "1")
    assert apart(1 / 3, 1 / 3 + 2**-54) == ("0.3333333333333333", "0.33333333333333337")
    assert apart(math.nan, math.nan) == ("nan", "nan")
