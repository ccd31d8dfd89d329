"""README.md and the pages that it leads to are run: commands with their exit codes, snippets with what they print."""

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/ci.md", "docs/adapting.md", "docs/extending.md", "docs/deviations.md")
TEXT = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
BLOCK = re.compile(r"(?:<!-- exit (\d)[^>]*-->\n)?```(\w+)\n(.*?)```\n", re.DOTALL)
NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block, the exit code announced before it, and the block after it if that is text."""

    language: str
    text: str
    exit_code: int | None
    output: str = ""


def blocks() -> list[Block]:
    """Every fenced block, in order."""
    found = [Block(m[2], m[3].strip("\n"), int(m[1]) if m[1] else None) for m in BLOCK.finditer(TEXT)]
    following = [*found[1:], Block("", "", None)]
    return [
        Block(each.language, each.text, each.exit_code, after.text if after.language == "text" else "")
        for each, after in zip(found, following, strict=True)
    ]


SHELL = [each for each in blocks() if each.language == "sh"]
SET_UP = [each for each in SHELL if each.exit_code is None]
COMMANDS = [each for each in SHELL if each.exit_code is not None]
SNIPPETS = [each.text for each in blocks() if each.language == "python"]


def test_every_fence_is_understood() -> None:
    """No block escapes by being written in another way."""
    assert TEXT.count("```") == 2 * len(blocks())
    assert {each.language for each in blocks()} == {"sh", "python", "text"}
    assert all("\n" not in each.text for each in SHELL), "a block holds one command"


@pytest.mark.parametrize(
    ("page", "numbers", "sentence"),
    [
        (
            "docs/agree.md",
            r"conforms: (\d+) subjects; .*; (\d+) of (\d+) pairs",
            "{} subjects agree in {} of {} pairs",
        ),
        (
            "docs/matrix.md",
            r"(?s)(\d+) built-in subjects of (\d+) packages.*?(\d+) deviate",
            "of {} subjects of {}\npackages {} deviate",
        ),
        ("docs/models.md", r"(?s)(\d+) built-in subjects.*?(\d+) deviate", "of {} models {} deviate"),
        (
            "docs/teeth.md",
            r"gate \| 4 \| (\d+) of .*\n\| quick \| 0 \| (\d+ of \d+)",
            "caught all {} at each of five seeds, the quick profile {},",
        ),
        (
            "docs/peers.md",
            r"headcheck, quick profile \| (\d+ of \d+) \| (\d+ of \d+) ",
            "| headcheck, quick profile | {} | {} |",
        ),
    ],
)
def test_numbers_are_those_of_the_pages(page: str, numbers: str, sentence: str) -> None:
    """What the README quotes of a generated page stands there."""
    found = re.search(numbers, (ROOT / page).read_text(encoding="utf-8"))
    assert found, page
    assert sentence.format(*found.groups()) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_two_set_up_lines_are_what_the_gate_runs() -> None:
    """The first line sets up and judges, the second tests; .ci/run does the same, literally."""
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    set_up, tests = (each.text for each in SET_UP)
    *steps, main_job = set_up.split(" && ")
    assert [step for step in steps if step not in gate] == []
    assert main_job == ".venv/bin/headcheck"
    assert tests in gate


def in_this_environment() -> dict[str, str]:
    """The environment in which `headcheck` and `pytest` are those of this interpreter."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return kept | {"PATH": beside}


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.text[:60])
def test_commands_do_what_they_say(block: Block) -> None:
    """A command ends with the exit code announced, and what is shown of its output is in its output."""
    command = shlex.split(block.text)
    assert command[0] in ("headcheck", "pytest")
    ran = subprocess.run(
        command, cwd=ROOT, env=in_this_environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == block.exit_code, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    printed = iter([like(line) for line in ran.stdout.splitlines()])
    shown = [like(line) for line in block.output.splitlines() if line != "..."]
    assert [line for line in shown if line not in printed] == [], "README shows lines that are not printed"


def like(line: str) -> str:
    """A line of output up to its numbers and blanks, which machines and versions may change."""
    return " ".join(NUMBER.sub("#", line).split())


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_print_what_their_comments_say(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snippet runs, and each print shows what the comment beside it says."""
    if others := other_packages(SNIPPETS[number]):
        pytest.skip(f"it is about {', '.join(others)}: run by hand where they are installed")
    forget_registrations(monkeypatch)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)
    printed = io.StringIO()
    names: dict[str, Any] = {"__name__": f"headcheck.properties.attention.readme_{number}"}
    with contextlib.redirect_stdout(printed):
        exec(compile(SNIPPETS[number], "README.md", "exec"), names)
    announced = re.findall(r"^print\(.*\)  # (.*)$", SNIPPETS[number], re.MULTILINE)
    assert printed.getvalue().splitlines() == announced
    judge_what_was_added(names)


def other_packages(snippet: str) -> list[str]:
    """The libraries of others that a snippet shows a deviation of."""
    imports = (node for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.Import | ast.ImportFrom))
    names = {
        (each.module or "") if isinstance(each, ast.ImportFrom) else alias.name
        for each in imports
        for alias in each.names
    }
    ours = {"torch", "headcheck", "examples", "tests", *sys.stdlib_module_names}
    return sorted({name.partition(".")[0] for name in names} - ours)


def forget_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a snippet registers is gone after its test."""
    from headcheck import subjects
    from headcheck.attention import patterns, values
    from tests import faults

    places = [(patterns, "PATTERNS"), (values, "REGIMES"), (subjects, "_REGISTRY")]
    for module, name in [*places, (values, "CONTINUOUS"), (patterns, "DEAD_ROWS"), (faults, "FAULTS")]:
        monkeypatch.setattr(module, name, getattr(module, name).copy())


def judge_what_was_added(names: dict[str, Any]) -> None:
    """A law of a snippet holds for the reference; a subject conforms; regimes and patterns can be drawn."""
    import torch

    from headcheck import subjects
    from headcheck.attention import patterns, values
    from headcheck.attention.case import Case
    from headcheck.laws import Law, all_laws
    from headcheck.plan import Plan, profile_named
    from headcheck.preparing import subject_of
    from tests import faults

    for law in [each for each in names.values() if isinstance(each, Law)]:
        engine = subject_of(Plan("reference", profile_named("quick"), dtypes=("float32",))).prepared().engine
        row = engine.judge(law)
        assert (row.outcome, row.examples > 0) == ("holds", True), row.reason
    if "my_kernel" in names:
        made = subjects._REGISTRY["my-kernel"].declaration()
        engine = subject_of(Plan(made, profile_named("quick"), dtypes=("float32",))).prepared().engine
        assert engine.subject.lacks("attn_mask")
    generator = torch.Generator().manual_seed(0)
    case = Case(kv_len=4, q_len=2)
    for name in [each for each in values.REGIMES if each in names]:
        assert all(x.isfinite().all() for x in values.generate(case.but(values=name), generator))
    for name, function in patterns.PATTERNS.items():
        if function in names.values():
            assert function(case, generator).shape == (1, 1, 2, 4), name
    for entry in [
        each for each in faults.FAULTS.values() if names["__name__"].endswith(each.id.partition("/")[0])
    ]:
        plan = Plan(entry.declaration(), profile_named("gate"), dtypes=("float32",))
        engine = subject_of(plan).prepared().engine
        assert engine.judge(all_laws()[f"attention/{entry.breaks[0]}"]).outcome == "breaks"


NAMED = {
    "scale_by_dim": "accuracy/default-scale-is-one-over-root-head-dim",
    "causal_off_by_one": "masks/the-future-does-not-matter",
    "leaky_mask": "masks/dead-rows-follow-the-convention",
    "late_rescale": "accuracy/a-moving-maximum-rescales-all",
}
"""Wrong example -> the law that a person would name."""


@pytest.mark.parametrize("name", NAMED)
def test_wrong_examples_break_the_law_that_one_would_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wrong example breaks its law in the gate. (README's commands judge the right ones.)"""
    import headcheck

    monkeypatch.chdir(ROOT)
    verdict = headcheck.verify(f"examples/wrong_attention.py:{name}", laws=NAMED[name])
    assert verdict.verdict == "breaks", verdict


def test_examples_say_how_they_are_run() -> None:
    """The docstring of each example names every subject in it, or the program that it is."""
    for path in (ROOT / "examples").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if '__name__ == "__main__"' in text:
            assert f"python examples/{path.name}" in text, path.name
            continue
        said = set(re.findall(rf"headcheck examples/{path.name}:(\w+)", text))
        subjects = set(re.findall(r"^subject\b", text, re.MULTILINE)) or set(
            re.findall(r"^def (\w+)", text, re.MULTILINE)
        )
        assert said == subjects, path.name
