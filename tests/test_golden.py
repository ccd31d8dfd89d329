"""The machinery of the golden ledger; `pytest golden` computes the ledger itself."""

import hashlib
import json
import re
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import pytest
import sympy
import torch

from headcheck.command import main
from headcheck.errors import HeadcheckError
from headcheck.golden import blocks, ledger
from headcheck.golden.blocks import Library, Outcome, not_applicable, run_jobs
from headcheck.golden.derived import Derived, Worked, holds, same
from headcheck.golden.exact import contracted, cut, sinusoid, sinusoid_again, widely
from headcheck.golden.export import golden_schema
from headcheck.golden.judging import judge, judged
from headcheck.golden.ledger import Block, Claim, Document, Run, Section
from headcheck.golden.stated import HOLDS, Stated, as_printed, count, exactly, rounded, shape, written
from headcheck.golden.text import all_problems, plain

ROOT = Path(__file__).parents[1]
LEDGER = ledger.ledger()


def claim(
    stated: Stated | None, derived: Derived | None, verdict: str = "confirmed", **fields: object
) -> Claim:
    return Claim(
        id="000/part/name",
        line=1,
        place="",
        what="",
        stated=stated,
        derived=derived,
        verdict=verdict,
        **fields,
    )


def one(value: object) -> Derived:
    return Derived(lambda: value, one_way="It is said.")


# What agrees with a printed number


@pytest.mark.parametrize(
    ("stated", "agrees", "differs"),
    [
        (rounded("0.329"), "0.3285 0.3295 0.329", "0.32849 0.32951 -0.329"),
        (rounded("39", 10**6), "38500000 39500000", "38499999 39500001 39"),
        (rounded("16.7", 10**6), "16.65e6 16.75e6", "16.64e6 16.76e6"),
        (rounded("1e-9"), "1.4e-9 6e-10", "1.6e-9 4e-10"),
        (rounded("100"), "99.5 100.5", "99.4 101"),
        (exactly("0.80"), "0.8 4/5", "0.8001 0.7999"),
        (count(16640), "16640", "16641 16639.9"),
    ],
)
def test_half_a_unit_of_the_last_digit_agrees(stated: Stated, agrees: str, differs: str) -> None:
    """A printed decimal stands for what is within half a unit of its last digit; an exact one for itself."""
    assert [text for text in agrees.split() if not stated.agrees(sympy.Rational(text))] == []
    assert [text for text in differs.split() if stated.agrees(sympy.Rational(text))] == []


def test_every_entry_and_the_shape_must_agree() -> None:
    """One wrong entry is enough, and a vector is no matrix."""
    stated = rounded("0.5 0.25; 1 2")
    assert stated.agrees(sympy.Matrix([["1/2", "1/4"], [1, 2]]))
    assert stated.agreement([[0.5, 0.25], [1, 3]]) == [True, True, True, False]
    assert not stated.agrees([0.5, 0.25, 1, 2])
    assert shape(2, 3).agrees(torch.zeros(2, 3).shape)
    assert not shape(2, 3).agrees((2, 3, 1))


def test_infinities_and_truth_values_agree_with_themselves_alone() -> None:
    """-inf is not a large number, and True is not 1."""
    assert exactly("0 -inf").agrees([0, -sympy.oo])
    assert not exactly("0 -inf").agrees([0, -(10**50)])
    assert HOLDS.agrees(sympy.true)
    assert not HOLDS.agrees(1)


def test_rows_of_different_lengths_are_refused() -> None:
    """A slip in an entry of the ledger is no matrix."""
    with pytest.raises(ValueError, match="rows of different lengths"):
        rounded("1 2; 3")


def test_the_right_value_is_shown_as_it_should_have_been_printed() -> None:
    """At the precision of the statement, rounded half up, negative numbers too."""
    value = [sympy.Rational("0.65034"), -sympy.Rational("1") / 3]
    assert as_printed(value, rounded("0.651 -0.334")) == "0.650 -0.333"
    assert as_printed(sympy.Integer(67_108_864), rounded("268", 10**6)) == "67000000"
    assert written(sympy.sqrt(2), 6) == "1.41421"


# The verdict


def test_a_claim_that_agrees_is_confirmed() -> None:
    """The computed verdict is the declared one, and nothing is wrong with the entry."""
    assert judge(claim(rounded("1.414"), one(sympy.sqrt(2)))).problems == ()


def test_a_confirmed_claim_that_is_wrong_fails() -> None:
    """No number passes for being declared."""
    found = judge(claim(rounded("1.415"), one(sympy.sqrt(2))))
    assert found.verdict == "erratum"
    assert "declared confirmed, found erratum" in found.problems[0]


