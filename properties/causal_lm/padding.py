"""Padding is no part of a sequence, on whichever side it stands."""

import torch
from torch import Tensor

from headcheck.comparison import Comparison
from headcheck.laws import law
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs

PADDED = "is_real says which tokens there are; the others are a way of making a batch rectangular"


def _padded(x: TokenInputs, tokens: Tensor, side: str) -> TokenInputs:
    """The sequence with `tokens` beside it that are padding."""
    parts = [(x.tokens, True), (tokens, False)]
    parts = parts if side == "right" else parts[::-1]
    is_real = torch.cat([torch.full_like(part, real, dtype=torch.bool) for part, real in parts], dim=1)
    return x.but(tokens=torch.cat([part for part, _ in parts], dim=1), is_real=is_real)


def _filling(model: CausalLMSubject, x: TokenInputs, purpose: str) -> Tensor:
    shape = (x.tokens.shape[0], 1 + x.case.seed % 4)
    return torch.randint(model.vocab, shape, generator=x.generator(purpose))


@law(
    source=PADDED,
    formula="f([x, pad])[real] = f(x)",
    guards="Positions counted from the wrong end, a mask of the wrong polarity.",
    needs=("right_padding",),
)
def padding_on_the_right_changes_nothing(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """A sequence with padding behind it has the logits that it has alone."""
    padded = model(_padded(x, _filling(model, x, "padding"), "right"))
    return model.close(padded[:, : x.length], model(x), x)


@law(
    source=PADDED,
    formula="f([pad, x])[real] = f(x)",
    guards="Left-padded rows that share their positions with the others (unsloth 3699, x-transformers 013e60a).",
    needs=("left_padding",),
)
def padding_on_the_left_changes_nothing(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """A sequence with padding before it has the logits that it has alone."""
    padded = model(_padded(x, _filling(model, x, "padding"), "left"))
    return model.close(padded[:, -x.length :], model(x), x)


@law(
    source=PADDED,
    formula="f([pad, x])[real] does not depend on pad",
    guards="A mask that is dropped where the causal flag is set (x-transformers 187).",
    needs=("is_real",),
)
def what_stands_in_padding_does_not_matter(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Whatever tokens stand in the padding, the logits of the real ones stay."""
    side = model.declaration.padding[x.case.seed % len(model.declaration.padding)]
    one, other = (_padded(x, _filling(model, x, purpose), side) for purpose in ("padding", "other padding"))
    real = slice(-x.length, None) if side == "left" else slice(x.length)
    return model.close(model(one)[:, real], model(other)[:, real], x)


@law(
    source=PADDED,
    formula="f(x, all real) = f(x)",
    guards="A mask path and a path without a mask that differ.",
    needs=("is_real",),
)
def a_mask_of_nothing_changes_nothing(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Saying that all tokens are real is saying nothing."""
    whole = x.but(is_real=torch.ones_like(x.tokens, dtype=torch.bool))
    return model.close(model(whole), model(x), x)
