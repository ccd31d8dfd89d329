"""No mean is taken out: what tells an RMS norm from a layer norm."""

import torch

from headcheck.comparison import Comparison, within
from headcheck.functions.norms import NormInputs, NormSubject
from headcheck.laws import law

MEAN_SQUARE = "Zhang and Sennrich 2019, equation (4): x / sqrt(mean x^2), and no mean is taken out"


@law(
    source=MEAN_SQUARE,
    formula="f(x + a) s(x + a) - f(x) s(x) = a, s(x) = sqrt(mean x^2 + eps)",
    guards="A layer norm in its place, which inputs of mean zero do not tell apart (flash-attention a9a4b4e4).",
)
def a_common_shift_is_not_taken_out(norm: NormSubject, x: NormInputs) -> Comparison:
    """A number added to all of a row stands in each element of the output, divided as the row is."""
    first = norm.bare(x).but(x=x.x.round().clamp(-8, 8))
    a = (1.0, -3.0, 16.0, -64.0)[x.case.seed % 4]
    moved = first.but(x=first.x + a)
    s, s_moved = 1 / norm.row(first).scale, 1 / norm.row(moved).scale
    difference = norm(moved).double().cpu() * s_moved - norm(first).double().cpu() * s
    limit = norm.bound(moved) * s_moved + norm.bound(first) * s
    return within(
        difference, torch.full_like(difference, a), limit, f"shift by {a:g}, taken back out of the output"
    )


@law(
    source=MEAN_SQUARE,
    formula="x = (a, ..., a): y = a / sqrt(a^2 + eps), weighted",
    guards="A mean that is taken out: zeros where ones belong (flash-attention a9a4b4e4).",
)
def a_constant_row_has_size_one(norm: NormSubject, x: NormInputs) -> Comparison:
    """A row of one and the same number, not yet weighted, comes back with its sign and, but for eps, size one."""
    a = (1.0, -3.0, 0.5, 100.0, -0.125)[x.case.seed % 5]
    rows = norm.bare(x).but(x=torch.full_like(x.x, a))
    exact = torch.full(x.x.shape, a / (a * a + x.eps) ** 0.5, dtype=torch.float64)
    return within(norm(rows), exact, norm.bound(rows), f"output of rows of {a:g}")
