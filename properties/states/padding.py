"""Padding is no part of a sequence, on whichever side it stands."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, same
from headcheck.given import at_least, having, one_in, one_of
from headcheck.laws import law
from headcheck.modules.finite import gradients_beside_the_last
from headcheck.modules.masks import huge
from headcheck.modules.states import STATES, StateInputs, StatesSubject
from headcheck.modules.training import unheard_in_training

PADDED = "a mask says which states there are; the others are a way of making a batch rectangular"

Module = StatesSubject[StateInputs]


def _padding(x: StateInputs) -> torch.Tensor:
    """Between one and four states beside each sequence."""
    more = 1 + x.case.seed % 4
    return x.noise("padding", x.x.new_empty(x.x.shape[0], more, x.x.shape[2]))


@law(
    source=PADDED,
    formula="f([x, pad])[real] = f(x)",
    guards="A mask of the wrong polarity; padding that is a key, or that counts in a norm (transformers 17900).",
    needs=("right_padding",),
    given=(having(padding="none"),),
    roles=STATES,
)
def padding_on_the_right_changes_nothing(module: Module, x: StateInputs) -> Comparison:
    """A sequence with padding behind it gives the states that it gives alone."""
    padded = module(x.padded(_padding(x), "right"))
    return module.close(padded[:, : x.length], module(x), x)


@law(
    source=PADDED,
    formula="f([pad, x])[real] = f(x)",
    guards="A first row of a causal mask without a key: NaN, which spreads through the next layer (pytorch 103749).",
    needs=("left_padding",),
    given=(having(padding="none"),),
    roles=STATES,
    unless=("padding=right",),
)
def padding_on_the_left_changes_nothing(module: Module, x: StateInputs) -> Comparison:
    """A sequence with padding before it gives the states that it gives alone."""
    padded = module(x.padded(_padding(x), "left"))
    return module.close(padded[:, -x.length :], module(x), x)


@law(
    source=PADDED,
    formula="f(x of all lengths)[row, real] = f(x[row, real])",
    guards="One mask for the whole batch: that of the first row, or of the longest; rows that were sorted by length and "
    "put back in the wrong order.",
    needs=("is_real",),
    given=(
        at_least(batch=2, length=2),
        one_in(2, at_least(batch=4, length=4)),
        one_of("padding", "right", "left"),
    ),
    roles=STATES,
    unless=("padding=right",),
)
def a_padded_batch_gives_what_each_sequence_gives_alone(
    module: Module, x: StateInputs
) -> Iterator[Comparison]:
    """Sequences of different lengths in one batch give the states that each gives without padding."""
    together = module(x)
    for row in range(len(x.x)):
        real = x.real[row]
        alone = x.picked(torch.tensor([row]))
        alone = alone.but(x=alone.x[:, real], is_real=None)
        yield module.close(together[row : row + 1, real], module(alone), alone)


@law(
    source=PADDED,
    formula="f(x), f(x, is_real), f(x) again: the first and the last are the same",
    guards="A mask that is kept, and used where the next call of the same shape has none.",
    needs=("is_real",),
    given=(at_least(length=2), one_of("padding", "right", "left")),
    share=0.5,
    roles=STATES,
)
def a_mask_is_for_its_own_call(module: Module, x: StateInputs) -> Comparison:
    """A call without a mask gives the same before and after one with a mask."""
    unused, bare = module.unused(), x.but(is_real=None)
    first = unused(bare)
    unused(x)
    return module.unchanged(unused(bare), first, bare, "output without a mask, the second time")


@law(
    source=PADDED,
    formula="f(x)[real] does not depend on x[padding], however large",
    guards="A mask of -1e4 that large scores overcome; a mask that one layer or one path drops (x-transformers 187).",
    needs=("is_real",),
    given=(at_least(length=2), one_of("padding", "right", "left")),
    roles=STATES,
)
def what_stands_in_padding_does_not_matter(module: Module, x: StateInputs) -> Iterator[Comparison]:
    """Whatever stands in the padding, huge numbers as well, the states of what is real stay."""
    expected = module(x)
    for size in (1.0, huge(x.x)):
        other = torch.where(x.real[..., None], x.x, size * x.noise(f"padding {size:g}", x.x))
        yield module.close(module(x.but(x=other)), expected, x)


@law(
    source="Srivastava et al. 2014, section 4.1: dropout thins the network, in which what is hidden stays so",
    formula="f.train() drawn with one seed: d f(x)[real] / d x[padding] = 0",
    guards="Dropout of the scores in place of the weights: a hidden score that is dropped is 0, and seen.",
    needs=("is_real", "module"),
    given=(at_least(length=2), one_of("padding", "right", "left")),
    share=0.25,
    roles=STATES,
)
def what_stands_in_padding_does_not_matter_in_training(module: Module, x: StateInputs) -> Comparison:
    """In training with dropout, at one draw, the states of what is real have no gradient with respect to padding."""
    return unheard_in_training(module, x, lambda trained: trained.gradient(x, x.real)[~x.real], "padding")


@law(
    source="torch.autocast: matrix products are made in bfloat16, and no argument of the module changes",
    formula="under autocast: f(x)[real] does not depend on x[padding], however large",
    guards="A mask that is the least number of float32, which scores in 16 bits cannot hold (torch: value cannot be "
    "converted without overflow); one that is lost on the way to another format.",
    needs=("is_real",),
    given=(at_least(length=2), one_of("padding", "right", "left")),
    share=0.25,
    roles=STATES,
    unless=("padding=right",),
)
def padding_is_nothing_under_autocast_too(module: Module, x: StateInputs) -> Comparison:
    """A module that computes under autocast takes its masks there, and padding is as little as elsewhere."""
    x = x.in_float32()
    narrow = module.under_autocast(x.but(is_real=None))
    other = torch.where(x.real[..., None], x.x, huge(x.x) * x.noise("padding", x.x))
    return narrow.close(narrow(x.but(x=other)), narrow(x), x, "output under autocast")


@law(
    source=PADDED,
    formula="f(x)[real] is the same where x[padding] = NaN",
    guards="Weights of zero multiplied with NaN (pytorch 101967).",
    needs=("is_real", "nan_in_padding"),
    given=(at_least(length=2), one_of("padding", "right", "left")),
    roles=STATES,
)
def nan_in_padding_does_not_matter(module: Module, x: StateInputs) -> Comparison:
    """NaN in the padding stays there."""
    spoilt = torch.where(x.real[..., None], x.x, torch.nan)
    return module.close(module(x.but(x=spoilt)), module(x), x)


@law(
    source=PADDED,
    formula="d f(x)[real] / d x[padding] = 0, exactly",
    guards="A leak too small for values: padding that takes part in a mean or a norm.",
    needs=("is_real",),
    given=(at_least(length=2), one_of("padding", "right", "left")),
    roles=STATES,
)
def no_gradient_goes_to_padding(module: Module, x: StateInputs) -> Comparison:
    """The states of what is real have no gradient with respect to padding."""
    gradient = module.gradient(x, x.real)
    to_padding = torch.where(x.real[..., None], 0.0, gradient)
    return same(to_padding, torch.zeros_like(to_padding), "gradient of padding")


@law(
    source=PADDED,
    formula="f(x, all real) = f(x)",
    guards="A mask path and a path without a mask that differ (pytorch 105202).",
    needs=("is_real", "no_mask"),
    given=(having(padding="none"),),
    roles=STATES,
)
def a_mask_of_nothing_changes_nothing(module: Module, x: StateInputs) -> Comparison:
    """Saying that everything is real is saying nothing."""
    return module.close(module(x.but(is_real=x.real)), module(x), x)


@law(
    source="Vaswani et al. 2017, section 3.2: sequences of a batch do not meet",
    formula="f([a; padding only])_a = f([a])",
    guards="A softmax over nothing: NaN, which a sum over the batch spreads (pytorch 103749, transformers 31373).",
    needs=("empty_rows",),
    given=(having(padding="none"),),
    roles=STATES,
)
def a_sequence_of_padding_only_spoils_no_other(module: Module, x: StateInputs) -> Comparison:
    """Beside a sequence of nothing but padding, each other gives what it gives alone."""
    order = torch.tensor([*range(len(x.x)), 0])
    more = x.picked(order)
    real = more.real
    real[-1] = False
    return module.close(module(more.but(is_real=real))[:-1], module(x), x)


@law(
    source="Vaswani et al. 2017, section 3.2: sequences of a batch do not meet",
    formula="f([x; padding only]) finite: df_x/dw is finite",
    guards="A softmax over nothing whose NaN is replaced on the way forward alone: backward it reaches all weights.",
    needs=("empty_rows", "module"),
    given=(having(padding="none"),),
    share=0.5,
    roles=STATES,
)
def gradients_are_finite_beside_a_sequence_of_padding(module: Module, x: StateInputs) -> Comparison:
    """Where a sequence of nothing but padding gives finite states, those of the others have finite gradients."""
    more = x.picked(torch.tensor([*range(len(x.x)), 0]))
    real = more.real
    real[-1] = False
    return gradients_beside_the_last(module, more.but(is_real=real))
