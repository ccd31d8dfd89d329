"""Every position of the target sees the whole source."""

from functools import partial

import torch

from headcheck.comparison import Comparison, LawBroken, NotApplicable, none
from headcheck.given import at_least, one_in
from headcheck.laws import law
from headcheck.modules.seq2seq import PairInputs, Seq2SeqSubject
from headcheck.modules.tokens import ends_of, exchanged, two_places

PADDED = "padding is a token of its own: all others are words"


@law(
    source="Vaswani et al. 2017, section 3.2.3: every position in the decoder attends over all positions of the input",
    formula="source[s] changed: logits[0] and logits[-1] change, for each s",
    guards="A source that is cut at its first or last token, an encoder and an attention to the memory that are both "
    "causal.",
    needs=("full_context",),
)
def every_source_token_counts(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """Each source token has an influence on the logits of the first target and of the last."""
    last = x.source.shape[1] - 1
    for place in sorted({0, last, x.case.seed % (last + 1)}):
        for at in (0, -1):
            if not model.shows(partial(_counts, model, x, place, at), x):
                raise LawBroken(
                    f"the logits of target {at % x.target.shape[1]} do not depend on the source at {place} "
                    "(where that is meant, declare full_context=False)"
                )
    return none("source tokens that do not count")


@law(
    source=PADDED,
    formula="f([source, v], target) != f(source, target), whichever token v that is no padding",
    guards="A mask made of the tokens by a comparison that hides more of them than the one: source > pad, a product.",
    needs=("full_context", "pad"),
    share=0.75,
)
def every_token_but_padding_is_read(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """A token more in the source, the first or the last of the vocabulary too, gives other logits."""
    if not model.room(x.source.shape[1]):
        raise NotApplicable("there is no room for a token more")
    more = ends_of(model.source_vocab, len(x.source), x.case.seed)
    # A source of nothing else: its mean is the same with one more.
    source = torch.where(x.source == more[:, None], (x.source + 1) % model.source_vocab, x.source)
    x, longer = x.but(source=source), x.but(source=torch.cat([source, more[:, None]], dim=1))
    for row, token in enumerate(model.given(more).tolist()):
        one, other = (each.picked(torch.tensor([row])) for each in (longer, x))
        if not model.shows(partial(_moved, model, one, other), other):
            raise LawBroken(
                f"a source that ends in token {token} gives the logits that it gives without that token, as if it were "
                f"padding, which token {model.pad} is (where that is not so, declare pad_token)"
            )
    return none("tokens that are taken for padding")


def _moved(model: Seq2SeqSubject, x: PairInputs, other: PairInputs) -> bool:
    return model.moves(model(x), model(other), other)


def _counts(model: Seq2SeqSubject, x: PairInputs, place: int, at: int) -> bool:
    other = x.source.clone()
    other[:, place] = x.other("source", model.source_vocab)[:, place]
    differs = model.differing(model(x.but(source=other)), model(x), x)[:, at]
    return bool(differs.any(dim=1).all())


@law(
    source="Vaswani et al. 2017, section 3.5: without positions there is no order",
    formula="two source tokens exchanged: the logits change",
    guards="Positions that the target has and the source has not; a table that begins anew where it grows.",
    needs=("positions",),
    given=(at_least(source_len=2), one_in(3, at_least(source_len=48))),
)
def the_order_of_the_source_counts(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """Two different source tokens, neighbours or far apart, exchanged give other logits."""
    source = x.source.clone()
    first, second = two_places(x.case.seed, source.shape[1], behind=0)
    source[:, second] = x.other("source", model.source_vocab)[:, first]
    ordered, other = x.but(source=source), x.but(source=exchanged(source, first, second))
    if not model.shows(lambda: model.moves(model(other), model(ordered), x), x):
        raise LawBroken(
            f"no logits depend on the order of source tokens {first} and {second} "
            "(where that is meant, declare positions=False)"
        )
    return none("orders that do not count")


@law(
    source="Vaswani et al. 2017, section 3.4: learned embeddings convert the input tokens and the output tokens",
    formula="each table of tokens, or one that shares its weight, is read",
    guards="A target that is looked up in the table of the source, its own table being left as it was made.",
    needs=("tables",),
    share=0.1,
)
def every_table_of_tokens_is_read(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """The logits depend on every embedding that has a row for each token."""
    unread = model.unread_tables(x)
    if unread:
        raise LawBroken(f"the logits do not depend on {', '.join(unread)}")
    return none("tables that are not read")
