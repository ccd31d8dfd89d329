"""The decoder is blind to what it is to write, and sees all that stands before."""

from functools import partial

import torch

from headcheck.comparison import Comparison, LawBroken, NotApplicable, none, within
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.fading import require_heard
from headcheck.modules.seq2seq import PairInputs, Seq2SeqSubject
from headcheck.modules.tokens import ends_of
from headcheck.modules.training import unheard_in_training

ALIKE = "source and target are of one length: their vectors cannot be told apart"
MASKED = "Vaswani et al. 2017, section 3.2.3: leftward information flow in the decoder is prevented"


@law(
    source=MASKED,
    formula="target[:t] the same: logits[:t] the same",
    guards="A causal mask that is off by one, or not in every layer; teacher forcing that hands over the answer.",
    given=(at_least(target_len=2),),
    share=2.0,
)
def later_targets_do_not_matter(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """Whatever target tokens come later, the logits of the earlier positions stay."""
    other = x.target.clone()
    other[:, x.cut :] = x.other("target", model.vocab)[:, x.cut :]
    earlier = model(x.but(target=other))[:, : x.cut], model(x)[:, : x.cut]
    return model.close(*earlier, x, "logits of an earlier position")


@law(
    source="Srivastava et al. 2014, section 4.1: dropout thins the network, in which what is hidden stays so",
    formula="f.train() drawn with one seed: d logits[t] / d embedding of target[s] = 0 for s > t",
    guards="Dropout of the scores in place of the weights: a hidden score that is dropped is 0, and seen.",
    needs=("module", "tables"),
    given=(at_least(target_len=2),),
    share=0.25,
)
def later_targets_do_not_matter_in_training(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """In training with dropout, at one draw, the logits of a position have no gradient in a later target's embedding."""
    if x.source.shape[1] == x.target.shape[1]:
        raise NotApplicable(ALIKE)
    return unheard_in_training(
        model, x, lambda trained: trained.gradient_of_targets(x, x.cut - 1)[:, x.cut :], "a later target"
    )


@law(
    source=MASKED,
    formula="d logits[t] / d embedding of target[s] = 0 for s > t",
    guards="A leak that its own weight hides: a key that is masked in the forward pass and not in the backward.",
    needs=("tables",),
    given=(at_least(target_len=2),),
    share=0.5,
)
def no_gradient_comes_from_later_targets(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """The logits of a position have no gradient with respect to the embedding of a later target token."""
    if x.source.shape[1] == x.target.shape[1]:
        raise NotApplicable(ALIKE)
    gradient = partial(model.gradient_of_targets, x, x.cut - 1)
    later = gradient()[:, x.cut :]
    noise = model.noise_of(gradient)
    return within(later, torch.zeros_like(later), noise, "gradient of a later target")


@law(
    source="a prefix is a sequence of its own: what generation relies on",
    formula="f(source, target[:t]) = f(source, target)[:t]",
    guards="Positions counted from the end, a mask kept for the longest target, a scale of the length.",
    given=(at_least(target_len=2),),
)
def a_target_prefix_gives_the_same_logits(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """A target cut short has the logits of the longer one up to the cut."""
    prefix = x.but(target=x.target[:, : x.cut])
    return model.close(model(prefix), model(x)[:, : x.cut], x)


@law(
    source="Vaswani et al. 2017, section 3.2.3: all positions up to and including that position",
    formula="target[s] changed: logits[t] change, for each s <= t",
    guards="A first target that is cut off, a mask that hides the diagonal, a target that is shifted twice.",
    needs=("full_context",),
)
def every_earlier_target_counts(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """Each target token, the position's own included, has an influence on its logits."""
    last = x.target.shape[1] - 1
    for place in sorted({0, last, x.cut % (last + 1)}):
        require_heard(model, x, partial(_with_another, model, x), place, last, "target")
    return none("targets that do not count")


@law(
    source="padding is a token of its own: all others are words",
    formula="d logits[t] / d embedding of target[s] != 0 for an s < t, whichever token but padding stands there",
    guards="A mask made of the tokens by a comparison that hides more of them than the one: target > pad, a product.",
    needs=("full_context", "tables", "pad"),
    given=(at_least(target_len=2),),
    share=0.75,
)
def every_target_token_but_padding_is_read(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """An earlier target, the first or the last of the vocabulary too, has an influence on the logits at the end."""
    if x.source.shape[1] == x.target.shape[1]:
        raise NotApplicable(ALIKE)
    last = x.target.shape[1] - 1
    place, words = x.case.seed % last, ends_of(model.vocab, len(x.target), x.case.seed // last)
    target = torch.cat([x.target[:, :place], words[:, None], x.target[:, place + 1 :]], dim=1)
    for row, token in enumerate(model.given(words).tolist()):
        one = x.but(target=target).picked(torch.tensor([row]))
        if not model.shows(partial(_pulls, model, one, place), one):
            raise LawBroken(
                f"the logits at the end do not depend on target {place} where it is token {token}, as if it were "
                f"padding, which token {model.pad} is (where that is not so, declare pad_token)"
            )
    return none("tokens that are taken for padding")


def _pulls(model: Seq2SeqSubject, x: PairInputs, place: int) -> bool:
    return bool(model.gradient_of_targets(x, x.target.shape[1] - 1)[:, place].any())


def _with_another(model: Seq2SeqSubject, x: PairInputs, place: int) -> PairInputs:
    """The input with another target at a place."""
    other = x.target.clone()
    other[:, place] = x.other("target", model.vocab)[:, place]
    return x.but(target=other)
