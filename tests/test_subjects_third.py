"""Subjects of other people's packages, the matrix of all subjects, and the file of known deviations."""

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import headcheck
from headcheck.baseline import KINDS, Known, compare, in_range, known_of, read_baseline, remarks
from headcheck.command import main
from headcheck.declarations import FOUR_AXES
from headcheck.errors import HeadcheckError, SubjectError
from headcheck.functions.sinusoidal_inputs import Sinusoidal
from headcheck.laws import choose
from headcheck.loading import load
from headcheck.matrix import Record, chosen, judge_all, judged, read_records
from headcheck.matrix_page import matrix_page
from headcheck.recognising import is_declaration
from headcheck.subjects import BuiltIn, builtins, families, named
from headcheck.verdict import Counterexample, LawResult, Verdict

ROOT = Path(__file__).resolve().parent.parent
OTHERS = sorted(name for name, each in builtins().items() if set(each.needs) - {"torch"})
LIGHT = {
    *("torch", "x_transformers", "local_attention", "memory_efficient_attention_pytorch", "onnx"),
    *("ring_attention_pytorch", "rotary_embedding_torch", "curated_transformers"),
}
"""Packages on torch or NumPy alone, which may share a process."""
SMALL = ("reference-sinusoidal", "reference-sinusoidal-concatenated")


def row(law, outcome):
    return LawResult(law, "A sentence.", outcome)


def verdict(*rows, subject="mine"):
    return Verdict(
        subject=subject, role="attention", profile="quick", seed=0, laws=list(rows), duration_s=0.0
    )


KNOWN = Known("mine", ("attention/masks/*",), "a reason", "bug", "", "none found")


# Subjects


@pytest.mark.parametrize("name", OTHERS)
def test_a_subject_of_another_package_declares_itself_or_says_how_to_install_it(name):
    """A subject whose package is missing tells the line that installs it, and imports nothing."""
    subject = builtins()[name]
    assert subject.install.startswith("pip install ")
    if subject.missing:
        with pytest.raises(SubjectError, match=r"needs .*; run: pip install "):
            subject.declaration()
        pytest.skip(f"{', '.join(subject.missing)} not installed")
    if not set(subject.needs) <= LIGHT:
        pytest.skip("frameworks may abort when loaded together; `headcheck matrix` judges it by itself")
    declared = subject.declaration()
    assert is_declaration(declared)
    assert declared.name == name


def test_the_implementations_are_many_and_of_many_packages():
    """The built-in subjects are many, and of many packages."""
    packages = {package for name in OTHERS for package in builtins()[name].needs} - {
        "torch",
        "torchvision",
        "torchao",
    }
    assert len(OTHERS) >= 140
    assert len(packages) >= 28


def test_a_family_makes_a_subject_of_a_word():
    """hf:llama names a subject that no list holds."""
    found = named("hf:llama")
    assert "hf" in families()
    assert found is not None
    assert found.name == "hf:llama"
    assert "hf:llama" not in builtins()


def test_a_member_of_a_family_that_is_not_installed_says_so(monkeypatch):
    """Where transformers is missing, hf:llama tells the line that installs it."""
    monkeypatch.setattr("headcheck.subjects.find_spec", lambda package: None)
    with pytest.raises(SubjectError, match="hf:llama needs transformers; run: pip install transformers"):
        load("hf:llama")


def test_an_unknown_model_type_is_told_in_one_line():
    """A model type that transformers does not have is refused."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(SubjectError, match="no model type 'no_such'"):
        load("hf:no_such")


@pytest.mark.parametrize("name", ["hf-vision:swin", "hf-encoder:funnel"])
def test_a_type_of_other_sizes_is_told_in_one_line(name):
    """A configuration that has sizes for each of its stages, or none of its own, makes no tiny model."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(SubjectError, match="is made here: its configuration takes other sizes"):
        load(name)


@pytest.mark.parametrize("name", ["hf-encoder:bert", "hf-seq2seq:t5", "hf-vision:vit", "hf-window:mistral"])
def test_a_family_of_each_role_declares_its_models(name):
    """Encoders, encoder-decoders, image classifiers and windows are subjects by their model type."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    declared = named(name).declaration()
    assert is_declaration(declared)
    assert declared.name == name


def test_a_window_is_asked_of_a_type_that_has_one():
    """hf-window: a type whose configuration names no sliding window is refused."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(SubjectError, match="the configuration of llama names no sliding window"):
        load("hf-window:llama")


