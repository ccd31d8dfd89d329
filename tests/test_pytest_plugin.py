"""The pytest front: each law is one item, and a run in which nothing was judged does not pass."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from headcheck.command import main
from tests import kernels

pytest_plugins = ["pytester"]

KERNELS = Path(kernels.__file__)
QUICK = ("--headcheck-profile", "quick", "--headcheck-dtype", "float32")
WRONG_SCALE = "properties/attention/accuracy.py::default-scale-is-one-over-root-head-dim"


def pytest_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def test_a_pytest_run_that_asks_for_no_laws_pays_nothing(tmp_path: Path) -> None:
    """The plugin is loaded in every run of the environment, and imports neither torch nor numpy."""
    (tmp_path / "test_light.py").write_text(
        "import sys\n"
        "def test_light(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('headcheck-session')\n"
        "    heavy = {'torch', 'numpy', 'rich', 'headcheck.engine', 'headcheck.laws'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    done = pytest_run(tmp_path, "-q", "-p", "no:jaxtyping", "-p", "no:hypothesispytest", "test_light.py")
    assert "1 passed" in done.stdout
    assert "headcheck" not in done.stdout


def test_laws_are_collected_by_their_names(pytester: pytest.Pytester) -> None:
    """--collect-only shows each law under its module, whatever the installation; -k chooses by law id."""
    chosen = ("--collect-only", "-q", "-k", "accuracy/default")
    listed = pytester.runpytest_inprocess("--pyargs", "headcheck.properties", *chosen)
    listed.stdout.re_match_lines([f"{WRONG_SCALE}$", r"1/\d+ tests collected .*"])


def test_a_subject_that_no_law_was_run_on_is_no_pass(tmp_path: Path) -> None:
    """As where the laws are not among what is collected: the user's own tests pass, and the exit code is 2."""
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    done = pytest_run(tmp_path, "--subject", f"{KERNELS}:right", *QUICK, "test_own.py")
    assert "1 passed" in done.stdout
    assert "right: NOT JUDGED, no law was run; --pyargs headcheck.properties collects them" in done.stdout
    assert done.returncode == 2


@pytest.mark.parametrize("spread", [(), ("-n", "2")], ids=["alone", "spread"])
def test_what_was_left_out_is_no_pass(tmp_path: Path, spread: tuple[str, ...]) -> None:
    """What crashes in 16 bits is judged in float32 only; all that was judged holds, and the exit code is 2."""
    (tmp_path / "crash.py").write_text(
        "import os, torch\n"
        "def attention(query, key, value):\n"
        "    if query.element_size() == 2: os._exit(3)\n"
        "    return torch.nn.functional.scaled_dot_product_attention(query, key, value)\n"
    )
    chosen = ("--pyargs", "headcheck.properties", "-k", "one-key-gives", *spread)
    done = pytest_run(tmp_path, "--subject", "crash.py:attention", "--headcheck-profile", "quick", *chosen)
    assert "1 passed" in done.stdout
    assert "NOT FINISHED: judged in float32 only: the process ended with exit status 3" in done.stdout
    assert done.returncode == 2


@pytest.mark.parametrize("spread", [(), ("-n", "2")], ids=["alone", "spread"])
def test_a_broken_law_fails_with_its_counterexample(tmp_path: Path, spread: tuple[str, ...]) -> None:
    """Failure, skip and pass are told apart, in one process and in several, and in JUnit's XML."""
    chosen = "default-scale or duplicated-keys or softcap-caps"
    low = ("--headcheck-profile", "quick", "--headcheck-dtype", "bfloat16")
    options = ("--subject", f"{KERNELS}:wrong_scale", *low, "-k", chosen, "--junitxml", "out.xml", "-rs")
    done = pytest_run(tmp_path, "--pyargs", "headcheck.properties", *options, *spread)
    assert done.returncode == 1
    for part in (
        "BREAKS attention/accuracy/default-scale-is-one-over-root-head-dim",
        "observed: output[",
        f"replay: headcheck replay {KERNELS}:wrong_scale attention/accuracy/default-scale",
        "not applicable: takes no softcap",
        f"{KERNELS}:wrong_scale: 1 laws hold, 1 broken, 1 not applicable",
        "1 failed, 1 passed, 1 skipped",
        "bfloat16: arithmetic inferred as ",
    ):
        assert part in done.stdout
    assert "Traceback" not in done.stdout
    properties = {
        case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")}
        for case in ET.parse(tmp_path / "out.xml").iter("testcase")
    }
    row = properties["duplicated-keys-change-nothing"]
    assert row["law"] == "attention/symmetry/duplicated-keys-change-nothing"
    assert row["outcome"] == "holds"
    assert int(row["examples"] or 0) > 0
    assert 0 <= float(row["worst_error_over_bound"] or -1) <= 1
    assert row["subject"] == f"{KERNELS}:wrong_scale"


