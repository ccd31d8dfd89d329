"""Several sequences in one, and masks of blocks: what is masked away as a whole may as well not be there."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import torch

from headcheck.attention.given import live_rows, masked, unmasked, without
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, within
from headcheck.given import at_least, one_in, one_of
from headcheck.laws import law
from headcheck.reference import masks


@law(
    source="Krell et al. 2021, section 3.2.2: packed sequences must not attend to each other",
    formula="O(packed, its blocks)[a:b] = O(Q[a:b], K[a:b], V[a:b]) for each document [a, b)",
    guards="A boundary off by one, the next document's first key seen (transformers 33623, flash-attention 654).",
    needs=("attn_mask", "rectangular"),
    given=(unmasked, without("alibi"), at_least(q_len=3, kv_len=3)),
)
def packed_documents_equal_each_alone(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Documents packed into one sequence, an empty one among them, give what each gives alone."""
    length = min(x.q_len, x.kv_len)
    parts = {name: getattr(x, name)[:, :, :length] for name in ("query", "key", "value")}
    starts = _boundaries(length, x.case.seed)
    ids = torch.bucketize(torch.arange(length), torch.tensor(starts[1:-1]), right=True)[None]
    keep = masks.document(ids, ids).reshape(length, length)
    plain = x.but(**parts, strides="contiguous")
    packed = plain.but(attn_mask=attention.mask_of(keep, x.dtype))
    output, bound = attention(packed), attention.bound(packed)
    for a, b in pairwise(starts):
        if a < b:
            alone = plain.but(**{name: part[:, :, a:b] for name, part in parts.items()})
            limit = attention.bound(alone) + bound[:, :, a:b]
            yield within(attention(alone), output[:, :, a:b], limit, f"output of the document {a} to {b - 1}")


@law(
    source="Krell et al. 2021, section 3.2.2; Vaswani et al. 2017, section 3.2.3: documents packed for a language model",
    formula="O(causal AND the same document, or AND no padding, as a mask): |O - exact| <= bound",
    guards="A mask whose diagonal is open and whose next entry is not, taken for a causal one: documents and padding "
    "are seen; one that is known by its first and its last row.",
    needs=("attn_mask",),
    given=(
        unmasked,
        one_of("values", "normal"),
        at_least(q_len=3, kv_len=3),
        one_in(2, at_least(q_len=17, kv_len=17)),
    ),
    share=0.5,
)
def a_causal_mask_may_hide_more(attention: AttentionSubject, x: Inputs) -> Comparison:
    """A triangular mask that also hides other documents, padding, what is far off or single keys is no causal flag."""
    length = min(x.q_len, x.kv_len)
    parts = {name: getattr(x, name)[:, :, :length] for name in ("query", "key", "value")}
    edges, places = torch.tensor(_boundaries(length, x.case.seed)[1:-1]), torch.arange(length)
    ids = torch.bucketize(places, edges, right=True)[None]
    diagonal = torch.eye(length, dtype=torch.bool)
    hidden = (
        masks.document(ids, ids).reshape(length, length),
        (places >= length // 3).expand(length, length) | diagonal,
        masks.sliding_window(length, length, 1 + length // 4, 0),
        _between_the_ends(torch.rand(length, length, generator=x.generator("hidden")) < 0.5) | diagonal,
    )[x.case.seed % 4]
    keep = masks.causal(length, length) & hidden
    y = x.but(**parts, strides="contiguous", attn_mask=attention.mask_of(keep, x.dtype))
    return attention.against_the_oracle(y)


@law(
    source="attention does not know in which order its tokens are stored: the mask says who sees whom",
    formula="M_ij = pi(j) <= pi(i), pi the reverse or any other order: |O - exact| <= bound",
    guards="A mask taken for a causal one by its diagonal and by how much of it is open.",
    needs=("attn_mask",),
    given=(unmasked, at_least(q_len=3, kv_len=3)),
    share=0.5,
)
def a_causal_mask_of_another_order_is_no_causal_one(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Tokens that are stored back to front, or in any order, see by their mask those that come before them."""
    length = min(x.q_len, x.kv_len)
    parts = {name: getattr(x, name)[:, :, :length] for name in ("query", "key", "value")}
    place = torch.arange(length).flip(0) if x.case.seed % 2 else x.permutation(length)
    keep = masks.causal(length, length)[place][:, place]
    y = x.but(**parts, strides="contiguous", attn_mask=attention.mask_of(keep, x.dtype))
    return attention.against_the_oracle(y)


def _between_the_ends(keep: torch.Tensor) -> torch.Tensor:
    """With everything open to the first and to the last query."""
    keep[0] = keep[-1] = True
    return keep


def _boundaries(length: int, seed: int) -> list[int]:
    """0, two places between, one of them twice, and the end: four documents, one of them empty."""
    random = Random(seed)
    between = sorted(random.randrange(length + 1) for _ in range(2))
    return [0, *sorted([*between, random.choice(between)]), length]


@law(
    source="Child et al. 2019 (Sparse Transformers), section 5.5: block-sparse kernels skip whole blocks",
    formula="O_i over all keys, masked = O_i over the keys of the blocks that have a True",
    guards="A block skipped for its first key, a partial block read as a full one (attention-gym 15, pytorch 141435).",
    needs=("attn_mask", "rectangular"),
    given=(masked, live_rows, at_least(kv_len=5, q_len=2)),
)
def blocks_without_a_key_may_be_left_out(attention: AttentionSubject, x: Inputs) -> Comparison | None:
    """Keys of blocks that are masked as a whole may be left out, and partly masked blocks count by their mask."""
    if (
        x.attn_mask is None
        or x.case.mask_form == "lowest"
        or x.is_causal
        or x.window
        or x.alibi_slopes is not None
    ):
        return None
    block = (2, 3, 4, 16)[x.case.seed % 4]
    number = torch.arange(x.kv_len) // block
    dropped = number == x.case.seed // 5 % (int(number[-1]) + 1)
    if dropped.all():
        return None
    whole = x.attn_mask.expand(x.may_attend.shape)
    hidden = whole & ~dropped if whole.dtype == torch.bool else whole.masked_fill(dropped, -torch.inf)
    open_row = ~x.but(attn_mask=hidden).may_attend.any(dim=-1, keepdim=True)
    first = torch.arange(x.kv_len) == int((~dropped).int().argmax())
    kept = open_row & first  # A query that lost all its keys is given the first of those that stay.
    hidden = hidden | kept if whole.dtype == torch.bool else hidden.masked_fill(kept, 0.0)
    masked_out = x.but(attn_mask=hidden, mask_strides="contiguous")
    left = x.but(
        key=x.key[:, :, ~dropped],
        value=x.value[:, :, ~dropped],
        attn_mask=hidden[..., ~dropped],
        mask_strides="contiguous",
        strides="contiguous",
    )
    return attention.agree(left, masked_out)
