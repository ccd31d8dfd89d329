"""What is given in one format comes back in it."""

from headcheck.attention.inputs import Inputs as AttentionInputs
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, LawBroken, none
from headcheck.functions.inputs import Inputs
from headcheck.functions.subject import FunctionSubject
from headcheck.laws import law
from headcheck.roles import OF_TENSORS


@law(
    source="torch's own functions: the output has the dtype of what was given",
    formula="dtype(f(x)) = dtype(x), or f refuses x",
    guards="Inputs that are widened to compute with them, and not brought back: what follows runs in float32, or raises.",
    share=0.1,
    roles=("attention", *OF_TENSORS),
)
def a_dtype_that_is_taken_comes_back(
    subject: FunctionSubject[Inputs] | AttentionSubject, x: Inputs | AttentionInputs
) -> Comparison:
    """An answer is in the dtype of what was given, or that dtype is refused."""
    for dtype, problem in subject.answered_otherwise.items():
        raise LawBroken(
            f"in {dtype} the {problem}; where it is not meant to be given, declare dtypes without it"
        )
    return none("answers in another dtype")