def test_a_run_that_judged_nothing_does_not_pass(pytester: pytest.Pytester) -> None:
    """A subject to which no law applies gives exit code 2 and a loud line."""
    chosen = ("-k", "softcap-caps", *QUICK)
    done = pytester.runpytest_inprocess("--pyargs", "headcheck.properties", *chosen)
    assert done.ret == 2
    done.stdout.fnmatch_lines(
        [
            "torch-sdpa: 0 laws hold, 0 broken, 1 not applicable",
            "NO LAW COULD BE JUDGED: this is no pass (exit code 2)",
        ]
    )
    done.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize("spread", [(), ("-n", "2")], ids=["alone", "spread"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--subject", f"{KERNELS}:rigth"),
            f"headcheck: {KERNELS} has no attribute 'rigth' (did you mean right",
        ),
        (("--headcheck-dtype", "int8"), "headcheck: cannot judge dtype 'int8'; there are: float32"),
        (("--headcheck-baseline", "none.toml"), "headcheck: cannot read the baseline none.toml"),
    ],
)
def test_a_mistake_is_one_usage_error(
    tmp_path: Path, options: tuple[str, ...], said: str, spread: tuple[str, ...]
) -> None:
    """As the command tells it: in one line, before anything is collected, with pytest's exit code for it."""
    done = pytest_run(tmp_path, "-q", "--pyargs", "headcheck.properties", *options, *spread)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if line]
    assert line.startswith(f"ERROR: {said}")


DEVIATION = """
[[deviation]]
subject = "*"
law = "attention/accuracy/default-scale-*"
reason = "a reason"
kind = "bug"
versions = ""
reference = ""
"""
CRASH = """
import os, torch
calls = []
def attention(query, key, value):
    calls.append(1)
    if len(calls) > 3: os._exit(7)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)
"""


def test_a_baseline_does_not_cover_a_crash_before_the_first_law(tmp_path: Path) -> None:
    """It is booked on one law, which is listed; but no law was judged, and the run does not pass."""
    (tmp_path / "crash.py").write_text(CRASH)
    (tmp_path / "known.toml").write_text(DEVIATION)
    options = ("--subject", "crash.py:attention", *QUICK, "--headcheck-baseline", "known.toml")
    done = pytest_run(tmp_path, "--pyargs", "headcheck.properties", *options, "-k", "default-scale")
    assert "1 failed" in done.stdout
    ended = "the process ended with exit status 7 when it was first tried"
    assert f"NOT FINISHED: no law could be judged: {ended}" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(("dtype", "code"), [("float32", 0), ("", 1)], ids=["in-one-dtype", "in-all"])
def test_a_deviation_is_gone_only_where_no_dtype_shows_it(tmp_path: Path, dtype: str, code: int) -> None:
    """What holds in the dtypes that were asked for may break in the others: the command and pytest let it stand."""
    (tmp_path / "known.toml").write_text(DEVIATION)
    subject, known = f"{KERNELS}:right", str(tmp_path / "known.toml")
    narrowed = ["--dtype", dtype] if dtype else []
    command = [subject, "--profile", "quick", "--law", "default-scale", "-n", "1", "-q", "--baseline", known]
    assert main([*command, *narrowed]) == code
    options = ("--subject", subject, "--headcheck-profile", "quick", "--headcheck-baseline", known)
    narrowed = ["--headcheck-dtype", dtype] if dtype else []
    laws = ("--pyargs", "headcheck.properties", "-k", "default-scale")
    assert pytest_run(tmp_path, *laws, *options, *narrowed).returncode == code


def test_how_a_baseline_is_written_is_remarked(tmp_path: Path) -> None:
    """An entry that names no subject of the run, but looks like it, is told in one line, and covers nothing."""
    (tmp_path / "known.toml").write_text(DEVIATION.replace("*", "kernels:right", 1))
    options = ("--subject", f"{KERNELS}:right", *QUICK, "--headcheck-baseline", "known.toml")
    done = pytest_run(tmp_path, "--pyargs", "headcheck.properties", *options, "-k", "default-scale")
    assert "baseline: kernels:right names no subject of this run, but looks like " in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize("spread", [(), ("-n", "2")], ids=["alone", "spread"])
def test_what_the_rows_say_together_is_a_hint(tmp_path: Path, spread: tuple[str, ...]) -> None:
    """As on the command line, whatever processes judged them."""
    (tmp_path / "sharp.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "def attention(query, key, value, attn_mask=None, is_causal=False):\n"
        "    return 1 + sdpa(query, key, 3 * value, attn_mask=attn_mask, is_causal=is_causal)\n"
    )
    laws = ("-k", "accuracy or distribution or symmetry")
    asked = ("--pyargs", "headcheck.properties", "--subject", "sharp.py:attention", *QUICK, *laws, *spread)
    done = pytest_run(tmp_path, *asked)
    assert done.returncode == 1
    assert "hint: most laws break at their first example, often for a convention" in done.stdout
