"""Subjects that should compute the same: pairs, families, the verdict and the command."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import cast

import pytest
import torch
from torch import Tensor

from headcheck.agreement.families import FAMILIES, expanded
from headcheck.agreement.judging import PROFILES, judge_family
from headcheck.agreement.observe import Observation
from headcheck.agreement.pair import PairSubject, pair_of
from headcheck.agreement.report import NO_LAW_OF_PAIRS, conventions, deviations, each_side, summary
from headcheck.agreement.role import role
from headcheck.agreement.verdict import Agreement, FamilyVerdict, Standing
from headcheck.attention.case import Case
from headcheck.attention.inputs import build
from headcheck.attention.operators import operators_in, telling
from headcheck.attention.role import role as attention_role
from headcheck.baseline import read_baseline
from headcheck.command import main
from headcheck.comparison import Comparison, NotApplicable
from headcheck.declarations import Attention
from headcheck.engine import Engine
from headcheck.errors import HeadcheckError
from headcheck.judging import make_plan
from headcheck.laws import all_laws, choose
from headcheck.loading import load
from headcheck.python_front import verify
from headcheck.subjects import builtins
from headcheck.verdict import LawResult
from tests import kernels
from tests.engines import TINY

HERE = Path(__file__).parent
RIGHT, WRONG = f"{HERE / 'kernels.py'}:right", f"{HERE / 'kernels.py'}:wrong_scale"
OUTPUTS = "agreement/pairs/outputs-agree"
FEW = ("accuracy/output-is", "backends/", "pairs/outputs-agree")


def row_of(pair: str, law: str = OUTPUTS) -> LawResult:
    """One law on one pair, in this process."""
    subject, _ = role.prepare(load(pair)[0], dtypes=("float32",), device="cpu", seed=0)
    return Engine(role, subject, TINY, 0, lambda law, case: str(case)).judge(all_laws()[law])


def verdict_of(*names: str, laws: tuple[str, ...] = FEW, asked_for: tuple[str, ...] = ()) -> FamilyVerdict:
    plan = make_plan(names[0], profile=PROFILES["quick"], dtype="float32")
    return judge_family(names, plan, laws=laws, asked_for=asked_for)


# Pairs


def test_two_backends_agree_within_the_sum_of_their_bounds() -> None:
    """torch's math backend and its flash kernel, on the same inputs."""
    row = row_of("torch-sdpa-math==torch-sdpa-flash")
    assert (row.outcome, row.worst_error_over_bound < 1) == ("holds", True)
    assert row.examples >= TINY.seeded


def test_a_right_and_a_wrong_kernel_disagree_on_the_smallest_case() -> None:
    """The case is made small, and it is one that either side can be replayed on."""
    row = row_of(f"{RIGHT}=={WRONG}")
    assert row.outcome == "breaks"
    assert row.counterexample is not None
    case = Case.parse(row.counterexample.case)
    assert case.elements <= 16
    lines = each_side(f"{RIGHT}=={WRONG}", row)
    assert [line.split(" alone")[0] for line in lines] == [RIGHT, WRONG]
    assert all(row.counterexample.case in line for line in lines)


def test_a_pair_is_kept_to_what_both_can_do() -> None:
    """Features, dtypes and dims that one of them lacks are not drawn."""
    declared = builtins()["torch-mha-fast"].declaration()
    pair, _ = role.prepare(
        pair_of(kernels_reference(), declared), dtypes=("float32", "float64"), device="cpu", seed=0
    )
    assert pair.dtypes == ("float32", "float64")
    assert pair.lacks("window") == "torch-mha-fast takes no window"
    asked = Case(heads=4, kv_heads=2, head_dim=4, value_dim=2, window=(1, 0), softcap=2.0, dtype="float16")
    fitted = role.fit(asked, pair)
    assert (fitted.kv_heads, fitted.value_dim, fitted.window, fitted.softcap) == (4, 4, None, None)
    assert fitted.dtype in pair.dtypes


def kernels_reference() -> Attention:
    reference: Attention = builtins()["reference"].declaration()
    return reference


def prepared(**conventions: object) -> PairSubject:
    """The reference, and the reference as it would be with other conventions."""
    other = kernels_reference().but(name="other", **conventions)
    return role.prepare(pair_of(kernels_reference(), other), dtypes=("float32",), device="cpu", seed=0)[0]


