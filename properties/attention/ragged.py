"""Sequences of several lengths in one call, packed on one axis: each is what it is alone."""

from collections.abc import Iterator
from random import Random

import torch

from headcheck.attention import ragged
from headcheck.attention.given import no_mask
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import DEAD_ROWS, AttentionSubject
from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, compared_gradients, within
from headcheck.given import at_least, at_most
from headcheck.laws import law

KRELL = "Krell et al. 2021, section 3.2.2: packed sequences must not attend to each other"
_SEVERAL = (no_mask, at_least(batch=3), at_most(q_len=65, kv_len=65))
LOUD = 1e3


def _sequences(attention: AttentionSubject, x: Inputs) -> list[Inputs]:
    """The sequences of the batch, each cut to a length of its own, one of them to nothing."""
    random = Random(x.case.seed)
    empty = random.randrange(x.batch)
    return [_cut(attention, x, b, random, empty=b == empty) for b in range(x.batch)]


def _cut(attention: AttentionSubject, x: Inputs, b: int, random: Random, *, empty: bool) -> Inputs:
    keys, queries = random.randint(1, x.kv_len), random.randint(1, x.q_len)
    dead_rows = attention.empty_rows == "zeros" and DEAD_ROWS not in attention.avoids
    if empty:
        lengths = [(0, 0), (0, keys), (queries, 0)]
        queries, keys = random.choice(lengths[: 3 if dead_rows else 2])
    elif x.is_causal and not dead_rows:
        queries = min(queries, keys)
    if not attention.has("rectangular"):
        queries = keys = min(queries, keys)
    here = slice(b, b + 1)
    return x.but(
        query=x.query[here, :, :queries],
        key=x.key[here, :, :keys],
        value=x.value[here, :, :keys],
        strides="contiguous",
        generic=False,
    )


@law(
    source=KRELL,
    formula="O(pack)[a:b] = O(Q[a:b], K[c:d], V[c:d]) for each sequence, one of length 0 among them",
    guards="Keys counted by the lengths of the queries, an empty sequence that shifts the others (flash-attention 1537).",
    needs=("lengths",),
    given=_SEVERAL,
)
def each_sequence_of_a_pack_is_what_it_is_alone(
    attention: AttentionSubject, x: Inputs
) -> Iterator[Comparison]:
    """Each of several sequences of several lengths, empty ones too, gives in one call what it gives alone."""
    parts = _sequences(attention, x)
    for b, (part, output) in enumerate(zip(parts, ragged.outputs(attention, parts), strict=True)):
        alone = attention(part) if part.q_len and part.kv_len else attention.expected(part)
        yield within(output, alone, attention.apart(part, part), f"output of sequence {b} of the pack")


@law(
    source=f"{KRELL}; the chain rule",
    formula="d(pack)[a:b] = dQ, dK, dV of the sequence alone; 0 for keys without a query",
    guards="A backward that goes by the longest sequence, keys without queries never written (flash-attention 2562).",
    needs=("lengths",),
    given=_SEVERAL,
    share=0.7,
)
def each_sequence_of_a_pack_has_its_own_gradients(
    attention: AttentionSubject, x: Inputs
) -> Iterator[Comparison]:
    """The gradients of each sequence of a pack are those that it has alone."""
    parts = _sequences(attention, x)
    for part in parts:
        attention.require_specified_gradients(part)
    sent = [x.cotangent[b : b + 1, :, : part.q_len] for b, part in enumerate(parts)]
    for b, (part, found) in enumerate(zip(parts, ragged.gradients(attention, parts, sent), strict=True)):
        exact, bounds = part.problem.gradients(sent[b].double()), attention.gradient_bounds(part, sent[b])
        yield from compared_gradients(found, exact._asdict(), bounds.of(), f" in sequence {b} of the pack")


@law(
    source=KRELL,
    formula="O(pack)[a:b] does not depend on what stands before a and from b on",
    guards="A block of keys read past the end of its sequence: the first keys of the next count (flash-attention 654).",
    needs=("lengths",),
    given=_SEVERAL,
)
def neighbours_in_a_pack_do_not_matter(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Huge numbers in one sequence of a pack change no other sequence."""
    parts = _sequences(attention, x)
    chosen = Random(x.case.seed).choice([b for b, part in enumerate(parts) if part.kv_len])
    loud = [part if b != chosen else _loud(part) for b, part in enumerate(parts)]
    before, after = ragged.outputs(attention, parts), ragged.outputs(attention, loud)
    for b, part in enumerate(parts):
        if b != chosen:
            what = f"output of sequence {b}, when sequence {chosen} is huge"
            yield within(after[b], before[b], attention.apart(part, part), what)


def _loud(x: Inputs) -> Inputs:
    return x.but(key=(LOUD * x.key.sign()).to(x.dtype), value=torch.full_like(x.value, LOUD))


@law(
    source="a pack is a list of sequences that know nothing of each other",
    formula="O(pack in another order) = O(pack) in that order",
    guards="The longest sequence taken to be the first, lengths taken to be sorted.",
    needs=("lengths",),
    given=_SEVERAL,
    share=0.5,
)
def the_order_of_a_pack_does_not_matter(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Sequences packed in another order give the same outputs in that order."""
    parts = _sequences(attention, x)
    order = x.permutation(len(parts)).tolist()
    one = ragged.outputs(attention, parts)
    other = ragged.outputs(attention, [parts[b] for b in order])
    for b, output in zip(order, other, strict=True):
        limit = attention.apart(parts[b], parts[b])
        yield within(output, one[b], limit, f"output of sequence {b}, in another order")


@law(
    source="buffers of a fixed size are longer than the pack: cu_seqlens says where it ends",
    formula="tokens from cu_seqlens[-1] on: refused, or O of the sequences is the same",
    guards="The last sequence taken to reach to the end of the buffer (flash-linear-attention 892).",
    needs=("lengths",),
    given=_SEVERAL,
    share=0.5,
    unless=("spare_tokens=False",),
)
def tokens_behind_a_pack_do_not_matter(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Tokens behind the last sequence of a pack are refused, or change nothing."""
    if not attention.declaration.spare_tokens:
        raise NotApplicable("a pack ends where its tensors do, as declared")
    parts = _sequences(attention, x)
    plain = ragged.outputs(attention, parts)
    try:
        longer = ragged.outputs(attention, parts, spare=1 + x.case.seed % 5)
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses tokens behind the last sequence: {refusal}") from refusal
    for b, (part, output) in enumerate(zip(parts, longer, strict=True)):
        yield within(
            output, plain[b], attention.apart(part, part), f"output of sequence {b} of a longer buffer"
        )


@law(
    source="max_seqlen is a bound, by which kernels size their grids: one for all steps is above most of the packs",
    formula="O(pack; max_seqlen above the longest) = O(pack)",
    guards="Sequences padded to the bound, and the padding attended to; a grid that is taken for a length.",
    needs=("lengths",),
    given=_SEVERAL,
    share=0.3,
)
def a_bound_above_the_longest_changes_nothing(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """A larger max_seqlen than that of the longest sequence is refused, or changes nothing."""
    if not any(name in attention.arguments for name in ragged.LONGEST):
        raise NotApplicable("is not told the longest sequence")
    parts = _sequences(attention, x)
    plain = ragged.outputs(attention, parts)
    try:
        found = ragged.outputs(attention, parts, loose=1 + x.case.seed % 70)
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses a bound above the longest sequence: {refusal}") from refusal
    for b, (part, output) in enumerate(zip(parts, found, strict=True)):
        yield within(
            output, plain[b], attention.apart(part, part), f"output of sequence {b}, with a larger bound"
        )