def test_an_erratum_that_agrees_fails() -> None:
    """The other way round."""
    found = judge(claim(rounded("1.414"), one(sympy.sqrt(2)), "erratum", slip="None."))
    assert "declared erratum, found confirmed" in found.problems[0]


def test_rounding_needs_a_chain_that_gives_what_is_printed() -> None:
    """0.322 follows from 0.402 x 0.8, not from 0.4 x 0.8."""
    wrong = claim(
        rounded("0.322"), one(sympy.Rational("0.3214")), "rounding", chain=lambda: cut("0.402", 3) * 0.8
    )
    assert judge(wrong).problems == ()
    assert "found erratum" in judge(replace(wrong, chain=lambda: cut("0.4", 3) * 0.8)).problems[0]


def test_a_slip_must_give_what_is_printed_and_be_said() -> None:
    """An explanation is run, not believed."""
    slipped = claim(
        rounded("268", 10**6), one(8192**2), "erratum", slip="16384 tokens.", gives=lambda: 16384**2
    )
    assert judge(slipped).problems == ()
    assert "the slip gives 67108864" in judge(replace(slipped, gives=lambda: 8192**2)).problems[0]
    assert "says what slipped" in judge(replace(slipped, slip="")).problems[0]


def test_ways_that_disagree_are_found() -> None:
    """The second way must give the same number, the reference one within its bound."""
    two = Derived(lambda: sympy.sqrt(2), again=lambda: mpmath.mpf("1.4142135623730951"))
    assert "the second way gives" in judge(claim(rounded("1.414"), two)).problems[0]
    near = Derived(lambda: sympy.sqrt(2), reference=lambda: 2**0.5)
    assert judge(claim(rounded("1.414"), near)).problems == ()
    far = replace(near, reference=lambda: 2**0.5 + 1e-13)
    assert "the reference gives" in judge(claim(rounded("1.414"), far)).problems[0]


def test_a_value_that_is_reached_in_one_way_says_why() -> None:
    """A reason or a second way, and not both."""
    root = Derived(lambda: sympy.sqrt(2))
    assert "no reason why" in judge(claim(rounded("1.414"), root)).problems[0]
    alone = replace(root, one_way="It is read off.")
    assert judge(claim(rounded("1.414"), alone)).problems == ()
    twice = replace(alone, reference=lambda: 2**0.5)
    assert "and there are more" in judge(claim(rounded("1.414"), twice)).problems[0]


def test_what_is_not_checkable_has_a_reason() -> None:
    """A claim without a derivation is not passed over in silence."""
    assert judge(claim(None, None, "not-checkable", reason="A time.")).problems == ()
    assert judge(claim(None, None, "not-checkable")).problems == ("no derivation, and no reason for that",)


def test_statements_are_true_or_false_in_every_way() -> None:
    """A false statement is an erratum, and two sides of an equation are compared with all digits."""
    assert judge(claim(HOLDS, holds(lambda: sympy.sqrt(2) > 2))).verdict == "erratum"
    assert same(lambda: sympy.sqrt(2), lambda: 2 ** sympy.Rational(1, 2)).exact()
    assert not same(lambda: sympy.sqrt(2), lambda: mpmath.mpf("1.4142135623730951")).exact()


# The vocabulary


def test_a_worked_example_is_the_same_in_three_ways() -> None:
    """Algebra, numbers of 60 digits and the reference, with a mask and without."""
    for may_attend in (None, "1 0; 1 1"):
        example = Worked("1 0.5; 0 2", "1 1; 0.25 3", "1 2; 3 4", may_attend=may_attend)
        for part in (example.scores, example.weights, example.output):
            assert judge(claim(exactly("0 0; 0 0"), part)).problems[1:] == ()


def test_a_known_answer() -> None:
    """q = [0, sqrt 2] with the identity as keys gives weights [1, e] / (1 + e)."""
    weights = Worked("0 1", "1 0; 0 1", "1 0; 0 1", scaled=False).weights.exact()
    assert sympy.simplify(weights - sympy.Matrix([[1, sympy.E]]) / (1 + sympy.E)) == sympy.zeros(1, 2)


def test_sinusoids_are_the_same_in_two_ways() -> None:
    """Powers and complex exponentials."""
    for position, dim in ((0, 0), (3, 1), (5000, 7)):
        again = widely(lambda position=position, dim=dim: sinusoid_again(position, dim, 8))()
        assert same(lambda p=position, c=dim: sinusoid(p, c, 8), lambda a=again: a).exact()


