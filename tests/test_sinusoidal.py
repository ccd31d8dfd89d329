"""The role sinusoidal: what is found out of a function that declares nothing, and what a declaration may say."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headcheck
from headcheck.engine import PROFILES, Engine
from headcheck.functions.sinusoidal import SinusoidalSubject, role
from headcheck.functions.sinusoidal_inputs import Sinusoidal, SinusoidalCase
from headcheck.laws import choose
from headcheck.python_front import verify
from headcheck.reference.positions import sinusoidal, sinusoidal_at
from headcheck.verdict import Hint
from tests.roles import RIGHT, WRONG


def prepared(declaration: Sinusoidal) -> tuple[SinusoidalSubject, list[str]]:
    subject, notes = role.prepare(declaration, dtypes=(), device="cpu", seed=0)
    assert isinstance(subject, SinusoidalSubject)
    return subject, notes


def right(name: str) -> tuple[SinusoidalSubject, list[str]]:
    return prepared(RIGHT[f"sinusoidal/{name}"].declaration())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("in-turn", "float32"),
        ("by-powers", "float64"),
        ("in-sixteen-bits", "bfloat16"),
        ("in-half", "float16"),
    ],
)
def test_the_dtype_is_that_of_the_table(name: str, dtype: str) -> None:
    """No dtype is asked for, and no other one is reported as missing."""
    subject, notes = right(name)
    assert subject.dtypes == (dtype,)
    assert not [note for note in notes if "not supported" in note]


def test_the_layout_is_found_out() -> None:
    """By the row of position 1."""
    assert right("in-turn")[0].layout == "interleaved"
    subject, notes = right("sines-first")
    assert subject.layout == "concatenated"
    assert "layout: concatenated, as found" in notes


def test_a_layout_that_is_none_of_them_is_called_a_guess() -> None:
    """What is taken for want of a better one is not said to be found."""
    _, notes = prepared(Sinusoidal(lambda length, d_model: torch.full((length, d_model), 3.0)))
    assert not any("as found" in note for note in notes if note.startswith("layout"))
    assert any(note.startswith("layout: ") and "near none" in note for note in notes)


def test_cosines_first_and_a_last_column_of_zeros_are_found_out() -> None:
    """The zeros where sines and cosines stand apart only: in place of a single sine they are a slip."""
    subject, notes = right("cosines-first")
    assert {"layout: cosines-first, as found", "odd: zero-column, as found"} <= {*notes}
    assert role.found(subject)["odd"] == "zero-column"

    def interleaved(length: int, d_model: int) -> Tensor:
        table = sinusoidal(length, d_model - d_model % 2).float()
        return torch.nn.functional.pad(table, (0, d_model % 2))

    assert not prepared(Sinusoidal(interleaved))[0].pads
    declared = Sinusoidal(interleaved, odd="zero-column")
    assert verify(declared, laws="odd-widths", profile="quick").verdict == "conforms"
    held = Sinusoidal(RIGHT["sinusoidal/sines-first"].function, odd="zero-column")
    assert verify(held, laws="odd-widths", profile="quick").verdict == "breaks"


def test_odd_widths_that_are_refused_are_asked_for_by_one_law() -> None:
    """Elsewhere an odd width is the even one above it; who takes odd widths is given them."""
    refusing, taking = right("sines-first")[0], right("in-turn")[0]
    assert str(refusing.lacks("odd")).startswith("makes no table of odd width (raised ValueError")
    assert role.fit(SinusoidalCase(d_model=5), refusing).d_model == 6
    assert role.fit(SinusoidalCase(d_model=5), taking).d_model == 5


@pytest.mark.parametrize(
    ("odd", "outcome"), [(None, "not-applicable"), ("refused", "holds"), ("handled", "breaks")]
)
def test_a_refusal_of_odd_widths_holds_where_it_is_declared(odd: Any, outcome: str) -> None:
    """Where nothing is declared, nothing was judged."""
    subject, _ = prepared(RIGHT["sinusoidal/sines-first"].declaration().but(odd=odd))
    (law,) = choose("sinusoidal", ["odd-widths"])
    row = Engine(role, subject, PROFILES["quick"], 0, lambda law, case: "").judge(law)
    assert row.outcome == outcome
    assert "is odd" in row.reason or outcome == "holds"


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
@pytest.mark.parametrize("d_model", [1, 3, 7])
def test_an_odd_table_is_the_formula(layout: str, d_model: int) -> None:
    """Column by column sin or cos of p / 10000^(2i / d_model), with one sine more than cosines."""
    subject, _ = prepared(Sinusoidal(sinusoidal, layout=layout))  # type: ignore[arg-type]
    x = role.build(SinusoidalCase(length=5, d_model=d_model), subject)
    sines = (d_model + 1) // 2
    waves = [(j % 2, j // 2) if layout == "interleaved" else divmod(j, sines) for j in range(d_model)]
    rows = [
        [(math.cos if second else math.sin)(p / 10000.0 ** (2 * wave / d_model)) for second, wave in waves]
        for p in range(5)
    ]
    eps = 16 * torch.finfo(torch.float64).eps  # 4 for the angle, by at most 4, and sin or cos of it
    torch.testing.assert_close(subject.expected(x), torch.tensor(rows, dtype=torch.float64), rtol=0, atol=eps)


def test_the_longest_wave_may_be_the_base() -> None:
    """Declared so, the frequencies run from 1 to 1 / base."""
    subject, _ = right("to-the-base")
    frequencies = subject.frequencies(role.build(SinusoidalCase(d_model=16), subject))
    assert frequencies[0] == 1
    assert float(frequencies[-1]) == pytest.approx(1e-4, rel=1e-12)


@pytest.mark.parametrize("name", ["to-the-base", "padded-to-the-base", "one-wave-divides-by-zero"])
def test_a_last_wave_that_is_the_base_is_told(name: str) -> None:
    """It is held to the paper's; the hint and what is pasted name the other."""
    subject, notes = prepared(Sinusoidal(RIGHT[f"sinusoidal/{name}"].function))
    assert any("--declare last_wave=base" in note for note in notes if isinstance(note, Hint))
    assert role.found(subject)["last_wave"] == "base"
    assert not any(isinstance(note, Hint) for note in right(name)[1])


