"""The command: exit codes, one clear line for each mistake, and lines that can be pasted."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headcheck import __version__
from headcheck.command import main
from headcheck.laws import all_laws
from headcheck.verdict import LawResult
from tests import kernels

KERNELS = Path(kernels.__file__)
RIGHT, WRONG = f"{KERNELS}:right", f"{KERNELS}:wrong_scale"
PLAIN = ("--profile", "quick", "--dtype", "float32", "-n", "1")
QUICK = (*PLAIN, "--law", "default-scale", "--law", "duplicated-keys")
LAW = "attention/accuracy/default-scale-is-one-over-root-head-dim"
SOFTMAX_LAW = "softmax/accuracy/output-is-within-the-bound"


def verdict_of(subject: str, file: Path, *options: str) -> dict[str, Any]:
    main([subject, *QUICK, *options, "--json", str(file), "-q"])
    verdict: dict[str, Any] = json.loads(file.read_text())
    return verdict


@pytest.mark.parametrize(
    ("arguments", "exit_code", "last"),
    [
        ([RIGHT, *QUICK], 0, "conforms: 2 laws hold over "),
        (["verify", RIGHT, *QUICK], 0, "conforms: 2 laws hold over "),
        ([WRONG, *QUICK], 1, "breaks: 1 of 2 laws broken, 1 hold, over "),
        ([RIGHT, *PLAIN, "--law", "a-softcap"], 2, "untested: no law could be judged; 2 not applicable"),
    ],
)
def test_the_exit_code_is_the_verdict(
    arguments: Sequence[str], exit_code: int, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 conforms, 1 breaks, 2 nothing could be judged; the last line says it in words."""
    assert main(arguments) == exit_code
    assert capsys.readouterr().out.splitlines()[-1].startswith(last)


def test_exitfirst_stops_after_a_first_look(capsys: pytest.CaptureFixture[str]) -> None:
    """The law that tells most is shown as in a whole run, and the exit code is that of a break; what is left is said."""
    shown = []
    for options in (["-x"], []):
        assert main([WRONG, *PLAIN, *options, "--law", "accuracy"]) == 1
        shown.append(capsys.readouterr().out)
    early, whole = shown
    first = next(line for line in whole.splitlines() if line.startswith("BREAKS attention/"))
    assert first in early
    assert early.index("BREAKS attention/") == early.index(first)
    assert "replay: headcheck replay" in early
    assert re.search(r"NOT FINISHED: stopped after the first broken laws, \d+ of \d+ not judged", early)


