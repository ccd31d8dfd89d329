"""The sequences of a batch are computed each by itself."""

import torch

from headcheck.comparison import Comparison
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.subject import ModuleInputs, ModuleSubject
from headcheck.roles import MODULES

ALONE = "a batch is a way of computing, no part of the function"


@law(
    source=ALONE,
    formula="f([a; b])_a = f([a])",
    guards="A norm, a mask or a reshape that mixes the sequences of a batch (transformers 17900).",
    given=(at_least(batch=2),),
    roles=MODULES,
)
def a_sequence_in_a_batch_is_itself_alone(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """A sequence among others gives what it gives in a batch of one."""
    row = torch.tensor([x.case.seed % x.case.batch])
    return module.close(module(x.picked(row)), module(x)[row], x)


@law(
    source=ALONE,
    formula="f(P [a; b]) = P f([a; b])",
    guards="An answer that depends on the place in the batch.",
    given=(at_least(batch=2),),
    roles=MODULES,
)
def permuting_the_batch_permutes_the_output(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Comparison:
    """Sequences in another order give the same answers in that order."""
    order = torch.arange(x.case.batch).roll(1 + x.case.seed % (x.case.batch - 1))
    return module.close(module(x.picked(order)), module(x)[order], x)
