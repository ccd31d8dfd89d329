"""Paths through one module that compute the same thing, and numbers of any size on each of them."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, NotApplicable, holds
from headcheck.given import having
from headcheck.laws import law
from headcheck.modules.states import STATES, StateInputs, StatesSubject

Module = StatesSubject[StateInputs]
LARGE = 4096.0
"""Times states of size 1: their scores are beyond what an exponential can bear in any format."""
ENOUGH = 1e30
"""What a format has to hold: the squares of such states, added up."""


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
    source="Milakov and Gimelshein 2018, section 2: the maximum of the scores is taken off before the exponential",
    formula="every number of f(+-C a, ..., +-C a) is finite",
    guards="A running maximum that begins at zero, an exponential without a maximum: 0 / 0 where every score is low.",
    given=(having(padding="none"),),
    share=0.5,
    roles=STATES,
)
def scores_far_below_zero_give_finite_states(module: Module, x: StateInputs) -> Iterator[Comparison]:
    """Copies of a token, far larger and of either sign, give neither NaN nor infinities where it does so by itself.

    All scores of a query are alike then, and at one of the signs most likely far below zero.
    """
    if torch.finfo(x.x.dtype).max < ENOUGH:
        raise NotApplicable("its format does not hold such numbers")
    numbers = {name: each for name, each in x.tensors.items() if each.is_floating_point()}
    small = module(x).isfinite()
    for size in (LARGE, -LARGE):
        copies = {name: size * each[:, :1].expand_as(each) for name, each in numbers.items()}
        output = module(x.but(**copies))
        yield holds(output.isfinite() | ~small, output, f"output for copies of a token, {size:g} times")