def test_the_attention_that_is_asked_for_is_compared_with_the_usual_one():
    """hf:llama@eager is switched to sdpa beside it; hf:llama is what it is."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert list(named("hf:llama@eager").declaration().variants) == ["sdpa"]
    assert not named("hf:llama").declaration().variants
    assert headcheck.verify("hf:llama@eager", profile="quick", laws="variants/every-variant").conforms


def test_flex_attention_of_transformers_is_judged_without_a_compiler():
    """Each call would compile for most of a minute otherwise; it has no backward on a CPU, and is not held to one."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    verdict = headcheck.verify("hf:llama@flex_attention", profile="quick", laws=("every-variant", "wanted"))
    assert verdict.conforms, repr(verdict)
    assert [row.id for row in verdict.laws if row.reason.startswith("is not followed by gradients")]


def test_a_tiny_llama_keeps_the_laws_of_its_cache():
    """A tiny random Llama gives with every split of its cache what the whole pass gives."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert headcheck.verify("hf:llama", profile="quick", laws="cache/every-split").conforms


def test_a_mask_made_by_a_law_comes_in_a_form_that_is_taken():
    """A function of masks with four axes only is handed no others, by laws that make their own either."""

    def four_axes_only(query, key, value, attn_mask=None):
        assert attn_mask is None or attn_mask.ndim == 4
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)

    declared = headcheck.Attention(
        four_axes_only, mask_shapes=FOUR_AXES, nan_scores="may-vanish", grouped_heads=False
    )
    laws = ("padding-equals-truncation", "a-bias-of-log-two", "the-bias-gets-its-gradient")
    assert headcheck.verify(declared, profile="quick", dtype="float32", laws=laws).conforms


def test_the_gradient_of_a_broadcast_mask_is_that_of_tiled_heads_too():
    """A mask of one row for all queries keeps its shape where heads are tiled."""

    def tiled(query, key, value, attn_mask=None):
        group = query.shape[1] // key.shape[1]
        wide = [x.repeat(1, group, 1, 1) for x in (key, value)]
        return torch.nn.functional.scaled_dot_product_attention(query, *wide, attn_mask)

    declared = headcheck.Attention(tiled, grouped_heads="tiled", nan_scores="may-vanish")
    assert headcheck.verify(declared, profile="quick", dtype="float32", laws="bias-gets").conforms


# The baseline


def test_only_what_is_listed_breaks_and_the_exit_code_is_zero():
    """A verdict whose broken laws are all known passes."""
    compared = compare(
        verdict(row("attention/masks/a", "breaks"), row("attention/state/b", "holds")), [KNOWN]
    )
    assert compared.exit_code == 0
    assert compared.lines() == ["baseline: 1 broken law is a known deviation"]


def test_a_break_that_is_not_listed_is_new():
    """One broken law beyond the list makes the exit code 1."""
    compared = compare(
        verdict(row("attention/masks/a", "breaks"), row("attention/state/b", "breaks")), [KNOWN]
    )
    assert compared.exit_code == 1
    assert "baseline: new: attention/state/b" in compared.lines()


def test_a_listed_deviation_that_is_gone_is_told_in_one_line():
    """What is listed and holds makes the exit code 1, with the line to take out; not where some laws were not asked."""
    rows = [row(law.id, "holds") for law in choose("attention", ["attention/masks/"])]
    compared = compare(verdict(*rows), [KNOWN], file="F")
    assert compared.exit_code == 1
    assert compare(verdict(*rows[1:]), [KNOWN]).exit_code == 0
    assert compared.lines() == ["baseline: mine now keeps attention/masks/*: take it out of F"]


def test_a_narrowed_or_unfinished_run_says_of_no_deviation_that_it_is_gone():
    """It may show in a dtype that was not asked for, or in a law that had no turn."""
    all_hold = verdict(*(row(law.id, "holds") for law in choose("attention", ["attention/masks/"])))
    assert compare(all_hold, [KNOWN]).fixed == [KNOWN]
    assert compare(all_hold, [KNOWN], narrowed=True).exit_code == 0
    assert compare(replace(all_hold, unfinished="judged in float32 only"), [KNOWN]).exit_code == 2


def test_known_deviations_do_not_finish_what_is_unfinished():
    """Where laws were left out, that nothing new broke says nothing: untested, as in the pytest plugin."""
    interrupted = replace(verdict(row("attention/masks/a", "breaks")), unfinished="interrupted")
    assert compare(interrupted, [KNOWN]).exit_code == 2


def test_a_process_that_ended_at_no_case_is_no_known_deviation():
    """It says nothing of the law on which it is booked, so that no entry for that law explains it."""
    for case, exit_code in ((None, 1), ("kv_len=2", 0)):
        shown = Counterexample(case, "", "process")
        ended = replace(row("attention/masks/a", "breaks"), counterexample=shown)
        assert compare(verdict(ended), [KNOWN]).exit_code == exit_code


def test_an_entry_is_fixed_only_when_none_of_its_laws_breaks():
    """A deviation may break some of its laws in one run and others in the next."""
    both = verdict(row("attention/masks/a", "holds"), row("attention/masks/b", "breaks"))
    assert compare(both, [KNOWN]).exit_code == 0


def test_an_intermittent_deviation_is_not_fixed_where_it_does_not_show():
    """One that depends on the order of calls is known where it shows, and is not asked to."""
    seldom = replace(KNOWN, intermittent=True)
    for outcome in ("holds", "breaks"):
        assert compare(verdict(row("attention/masks/a", outcome)), [seldom]).exit_code == 0


def test_an_entry_whose_laws_were_not_judged_says_nothing():
    """With --law elsewhere, or another subject, an entry is neither known nor fixed."""
    elsewhere = verdict(row("attention/state/b", "holds"))
    assert compare(elsewhere, [KNOWN]).exit_code == 0
    assert compare(verdict(row("attention/masks/a", "holds"), subject="other"), [KNOWN]).exit_code == 0


def test_outside_of_its_versions_an_entry_explains_nothing():
    """A break in a version that the entry does not name is new."""
    old = replace(KNOWN, versions="torch <1")
    assert compare(verdict(row("attention/masks/a", "breaks")), [old]).exit_code == 1


def test_a_verdict_without_a_judged_law_stays_untested():
    """The baseline does not turn exit code 2 into a pass."""
    assert compare(verdict(row("attention/masks/a", "not-applicable")), [KNOWN]).exit_code == 2


@pytest.mark.parametrize(
    ("entry", "subject", "same"),
    [
        ("bugs.py:f", "./bugs.py:f", True),
        ("./bugs.py:f", "{here}/bugs.py:f", True),
        ("{here}/bugs.py:f", "sub/../bugs.py:f", True),
        ("linked.py:f", "bugs.py:f", True),
        ("*.py:f", "./bugs.py:f", True),
        ("./*.py:f", "{here}/bugs.py:f", True),
        ("*/bugs.py:f", "bugs.py:f", True),
        ("bugs.py:f==torch-sdpa", "./bugs.py:f==torch-sdpa", True),
        ("bugs.py:f", "sub/bugs.py:f", False),
        ("bugs.py:f", "./bugs.py:g", False),
        ("bugs:f", "bugs.py:f", False),
    ],
)
def test_a_file_is_the_same_by_every_path_to_it(entry, subject, same, tmp_path, monkeypatch):
    """On both sides, from the working directory, whose own name is no pattern; a module is another name."""
    here = tmp_path / "here[1]"
    here.mkdir()
    (here / "bugs.py").touch()
    (here / "linked.py").symlink_to("bugs.py")
    monkeypatch.chdir(here)
    known = [replace(KNOWN, subject=entry.format(here=here))]
    assert bool(known_of(subject.format(here=here), known)) is same


@pytest.mark.parametrize(
    ("entry", "subject", "told"),
    [
        ("bugs:f", "./bugs.py:f", True),
        ("older/bugs.py:f", "bugs.py:f", True),
        ("bugs.py:f", "f", True),
        ("other.py:f", "bugs.py:f", False),
        ("./bugs.py:f", "bugs.py:f", False),
        ("bugs.py:g", "bugs.py:f", False),
        ("judged.py:f", "bugs.py:f", False),
        ("hf-encoder:bert", "hf:bert", False),
    ],
)
def test_an_entry_that_may_be_meant_and_is_not_is_told_in_one_line(
    entry, subject, told, tmp_path, monkeypatch
):
    """By the attribute: not another file that there is, nor a subject of the same run, nor another built-in one."""
    monkeypatch.chdir(tmp_path)
    for name in ("bugs.py", "other.py"):
        (tmp_path / name).touch()
    known = [replace(KNOWN, subject=entry, laws=("attention/masks/the-future-does-not-matter",))] * 2
    lines = remarks(known, subject, "attention", ["bugs.py:f", "./judged.py:f"] if ".py" in subject else ())
    assert len(lines) == told
    for line in lines:
        assert line.startswith(f"baseline: {entry} names no subject of this run, but looks like {subject}: ")


@pytest.mark.parametrize(
    ("laws", "told"),
    [
        (("attention/masks/*",), True),
        (("attention/no*", "rotary/*"), False),
        (tuple(law.id for law in choose("attention", ["masks/"])), False),
    ],
)
def test_a_pattern_that_mutes_many_laws_is_told(laws, told):
    """It mutes those that come later, too; exact ids, however many, mute what is known only, and it is no failure."""
    compared = compare(verdict(row("attention/masks/a", "breaks")), [replace(KNOWN, laws=laws)])
    number = len(choose("attention", ["attention/masks/"]))
    expected = f"baseline: attention/masks/* mutes {number} laws of mine, and any that comes later"
    assert [line.startswith(expected) for line in compared.remarks] == [True] * told
    assert compared.exit_code == (0 if told else 1)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ("", True),
        ("torch", True),
        ("torch >=1.0", True),
        ("torch >=1.0, <2", False),
        ("torch>=1.0,<2", False),
        ("torch>=1.0", True),
        ("torch ==" + torch.__version__.partition("+")[0], True),
        ("no-such-package >=1", False),
    ],
)
def test_a_range_of_versions_is_read(versions, expected):
    """A range names a package and bounds of its version."""
    assert in_range(versions) is expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[[deviation]]\nsubject = 'x'\n",
            "the fields are subject, law, .*; missing: kind, law, reason, ref",
        ),
        (
            "[[deviation]]\nsubject='x'\nlaw='*'\nreason='z'\nkind='bug'\nversions=''\nreference=''\nlaws='*'\n",
            "deviation 1: the fields are subject, .*; unknown: laws",
        ),
        (
            "[[deviation]]\nsubject='x'\nlaw='attention/nosuch'\nreason='z'\nkind='bug'\nversions=''\nreference=''\n",
            "deviation 1: no law matches 'attention/nosuch'; `headcheck laws` lists them",
        ),
        (
            "[[deviation]]\nsubject='x'\nlaw='*'\nreason='z'\nkind='bug'\nversions=''\nreference=''\nintermittent=1\n",
            "deviation 1: intermittent is true or false, not 1",
        ),
        ("not toml", "is no TOML"),
        ("[other]\n", "more than tables called"),
        (
            "[[deviation]]\nsubject='x'\nlaw='y'\nreason='z'\nkind='odd'\nversions=''\nreference='r'\n",
            "none of bug",
        ),
        (
            "[[deviation]]\nsubject='x'\nlaw='y'\nreason='z'\nkind='bug'\nversions='a b'\nreference=''\n",
            "cannot read",
        ),
        (
            "[[deviation]]\nsubject='x'\nlaw='*'\nreason='z'\nkind='bug'\nversions='torch >=1, !=2'\nreference=''\n",
            "cannot read the versions",
        ),
        ("deviation = [1]\n", "deviation 1: 1 is no table"),
        (
            "[[deviation]]\nsubject='x'\nlaw=[1]\nreason='z'\nkind='bug'\nversions=''\nreference=''\n",
            r"deviation 1: law is \[1\], which is no text",
        ),
    ],
)
def test_a_baseline_that_cannot_be_read_is_told_in_one_line(tmp_path, content, message):
    """What is wrong with the file is said."""
    file = tmp_path / "b.toml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(HeadcheckError, match=message):
        read_baseline(str(file))


def test_the_baseline_of_the_repository_is_read_and_its_references_stand_in_the_page():
    """Each entry names a built-in subject, a kind and a heading of docs/deviations.md."""
    page = (ROOT / "docs" / "deviations.md").read_text(encoding="utf-8")
    for each in read_baseline(str(ROOT / "baseline.toml")):
        assert named(each.subject) is not None
        assert each.kind in KINDS
        anchor = re.search(r"deviations.md#([\w-]+)", each.reference)
        assert anchor
        assert f"\n## {anchor[1]}\n" in page


def test_every_replay_of_the_page_is_python():
    """The snippets of docs/deviations.md can be read by Python."""
    page = (ROOT / "docs" / "deviations.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) >= 9
    for block in blocks:
        ast.parse(block)


WRONG = """\
import torch
def attention(query, key, value, is_causal=False):
    mask = torch.ones(query.shape[2], key.shape[2]).tril(1 if is_causal else 10_000).bool()
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
"""
LISTED = """\
[[deviation]]
subject = "*wrong.py:attention"
law = "attention/masks/{law}"
reason = "one key too far"
kind = "bug"
versions = ""
reference = "none found"
"""


@pytest.mark.parametrize(
    ("listed", "code"), [("the-future-does-not-matter", 0), ("broadcast-equals-expanded", 1)]
)
def test_the_command_takes_a_baseline(tmp_path, capsys, listed, code):
    """headcheck verify --baseline: 0 where only what is listed breaks, 1 otherwise."""
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    (tmp_path / "b.toml").write_text(LISTED.format(law=listed), encoding="utf-8")
    subject = f"{tmp_path}/wrong.py:attention"
    options = ["--profile", "quick", "--dtype", "float32", "--law", "masks/the-future", "-n", "1", "-q"]
    baseline, verdict = str(tmp_path / "b.toml"), tmp_path / "v.json"
    assert main(["verify", subject, *options, "--baseline", baseline, "--json", str(verdict)]) == code
    assert "baseline:" in capsys.readouterr().out
    said = json.loads(verdict.read_text())["baseline"]
    assert (said["file"], said["exit_code"]) == (baseline, code)
    assert bool(said["known"]) is (code == 0)


def test_the_command_writes_a_baseline(tmp_path, capsys):
    """What breaks today is listed, once; what is listed by hand stays as it was; the file is read like any other."""
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    file = tmp_path / "b.toml"
    asked = [
        "verify",
        f"{tmp_path}/wrong.py:attention",
        "--profile",
        "quick",
        "--dtype",
        "float32",
        "-n",
        "1",
        "-q",
    ]
    both = ["--law", "masks/the-future", "--law", "accuracy/output-is-within"]
    assert main([*asked, *both[:2], "--write-baseline", str(file)]) == 0
    assert "1 added to" in capsys.readouterr().out
    file.write_text(file.read_text().replace("TODO: say why", "seen by hand"), encoding="utf-8")
    assert main([*asked, *both, "--write-baseline", str(file)]) == 0
    known = read_baseline(str(file))
    assert [each.reason for each in known] == ["seen by hand", "TODO: say why"]
    assert not {*known[0].laws} & {*known[1].laws}
    assert main([*asked, *both, "--write-baseline", str(file)]) == 0
    assert read_baseline(str(file)) == known
    assert main([*asked, *both, "--baseline", str(file)]) == 0


def test_verify_takes_a_baseline(tmp_path):
    """As the command does: the verdict says what is found, and conforms where only what is listed breaks."""
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    file = tmp_path / "b.toml"
    asked = {"profile": "quick", "dtype": "float32", "laws": "masks/the-future"}
    for listed, conforms in (("the-future-does-not-matter", True), ("broadcast-equals-expanded", False)):
        file.write_text(LISTED.format(law=listed), encoding="utf-8")
        found = headcheck.verify(f"{tmp_path}/wrong.py:attention", baseline=file, **asked)
        assert (found.verdict, found.conforms, bool(found)) == ("breaks", conforms, conforms)
        assert [each.id for each in found.new] == [each.id for each in found.broken] * (not conforms)
        line = (
            "baseline: 1 broken law is a known deviation"
            if conforms
            else "baseline: new: attention/masks/the-future"
        )
        assert line in repr(found)
        assert line in str(found)
        said = json.loads(found.to_json())["baseline"]
        assert (said["file"], said["exit_code"]) == (str(file), 0 if conforms else 1)
    with pytest.raises(HeadcheckError, match="cannot read the baseline"):
        headcheck.verify("torch-sdpa", baseline=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("listed", "code"), [("the-future-does-not-matter", 0), ("broadcast-equals-expanded", 1)]
)
def test_the_pytest_plugin_takes_a_baseline(judged_by_pytest, tmp_path, listed, code):
    """--headcheck-baseline: a known deviation is an expected failure."""
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    (tmp_path / "b.toml").write_text(LISTED.format(law=listed), encoding="utf-8")
    assert judged_by_pytest(tmp_path) == code


@pytest.fixture
def judged_by_pytest():
    """Run the laws of masks/the-future on wrong.py by pytest, in a process of its own; its exit code."""
    import subprocess
    import sys

    def run(directory):
        options = ["--headcheck-profile", "quick", "--headcheck-dtype", "float32", "-k", "the-future", "-q"]
        chosen_by = [
            "--subject",
            f"{directory}/wrong.py:attention",
            "--headcheck-baseline",
            f"{directory}/b.toml",
        ]
        command = [sys.executable, "-m", "pytest", "--pyargs", "headcheck.properties", *chosen_by, *options]
        return subprocess.run(command, cwd=directory, capture_output=True, check=False).returncode

    return run


# The matrix


def test_the_matrix_takes_up_where_it_was_stopped(tmp_path):
    """A subject that stands in the file is not judged again; a line that was cut off is."""
    subjects = [each for each in chosen(SMALL[:1])[0] if each.name in SMALL]
    file = tmp_path / "records.jsonl"
    done = Record(SMALL[0], "quick", "2026-01-01", 1.0, {}, None, "kept as it was")
    file.write_text(json.dumps(done.__dict__) + "\n" + '{"subject": "cut', encoding="utf-8")
    told = []
    records = judge_all(subjects, profile="quick", processes=1, limit_s=300.0, file=file, told=told.append)
    assert [each.subject for each in told] == [SMALL[1]]
    assert records[0].problem == "kept as it was"
    assert records[1].as_verdict().conforms
    assert [each.subject for each in read_records(file)] == [SMALL[0], SMALL[1]]


def test_a_subject_that_cannot_be_judged_is_a_record():
    """What goes wrong with one subject is told in its record, and stops nothing."""
    lost = BuiltIn("no-such-subject", "Nothing.", lambda: None, ("torch",), "")
    record = judged(lost, "quick", 120.0)
    assert record.verdict is None
    assert "no built-in subject" in record.problem


def test_a_subject_that_takes_too_long_is_a_record():
    """At the time limit the process is ended, and the record says so."""
    record = judged(builtins()["reference"], "deep", 0.5)
    assert record.problem == "not finished after 0.5 s"


def test_the_page_shows_deviations_first_and_what_was_not_judged():
    """Known deviations come with their kind and reason, new ones as not explained, missing packages with their line."""

    def zeros(length, d_model):
        return torch.zeros(length, d_model)

    plain = headcheck.verify(Sinusoidal(zeros), profile="quick", laws="position-zero")
    shown = json.loads(plain.to_json())
    record = Record("zeros", "quick", "2026-01-01", 1.0, {"torch": "2"}, shown)
    missing = BuiltIn("absent", "Nothing.", lambda: None, ("absent",), "pip install absent")
    known = Known("zeros", ("sinusoidal/*",), "all zeros", "bug", "", "none found")
    unknown, explained = matrix_page([record], [missing]), matrix_page([record], [missing], [known])
    assert "| zeros | ? | not explained yet | `conventions/position-zero-is-zeros-and-ones` |" in unknown
    assert "| zeros | bug | all zeros |" in explained
    assert explained.index("## Deviations") < explained.index("## sinusoidal: subject by family of laws")
    assert "absent: not installed; `pip install absent`" in explained


def test_subjects_of_a_family_are_judged_by_name():
    """headcheck matrix hf:llama: a member of a family stands beside a built-in one."""
    here, missing = chosen(names=["reference", "hf:llama"])
    assert {each.name for each in [*here, *missing]} == {"reference", "hf:llama"}
    with pytest.raises(HeadcheckError, match="there is no built-in subject 'no-such'"):
        chosen(names=["no-such"])


def test_a_name_that_no_subject_holds_is_refused():
    """headcheck matrix --only PART: a part that matches nothing is told."""
    with pytest.raises(HeadcheckError, match="no built-in subject has no-such in its name"):
        chosen(["no-such"])
