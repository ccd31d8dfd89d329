"""What is given in one format is computed in it, and comes back in it."""

import torch

from headcheck.attention.inputs import Inputs as AttentionInputs
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, LawBroken, NotApplicable, none
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


@law(
    source="IEEE 754: binary64 has 53 digits; the arithmetic of an undeclared function is that of its inputs",
    formula="x in float64: |f(x) - exact| <= bound of float64",
    guards="Doubles that are computed in single precision, as by x.float() inside, which only a declaration may say.",
    share=0.5,
    roles=("softmax", "layer_norm", "rms_norm"),
)
def doubles_are_computed_as_doubles(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """Inputs in float64 are answered with the precision of float64, unless another arithmetic is declared."""
    if not function.takes_doubles:
        raise NotApplicable("float64 is not taken, or not asked for")
    y = x.cast(torch.float64)
    return function.against_the_oracle(y)
