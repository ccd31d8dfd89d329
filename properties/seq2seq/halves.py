"""Encoder and decoder one after the other are the whole."""

from collections.abc import Iterator
from functools import partial

import torch

from headcheck.comparison import Comparison, LawBroken, NotApplicable, none
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.seq2seq import PairInputs, Seq2SeqSubject

SPLIT = "Vaswani et al. 2017, figure 1: the encoder runs once, the decoder for each token that is written"


@law(
    source=SPLIT,
    formula="decode(target, encode(source)) = f(source, target)",
    guards="A final norm, a scale or positions in one of the two ways only.",
    needs=("halves",),
)
def encoding_then_decoding_is_the_whole(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """The decoder, given the memory of a source, gives the logits of the whole."""
    return model.close(model.decoded(x.target, model.memory(x.source)), model(x), x)


@law(
    source=SPLIT,
    formula="decode(a, m), decode(b, m), decode(a, m) again: the first and the last are the same",
    guards="A decoder that writes into the memory, so that the second token of a generation reads another one.",
    needs=("halves",),
)
def a_memory_serves_many_times(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """A memory that was read gives afterwards what it gave before."""
    memory = model.memory(x.source)
    first = model.decoded(x.target, memory)
    model.decoded(model.another(x).target, memory)
    return model.unchanged(model.decoded(x.target, memory), first, x, "logits, the second time")


@law(
    source=SPLIT,
    formula="m = encode(a), encode(b), decode(t, m) = decode(t, encode(a))",
    guards="The mask or the keys of the source that was encoded last, taken for those of the memory.",
    needs=("halves",),
)
def a_memory_is_decoded_whatever_was_encoded_since(
    model: Seq2SeqSubject, x: PairInputs
) -> Iterator[Comparison]:
    """A memory gives the same logits once another source was encoded, be it as long or longer."""
    memory = model.memory(x.source)
    first = model.decoded(x.target, memory)
    for other in (model.another(x).source, (x.source + 1) % model.source_vocab):
        model.memory(other)
        found = model.decoded(x.target, memory)
        yield model.unchanged(found, first, x, "logits, once another source was encoded")


@law(
    source="Vaswani et al. 2017, section 3.2.3: each position in the encoder can attend to all positions",
    formula="source[s] changed: memory[r] changes, for each r and s",
    guards="The causal mask of the decoder in the encoder too.",
    needs=("memory", "full_context"),
    given=(at_least(source_len=2),),
)
def each_state_of_the_memory_sees_the_whole_source(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """Each source token has an influence on the state of every source token."""
    place = x.case.seed % x.source.shape[1]
    if model.lacks("halves"):
        x = PairInputs(x.case, x.source[:1], x.target[:1])  # Its axes are told apart by their lengths.
        if not any(model.shows(partial(_mixes, model, x, at), x) for at in (0, -1)):
            raise NotApplicable("its part called encoder does not mix tokens")
    if not model.shows(partial(_reaches_all, model, x, place), x):
        raise LawBroken(
            f"some state of the memory does not depend on the source at {place} "
            "(where that is meant, declare full_context=False)"
        )
    return none("states that do not see the whole source")


def _reaches_all(model: Seq2SeqSubject, x: PairInputs, place: int) -> bool:
    return bool(_reached(model, x, place).all())


def _mixes(model: Seq2SeqSubject, x: PairInputs, place: int) -> bool:
    """Whether a token has an influence on the state of another one."""
    return bool(_reached(model, x, place).sum() > 1)


def _reached(model: Seq2SeqSubject, x: PairInputs, place: int) -> torch.Tensor:
    """On which states of the memory a token has an influence, (batch, source_len)."""
    other = x.source.clone()
    other[:, place] = x.other("source", model.source_vocab)[:, place]
    differs = model.differing(model.states_of(x.but(source=other)), model.states_of(x), x)
    return differs.flatten(2).any(dim=2)


@law(
    source="Vaswani et al. 2017, section 3.2.3: every position in the decoder attends over all positions of the input",
    formula="memory[s] changed: logits[0] and logits[-1] change, for each s",
    guards="A causal mask, or a window, that reaches the attention to the memory (MSK-16: TransformerEngine 629).",
    needs=("halves", "full_context"),
)
def every_target_reads_the_whole_memory(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """Each state of the memory has an influence on the logits of the first target and of the last."""
    last = x.source.shape[1] - 1
    for place in sorted({0, last, x.case.seed % (last + 1)}):
        for at in (0, -1):
            if not model.shows(partial(_is_read, model, x, place, at), x):
                raise LawBroken(
                    f"the logits of target {at % x.target.shape[1]} do not depend on the memory's state {place} "
                    "(where that is meant, declare full_context=False)"
                )
    return none("states of the memory that are not read")


def _is_read(model: Seq2SeqSubject, x: PairInputs, place: int, at: int) -> bool:
    memory = model.memory(x.source)
    if not isinstance(memory, torch.Tensor) or memory.shape[:2] != x.source.shape:
        raise NotApplicable("the memory has no state for each source token")
    other = memory.clone()
    noise = torch.randn(other[:, place].shape, generator=x.generator("memory"))
    other[:, place] += noise.to(other) * (1 + other[:, place].abs().max())
    differs = model.differing(model.decoded(x.target, other), model.decoded(x.target, memory), x)[:, at]
    return bool(differs.any(dim=1).all())