def test_several_subjects_are_judged_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be judged keeps no other from it; at the end a line for each, and one that breaks outweighs."""
    missing = f"{KERNELS}:rigth"
    assert main([RIGHT, missing, WRONG, *QUICK]) == 1
    *_, right, not_had, wrong = capsys.readouterr().out.splitlines()
    assert right.startswith(f"{RIGHT}: conforms: 2 laws hold over ")
    assert not_had.startswith(f"{missing}: could not be judged: ")
    assert wrong.startswith(f"{WRONG}: breaks: 1 of 2 laws broken")
    assert wrong.endswith(" s; first attention/accuracy/default-scale-is-one-over-root-head-dim")
    assert main([RIGHT, missing, *QUICK, "-q"]) == 2
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main([WRONG, RIGHT, *QUICK, "-q", "-x"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main([missing, RIGHT, *QUICK, "-q", "-x"]) == 2, "one that cannot be judged breaks no law"
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_verdicts_of_several_subjects_are_one_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the command; what could not be judged says why, and stdout holds nothing beside the JSON."""
    missing = f"{KERNELS}:rigth"
    assert main([RIGHT, missing, WRONG, *QUICK, "--json", str(tmp_path / "all.json")]) == 1
    right, not_had, wrong = json.loads((tmp_path / "all.json").read_text())
    assert (right["verdict"], right["broken"]) == ("conforms", [])
    assert (not_had["subject"], not_had["verdict"]) == (missing, "untested")
    assert "rigth" in not_had["error"]
    assert wrong["broken"] == [each["id"] for each in wrong["laws"] if each["outcome"] == "breaks"]
    capsys.readouterr()
    assert main([RIGHT, WRONG, *QUICK, "--json", "-"]) == 1
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_who_ends_one_of_several_subjects_ends_them_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found of it is told; the others are not begun."""
    from headcheck.progress import Progress

    def interrupted(progress: Progress, row: LawResult) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "row", interrupted)
    assert main([RIGHT, WRONG, *QUICK, "-q"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{RIGHT}: untested: ")


MISTAKES = {
    "torch-sdap": "no built-in subject 'torch-sdap'",
    f"{KERNELS}:rigth": "no attribute 'rigth'",
    f"{RIGHT} --profile fast": "argument --profile: invalid choice: 'fast'",
    f"{RIGHT} --dtype int8": "cannot judge dtype 'int8'; there are: float32",
    f"{RIGHT} --device cuda:77": "torch cannot compute on 'cuda:77' here",
    f"{RIGHT} --law no-such-law": "no law of the role attention matches 'no-such-law'; `headcheck laws`",
    f"{RIGHT} --role juggling": "no role 'juggling'; there are: agreement, attention",
    f"{RIGHT} -n 0": "argument -n: 0 is no number of processes; 1 is the least",
    f"{RIGHT} --fuzz never": "argument --fuzz: never is no number of seconds between 0 and 1e+09",
    f"{RIGHT} -x --baseline b.toml": "a baseline needs every law: leave out --exitfirst",
    f"{RIGHT} -x --write-baseline b.toml": "a baseline needs every law: leave out --exitfirst",
    f"{RIGHT} --baseline a.toml --write-baseline b.toml": "--write-baseline adds to its own file: leave out --baseline",
    f"{RIGHT} --write-baseline /no/such/b.toml": "cannot write --write-baseline /no/such/b.toml: No such file",
    f"{RIGHT} --timeout soon": "argument --timeout: soon is no number of seconds between 0 and 1e+09",
    f"{KERNELS}:never_returns --timeout 1": "did not return from its first and plainest call in 1 s; where it",
    f"agree torch-sdpa-math {KERNELS}:never_returns --timeout 1": "did not return from its first and plainest call",
    f"probe {KERNELS}:never_returns --timeout 1": "did not return from its first and plainest call in 1 s",
    f"{RIGHT} --json /no/such/folder/v.json": "cannot write --json /no/such/folder/v.json: No such file",
    f"{RIGHT} --porfile quick": "unrecognized arguments: --porfile quick (did you mean --profile?); `headcheck",
    f"{RIGHT} --no-such-option": "unrecognized arguments: --no-such-option; `headcheck verify --help`",
    f"{RIGHT} --declare empty_rows nan": "a declaration is FIELD=VALUE: --declare empty_rows=nan",
    f"agree {RIGHT} {WRONG} --declare causal=top-left": "agree takes no --declare: name declarations, such as",
    f"replay {RIGHT} masks x=1": "there is no law 'masks'; do you mean attention/masks/",
    f"replay {RIGHT} no-such-law x=1": "there is no law 'no-such-law'",
    f"replay {RIGHT} {SOFTMAX_LAW} ''": "a law of the role softmax, the subject is judged as attention; --role softmax",
    f"replay {RIGHT} {LAW} kv_lem=2": "cannot read 'kv_lem=2' in the case",
    f"replay {RIGHT} {LAW} values=odd": "cannot read values=odd in the case: values is one of normal, ",
    f"replay {RIGHT} {LAW} head_dim=2 dtype=float31": "dtype is one of float32, float64, bfloat16, float16",
    "subjects no-such-subject": "no built-in subject has 'no-such-subject' in its name",
    "laws no-such-law": "there is no law 'no-such-law'; `headcheck laws` lists them",
    f"{KERNELS}:takes_one": "cannot be called as f(query, key, value): TypeError: takes_one() takes 1 positional",
    f"probe {KERNELS}:takes_one": "no plain call of the subject works: raised TypeError: takes_one() takes 1",
    "golden 000/similarity --errata": "--errata is of the whole ledger: leave out '000/similarity'",
    "lawz": "did you mean the command `headcheck laws`?",
    "repaly torch-sdpa x y": "did you mean the command `headcheck replay`?",
    "probe": "the following arguments are required: SUBJECT",
}


@pytest.mark.parametrize(("line", "message"), MISTAKES.items())
def test_a_mistake_is_one_line_on_stderr(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is told by one line that names the cure, with exit code 2 and without a traceback."""
    assert main(shlex.split(line)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("headcheck: ")
    assert message in said.err
    progress = re.compile(r"headcheck: (\d+ of \d+ laws judged, )?\d+ s, ")  # On a busy machine.
    assert len([line for line in said.err.splitlines() if not progress.match(line)]) == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "raised RuntimeError: out of luck"),
        ("wrong_shape", "output has shape"),
    ],
)
def test_a_subject_that_fails_is_a_finding(
    name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exceptions, wrong shapes and wrong types break the laws that meet them, told without a traceback."""
    quick = ("--profile", "quick", "--law", "default-scale", "-n", "1")
    assert main([*shlex.split(f"{KERNELS}:{name}"), *quick]) == 1
    said = capsys.readouterr()
    assert f"observed: {reason}" in said.out
    assert "Traceback" not in said.out + said.err


def test_the_lines_of_a_counterexample_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The replay line breaks the law again, and for a right subject it holds; the other judges one law."""
    (row,) = [r for r in verdict_of(WRONG, tmp_path / "v.json")["laws"] if r["outcome"] == "breaks"]
    replay, only = (shlex.split(row["counterexample"][line]) for line in ("replay", "only"))
    capsys.readouterr()
    assert main(replay[1:]) == 1
    shown = capsys.readouterr().out
    assert "observed: output[" in shown
    assert "the law is broken by this case" in shown
    assert main([RIGHT if word == WRONG else word for word in replay[1:]]) == 0
    assert "the law holds on this case" in capsys.readouterr().out
    assert main([*only[1:], "-q"]) == 1
    assert "1 of 1 law broken" in capsys.readouterr().out


def test_a_case_need_not_be_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    """The words of a case are one case, as they stand."""
    assert main(["replay", RIGHT, LAW, "kv_len=2", "head_dim=3", "--dtype", "float32"]) == 0
    said = capsys.readouterr().out
    assert "key (1, 1, 2, 3) = " in said
    assert "the law holds on this case" in said


@pytest.mark.parametrize(
    ("case", "needs"),
    [
        ("", "kv_len=2 is_causal=true"),
        ("kv_len=2", "is_causal=true"),
        ("kv_len=1 is_causal=true", "kv_len=2"),
        ("kv_len=2 is_causal=true heads=3 kv_heads=2", "kv_heads=3"),
        ("kv_len=2 is_causal=true mask=[[true,false]]", "no mask"),
    ],
)
def test_an_edited_case_of_which_the_law_does_not_speak_is_not_applicable(
    case: str, needs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It neither breaks the law nor fails in it: one line says what the case would need, with exit code 2."""
    assert main(["replay", RIGHT, "attention/masks/the-future-does-not-matter", case]) == 2
    *_, last = capsys.readouterr().out.splitlines()
    assert last == f"not applicable: the law does not speak of this case; it needs {needs}"


def test_what_the_subject_prints_stays_out_of_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    """`--json -` is nothing but JSON; in a replay the user sees what the subject prints, on stderr."""
    main([f"{KERNELS}:prints", *QUICK, "--json", "-", "-q"])
    said = capfd.readouterr()
    assert json.loads(said.out)["verdict"] == "conforms"
    assert "a subject that talks" not in said.err
    assert said.err.startswith("conforms: 2 laws hold")
    main(["replay", f"{KERNELS}:prints", LAW, "kv_len=2 head_dim=2"])
    said = capfd.readouterr()
    assert "a subject that talks" not in said.out
    assert "a subject that talks" in said.err


def test_a_replay_leaves_no_file_open() -> None:
    """Where warnings are heard, Python's of a file is one; sympy, imported before, keeps the stdout that it met."""
    words = ["replay", RIGHT, LAW, "kv_len=2 head_dim=2"]
    code = (
        f"import sympy.strategies.core; from headcheck.command import main; raise SystemExit(main({words}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_same_seed_gives_the_same_json(tmp_path: Path) -> None:
    """Whatever the number of processes; another seed gives other cases."""
    options = {"a": ("-n", "1"), "b": ("-n", "2"), "c": ("--seed", "5")}
    verdicts = {name: verdict_of(WRONG, tmp_path / name, *given) for name, given in options.items()}
    examples = {name: [row["counterexample"] for row in v["laws"]] for name, v in verdicts.items()}
    assert examples["a"] == examples["b"]
    assert examples["a"] != examples["c"]


def test_an_unwritable_result_is_found_out_before_the_work(tmp_path: Path) -> None:
    """Nothing is judged for a file that cannot be written, and no empty file is left for one that can."""
    began = time.monotonic()
    assert main([WRONG, *QUICK, "--fuzz", "60", "--json", str(tmp_path)]) == 2
    assert time.monotonic() - began < 30
    assert main([f"{KERNELS}:rigth", "--json", str(tmp_path / "new.json")]) == 2
    assert not (tmp_path / "new.json").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_no_bug() -> None:
    """One line, and exit code 2."""
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "headcheck", "laws"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (run.returncode, run.stderr) == (2, "headcheck: cannot write: No space left on device\n")


def test_the_verdict_is_shown_though_the_json_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that fills up meanwhile costs the file, not the verdict."""

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert main([RIGHT, *QUICK, "-q", "--json", str(tmp_path / "v.json")]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("conforms: 2 laws hold")
    assert "No space left on device; the verdict stands above" in said.err


def test_a_failure_of_headcheck_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody foresaw is told as a bug of headcheck, not of the subject, with exit code 2."""

    def fails(*_: object) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr("headcheck.subjects.builtins", fails)
    assert main(["subjects"]) == 2
    assert (
        "this is a bug in headcheck, please report it: ZeroDivisionError: unforeseen"
        in capsys.readouterr().err
    )


def test_laws_lists_every_law(capsys: pytest.CaptureFixture[str]) -> None:
    """Each law with its statement; one of them in full, with formula, source and what it guards against."""
    assert main(["laws"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {law.name}: {law.statement}" in listed for law in all_laws().values())
    assert main(["laws", LAW]) == 0
    law = all_laws()[LAW]
    full = capsys.readouterr().out
    assert all(part in full for part in (law.id, law.statement, law.source, law.guards))


def test_subjects_are_listed_with_what_installs_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that are here with what they are, then those that are not with the line that brings them."""
    assert main(["subjects", "torch-sdpa"]) == 0
    here = capsys.readouterr().out
    assert "torch-sdpa-math " in here
    assert "jax" not in here
    assert main(["subjects"]) == 0
    here, _, missing = capsys.readouterr().out.partition("not installed: ")
    assert "pip install" not in here
    assert all("pip install" in line for line in missing.splitlines()[1:])


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """`headcheck --version` is that of the package."""
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"headcheck {__version__}\n"


def test_a_terminated_run_shows_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM, as a time limit sends it, ends a long run with the rows so far: that is no pass."""
    from headcheck.progress import Progress

    rows, shown = [], Progress.row

    def terminated_after_two(progress: Progress, row: LawResult) -> None:
        shown(progress, row)
        rows.append(row)
        if len(rows) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Progress, "row", terminated_after_two)
    assert main([RIGHT, *QUICK, "-q", "--fuzz", "600"]) == 2
    out = capsys.readouterr().out
    assert out.startswith("untested: 2 laws hold over ")
    assert "NOT FINISHED: interrupted after 2 of 2 laws" in out
