"""No position sees the future, and each sees all of its past."""

from collections.abc import Iterator
from functools import partial

import torch

from headcheck.comparison import Comparison, LawBroken, none, within
from headcheck.given import at_least, having, one_in
from headcheck.laws import law
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs
from headcheck.modules.fading import require_heard
from headcheck.modules.tokens import ends_of, exchanged, two_places
from headcheck.modules.training import unheard_in_training

MASKED = "Vaswani et al. 2017, section 3.2.3: leftward information flow is prevented"


@law(
    source=MASKED,
    formula="tokens[:t] the same: logits[:t] the same",
    guards="A mask that is off by one, transposed, forgotten in one layer or one branch (litgpt 2182).",
    given=(at_least(length=2), one_in(4, having(length=33, split=17))),
    share=2.0,
)
def later_tokens_do_not_matter(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Whatever tokens come later, the logits of the earlier positions stay."""
    other = x.tokens.clone()
    other[:, x.cut :] = x.other_tokens(model.vocab)[:, x.cut :]
    earlier = model(x.but(tokens=other))[:, : x.cut], model(x)[:, : x.cut]
    return model.close(*earlier, x, "logits of an earlier position")


@law(
    source="Srivastava et al. 2014, section 4.1: dropout thins the network, in which what is hidden stays so",
    formula="f.train() drawn with one seed: d logits[t] / d embedding[s] = 0 for s > t",
    guards="Dropout of the scores in place of the weights: a hidden score that is dropped is 0, and seen.",
    needs=("module", "table"),
    given=(at_least(length=2),),
    share=0.25,
)
def later_tokens_do_not_matter_in_training(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """In training with dropout, at one draw, the logits of a position have no gradient in a later token's embedding."""
    return unheard_in_training(
        model,
        x,
        lambda trained: trained.gradient_of_embeddings(x, x.cut - 1)[:, x.cut :],
        "a later embedding",
    )


@law(
    source=MASKED,
    formula="d logits[t] / d embedding[s] = 0 for s > t",
    guards="A leak that its own weight hides: a key that is masked in the forward pass and not in the backward.",
    needs=("table",),
    given=(at_least(length=2),),
    share=0.5,
)
def no_gradient_comes_from_later_tokens(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """The logits of a position have no gradient with respect to the embedding of a later token."""

    def gradient() -> torch.Tensor:
        return model.gradient_of_embeddings(x, x.cut - 1)

    later = gradient()[:, x.cut :]
    return within(later, torch.zeros_like(later), model.noise_of(gradient), "gradient of a later embedding")


@law(
    source="Vaswani et al. 2017, section 3.2.3: all positions up to and including that position",
    formula="tokens[s] changed: logits[t] change, for each s <= t",
    guards="The first or last token cut off, a mask that hides the diagonal, a shift between tokens and logits.",
    needs=("full_context",),
)
def every_earlier_token_counts(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Each token, the position's own included, has an influence on its logits."""
    last = x.length - 1
    for place in sorted({0, last, x.cut % x.length}):
        require_heard(model, x, partial(_with_another, model, x), place, last, "token")
    return none("tokens that do not count")


@law(
    source="padding is a token of its own: all others are words",
    formula="d logits[t] / d embedding[s] != 0 for an s < t, whichever token but padding stands there",
    guards="A mask made of the tokens by a comparison that hides more of them than the one: tokens > pad, a product.",
    needs=("full_context", "table", "pad"),
    given=(at_least(length=2),),
    share=0.75,
)
def every_token_but_padding_is_read(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """An earlier token, the first or the last of the vocabulary too, has an influence on the logits at the end."""
    last = x.length - 1
    place, words = x.case.seed % last, ends_of(model.vocab, len(x.tokens), x.case.seed // last)
    tokens = torch.cat([x.tokens[:, :place], words[:, None], x.tokens[:, place + 1 :]], dim=1)
    for row, token in enumerate(model.given(words).tolist()):
        one = x.but(tokens=tokens).picked(torch.tensor([row]))
        if not model.shows(partial(_pulls, model, one, place), one):
            raise LawBroken(
                f"the logits at the end do not depend on place {place} where token {token} stands there, as if it were "
                f"padding, which token {model.pad} is (where that is not so, declare pad_token)"
            )
    return none("tokens that are taken for padding")


def _pulls(model: CausalLMSubject, x: TokenInputs, place: int) -> bool:
    """Whether the logits at the end have a gradient of the vector at a place before."""
    return bool(model.gradient_of_embeddings(x, x.length - 1)[:, place].any())


def _with_another(model: CausalLMSubject, x: TokenInputs, place: int) -> TokenInputs:
    """The input with another token at a place."""
    other = x.tokens.clone()
    other[:, place] = x.other_tokens(model.vocab)[:, place]
    return x.but(tokens=other)


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
    guards="Positions that are all zero, added to the wrong axis, or lost; a table that begins anew where it grows.",
    needs=("positions",),
    given=(at_least(length=4), one_in(3, at_least(length=48))),
)
def the_order_of_earlier_tokens_counts(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Two different tokens, neighbours or far apart, exchanged give other logits later."""
    first, second = two_places(x.case.seed, x.length, behind=1)
    tokens = x.tokens.clone()
    tokens[:, second] = x.other_tokens(model.vocab)[:, first]
    ordered, other = x.but(tokens=tokens), x.but(tokens=exchanged(tokens, first, second))
    later = slice(second + 1, None)
    if not model.shows(lambda: model.moves(model(other)[:, later], model(ordered)[:, later], x), x):
        raise LawBroken(
            f"no later logits depend on the order of tokens {first} and {second} "
            "(where that is meant, declare positions=False)"
        )
    return none("orders that do not count")


@law(
    source="Vaswani et al. 2017, section 3.2.3: all positions up to and including that position",
    formula="[a w; b w]: each row, and each call, as if it were alone",
    guards="A block of a cache that is known by its own tokens, whatever stands before it (aibrix 2329).",
    given=(at_least(length=9),),
    share=0.5,
)
def what_ends_alike_is_told_apart(model: CausalLMSubject, x: TokenInputs) -> Iterator[Comparison]:
    """Sequences that differ in the first token alone give what each gives alone, together and one by one."""
    tokens = x.tokens[:1].repeat(2, 1)
    tokens[1, 0] = x.other_tokens(model.vocab)[0, 0]
    both = x.but(tokens=tokens)
    one, other = (both.picked(torch.tensor([row])) for row in (0, 1))
    alone = model.unused()(other)
    yield model.close(model(both)[1:], alone, x, "logits beside a sequence that ends alike")
    used = model.unused()
    used(one)
    yield model.close(used(other), alone, x, "logits after a sequence that ends alike")
