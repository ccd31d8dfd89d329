"""Which arithmetic an undeclared subject is held to."""

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from headcheck import Verdict, forks, verify
from headcheck.arithmetic import Arithmetic, named
from headcheck.attention.rounding import infer_arithmetic
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trial import prepare
from headcheck.calling import Clock, NoAnswer, Patience, impatient
from headcheck.declarations import Attention
from headcheck.errors import SubjectError
from headcheck.functions.softmax import Softmax
from headcheck.functions.softmax import role as softmax_role
from headcheck.inference import narrowest, told
from headcheck.python_front import probe
from headcheck.reference.canonical import canonical_attention
from tests.faults import VARIANTS
from tests.roles.softmax_survivors import contiguous_or_refused

MODELS = (named("wide"), named("flash"), named("eager"))
RATIOS = {"wide": 2.0, "flash": 0.9, "eager": 0.3}


def test_the_narrowest_model_that_fits_every_case_is_found() -> None:
    """A model that a case rules out is not tried again; the largest error is that of the model found."""
    asked: list[tuple[int, str]] = []

    def ratio(case: int, model: Arithmetic) -> float:
        asked.append((case, str(model)))
        return {0: 0.1, 1: RATIOS[str(model)], 2: 0.5}[case]

    assert narrowest(MODELS, range(3), ratio) == (named("flash"), 0.9)
    assert asked == [(0, "wide"), (1, "wide"), (1, "flash"), (2, "flash")]


def test_a_case_that_no_model_explains_says_nothing() -> None:
    """It rules none out; where that is so of every case, the narrowest is taken, and no ratio is told."""
    assert narrowest(MODELS, range(2), lambda case, model: 2.0 - case) == (named("wide"), 1.0)
    model, ratio = narrowest(MODELS, range(2), lambda case, model: math.inf)
    assert (model, ratio) == (named("wide"), math.inf)
    assert (
        told("float16", model, ratio) == "float16: no model of arithmetic explains its errors; held to wide"
    )


def test_a_case_that_is_wrong_elsewhere_widens_nothing() -> None:
    """It fits a wide model by chance; one that fits the narrowest is not asked about."""
    asked: list[int] = []

    def tells(case: int) -> bool:
        asked.append(case)
        return case != 1

    ratios = {0: {"wide": 0.5}, 1: {"eager": 0.9}, 2: {"flash": 0.7}}
    found = narrowest(MODELS, range(3), lambda case, model: ratios[case].get(str(model), 2.0), tells)
    assert found == (named("flash"), 0.7)
    assert asked == [1, 2]


def test_a_wrong_scale_is_no_wide_arithmetic() -> None:
    """A function that forgets the default scale keeps the bounds of a right one where a scale is given."""

    def attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None) -> Tensor:
        scores = (query.double() @ key.double().mT) * (1.0 if scale is None else scale)
        return (scores.softmax(-1) @ value.double()).to(query.dtype)

    subject, _ = prepare(Attention(attention), dtypes=("float32", "bfloat16"), device="cpu", seed=0)
    assert subject.arithmetic["bfloat16"] == named("wide")


def test_a_subject_that_is_tried_is_waited_for_as_long_as_its_calls_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within limits; once it has hung, two seconds each time. Outside of the trial nothing rings."""
    assert [Patience(taken).limit_s for taken in (None, 0.01, 12.0, 500.0)] == [120.0, 5.0, 12.0, 30.0]
    monkeypatch.setattr(Patience, "LEAST_S", 0.05)
    clock = Clock()
    with impatient(0.0):
        assert clock.call(len, "four") == 4
        with pytest.raises(NoAnswer, match=r"^did not return within 0.05 s$"):
            clock.call(time.sleep, 60)
        assert Clock.patience is not None
        assert Clock.patience.limit_s == 2.0
    assert Clock.patience is None
    clock.call(time.sleep, 0.1)
    assert clock.seconds >= 0.15


def test_a_first_call_that_does_not_come_back_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to find out; it has longer, since it may compile."""
    monkeypatch.setattr(Patience, "FIRST_S", 0.1)
    with (
        impatient(),
        pytest.raises(
            SubjectError, match=r"did not return from its first and plainest call in 0.1 s; .*--timeout"
        ),
    ):
        Clock().call(time.sleep, 60)


def test_what_hangs_at_some_lengths_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be told is told, in little time."""
    monkeypatch.setattr(Patience, "LEAST_S", 0.2)
    monkeypatch.setattr(Patience, "AFTER_A_HANG_S", 0.1)
    monkeypatch.setattr(forks, "PATIENCE_S", 0.5)

    def attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
        while is_causal and key.shape[-2] % 4 == 1 < key.shape[-2]:
            pass
        return canonical_attention(query, key, value, is_causal=is_causal)

    began = time.perf_counter()
    assert "deterministic" in str(probe(attention))
    assert time.perf_counter() - began < 60


def test_a_function_that_hangs_at_some_lengths_is_prepared_in_every_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is for the laws to meet the hang: no dtype is given up for it."""
    monkeypatch.setattr(Patience, "LEAST_S", 0.2)
    monkeypatch.setattr(Patience, "AFTER_A_HANG_S", 0.1)
    monkeypatch.setattr(forks, "PATIENCE_S", 0.5)

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        while key.shape[-2] % 4 == 1 < key.shape[-2]:
            pass
        return canonical_attention(query, key, value, attn_mask, is_causal=is_causal)

    began = time.perf_counter()
    subject, notes = prepare(Attention(attention), dtypes=(), device="cpu", seed=0)
    assert time.perf_counter() - began < 30
    assert set(subject.dtypes) == {"float32", "float64", "bfloat16", "float16"}
    assert [each for each in notes if "arithmetic inferred" in each]