def test_other_diagonals_meet_on_squares_only() -> None:
    """Where causal masks are aligned otherwise, q_len and kv_len are one."""
    pair = prepared(causal="bottom-right")
    fitted = role.fit(Case(q_len=2, kv_len=5, is_causal=True), pair)
    assert fitted.q_len == fitted.kv_len
    assert role.fit(Case(q_len=2, kv_len=5), pair).kv_len == 5


def test_dead_rows_are_compared_under_one_convention_only() -> None:
    """Zeros against NaN is no deviation where both are declared, and such rows are not drawn."""
    pair = prepared(empty_rows="nan")
    with pytest.raises(NotApplicable, match="no common convention"):
        pair.require_one_convention_for_dead_rows()
    x = role.build(Case(q_len=3, kv_len=3, mask="all-dead"), pair)
    assert not x.dead_rows.any()
    prepared().require_one_convention_for_dead_rows()


def test_a_pair_without_a_common_dtype_is_refused() -> None:
    """There is nothing to compare in."""
    sides = kernels_reference().but(dtypes=("float32",)), kernels_reference().but(dtypes=("float64",))
    with pytest.raises(HeadcheckError, match="no dtype in common"):
        role.prepare(pair_of(*sides), dtypes=(), device="cpu", seed=0)


def test_a_pair_takes_attention_functions_only() -> None:
    """A softmax is no side of a pair."""
    with pytest.raises(HeadcheckError, match="both sides of a pair must be attention functions"):
        load("torch-sdpa==torch-softmax")


def test_a_side_is_read_once_until_its_file_changes(tmp_path: Path) -> None:
    """A side keeps its identity from pair to pair, by which it is tried once; an edited file is another function."""
    file = tmp_path / "kernel.py"
    file.write_text("def attention(query, key, value): return query")
    pair = f"{file}:attention==torch-sdpa"
    one, _ = load(pair)[0].sides
    assert load(f"{file}:attention==torch-sdpa-math")[0].sides[0] is one
    file.write_text("def attention(query, key, value): return value.clone()")
    changed, _ = load(pair)[0].sides
    assert changed is not one
    assert changed.function(1, 2, torch.ones(1)).item() == 1.0


# The special cases of pairs

SCALES = "agreement/pairs/scales-of-zero-and-below-agree"
CAUSAL_BIASES = "agreement/pairs/biases-beside-the-causal-flag-agree"


def row_of_prepared(subject: PairSubject, law: str) -> LawResult:
    return Engine(role, subject, TINY, 0, lambda law, case: str(case)).judge(all_laws()[law])


