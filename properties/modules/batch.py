"""The sequences of a batch are computed each by itself."""

import torch

from headcheck.comparison import Comparison
from headcheck.given import at_least, one_in
from headcheck.laws import law
from headcheck.modules.subject import ModuleInputs, ModuleSubject
from headcheck.roles import MODULES

OUTLYING = 1000.0
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
    guards="An answer that depends on the place in the batch; the mask of the first part of a large one for all parts.",
    given=(at_least(batch=2), one_in(2, at_least(batch=17))),
    roles=MODULES,
)
def permuting_the_batch_permutes_the_output(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Comparison:
    """Sequences in another order give the same answers in that order."""
    order = torch.arange(x.case.batch).roll(1 + x.case.seed % (x.case.batch - 1))
    return module.close(module(x.picked(order)), module(x)[order], x)


@law(
    source=ALONE,
    formula="f([a; 1000 b])_a = f([a])",
    guards="A range, a largest number or a scale of quantisation that is taken over the whole batch.",
    given=(at_least(batch=2),),
    share=0.5,
    roles=("encoder", "decoder", "vision"),
)
def an_outlier_stays_in_its_own_sequence(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """A sequence among others a thousand times as large gives what it gives alone."""
    first = torch.tensor([0])
    numbers = {name: each for name, each in x.tensors.items() if each.is_floating_point()}
    others = {name: torch.cat([each[:1], OUTLYING * each[1:]]) for name, each in numbers.items()}
    return module.close(module(x.but(**others))[first], module(x.picked(first)), x)