def _given_up(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    """Attention whose exp is zero below 1e-7."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    raised = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    raised = torch.where(raised < 1e-7, 0.0, raised)
    return raised @ value / raised.sum(dim=-1, keepdim=True)


def test_merges_by_differences_are_found_out_and_lost_weights_are_not_taken_for_them() -> None:
    """Both lose what weighs next to nothing; only differences round what is left to the size of what was lost."""
    merged = VARIANTS["natural_right/merged-by-differences"].declaration()
    for declaration, merges in ((merged, 8), (Attention(_given_up), 0)):
        subject, _ = prepare(declaration, dtypes=("float32", "float64"), device="cpu", seed=0)
        assert {model.merges for model in subject.arithmetic.values()} == {merges}


def test_a_query_that_is_scaled_first_is_found_out_at_each_seed() -> None:
    """In sums of large products alone it rounds more than a score does; drawn dims such as 16 scale it exactly."""
    declaration = VARIANTS["natural_right/queries-in-columns"].declaration()
    trial = AttentionSubject(
        declaration, dtypes=("bfloat16",), arithmetic={"bfloat16": named("native")}, device="cpu"
    )
    for seed in (812, 815):
        assert infer_arithmetic(trial, "bfloat16", seed)[0] == replace(named("eager"), scaled="input")


class _HalfOfTheQueries(torch.autograd.Function):
    """Eager code whose backward pass gives half of the query's gradient."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return with_log_sum_exp(query, key, value)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        with torch.enable_grad():
            inputs = [each.detach().requires_grad_() for each in ctx.saved_tensors]
            query, key, value = torch.autograd.grad(with_log_sum_exp(*inputs), inputs, cotangent)
        return query / 2, key, value


def _wrong_on_the_way_back(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _HalfOfTheQueries.apply(query, key, value)  # type: ignore[no-any-return, no-untyped-call]


def test_an_axis_along_which_each_step_is_stored_is_found_out_at_each_seed() -> None:
    """torch's softmax stores its steps along outer axes alone; of strided rows, which are refused, nothing is learnt."""
    for seed in range(8):
        prepared, _ = softmax_role.prepare(
            Softmax(contiguous_or_refused), dtypes=("bfloat16",), device="cpu", seed=seed
        )
        assert str(prepared.arithmetic["bfloat16"]) == "opwise"


def test_wrong_gradients_do_not_decide_how_the_output_is_held() -> None:
    """The arithmetic is that of the same code with its own gradients."""
    found = []
    for function in (with_log_sum_exp, _wrong_on_the_way_back):
        subject, _ = prepare(Attention(function), dtypes=("float32", "bfloat16"), device="cpu", seed=0)
        found.append(subject.arithmetic["bfloat16"])
    assert found[0] == found[1] == named("eager")


def with_log_sum_exp(
    query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False, *, by: float = 1.0
) -> Any:
    """Eager code, which takes the log-sum-exp of scores that it has rounded. by: it is multiplied by that."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    output = scores.softmax(-1) @ value
    return (output, scores.logsumexp(-1) * by) if return_lse else output


def test_a_log_sum_exp_in_sixteen_bits_may_be_that_of_rounded_scores() -> None:
    """Where nothing is declared; what is declared is held to, and a wrong one breaks whatever is."""

    def verdict_of(function: Any, **declares: Any) -> Verdict:
        subject = Attention(function, **declares)
        return verify(subject, profile="gate", dtype="bfloat16", laws=("log-sum-exp-is",))

    assert (right := verdict_of(with_log_sum_exp)).conforms, repr(right)
    assert verdict_of(with_log_sum_exp, arithmetic="eager").verdict == "breaks"
    assert verdict_of(with_log_sum_exp, arithmetic="opwise").conforms
    assert verdict_of(partial(with_log_sum_exp, by=1.03)).verdict == "breaks"


def in_single_precision(query: Tensor, key: Tensor, value: Tensor, *, lowered: bool = False) -> Tensor:
    """Whatever it is given; lowered: what autocast made of the output stays as it is."""
    weights = torch.softmax(query.float() @ key.float().mT * query.shape[-1] ** -0.5, dim=-1)
    output = weights @ value.float()
    return output if lowered and torch.is_autocast_enabled("cpu") else output.to(query.dtype)


@pytest.mark.parametrize(
    ("function", "more"),
    [
        (in_single_precision, []),
        (partial(in_single_precision, lowered=True), ["float-sixty-four-is-left-alone"]),
    ],
)
def test_doubles_in_single_precision_break_one_law(function: Any, more: list[str]) -> None:
    """What autocast makes of their numbers is of the same cause; another dtype of the output is not."""
    laws = ("doubles-are-computed-as-doubles", "float-sixty-four-is-left-alone")
    verdict = verify(function, profile="quick", laws=laws)
    assert {row.name for row in verdict.broken} == {"doubles-are-computed-as-doubles", *more}


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_single_precision_that_is_computed_in_sixteen_bits_is_told(narrow: torch.dtype) -> None:
    """As kernels that narrow what they are given do; the laws break all the same."""

    def narrowed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return in_single_precision(query.to(narrow), key.to(narrow), value.to(narrow)).to(query.dtype)

    name = str(narrow).removeprefix("torch.")
    verdict = verify(Attention(narrowed), profile="quick", dtype="float32", laws="output-is-within")
    assert verdict.verdict == "breaks"
    assert any(note.startswith(f"float32 is computed in {name}: rounding") for note in verdict.notes)
    right = verify(Attention(in_single_precision), profile="quick", dtype="float32", laws="output-is-within")
    assert not any("is computed in" in note for note in right.notes)
