"""The output is the oracle's, in every form in which it can be asked for."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, NotApplicable, none, within
from headcheck.forks import require_right_in_a_copy
from headcheck.functions.inputs import Inputs
from headcheck.functions.subject import FunctionSubject
from headcheck.given import one_of
from headcheck.laws import law
from headcheck.roles import FUNCTIONS, OF_TENSORS


@law(
    source="Higham 2002, chapters 2 and 3: the model of rounding, and what follows for sums and products",
    formula="|f(x) - exact(x)| <= bound(x), element by element",
    guards="Whatever changes the result by more than rounding does.",
    share=2.0,
    roles=FUNCTIONS,
)
def output_is_within_the_bound(function: FunctionSubject[Inputs], x: Inputs) -> Comparison:
    """Each element of the output is the exact one, within the rounding of the declared arithmetic."""
    return function.against_the_oracle(x)


@law(
    source="torch.func.vmap: what a loop over the mapped axis gives",
    formula="vmap(f)([x, x']) = [f(x), f(x')]",
    guards="An axis counted from the front, among which the mapped one now stands; one of the calls' weights for all.",
    given=(one_of("dtype", "float32", "float64"),),
    share=0.5,
    roles=OF_TENSORS,
)
def mapped_calls_are_those_of_a_loop(function: FunctionSubject[Inputs], x: Inputs) -> Iterator[Comparison]:
    """Two calls in one under torch.func.vmap give what each gives by itself, or are refused."""
    if x.dtype not in (torch.float32, torch.float64):
        raise NotApplicable("in 16 bits torch takes a mapped call apart, with other roundings")
    calls = (x, x.other())
    alone = [function(call) for call in calls]

    def mapped() -> Iterator[Comparison]:
        outputs = function.mapped(calls, axis=x.case.seed % 2)
        for output, expected, call in zip(outputs, alone, calls, strict=True):
            yield within(output, expected, 2 * function.bound(call), "output, mapped")

    if function.declaration.gradients is False:
        require_right_in_a_copy(mapped, function.device, "under torch.func.vmap")
        yield none("outputs that are other when mapped")
    else:
        yield from mapped()
