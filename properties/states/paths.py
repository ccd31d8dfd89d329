"""Paths through one module that compute the same thing."""

import torch

from headcheck.comparison import Comparison
from headcheck.laws import law
from headcheck.modules.states import STATES, StateInputs, StatesSubject

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
