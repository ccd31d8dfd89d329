"""Padding is no part of a sequence, on whichever side it stands."""

from collections.abc import Iterator

import torch
from torch import Tensor

from headcheck.comparison import Comparison, NotApplicable
from headcheck.given import at_least, one_in
from headcheck.laws import law
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs
from headcheck.modules.tokens import beside, missing_tokens

PADDED = "is_real says which tokens there are; the others are a way of making a batch rectangular"


def _padded(x: TokenInputs, tokens: Tensor, side: str) -> TokenInputs:
    """The sequence with `tokens` beside it that are padding."""
    parts = [(x.tokens, True), (tokens, False)]
    parts = parts if side == "right" else parts[::-1]
    is_real = torch.cat([torch.full_like(part, real, dtype=torch.bool) for part, real in parts], dim=1)
    return x.but(tokens=torch.cat([part for part, _ in parts], dim=1), is_real=is_real)


def _filling(model: CausalLMSubject, x: TokenInputs, purpose: str) -> Tensor:
    count = min(1 + x.case.seed % 4, model.room(x.length))
    if not count:
        raise NotApplicable("there is no room for padding")
    return torch.randint(model.vocab, (len(x.tokens), count), generator=x.generator(purpose))


@law(
    source=PADDED,
    formula="f([x, pad])[real] = f(x)",
    guards="A mask of the wrong polarity, padding that counts in a mean over the sequence.",
    needs=("right_padding",),
)
def padding_on_the_right_changes_nothing(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """A sequence with padding behind it has the logits that it has alone."""
    padded = model(_padded(x, _filling(model, x, "padding"), "right"))
    return model.close(padded[:, : x.length], model(x), x)


@law(
    source=PADDED,
    formula="f([pad, x])[real] = f(x)",
    guards="Positions counted from the padding, or from the wrong end (unsloth 3699, x-transformers 013e60a).",
    needs=("left_padding",),
    unless=("padding=right",),
)
def padding_on_the_left_changes_nothing(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """A sequence with padding before it has the logits that it has alone."""
    padded = model(_padded(x, _filling(model, x, "padding"), "left"))
    return model.close(padded[:, -x.length :], model(x), x)


@law(
    source=PADDED,
    formula="f([x, pad])[real] = f(x), where gradients are wanted",
    guards="A causal mask of numbers beside a mask of booleans, which a fast path reads as it was meant and the path of "
    "gradients adds up.",
    needs=("is_real",),
    share=0.5,
)
def padding_is_nothing_where_gradients_are_wanted(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """A padded sequence has the logits that it has alone, by the path of training too."""
    side = model.sides[x.case.seed % len(model.sides)]
    padded = _padded(x, _filling(model, x, "padding"), side)
    with torch.enable_grad():
        wanted = model.output(padded).detach().cpu()
    real = wanted[:, : x.length] if side == "right" else wanted[:, -x.length :]
    return model.close(real, model(x), x, f"logits where gradients are wanted, padded {beside(side)}")


@law(
    source=PADDED,
    formula="f([x; y, pad])_x = f(x), f([x; y, pad])_y = f(y), the same with [pad, y]",
    guards="Positions or a mask of the first row for all rows (ROP-20: unsloth 3699; SHP-01); rows that were sorted by "
    "length and put back in the wrong order.",
    needs=("is_real",),
    given=(at_least(batch=2, length=3), one_in(2, at_least(batch=4, length=4))),
    share=1.5,
)
def rows_of_different_lengths_are_each_itself_alone(
    model: CausalLMSubject, x: TokenInputs
) -> Iterator[Comparison]:
    """In a batch whose rows have padding of different lengths, each row is what it is alone."""
    side = model.sides[x.case.seed % len(model.sides)]
    missing = missing_tokens(len(x.tokens), x.length, x.generator("missing"))
    real = torch.arange(x.length) >= missing[:, None]
    real = real if side == "left" else real.flip(1)
    together = model(x.but(is_real=real))
    for row, there in enumerate(real):
        alone = x.but(tokens=x.tokens[row : row + 1, there])
        found, what = together[row : row + 1, there], f"logits of row {row}, padded {beside(side)}"
        yield model.close(found, model(alone), alone, what)


@law(
    source=PADDED,
    formula="f([pad, x])[real] does not depend on pad",
    guards="A mask that is dropped where the causal flag is set (x-transformers 187).",
    needs=("is_real",),
)
def what_stands_in_padding_does_not_matter(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Whatever tokens stand in the padding, the logits of the real ones stay."""
    side = model.sides[x.case.seed % len(model.sides)]
    filling = _filling(model, x, "padding")
    one, other = (_padded(x, tokens, side) for tokens in (filling, (filling + 1) % model.vocab))
    real = slice(-x.length, None) if side == "left" else slice(x.length)
    return model.close(model(one)[:, real], model(other)[:, real], x)


@law(
    source=PADDED,
    formula="f(x, all real) = f(x)",
    guards="A mask path and a path without a mask that differ.",
    needs=("is_real", "no_mask"),
)
def a_mask_of_nothing_changes_nothing(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Saying that all tokens are real is saying nothing."""
    whole = x.but(is_real=torch.ones_like(x.tokens, dtype=torch.bool))
    return model.close(model(whole), model(x), x)


@law(
    source="torch.autocast: matrix products are made in bfloat16, and no argument of the module changes",
    formula="under autocast: f([x, pad])[real] = f(x), the same with [pad, x]",
    guards="A mask that is the least number of float32, which scores in 16 bits cannot hold (torch: value cannot be "
    "converted without overflow).",
    needs=("is_real",),
    share=0.25,
)
def padding_is_nothing_under_autocast_too(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """A model that computes under autocast takes its mask there, and padding is as little as elsewhere."""
    side = model.sides[x.case.seed % len(model.sides)]
    narrow = model.under_autocast(x)
    padded = narrow(_padded(x, _filling(model, x, "padding"), side))
    found = padded[:, : x.length] if side == "right" else padded[:, -x.length :]
    return narrow.close(found, narrow(x), x, f"logits under autocast, padded {beside(side)}")
