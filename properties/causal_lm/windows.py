"""A sliding window has its exact width, and documents in one sequence stay apart."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, LawBroken, NotApplicable, none
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.causal_lm import LONGEST, CausalLMSubject, TokenInputs

WINDOW = "Beltagy et al. 2020, section 3.1: each position attends to a window of fixed width"


def _changed(model: CausalLMSubject, x: TokenInputs, upto: int) -> TokenInputs:
    """Other tokens at the places before `upto`."""
    tokens = x.tokens.clone()
    tokens[:, :upto] = x.other_tokens(model.vocab)[:, :upto]
    return x.but(tokens=tokens)


def _past_the_window(model: CausalLMSubject, x: TokenInputs) -> TokenInputs:
    """The tokens, again and again until there are more than a position sees."""
    longer: int = model.declaration.reach + 2
    if x.length > model.declaration.reach:
        return x
    if longer > min(model.max_length or LONGEST, LONGEST):
        raise NotApplicable("its window is as wide as the longest sequence of a law")
    return x.but(tokens=x.tokens.repeat(1, longer)[:, :longer])


@law(
    source=WINDOW,
    formula="tokens[: t - reach + 1] changed: logits[t] the same",
    guards="A window of one key too many, or one that holds in one pass and not with a cache.",
    needs=("reach",),
    given=(at_least(length=7),),
    share=2.0,
)
def tokens_out_of_reach_do_not_matter(model: CausalLMSubject, x: TokenInputs) -> Iterator[Comparison]:
    """Whatever stands further back than the window is wide, the logits stay; with a cache too."""
    x = _past_the_window(model, x)
    first = max(1, min(x.cut, x.length - model.declaration.reach))
    other, seen = _changed(model, x, first), slice(first + model.declaration.reach - 1, None)
    yield model.close(model(other)[:, seen], model(x)[:, seen], x, "logits out of reach")
    if model.has("step"):
        sizes = [first, *model.pieces(x.length - first)]
        changed, before = (model.in_steps(each, sizes)[:, seen] for each in (other, x))
        yield model.close(changed, before, x, "logits out of reach, with a cache")


@law(
    source=WINDOW,
    formula="tokens[t - reach + 1] changed: logits[t] change",
    guards="A window of one key too few.",
    needs=("reach",),
    given=(at_least(length=7),),
)
def the_furthest_token_in_reach_counts(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """The token at the edge of the window has an influence on the logits, in each row."""
    x = _past_the_window(model, x)
    edge = max(0, min(x.cut, x.length - model.declaration.reach))
    place = edge + model.declaration.reach - 1
    tokens = x.tokens.clone()
    tokens[:, edge] = x.other_tokens(model.vocab)[:, edge]

    def counts() -> bool:
        differs = model.differing(model(x.but(tokens=tokens)), model(x), x)[:, place]
        return bool(differs.any(dim=1).all())

    if not model.shows(counts, x):
        raise LawBroken(
            f"the logits of position {place} do not depend on the token at {edge}, which is in reach"
        )
    return none("tokens in reach that do not count")


@law(
    source="Krell et al. 2021, section 3.2: sequences packed into one are kept apart by mask and positions",
    formula="f([a, b], positions [0.., 0..]) = [f(a), f(b)], in each row of a batch where it is cut",
    guards="A document that sees the one before it; a window or a sink counted over the border; the borders of the first "
    "row for all rows.",
    needs=("packed",),
    given=(at_least(batch=2, length=4),),
)
def documents_in_one_sequence_are_each_alone(model: CausalLMSubject, x: TokenInputs) -> Iterator[Comparison]:
    """Two documents in one sequence, whose positions begin anew, have the logits that each has alone."""
    cuts = [1 + (x.cut + row) % (x.length - 1) for row in range(len(x.tokens))]
    sizes = [[cut, x.length - cut] for cut in cuts]
    together = model.side_by_side(x, sizes)
    for row, of_row in list(enumerate(sizes))[:2]:
        found, tokens = (torch.split(each[row : row + 1], of_row, dim=1) for each in (together, x.tokens))
        for logits, document in zip(found, tokens, strict=True):
            alone = x.but(tokens=document)
            yield model.close(logits, model(alone), alone, "logits of a document")