def test_authors_round_half_up() -> None:
    """What is cut is what a person prints."""
    assert cut(sympy.Rational("0.0005"), 3) == sympy.Rational("0.001")
    assert cut(sympy.exp(sympy.Rational("0.8")), 3) == sympy.Rational("2.226")


def test_shapes_that_do_not_fit_are_refused() -> None:
    """A label has one size."""
    assert contracted("bqd,bkd->bqk", (2, 3, 4), (2, 5, 4)) == (2, 3, 5)
    with pytest.raises(ValueError, match="axis d of bqd,bkd->bqk is 4 and 6"):
        contracted("bqd,bkd->bqk", (2, 3, 4), (2, 5, 6))


def test_formulas_can_be_read_in_a_terminal() -> None:
    """Fractions, roots and sums as text."""
    assert plain(r"\sum_{10} = \frac{e^{0.8}}{\sqrt{2}} \cdot x") == "Σ_(10) = (e^(0.8))/(√(2)) · x"


# The entries


def test_two_entries_of_one_id_are_refused() -> None:
    """An id names one entry."""
    part = Section("000", "part")
    for _ in range(2):
        part.not_checkable("twice", 1, "", "", reason="")
    with pytest.raises(ValueError, match="two entries of the ledger are called 000/part/twice"):
        ledger._without_clash(part.claims)


@pytest.mark.parametrize(
    "entry",
    [*LEDGER.claims.values(), *LEDGER.blocks.values(), *LEDGER.probes.values()],
    ids=lambda entry: f"{type(entry).__name__} {entry.id}",
)
def test_an_entry_reads_well(entry: Claim | Block | ledger.Probe) -> None:
    """An id in small letters, a sentence, and no more than a few words of the document."""
    assert re.fullmatch(r"\d{3}/[a-z0-9-]+/[a-z0-9-]+", entry.id)
    assert entry.what.endswith("."), entry.id
    if isinstance(entry, Claim):
        assert len(entry.place.split()) <= 14, entry.id
    if isinstance(entry, ledger.Probe) and entry.kind == "latent fault":
        assert bool(entry.fault) != bool(entry.why_no_fault), entry.id


def test_every_fault_of_the_ledger_is_in_the_corpus() -> None:
    """A latent fault names a function or module of ours with the same fault, whose own tests have the laws break it."""
    from tests.faults import FAULTS
    from tests.roles import WRONG

    assert not set(FAULTS) & set(WRONG)
    assert {probe.fault for probe in LEDGER.probes.values() if probe.fault} <= {*FAULTS, *WRONG}


# Code blocks


