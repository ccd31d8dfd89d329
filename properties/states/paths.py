"""Paths through one module that compute the same thing."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, NotApplicable, same
from headcheck.laws import law
from headcheck.modules.states import STATES, StateInputs, StatesSubject
from headcheck.modules.weights import BATCH_NORMS, training_without_dropout

Module = StatesSubject[StateInputs]


@law(
    source="gradients are for training: whether they are wanted is no part of the function",
    formula="f(x) with gradients = f(x) without",
    guards="A fused kernel for inference that masks or rounds otherwise (pytorch 190486).",
    share=1.5,
    roles=STATES,
)
def the_fast_path_gives_what_the_slow_path_gives(module: Module, x: StateInputs) -> Comparison:
    """In evaluation the states are the same whether gradients are wanted or not."""
    with torch.enable_grad():
        slow = module.output(x).detach().cpu()
    return module.close(module(x), slow, x, "output without gradients")


@law(
    source="Srivastava et al. 2014: dropout alone tells training from evaluation",
    formula="f(x) in training with p = 0 = f(x) in evaluation",
    guards="A mask that training alone applies, statistics of the batch, a scale left out in one of the two.",
    needs=("weights",),
    roles=STATES,
)
def training_without_dropout_gives_evaluation(module: Module, x: StateInputs) -> Iterator[Comparison]:
    """With dropout at 0, training gives the states that evaluation gives."""
    if any(isinstance(each, BATCH_NORMS) for each in module.parts()):
        raise NotApplicable("its norms use the statistics of the batch in training")
    assert module.module is not None
    with training_without_dropout(module.module):
        once, again = module(x), module(x)
    if not torch.equal(once.nan_to_num(), again.nan_to_num()):
        raise NotApplicable("its dropout does not stand in a number that can be set to 0")
    yield same(again, once)
    yield module.close(once, module(x), x, "output in training")
