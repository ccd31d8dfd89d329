"""The role softmax: what its exponents lose where rows are far from zero is found out, and allowed where it is."""

import math
from collections.abc import Callable

import pytest
import torch

from headcheck.errors import SubjectError
from headcheck.functions.softmax import Softmax, SoftmaxInputs, SoftmaxSubject, role
from headcheck.python_front import replay, verify
from headcheck.verdict import Hint
from tests.roles import RIGHT

FORMS = {
    "library": "differences",
    "base-two": "differences",
    "from-logarithms": "differences",
    "online": "differences",
    "base-two-scaled-first": "scaled",
    "by-log-sum-exp": "log-sum-exp",
}


@pytest.mark.parametrize("name", list(FORMS))
def test_the_form_of_the_exponents_is_found_out(name: str) -> None:
    """By rows far from zero; the verdict says so where digits are lost."""
    declaration = RIGHT[f"softmax/{name}"].declaration()
    subject, notes = role.prepare(declaration, dtypes=("float32", "float64"), device="cpu", seed=0)
    assert isinstance(subject, SoftmaxSubject)
    assert subject.exponents == FORMS[name]
    assert any(note.startswith("exponents: ") for note in notes) == (FORMS[name] != "differences")


def test_what_is_lost_far_from_zero_counts_where_it_is_found_only() -> None:
    """Near zero the three bounds are about the same; far from it the narrow one knows no x, only differences."""

    def bounds(exponents: str, size: float) -> float:
        declared = Softmax(torch.softmax, exponents=exponents)  # type: ignore[arg-type]
        subject, _ = role.prepare(declared, dtypes=("float32",), device="cpu", seed=0)
        assert isinstance(subject, SoftmaxSubject)
        x = SoftmaxInputs(role.case(), torch.tensor([[[size, size]]]))
        return float(subject.bound(x).amax())

    for wide in ("scaled", "log-sum-exp"):
        assert bounds(wide, 0.0) < 1.1 * bounds("differences", 0.0)
        assert bounds(wide, 8000.0) > 20 * bounds("differences", 8000.0)
    assert bounds("differences", 0.0) == bounds("differences", 8000.0)


def test_a_declared_form_is_held_to() -> None:
    """The difference of two large numbers is exact where their log-sum-exp is not."""
    declared = Softmax(RIGHT["softmax/by-log-sum-exp"].function, exponents="differences")
    assert verify(declared, laws="cold-limit", profile="quick").verdict == "breaks"
    with pytest.raises(SubjectError, match="exponents"):
        Softmax(torch.softmax, exponents="sums")  # type: ignore[arg-type]


def test_a_scale_is_asked_for_by_its_name() -> None:
    """What stands in its place may be anything, and is named where it is left alone."""

    def other(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.softmax(x, dim, dtype=dtype)

    subject, notes = role.prepare(Softmax(other), dtypes=("float32",), device="cpu", seed=0)
    assert subject.lacks("scale") == "has no argument for a scale"
    assert "parameters not recognised, left at their defaults: dtype; what they do is not judged" in notes
    for name in ("with-a-scale", "scaled-where-it-is"):
        declared = RIGHT[f"softmax/{name}"].declaration()
        subject, notes = role.prepare(declared, dtypes=("float32",), device="cpu", seed=0)
        assert subject.has("scale")
        assert not any("not recognised" in note for note in notes)


def test_a_scale_may_have_any_default_but_is_a_number() -> None:
    """One whose default is another number is given 1 where no law asks for it; a flag or a word is left alone."""

    def of_an_eighth(x: torch.Tensor, scale: float = 0.125) -> torch.Tensor:
        return torch.softmax(x * scale, dim=-1)

    def by_a_flag(x: torch.Tensor, dim: int, scale: bool = False) -> torch.Tensor:
        return torch.softmax(x * 2 if scale else x, dim)

    assert verify(of_an_eighth, role="softmax", profile="quick", dtype="float32").conforms
    subject, notes = role.prepare(Softmax(by_a_flag), dtypes=("float32",), device="cpu", seed=0)
    assert subject.lacks("scale")
    assert "parameters not recognised, left at their defaults: scale; what they do is not judged" in notes


def test_a_row_without_numbers_is_no_case() -> None:
    """Of minus infinities alone there is no softmax: a counterexample is not made smaller to that, nor replayed."""
    law = "softmax/distribution/weights-are-neither-negative-nor-above-one"
    row = replay(Softmax(torch.softmax), law, "length=2 x=[[-Infinity,-Infinity]]")
    assert row.outcome == "not-applicable"
    assert row.reason.endswith("it needs x=[[0.0,0.0]]")
    row = replay(Softmax(torch.softmax), law, "length=3 hidden=1 x=[[-Infinity,-Infinity,5.0]]")
    assert row.reason.endswith("it needs x=[[0.0,0.0,5.0]]")
    assert replay(Softmax(torch.softmax), law, "length=2 x=[[-Infinity,0.0]]").outcome == "holds"


def running_maximum(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """NaN where a row begins with two -inf: their difference."""
    rows = x.movedim(dim, -1)
    top, total = rows[..., :1], torch.ones_like(rows[..., :1])
    for each in rows.split(1, dim=-1)[1:]:
        new = torch.maximum(top, each)
        total, top = total * (top - new).exp() + (each - new).exp(), new
    return ((rows - top).exp() / total).movedim(-1, dim)


def test_a_row_that_begins_with_minus_infinity_is_shown() -> None:
    """With a number in it, of which it is made small."""
    example = (
        verify(running_maximum, role="softmax", laws="weights-are-neither", profile="quick", dtype="float32")
        .broken[0]
        .counterexample
    )
    assert example is not None
    assert example.inputs["x"] == [[[-math.inf, -math.inf, 0.0]]]


def test_another_axis_and_logarithms_are_told() -> None:
    """A softmax of channels, and a log_softmax, are right for what they are: hints name what goes around them."""

    def hints(function: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
        _, notes = role.prepare(Softmax(function), dtypes=("float32", "float64"), device="cpu", seed=0)
        return [note for note in notes if isinstance(note, Hint)]

    along, logarithms = "works along axis 1", "gives the logarithms"
    assert [along in note for note in hints(lambda x: torch.softmax(x, dim=1))] == [True]
    assert [logarithms in note for note in hints(lambda x: torch.log_softmax(x, dim=-1))] == [True]
    both = hints(lambda x: torch.log_softmax(x, dim=1))
    assert [logarithms in both[0], along in both[1]] == [True, True]
    assert hints(lambda x: torch.softmax(x, dim=-1)) == hints(lambda x: torch.softmax(2 * x, dim=-1)) == []