def write_document(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Library:
    digest = hashlib.sha256(text.encode()).hexdigest()
    monkeypatch.setitem(blocks.DOCUMENTS, "000", Document("000", "", "", digest))
    (folder / "000_a.txt").write_text(text, encoding="utf-8")
    return Library(folder)


def block(first: int, last: int, levels: str = "") -> Block:
    return Block(id="000/a/b", first=first, last=last, what="", levels=levels, alone=Run(), in_order=Run())


def test_indentation_is_restored_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that is not blank gets its level."""
    library = write_document(tmp_path, "text\ndef f():\n\nreturn 1\nmore", monkeypatch)
    assert library.source(block(2, 4, "01")) == "def f():\n\n    return 1\n"
    assert library.source(block(1, 1)) == "text\n"


def test_another_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are counted in one text; a folder without the document, or with another, says so."""
    library = write_document(tmp_path, "text", monkeypatch)
    (tmp_path / "000_a.txt").write_text("other", encoding="utf-8")
    with pytest.raises(HeadcheckError, match="another text than the ledger was written for"):
        library.lines("000")
    with pytest.raises(HeadcheckError, match=r"holds no 001\*\.txt"):
        library.lines("001")


def test_blocks_run_apart_or_in_one_namespace() -> None:
    """A job's sources share a namespace, jobs do not; errors, warnings and prints are found."""
    define, use = "x = 1", "import warnings\nwarnings.warn('', FutureWarning)\nprint(x)"
    together, alone = run_jobs([[define, use], [use]])
    assert together == [Outcome("", (), ()), Outcome("", ("FutureWarning",), ("1",))]
    assert alone[0].error == "NameError: name 'x' is not defined"


def test_a_block_that_ends_its_process_is_a_finding() -> None:
    """What exits or dies leaves the others their answers."""
    (died,), (fine,) = run_jobs([["import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], ["print(1)"]])
    assert died.error == "ended by signal 9"
    assert fine.printed == ("1",)


def test_what_differs_from_the_ledger_is_found() -> None:
    """Another error, another warning, a line that is missing or in another order."""
    outcome = Outcome("", (), ("a", "b"))
    assert blocks._differences(Run(prints=("a", "b")), outcome) == []
    assert "expected KeyError, found none" in blocks._differences(Run(error="KeyError"), outcome)[0]
    assert "the warnings" in blocks._differences(Run(warnings=("FutureWarning",)), outcome)[0]
    assert "does not print 'c'" in blocks._differences(Run(prints=("c",)), outcome)[0]
    assert "another order" in blocks._differences(Run(prints=("b", "a")), outcome)[0]


def test_without_documents_blocks_are_not_applicable() -> None:
    """With the reason; so is a block whose packages are missing."""
    assert "--documents DIR" in not_applicable(block(1, 1), None)
    assert (
        not_applicable(replace(block(1, 1), needs=("no_such_package",)), ROOT)
        == "no_such_package is not installed"
    )
    assert not_applicable(block(1, 1), ROOT) == ""


def test_a_folder_without_documents_is_refused_before_anything_is_judged(tmp_path: Path) -> None:
    """Its name is said at once."""
    before = judged.cache_info()
    with pytest.raises(HeadcheckError, match=f"{tmp_path.name} holds no 000"):
        all_problems(tmp_path)
    assert judged.cache_info() == before


# The export


def conforms(value: object, schema: dict, at: str = "$") -> list[str]:
    """Where a value breaks a schema, of the words that our schema uses."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int}
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{at} is {value!r}"]
    if not isinstance(value, kinds[schema["type"]]):
        return [f"{at} is no {schema['type']}"]
    if isinstance(value, str):
        return [] if re.search(schema.get("pattern", ""), value) else [f"{at} is {value!r}"]
    if isinstance(value, list):
        return [
            each for n, item in enumerate(value) for each in conforms(item, schema["items"], f"{at}[{n}]")
        ]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    wrong = [f"{at} lacks {name}" for name in schema["required"] if name not in value]
    wrong += [f"{at} has {name}" for name in value if name not in schema["properties"]]
    known = ((name, item) for name, item in value.items() if name in schema["properties"])
    return wrong + [
        each for name, item in known for each in conforms(item, schema["properties"][name], f"{at}.{name}")
    ]


def exported() -> Any:
    """The export as the repository holds it; tests/test_repository.py has it made again."""
    return json.loads((ROOT / "docs" / "golden.json").read_text(encoding="utf-8"))


def test_the_export_conforms_to_its_schema() -> None:
    """And a claim without a verdict does not."""
    data, schema = exported(), json.loads(golden_schema())
    assert conforms(data, schema) == []
    del data["claims"][0]["verdict"]
    assert conforms(data, schema) == ["$.claims[0] lacks verdict"]


def test_the_export_holds_numbers_that_can_be_read_back() -> None:
    """Thirty digits of an exact value, within the half unit of what is stated where it is confirmed."""
    data = {each["id"]: each for each in exported()["claims"]}
    weight = data["000/similarity-by-hand/weight-1-0"]
    exact, stated, half = (
        Fraction(weight[part][name][0])
        for part, name in (("exact", "entries"), ("stated", "entries"), ("stated", "half_units"))
    )
    assert abs(exact - stated) <= half
    assert weight["inputs"]["operation"] == "attention weights"


# The command


def test_the_command_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Each document has a row, and nothing is wrong."""
    assert main(["golden"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^all .* {len(LEDGER.claims)}$", out, re.MULTILINE)


def test_the_command_lists_errata(capsys: pytest.CaptureFixture[str]) -> None:
    """Document, line, stated and right value, and the slip."""
    assert main(["golden", "--errata"]) == 0
    out = capsys.readouterr().out
    assert "document 001, line 167" in out
    assert "stated: 1 100" in out
    assert "right:  1 0.01" in out
    assert "The minus in the exponent is missing" in out


def test_the_command_shows_one_claim(capsys: pytest.CaptureFixture[str]) -> None:
    """With its derivation; a part of an id lists what holds it."""
    assert main(["golden", "000/similarity-by-hand/from-itself"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"verdict: +rounding", out)
    assert re.search(r"exact: +0\.32140766", out)
    assert re.search(r"chain: +0\.3216 0\.2412", out)
    assert main(["golden", "004/multi-head"]) == 0
    assert "004/multi-head/indivisible-heads: A d_model" in capsys.readouterr().out


def test_an_unknown_entry_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line."""
    assert main(["golden", "nonsense"]) == 2
    assert "the ledger holds no 'nonsense'" in capsys.readouterr().err


def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without sympy one line says what to install."""
    for name in [name for name in sys.modules if name.startswith("headcheck.golden")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sympy", None)
    assert main(["golden"]) == 2
    assert "pip install 'headcheck[golden]'" in capsys.readouterr().err
