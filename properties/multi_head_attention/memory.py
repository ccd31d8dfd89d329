"""How the inputs lie in memory does not matter."""

from torch import Tensor

from headcheck.comparison import Comparison
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.oracle import GIVEN
from headcheck.modules.multi_head.subject import MultiHeadSubject


def _strided(x: Tensor, way: int) -> Tensor:
    """The same numbers with other strides: length before batch, the last axis first, or every second element."""
    if way == 0:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if way == 1:
        return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    return x.repeat_interleave(2, dim=-1)[..., ::2]


@law(
    source="a tensor is its numbers",
    formula="f(x strided) = f(x contiguous)",
    guards="A view of a tensor taken to be contiguous: an error, or the wrong numbers (pytorch 181133).",
)
def strided_inputs_change_nothing(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Inputs with other strides give the same output."""
    given = {name: each for name in GIVEN if (each := getattr(x, name)) is not None}
    strided = x.but(**{name: _strided(each, x.case.seed % 3) for name, each in given.items()})
    return attention.close(attention(strided), attention(x), x)
