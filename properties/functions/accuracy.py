"""The output is the oracle's, in every form in which it can be asked for."""

from headcheck.comparison import Comparison, within
from headcheck.functions.inputs import Inputs
from headcheck.functions.subject import FunctionSubject
from headcheck.laws import law
from headcheck.roles import FUNCTIONS


@law(
    source="Higham 2002, chapters 2 and 3: the model of rounding, and what follows for sums and products",
    formula="|f(x) - exact(x)| <= bound(x), element by element",
    guards="Whatever changes the result by more than rounding does.",
    share=2.0,
    roles=FUNCTIONS,
)
def output_is_within_the_bound(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """Each element of the output is the exact one, within the rounding of the declared arithmetic."""
    return within(function(x), function.expected(x), function.bound(x))