def test_a_width_of_two_may_be_refused() -> None:
    """By an exception of any kind, where a width of 4 is taken: it is a note, and no call that does not work."""
    subject, notes = right("one-wave-divides-by-zero")
    assert "tables of width 2: not asked for (raised ZeroDivisionError: float division by zero)" in notes
    assert not any(note.startswith("no plain call") for note in notes)
    assert role.fit(SinusoidalCase(d_model=1), subject).d_model == 4


def test_a_base_that_is_wrong_is_not_said_to_be_found() -> None:
    """Of waves that no declaration explains none is pasted."""
    subject, _ = prepared(Sinusoidal(lambda length, d_model: sinusoidal(length, d_model, base=500.0)))
    assert role.found(subject)["base"] is None


def test_the_length_of_a_buffer_is_found_out() -> None:
    """What a longer table raises is in the notes, and no longer one is asked for."""
    subject, notes = right("from-a-buffer")
    assert subject.longest == 2048
    assert any(note.startswith("length: up to 2048 (5000 is refused: raised ValueError") for note in notes)


def test_the_base_is_read_off_the_signature() -> None:
    """A default of 500 is what the function is held to."""
    subject, notes = right("of-another-base")
    assert subject.base == 500.0
    assert "base: 500, by the signature" in notes


class Encoding(nn.Module):
    """The sizes by other names, and an axis of one for the batch."""

    def forward(self, seq_len: int, *, embed_dim: int) -> Tensor:
        return sinusoidal(seq_len, embed_dim)[None].float()


def test_a_module_with_other_names_is_judged() -> None:
    """The parameters of forward say which size is which; the axis of one is taken away."""
    verdict = headcheck.verify(Encoding(), role="sinusoidal", profile="quick")
    assert verdict.conforms, verdict


def test_a_table_of_another_length_is_a_break() -> None:
    """One row more than was asked for."""

    def one_more(length: int, d_model: int) -> Tensor:
        return sinusoidal(length + 1, d_model)

    verdict = headcheck.verify(one_more, role="sinusoidal", profile="quick", laws="accuracy")
    assert verdict.laws[0].reason == "output has shape (2, 2), expected (1, 2)"


def test_the_bound_sees_a_wrong_last_digit_of_the_base() -> None:
    """A base of 10010, in float32: a thousandth of an exponent."""

    def nearly(length: int, d_model: int) -> Tensor:
        return sinusoidal_at(torch.arange(length), d_model, base=10010.0).float()

    verdict = headcheck.verify(nearly, role="sinusoidal", profile="quick", laws="geometric")
    assert verdict.laws[0].outcome == "breaks"


def test_a_sinusoidal_function_is_recognised_by_its_name() -> None:
    """sinusoidal and positional_encoding need no --role."""

    def positional_encoding(length: int, d_model: int) -> Tensor:
        return sinusoidal(length, d_model)

    assert headcheck.verify(positional_encoding, profile="quick", laws="norm").role == "sinusoidal"


def test_a_law_of_tensors_is_no_law_of_tables() -> None:
    """A table is given no tensor: no strides, no gradients."""
    from headcheck.laws import choose

    families = {law.family.rpartition("/")[2] for law in choose("sinusoidal")}
    assert "gradients" not in families
    assert "sinusoidal/memory/strided-equals-contiguous" not in {law.id for law in choose("sinusoidal")}
    assert WRONG["sinusoidal/handed-out"].breaks == ("tables/a-table-may-be-changed-by-its-owner",)
