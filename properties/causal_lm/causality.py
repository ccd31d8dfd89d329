"""No position sees the future, and each sees all of its past."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, LawBroken, NotApplicable, same
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs

MASKED = "Vaswani et al. 2017, section 3.2.3: leftward information flow is prevented"


@law(
    source=MASKED,
    formula="tokens[:t] the same: logits[:t] the same",
    guards="A mask that is off by one, transposed, forgotten in one layer or one branch (litgpt 2182).",
    given=(at_least(length=2),),
    share=2.0,
)
def later_tokens_do_not_matter(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Whatever tokens come later, the logits of the earlier positions stay."""
    other = x.tokens.clone()
    other[:, x.cut :] = x.other_tokens(model.vocab)[:, x.cut :]
    earlier = model(x.but(tokens=other))[:, : x.cut], model(x)[:, : x.cut]
    return model.close(*earlier, x, "logits of an earlier position")


@law(
    source=MASKED,
    formula="d logits[t] / d embedding[s] = 0 for s > t, exactly",
    guards="A leak too small for values: a finite number in place of -inf, a mean over all positions.",
    needs=("embedding",),
    given=(at_least(length=2),),
)
def no_gradient_comes_from_later_tokens(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """The logits of a position have no gradient with respect to the embedding of a later token."""
    gradient = model.gradient_of_embeddings(x, x.cut - 1)
    later = gradient[:, x.cut :]
    return same(later, torch.zeros_like(later), "gradient of a later embedding")


@law(
    source="Vaswani et al. 2017, section 3.2.3: all positions up to and including that position",
    formula="tokens[s] changed: logits[t] change, for each s <= t",
    guards="The first or last token cut off, a mask that hides the diagonal, a shift between tokens and logits.",
    needs=("full_context",),
)
def every_earlier_token_counts(model: CausalLMSubject, x: TokenInputs) -> Iterator[Comparison]:
    """Each token, the position's own included, has an influence on its logits."""
    last = x.length - 1
    before = model(x)[:, last]
    for place in {0, last, x.cut % x.length}:
        other = x.tokens.clone()
        other[:, place] = x.other_tokens(model.vocab)[:, place]
        after = model(x.but(tokens=other))[:, last]
        for row in range(len(other)):
            if not model.moves(after[row], before[row], x):
                raise LawBroken(f"the logits of position {last} do not depend on the token at {place}")
        yield same(before, before)


@law(
    source="a prefix is a sequence of its own",
    formula="f(tokens[:t]) = f(tokens)[:t]",
    guards="A length that enters the computation: a scale, a mask or positions counted from the end.",
    given=(at_least(length=2),),
)
def a_prefix_gives_the_same_logits(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """A sequence cut short has the logits of the longer one up to the cut."""
    prefix = x.but(tokens=x.tokens[:, : x.cut])
    return model.close(model(prefix), model(x)[:, : x.cut], x)


@law(
    source="Vaswani et al. 2017, section 3.5: without positions there is no order",
    formula="two earlier tokens exchanged: the last logits change",
    guards="Positions that are all zero, added to the wrong axis, or lost.",
    needs=("positions",),
    given=(at_least(length=4),),
)
def the_order_of_earlier_tokens_counts(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Two different earlier tokens exchanged give other logits at the end."""
    tokens = x.tokens.clone()
    tokens[:, 1] = (tokens[:, 0] + 1) % model.vocab
    if model.vocab < 2:
        raise NotApplicable("there is one token only")
    ordered = x.but(tokens=tokens)
    exchanged = x.but(tokens=tokens[:, [1, 0, *range(2, x.length)]])
    if not model.moves(model(exchanged)[:, -1], model(ordered)[:, -1], x):
        raise LawBroken("the logits at the end do not depend on the order of the first two tokens")
    return same(x.tokens, x.tokens)
