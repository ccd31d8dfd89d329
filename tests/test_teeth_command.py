"""`headcheck teeth`: faults caught, variants failed, results kept, and the page of it all."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from headcheck.command import main
from headcheck.engine import PROFILES
from headcheck.results import append_result, read_results
from headcheck.teeth.campaign import read
from headcheck.teeth.corpus import held_out, load
from headcheck.teeth.summary import cover
from headcheck.teeth.trial import Outcome, Way, tried
from tests.corpus import RIGHT, WRONG

FAULT, OTHER_FAULT, VARIANT = "softmax/no-maximum", "softmax/wrong-base", "softmax/by-the-book"


def corpus(folder: Path, wrong: tuple[str, ...], right: tuple[str, ...] = ()) -> str:
    """A file with these entries of ours."""
    file = folder / "a_corpus.py"
    file.write_text(
        "from tests.corpus import RIGHT as R, WRONG as W\n"
        f"WRONG = {{name: (W | R)[name] for name in {wrong!r}}}\n"
        f"RIGHT = {{name: (W | R)[name] for name in {right!r}}}\n"
    )
    return str(file)


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """Each test has a corpus of its own, in a module of the same name."""
    load.cache_clear()
    sys.modules.pop("a_corpus", None)


def test_ids_are_those_of_one_corpus() -> None:
    """No fault and no variant of any role has the id of another."""
    assert not WRONG.keys() & RIGHT.keys()
    assert all(name == entry.id for name, entry in {**WRONG, **RIGHT}.items())


def test_a_quarter_is_held_out() -> None:
    """The split is a matter of the id alone, and leaves out about one in four."""
    share = sum(map(held_out, WRONG)) / len(WRONG)
    assert 0.2 < share < 0.3


def test_what_is_caught_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Faults that are caught and variants that are not failed make exit code 0."""
    file = corpus(tmp_path, (FAULT, OTHER_FAULT), (VARIANT,))
    assert main(["teeth", "--corpus", file, "-n", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("quick, seed 0: 2 of 2 faults caught; ")
    assert "0 of 1 right variants failed" in said


def test_survivors_and_wrong_failures_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fault that no law breaks, and a variant that one does, make exit code 1, by name."""
    file = corpus(tmp_path, (VARIANT,), (FAULT,))
    assert main(["teeth", "--corpus", file, "-n", "1"]) == 1
    said = capsys.readouterr().out
    assert f"survives: {VARIANT}" in said
    assert f"failed wrongly: {FAULT} by " in said
    why = said.partition("failed wrongly")[2].splitlines()[1]
    assert "the bound is" in why and "seed=" in why, "of a failure stands the case, and what was seen"


def test_an_entry_that_cannot_be_judged_is_named_after_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A subject whose plain call raises ends no campaign: the others are judged and kept, and it is named."""
    file = Path(corpus(tmp_path, (FAULT, OTHER_FAULT)))
    file.write_text(
        file.read_text() + "from dataclasses import replace\n"
        "def raises(x, dim): raise ValueError('not today')\n"
        f"WRONG[{FAULT!r}] = replace(WRONG[{FAULT!r}], function=raises)\n"
    )
    results = tmp_path / "results.jsonl"
    assert main(["teeth", "--corpus", str(file), "--results", str(results), "-n", "1"]) == 2
    said = capsys.readouterr().err
    assert f"1 of 2 entries cannot be judged; {FAULT}: the subject cannot be called" in said
    assert [each.id for each in read(results)] == [OTHER_FAULT]


def test_results_of_an_older_version_are_read(tmp_path: Path) -> None:
    """What is no longer kept of an outcome is passed over."""
    known = Outcome("a", "quick", 0, Way.ALL, ("b",), 3, 1, 0.5, 2)
    file = tmp_path / "results.jsonl"
    file.write_text(json.dumps({**asdict(known), "applied": 3}) + "\n")
    assert read(file) == [known]


def test_results_are_kept_and_gone_on_from(tmp_path: Path) -> None:
    """What is in the file is not judged again."""
    file, results = corpus(tmp_path, (FAULT,)), tmp_path / "results.jsonl"
    line = ["teeth", "--corpus", file, "--results", str(results), "-n", "1"]
    assert main(line) == 0
    assert [each.id for each in read(results)] == [FAULT]
    before = results.read_text()
    assert main(line) == 0
    assert results.read_text() == before


def test_seeds_are_a_number_or_a_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--seeds 2:4` judges the seeds 2 and 3; what names none is refused in one line."""
    results = tmp_path / "results.jsonl"
    line = ["teeth", "--corpus", corpus(tmp_path, (FAULT,)), "--results", str(results), "-n", "1", "--seeds"]
    assert main([*line, "2:4"]) == 0
    assert sorted(each.seed for each in read(results)) == [2, 3]
    for text in ("4:2", "0", "a:3", "-1"):
        assert main([*line, text]) == 2
        assert "names no seeds" in capsys.readouterr().err


def test_a_killed_process_loses_nothing_that_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a process of the campaign dies, one line says how to go on."""
    file = tmp_path / "deadly.py"
    file.write_text(
        "import os\nfrom types import SimpleNamespace\n\n"
        "class Deadly(SimpleNamespace):\n    def declaration(self):\n        os._exit(3)\n\n"
        'WRONG = {"a": Deadly(id="a", role="attention", sentence="It dies.", breaks=())}\nRIGHT = {}\n'
    )
    assert main(["teeth", "--corpus", str(file), "-n", "1"]) == 2
    assert "with --results goes on" in capsys.readouterr().err


def test_the_matrix_goes_on_after_the_first_broken_law(tmp_path: Path) -> None:
    """With --matrix every law is judged, the page lists laws and faults, and the picture has a dot for each kill."""
    results, page = tmp_path / "results.jsonl", tmp_path / "teeth.md"
    file = corpus(tmp_path, (FAULT,))
    asked = ["teeth", "--corpus", file, "--matrix", "--results", str(results), "--page", str(page), "-n", "1"]
    assert main(asked) == 0
    (outcome,) = read(results)
    assert len(outcome.broken) > 1
    shown = page.read_text()
    assert f"| {FAULT} | {WRONG[FAULT].sentence} | {len(outcome.broken)} |" in shown
    assert page.with_suffix(".svg").read_text().count("M") == len(outcome.broken)


def test_laws_named_for_a_fault_may_go_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --named-first the first broken law is one that is named, and no effort is told."""
    results = tmp_path / "results.jsonl"
    file = corpus(tmp_path, (FAULT,))
    assert main(["teeth", "--corpus", file, "--named-first", "--results", str(results), "-n", "1"]) == 0
    (outcome,) = read(results)
    assert outcome.broken[0] in WRONG[FAULT].breaks and not outcome.smallest
    assert capsys.readouterr().out == "quick, seed 0: 1 of 1 faults caught\n"
    assert main(["teeth", "--corpus", file, "--named-first", "--matrix"]) == 2


def test_the_smallest_counterexample_is_measured() -> None:
    """An outcome that stopped at the first broken law says how many numbers its smallest case holds."""
    outcome = tried(WRONG[FAULT], PROFILES["quick"], 0, Way.FIRST)
    assert outcome.until_broken >= 1
    assert 1 <= outcome.smallest <= 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no corpus"),
        ("A = 1\n", "it must have WRONG and RIGHT"),
        ("WRONG = RIGHT = {}\n", "has no entry of that role and name"),
    ],
)
def test_what_is_no_corpus_is_told_in_one_line(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file, one without entries, and one that is no corpus at all."""
    file = tmp_path / "a_corpus.py"
    if text is not None:
        file.write_text(text)
    assert main(["teeth", "--corpus", str(file)]) == 2
    assert message in capsys.readouterr().err


def test_foreign_results_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of something else is neither read nor written over."""
    results = tmp_path / "notes.txt"
    line = ["teeth", "--corpus", corpus(tmp_path, (FAULT,)), "--results", str(results)]
    for notes in ("my notes\n", "my notes", '{"a": 1}', "[1]\n"):
        results.write_text(notes)
        assert main(line) == 2
        assert "holds no results" in capsys.readouterr().err
        assert results.read_text() == notes


def test_a_file_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is judged that could not be kept."""
    lost = str(tmp_path / "no-such-folder" / "results.jsonl")
    assert main(["teeth", "--corpus", corpus(tmp_path, (FAULT,)), "--results", lost]) == 2
    assert capsys.readouterr().err.startswith(f"headcheck: cannot write --results {lost}: No such file")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{"b": 2}\n'),
        ('{"a": 1}\n', '{"a": 1}\n{"b": 2}\n'),
        ('{"a": 1}\n{"c', '{"a": 1}\n{"b": 2}\n'),
        ('{"a": 1}', '{"a": 1}\n{"b": 2}\n'),
        ('{"a', '{"b": 2}\n'),
    ],
)
def test_a_last_line_that_was_cut_off_is_written_over(tmp_path: Path, before: str, after: str) -> None:
    """As after a run that was killed; all others stay."""
    file = tmp_path / "results.jsonl"
    file.write_text(before)
    append_result(file, {"b": 2})
    assert file.read_text() == after
    assert read_results(file, "results")[-1] == {"b": 2}


def test_a_cover_catches_all() -> None:
    """The law that catches most first, then what catches the rest."""

    def outcome(*broken: str) -> Outcome:
        return Outcome("", "quick", 0, True, broken, 3, 1, 0.0, 0)

    assert cover([outcome("a", "b"), outcome("b"), outcome("c"), outcome()]) == ["b", "c"]
