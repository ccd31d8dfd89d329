"""Sinusoidal, rotary and learned positions are held to their formulas, number by number."""

import cmath
import math
from itertools import product

import pytest
import torch
from torch import Tensor

from headcheck import reference as ref
from headcheck.reference.positions import Layout, Pairing

EPS = torch.finfo(torch.float64).eps
LAYOUTS: tuple[Layout, ...] = ("interleaved", "concatenated")
PAIRINGS: tuple[Pairing, ...] = ("interleaved", "half")


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dims_of_pair(pair: int, dim: int, pairing: Pairing) -> tuple[int, int]:
    """The two dims that turn together."""
    return (2 * pair, 2 * pair + 1) if pairing == "interleaved" else (pair, pair + dim // 2)


def turned(vector: list[float], position: float, base: float, pairing: Pairing) -> list[float]:
    """A rotation by its definition: complex numbers of Python, one pair at a time."""
    result = list(vector)
    for pair in range(len(vector) // 2):
        a, b = dims_of_pair(pair, len(vector), pairing)
        angle = position / base ** (2 * pair / len(vector))
        number = complex(vector[a], vector[b]) * cmath.exp(1j * angle)
        result[a], result[b] = number.real, number.imag
    return result


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_sinusoidal_is_the_papers_formula(layout: Layout, base: float) -> None:
    """sin and cos of p / base^(2i/d); at p = 100 the angle, and so the code, is rounded by a few 100 eps."""
    length, d_model = 101, 6
    code = ref.sinusoidal(length, d_model, base=base, layout=layout)
    assert code.dtype == torch.float64
    assert code.shape == (length, d_model)
    for position, i in product(range(length), range(d_model // 2)):
        angle = position / base ** (2 * i / d_model)
        sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + d_model // 2)
        assert code[position, sine].item() == pytest.approx(math.sin(angle), abs=4 * length * EPS)
        assert code[position, cosine].item() == pytest.approx(math.cos(angle), abs=4 * length * EPS)


def test_sinusoidal_at_is_the_rows_of_sinusoidal() -> None:
    """For positions in any shape and order."""
    positions = torch.tensor([[3, 0], [7, 3]])
    assert torch.equal(ref.sinusoidal_at(positions, 8), ref.sinusoidal(8, 8)[positions])


@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_rotary_is_a_complex_product(base: float, pairing: Pairing, rotary_dim: int | None) -> None:
    """With positions of each sequence, fractions included; dims from rotary_dim on are the input's own bits."""
    x, positions = normal(2, 3, 4, 8), torch.tensor([[0.0, 1.0, 2.5, 1000.0], [7.0, 3.0, 3.0, 0.25]])
    width = 8 if rotary_dim is None else rotary_dim
    got = ref.rotary(x, positions, base=base, pairing=pairing, rotary_dim=rotary_dim)
    assert torch.equal(got[..., width:], x[..., width:])
    for b, h, t in product(range(2), range(3), range(4)):
        want = turned(x[b, h, t, :width].tolist(), positions[b, t].item(), base, pairing)
        # The angle is rounded by a few eps of itself, at most 1000, and turns a vector of length below 8.
        assert got[b, h, t, :width].tolist() == pytest.approx(want, abs=4 * 1000 * 8 * EPS)


def test_positions_for_all_are_positions_for_each() -> None:
    """(length,) means the same as (batch, length) with equal rows, and (1, length)."""
    x, positions = normal(2, 3, 4, 8), torch.tensor([5, 6, 7, 9])
    want = ref.rotary(x, positions)
    assert torch.equal(ref.rotary(x, positions.expand(2, 4)), want)
    assert torch.equal(ref.rotary(x, positions[None]), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_rotary_rounds_once(dtype: torch.dtype, pairing: Pairing) -> None:
    """In low precision it is the float64 result, rounded, also at position 1 000 001, which is no float16."""
    x, positions = normal(1, 2, 3, 8).to(dtype), torch.tensor([100_000, 100_001, 1_000_001])
    got = ref.rotary(x, positions, pairing=pairing)
    assert got.dtype == dtype
    assert torch.equal(got, ref.rotary(x.double(), positions, pairing=pairing).to(dtype))


def test_rotary_has_the_gradient_of_a_rotation() -> None:
    """The gradient of <R x, c> is R^T c: the cotangent turned back."""
    x, cotangent, positions = normal(1, 2, 3, 8).requires_grad_(), normal(1, 2, 3, 8, seed=2), torch.arange(3)
    (gradient,) = torch.autograd.grad(ref.rotary(x, positions), x, cotangent)
    assert (gradient - ref.rotary(cotangent, -positions)).abs().max() <= 16 * EPS


def test_odd_widths_are_refused() -> None:
    """A pair needs two dims; a rotation needs the dims that it turns."""
    with pytest.raises(ValueError, match="in pairs: 7 is odd"):
        ref.sinusoidal(4, 7)
    with pytest.raises(ValueError, match="in pairs: 3 is odd"):
        ref.rotary(normal(1, 1, 2, 8), torch.arange(2), rotary_dim=3)
    with pytest.raises(ValueError, match="rotary_dim = 10 is beyond dim = 8"):
        ref.rotary(normal(1, 1, 2, 8), torch.arange(2), rotary_dim=10)


def test_unknown_conventions_are_refused() -> None:
    """By their names."""
    with pytest.raises(ValueError, match="layout='halves' is none of 'interleaved', 'concatenated'"):
        ref.sinusoidal(4, 8, layout="halves")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pairing='neox' is none of 'interleaved', 'half'"):
        ref.rotary(normal(1, 1, 2, 8), torch.arange(2), pairing="neox")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positions='rope' is none of"):
        ref.Embedding(5, 8, scaled=True, positions="rope")  # type: ignore[arg-type]


def test_learned_positions_are_rows_and_end() -> None:
    """Position p is row p; nothing is learned beyond the last."""
    learned = ref.LearnedPositions(4, 6)
    assert torch.equal(learned(torch.tensor([[3, 0]])), learned.weight[[3, 0]][None])
    with pytest.raises(ValueError, match="position -1, but only 0 to 3 were learned"):
        learned(torch.tensor([0, -1]))
    with pytest.raises(ValueError, match="position 4, but only 0 to 3 were learned"):
        learned(torch.arange(5))


def test_token_positions_count_real_tokens() -> None:
    """Left padding, right padding, and holes."""
    is_real = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [1, 0, 1, 1]]).bool()
    assert ref.token_positions(is_real).tolist() == [[0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 2]]
