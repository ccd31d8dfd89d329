"""Paths through one module that compute the same thing, and numbers of any size on each of them."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, NotApplicable, holds
from headcheck.formats import formats_of
from headcheck.given import having
from headcheck.laws import law
from headcheck.modules.states import STATES, StateInputs, StatesSubject

Module = StatesSubject[StateInputs]
LARGE = 4096.0
"""The size of states whose scores are beyond what an exponential can bear in any format."""
MIDDLE = 64.0
"""The size of states that show how fast the output grows with them."""
TINY = 1e-30
"""By which a token of zeros is divided."""


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
    if {x.x.dtype, *formats_of(lambda: module(x))} & {torch.float16}:
        raise NotApplicable("it computes in float16, which does not hold such numbers")
    small = module(_copies(x, 1.0))
    if module(_copies(x, MIDDLE)).abs().max() > MIDDLE**1.5 * (small.abs().max() + 1):
        raise NotApplicable("its states grow faster than what it is given")
    for size in (LARGE, -LARGE):
        output = module(_copies(x, size))
        yield holds(
            output.isfinite() | ~small.isfinite(), output, f"output for copies of a token of size {size:g}"
        )


def _copies(x: StateInputs, size: float) -> StateInputs:
    """The first token of each sequence in place of all, its largest number of that size."""
    tokens = {
        name: each[:, :1].expand_as(each) for name, each in x.tensors.items() if each.is_floating_point()
    }
    return x.but(**{name: size * each / each.abs().max().clamp(min=TINY) for name, each in tokens.items()})
