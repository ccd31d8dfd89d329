"""An RMS norm sees nothing but the length of a row, and a rotation leaves that as it is."""

import torch
from torch import Tensor

from headcheck.comparison import Comparison, within
from headcheck.functions.norms import NormCase, NormInputs, NormSubject
from headcheck.laws import law


def even(case: NormCase) -> NormCase:
    """With an even number of features, where the subject takes one."""
    return case.but(dim=max(2, case.dim // 2 * 2))


def halves(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first half of the features, the second, and the last one of an odd number."""
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]


def turned(x: Tensor) -> Tensor:
    """Every feature a of the first half and b of the second as a + b and a - b: a rotation and a factor of root 2.

    The last feature of an odd number has to be zero.
    """
    first, second, rest = halves(x)
    return torch.cat([first + second, first - second, rest], dim=-1)


@law(
    source="Zhang and Sennrich 2019, section 4: the root mean square depends on the length of the row alone",
    formula="f(R x) s(R x) = R f(x) s(x), s(x) = sqrt(mean x^2 + eps), R a rotation of pairs times root 2",
    guards="Another size than the length: the mean of |x|, the largest |x|, the length of a part of the row.",
    given=(even,),
)
def turning_a_row_turns_the_output(norm: NormSubject, x: NormInputs) -> Comparison:
    """A row turned in the space of its features, not yet weighted, has its output turned in the same way."""
    first = norm.bare(x).but(x=x.x.round().clamp(-16, 16))
    halves(first.x)[2].zero_()
    other = first.but(x=turned(first.x))
    s, s_other = 1 / norm.row(first).scale, 1 / norm.row(other).scale
    expected = turned(norm(first).double().cpu()) * s / s_other
    here, there, rest = halves(norm.bound(first))
    sizes = torch.cat([here + there, here + there, rest], dim=-1)
    return within(norm(other), expected, norm.bound(other) + sizes * s / s_other, "output of the turned row")