def test_scales_are_compared_where_both_take_them() -> None:
    """A refusal of zero is none of the pair's; by is_causal they are left out where one is for those above zero only."""
    reference = kernels_reference()

    def positive(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        if scale is not None and scale <= 0:
            raise ValueError("scale must be above zero")
        return cast(Tensor, reference.function(query, key, value, scale=scale))

    subject = role.prepare(
        pair_of(reference, Attention(positive)), dtypes=("float32",), device="cpu", seed=0
    )[0]
    row = row_of_prepared(subject, SCALES)
    assert (row.outcome, "a scale of 0.0 is refused" in row.reason) == ("not-applicable", True)
    above_zero = prepared(scale_with_causal="positive")
    assert row_of_prepared(above_zero, SCALES).outcome == "holds"
    x = role.build(Case(q_len=2, kv_len=2, is_causal=True), above_zero)
    with pytest.raises(NotApplicable, match="for scales above zero only"):
        list(cast(Iterator[Comparison], all_laws()[SCALES].check(above_zero, x)))


def test_a_mask_beside_is_causal_is_compared_where_both_take_it() -> None:
    """Where one declares that it refuses it, the pair has no such case."""
    assert row_of_prepared(prepared(causal="bottom-right"), CAUSAL_BIASES).outcome == "holds"
    assert row_of_prepared(prepared(mask_with_causal="refused"), CAUSAL_BIASES).outcome == "not-applicable"


@pytest.mark.parametrize("seed", range(8))
def test_special_cases_are_those_that_their_laws_speak_of(seed: int) -> None:
    """A mask of two axes by as many sequences and heads as queries, a thousand keys, one row for all queries."""
    pair = prepared()
    laws = {law.name: law for law in choose("agreement")}
    fitted = {name: role.fit(law.repaired(role.draw(Random(seed), pair)), pair) for name, law in laws.items()}
    two_axes, beside = fitted["masks-of-two-axes-agree"], fitted["biases-beside-the-causal-flag-agree"]
    assert two_axes.mask_axes == "qk"
    assert two_axes.batch == two_axes.heads == two_axes.q_len > 1
    assert (beside.is_causal, beside.mask != "none", beside.mask_form in ("additive", "bias")) == (True,) * 3
    assert fitted["long-rows-agree"].kv_len > 1024


def test_masks_of_two_axes_are_not_compared_where_one_takes_none() -> None:
    """What the pair is given in their place says nothing of them."""
    torchs = builtins()["torch-sdpa"].declaration()
    pair = pair_of(torchs.but(mask_shapes=("bhqk",)), torchs)
    verdict = verify(pair, laws="masks-of-two", profile="quick", dtype="float32")
    assert [row.outcome for row in verdict.laws] == ["not-applicable"]


def test_a_scale_that_one_refuses_leaves_the_other_scale() -> None:
    """A sign that is lost shows where a scale of zero is refused."""

    def without_sign(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        if scale == 0.0:
            raise ValueError("a scale of zero is not taken")
        scale = None if scale is None else abs(scale)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)

    pair = pair_of(Attention(without_sign), builtins()["torch-sdpa"].declaration())
    verdict = verify(pair, laws="scales-of", profile="quick", dtype="float32")
    assert [row.outcome for row in verdict.laws] == ["breaks"]


# Which kernel ran


@pytest.mark.parametrize(
    ("subject", "operator"),
    [
        ("torch-sdpa-math", "aten::_scaled_dot_product_attention_math"),
        ("torch-sdpa-flash", "aten::_scaled_dot_product_flash_attention_for_cpu"),
        ("torch-mha-native", "aten::_native_multi_head_attention"),
    ],
)
def test_the_profiler_sees_which_kernel_ran(subject: str, operator: str) -> None:
    """The operator that a built-in subject declares is the one that runs."""
    declared = builtins()[subject].declaration()
    ready, _ = attention_role.prepare(declared, dtypes=("float32",), device="cpu", seed=0)
    x = build(Case(batch=2, heads=2, kv_heads=2, q_len=4, kv_len=4, head_dim=4, value_dim=4))
    assert operator in telling(operators_in(ready, x))
    assert operator == declared.operator


def test_a_silent_fallback_is_a_finding() -> None:
    """A subject that says flash and runs the math path breaks the law about it."""
    fallback = builtins()["torch-sdpa-math"].declaration().but(operator="flash_attention")
    ready, _ = attention_role.prepare(fallback, dtypes=("float32",), device="cpu", seed=0)
    engine = Engine(attention_role, ready, TINY, 0, lambda law, case: str(case))
    row = engine.judge(all_laws()["attention/backends/the-declared-operator-runs"])
    assert row.outcome == "breaks"
    assert "flash_attention did not run; what ran: aten::_scaled_dot_product_attention_math" in row.reason


def test_what_a_forced_kernel_does_not_take_is_not_applicable() -> None:
    """With may_refuse, NotImplementedError is a reason; without it, it breaks the law."""
    outcomes = []
    for may_refuse in (True, False):
        declared = Attention(kernels.refuses_two_batches, may_refuse=may_refuse, dtypes=("float32",))
        ready, _ = attention_role.prepare(declared, dtypes=("float32",), device="cpu", seed=0)
        engine = Engine(attention_role, ready, TINY, 0, lambda law, case: str(case))
        law = all_laws()["attention/symmetry/permuting-batches-permutes-batches"]
        outcomes.append(engine.judge(law).outcome)
    assert outcomes == ["not-applicable", "breaks"]


# Families


def test_every_member_of_a_family_is_a_subject() -> None:
    """And no family has one twice."""
    for members in FAMILIES.values():
        names = [member.subject for member in members]
        assert set(names) <= set(builtins())
        assert len(names) == len(set(names))


def test_a_family_is_expanded_by_device_and_profile() -> None:
    """What does not run there is no member; what compiles is left out of quick, and said so."""
    quick, left_out = expanded(["torch", "mine.py:f"], "cpu", "quick")
    assert quick[-1] == "mine.py:f"
    assert left_out == ["torch-flex-compiled", "torch-compiled-reference", "torch-flex-document-compiled"]
    assert not [name for name in quick if "cuda" in name]
    on_cuda, _ = expanded(["torch"], "cuda:1", "gate")
    on_cuda_only = {"torch-cuda-flash", "torch-cuda-efficient", "torch-cuda-cudnn", "triton-flash"}
    assert on_cuda_only | {"torch-varlen"} <= set(on_cuda)
    assert "torch-sdpa-flash" not in on_cuda


def test_a_family_that_agrees_conforms() -> None:
    """Every member by its laws, every pair by outputs, the conventions side by side and the kernels that ran."""
    names = ("torch-sdpa-math", "torch-sdpa-flash", "torch-mha")
    verdict = verdict_of(*names)
    assert (verdict.verdict, verdict.exit_code) == ("conforms", 0)
    assert [(each.one, each.other) for each in verdict.pairs] == list(combinations(names, 2))
    assert all(pair.worst <= 1 and pair.judged for pair in verdict.pairs)
    assert conventions(verdict)["dead rows"] == {"zeros": [*names[:2]], "undefined": ["torch-mha"]}
    found = verdict.members[1].observation
    assert found is not None
    assert found.operators["plain"] == "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert (found.seen["causal"], found.seen["empty_rows"]) == ("top-left", "zeros")
    assert conventions(verdict)["query in float32, key and value in bfloat16"] == {"refused": [*names]}
    assert "3 of 3 pairs agree" in summary(verdict)


def test_a_pair_that_disagrees_is_named() -> None:
    """The wrong kernel breaks its own laws and each pair that it is in; the others agree."""
    verdict = verdict_of(RIGHT, "reference", WRONG)
    assert verdict.exit_code == 1
    assert [name for name, _ in deviations(verdict)] == [WRONG, f"{RIGHT}=={WRONG}", f"reference=={WRONG}"]
    assert not verdict.pairs[0].broken


def test_what_cannot_be_had_is_no_member_and_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """One that is missing is told with its reason; with less than two left there is nothing to compare."""
    verdict = verdict_of("torch-sdpa", "reference", "no-such-subject")
    assert "no built-in subject" in verdict.members[2].reason
    assert len(verdict.pairs) == 1
    assert verdict.exit_code == 0
    of_all = verdict_of("torch-sdpa", "reference", "no-such-subject", asked_for=("no-such-subject",))
    assert of_all.exit_code == 2
    assert of_all.unfinished.startswith("no-such-subject: there is no built-in subject")
    assert main(["agree", "reference", "no-such-subject"]) == 2
    assert "agreement needs two subjects, and 1 can be had here" in capsys.readouterr().err


def test_what_pairs_were_compared_on_is_said_where_a_member_breaks_a_law() -> None:
    """An agreement beside a broken law is one on the inputs of pairs, and the last line says so."""
    broken = LawResult("attention/accuracy/low-biases-keep-their-differences", "", "breaks", examples=1)
    agreed = LawResult(OUTPUTS, "", "holds", examples=6, worst_error_over_bound=0.05)
    seen = Observation(declared={}, dtypes=("float32",))
    members = [Standing("one", seen), Standing("other", seen, [broken])]
    verdict = FamilyVerdict(members, [Agreement("one", "other", [agreed])], "quick", 0, 1.0, {})
    told = "1 of them breaks a law; 1 of 1 pairs agree, at most 0.05 of the sum of their bounds apart, on 6 inputs"
    assert f"{told} drawn for pairs, not on those by which a member breaks a law" in summary(verdict)


def test_laws_that_leave_no_pair_to_compare_are_no_agreement() -> None:
    """Where --law names laws of one subject alone, the last line says that no pair was compared."""
    verdict = verdict_of(RIGHT, "reference", laws=("accuracy/low-biases",))
    assert (verdict.exit_code, NO_LAW_OF_PAIRS in summary(verdict)) == (2, True)
    assert "pairs agree" not in summary(verdict)


# The command


def test_the_command_prints_deviations_first_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the pair with its replay line for each side, and the same as data."""
    file = tmp_path / "verdict.json"
    options = ["--dtype", "float32", "--law", "output", "-n", "1", "--json", str(file)]
    assert main(["agree", RIGHT, WRONG, *options]) == 1
    said = capsys.readouterr().out
    assert (
        said.index("deviates")
        < said.index("laws held, of each family")
        < said.index("conventions, by the numbers")
    )
    assert f"{WRONG} alone: headcheck replay {WRONG} attention/accuracy/output-is-within-the-bound" in said
    written = json.loads(file.read_text(encoding="utf-8"))
    assert (written["schema"], written["verdict"]) == (1, "breaks")
    assert written["pairs"][0]["laws"][0]["counterexample"]["case"]


def entry_for(subject: str, law: str) -> str:
    texts = {
        "subject": subject,
        "law": law,
        "reason": "its scale is wrong",
        "kind": "bug",
        "versions": "",
        "reference": "",
    }
    return "\n".join(["[[deviation]]", *(f"{name} = '{each}'" for name, each in texts.items()), ""])


def test_known_deviations_of_members_and_pairs_do_not_fail_the_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a baseline lists is no news, what it does not list is, and so is a pair that agrees by now."""
    file, written = tmp_path / "known.toml", tmp_path / "verdict.json"
    options = [
        "--dtype",
        "float32",
        "--law",
        "output",
        "-n",
        "1",
        "--baseline",
        str(file),
        "--json",
        str(written),
    ]
    of_member, of_pair = entry_for(WRONG, "attention/*"), entry_for(f"{RIGHT}=={WRONG}", "agreement/pairs/*")
    file.write_text(of_member, encoding="utf-8")
    assert main(["agree", RIGHT, WRONG, *options]) == 1
    said = capsys.readouterr().out
    assert f"baseline: {RIGHT}=={WRONG}: new: {OUTPUTS}" in said
    assert f"{WRONG} deviates as the baseline has it:" in said
    file.write_text(of_member + of_pair, encoding="utf-8")
    assert main(["agree", RIGHT, WRONG, *options, "-q"]) == 0
    assert "of the broken laws are known deviations, 0 are new" in capsys.readouterr().out
    kept = json.loads(written.read_text(encoding="utf-8"))["baseline"]
    assert (kept["exit_code"], kept["new"], kept["known"][f"{RIGHT}=={WRONG}"]) == (
        0,
        {},
        {OUTPUTS: "its scale is wrong"},
    )
    holds = LawResult(OUTPUTS, "", "holds", examples=6)
    verdict = FamilyVerdict([], [Agreement("one", "other", [holds])], "gate", 0, 1.0, {})
    file.write_text(entry_for("other==one", OUTPUTS), encoding="utf-8")
    beside = verdict.beside(read_baseline(str(file)), str(file), narrowed=False)
    assert (beside.exit_code, [each.subject for each in beside.fixed]) == (1, ["other==one"])
    assert replace(beside, profile="quick").exit_code == 0


def test_what_is_known_of_members_is_no_agreement(tmp_path: Path) -> None:
    """Where no pair was compared, a known deviation does not make a success of it."""
    file = tmp_path / "known.toml"
    file.write_text(entry_for(WRONG, "attention/*"), encoding="utf-8")
    options = ["--dtype", "float32", "--law", "accuracy/output", "-n", "1", "-q"]
    assert main(["agree", RIGHT, WRONG, *options, "--baseline", str(file)]) == 2


def test_a_law_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is judged by a mistyped law, and that is no agreement."""
    assert main(["agree", RIGHT, WRONG, "--law", "ouput"]) == 2
    assert "no law of the role attention or agreement matches 'ouput'" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    assert main(["agree", "torch", "--device", "cuda"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no CUDA device" in line


def test_every_law_of_a_pair_shows_either_side() -> None:
    """A law of agreement has a law of attention that shows one side of the same case."""
    from headcheck.agreement.report import SAME_CASE

    assert {law.name for law in choose("agreement")} == set(SAME_CASE)
    assert set(SAME_CASE.values()) <= set(all_laws())
