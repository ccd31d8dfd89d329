"""The memory is a set: each state sees all that is real of it, in whatever order."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, same
from headcheck.given import at_least, having, one_of
from headcheck.laws import law
from headcheck.modules.decoder import DecoderInputs, DecoderSubject
from headcheck.modules.finite import gradients_beside_the_last
from headcheck.modules.influence import moves_states
from headcheck.modules.masks import SIDES, huge

READ = "Vaswani et al. 2017, section 3.2.3: every position in the decoder attends over all positions in the input"


def _changed(x: DecoderInputs, at: Tensor, purpose: str, size: float = 1.0) -> DecoderInputs:
    """Other numbers in the memory at (batch, memory_len) or (memory_len)."""
    other = size * x.noise(purpose, x.memory)
    return x.but(memory=torch.where(at[..., None], other, x.memory))


@law(
    source=READ,
    formula="memory[s] changed: f(x, memory)[t] changes, for every s and t",
    guards="A causal mask on the memory, a memory cut to the length of x, a cross-attention that is never called.",
    needs=("full_context", "weights"),
    given=(having(padding="none", memory_padding="none", spread=1.0),),
)
def every_state_depends_on_all_of_the_memory(module: DecoderSubject, x: DecoderInputs) -> Comparison:
    """Each part of the memory has an influence on each state; matrices are of a moderate size for it."""
    place = x.case.seed % x.memory_len
    other = partial(_changed, x, torch.arange(x.memory_len) == place)
    return moves_states(module, x, other, f"the memory at {place}", range(x.length))


@law(
    source="Vaswani et al. 2017, section 3.5: without positions there is no order",
    formula="f(x, P memory) = f(x, memory)",
    guards="A causal mask or a window of self-attention that reaches cross-attention (TransformerEngine 629).",
    needs=("no_memory_positions",),
    given=(at_least(memory_len=2),),
)
def permuting_the_memory_changes_nothing(module: DecoderSubject, x: DecoderInputs) -> Comparison:
    """The memory in another order gives the same states."""
    if len(module.declaration.padding) < len(SIDES):
        x = x.but(memory_is_real=None)  # In another order, padding stands anywhere.
    order = torch.randperm(x.memory_len, generator=x.generator("order"))
    real = None if x.memory_is_real is None else x.memory_is_real[:, order]
    return module.close(module(x.but(memory=x.memory[:, order], memory_is_real=real)), module(x), x)


@law(
    source="a mask says which states there are; the others are a way of making a batch rectangular",
    formula="f(x, [memory, pad]) = f(x, memory)",
    guards="The mask of x used for the memory (x-transformers 174); one mask for the whole batch.",
    needs=("memory_is_real",),
    given=(at_least(memory_len=2), one_of("memory_padding", "right", "left")),
)
def a_padded_memory_gives_what_it_gives_alone(
    module: DecoderSubject, x: DecoderInputs
) -> Iterator[Comparison]:
    """Memories of different lengths in one batch give the states that each gives without padding."""
    together = module(x)
    for row in range(len(x.x)):
        alone = x.picked(torch.tensor([row]))
        alone = alone.but(memory=alone.memory[:, x.real_memory[row]], memory_is_real=None)
        yield module.close(together[row : row + 1], module(alone), alone)


@law(
    source="a mask says which states there are; the others are a way of making a batch rectangular",
    formula="f(x, memory) does not depend on memory[padding], however large",
    guards="A mask of the memory that one layer or one path drops; a mask of -1e4 that large scores overcome.",
    needs=("memory_is_real",),
    given=(at_least(memory_len=2), one_of("memory_padding", "right", "left")),
)
def what_stands_in_padding_of_the_memory_does_not_matter(
    module: DecoderSubject, x: DecoderInputs
) -> Iterator[Comparison]:
    """Whatever stands in the padding of the memory, huge numbers as well, the states stay."""
    expected = module(x)
    for size in (1.0, huge(x.memory)):
        changed = _changed(x, ~x.real_memory, f"padding {size:g}", size)
        yield module.close(module(changed), expected, x)


@law(
    source="a mask says which states there are; the others are a way of making a batch rectangular",
    formula="d f(x, memory) / d memory[padding] = 0, exactly",
    guards="A leak too small for values: padding that takes part in a mean or a norm.",
    needs=("memory_is_real",),
    given=(at_least(memory_len=2), one_of("memory_padding", "right", "left")),
)
def no_gradient_goes_to_padding_of_the_memory(module: DecoderSubject, x: DecoderInputs) -> Comparison:
    """The states have no gradient with respect to padding of the memory."""
    gradient = module.gradient(x, x.real, of="memory")
    to_padding = torch.where(x.real_memory[..., None], 0.0, gradient)
    return same(to_padding, torch.zeros_like(to_padding), "gradient of padding")


@law(
    source="a mask says which states there are; the others are a way of making a batch rectangular",
    formula="f(x, memory, all real) = f(x, memory)",
    guards="A mask path and a path without a mask that differ.",
    needs=("memory_is_real", "no_memory_mask"),
    given=(having(memory_padding="none"),),
)
def a_mask_of_nothing_in_the_memory_changes_nothing(module: DecoderSubject, x: DecoderInputs) -> Comparison:
    """Saying that all of the memory is real is saying nothing."""
    return module.close(module(x.but(memory_is_real=x.real_memory)), module(x), x)


@law(
    source="Vaswani et al. 2017, section 3.2: sequences of a batch do not meet",
    formula="f([a; b], [memory; padding only])_b = f([b], [padding only])",
    guards="Whether there is any memory asked of the whole batch: one of nothing but padding is read beside others.",
    needs=("memory_is_real",),
    given=(at_least(batch=2), having(memory_padding="none")),
    share=0.5,
)
def a_memory_of_padding_only_is_what_it_is_alone(module: DecoderSubject, x: DecoderInputs) -> Comparison:
    """A sequence whose memory is nothing but padding gives beside others what it gives alone, be it numbers or NaN."""
    real = x.real_memory.clone()
    real[-1] = False
    together = x.but(memory_is_real=real)
    alone = together.picked(torch.tensor([len(real) - 1]))
    try:
        expected = module(alone)
        other = module(_changed(alone, ~alone.real_memory, "padding"))
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses a memory of nothing but padding: {refusal}") from refusal
    if module.moves(other, expected, alone):
        raise NotApplicable("what it gives for a memory of nothing but padding depends on what stands in it")
    return module.close(module(together)[-1:], expected, alone)


@law(
    source="Vaswani et al. 2017, section 3.2: sequences of a batch do not meet",
    formula="f([a; b], [memory; padding only]) finite: df_a/dw is finite",
    guards="Weights over nothing whose NaN is replaced on the way forward alone: backward it reaches all weights.",
    needs=("memory_is_real", "module"),
    given=(at_least(batch=2), having(padding="none", memory_padding="none")),
    share=0.5,
)
def gradients_are_finite_beside_a_memory_of_padding(module: DecoderSubject, x: DecoderInputs) -> Comparison:
    """Where a memory of nothing but padding gives finite states, those of the others have finite gradients."""
    real = x.real_memory.clone()
    real[-1] = False
    try:
        return gradients_beside_the_last(module, x.but(memory_is_real=real))
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses a memory of nothing but padding: {refusal}") from refusal
