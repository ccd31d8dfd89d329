"""Padding that is said by how many of each sequence are real: of states, keys, memories, sources and tokens."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headcheck
from tests.test_seen_in_use import Heads, hinted, quick


class Lengths(nn.Module):
    """Its padding is said by how many states of each sequence are real, or by None, which has to be given."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(16, 4, batch_first=True), nn.LayerNorm(16)

    def hidden(self, length: int, valid_lens: Tensor) -> Tensor:
        return torch.arange(length) >= valid_lens[:, None]

    def forward(self, x: Tensor, valid_lens: Tensor | None) -> Tensor:
        hidden = None if valid_lens is None else self.hidden(x.shape[1], valid_lens)
        return self.norm(x + self.attention(x, x, x, key_padding_mask=hidden)[0])  # type: ignore[no-any-return]


class OneTooLong(Lengths):
    def hidden(self, length: int, valid_lens: Tensor) -> Tensor:
        return torch.arange(length) > valid_lens[:, None]


def test_lengths_say_what_is_padding() -> None:
    """As in Dive into Deep Learning: padding stands behind each sequence, and is judged."""
    right = quick(headcheck.Encoder(Lengths), laws="padding")
    assert right.conforms
    assert hinted(right, "valid_lens is given as lengths (batch,)")
    assert not quick(headcheck.Encoder(OneTooLong), laws="padding").conforms


def test_lengths_that_a_multi_head_module_asks_for_may_be_none() -> None:
    """Where they are refused it is judged without them, and a note says so."""

    class Told(Heads):
        def forward(self, query: Tensor, key: Tensor, value: Tensor, valid_lens: Any) -> Tensor:  # type: ignore[override]
            assert valid_lens is None
            return self.attended(query, key, value, None)

    verdict = quick(Told, role="multi_head_attention", laws="accuracy")
    assert verdict.conforms
    assert hinted(verdict, "valid_lens is left at None")


class CountedHeads(Heads):
    """How many keys are real comes under a name that may mean other things."""

    more = 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, seq_lens: Tensor | None = None) -> Tensor:  # type: ignore[override]
        seen = None if seq_lens is None else torch.arange(key.shape[1]) < (seq_lens + self.more)[:, None]
        return self.attended(query, key, value, seen)

    def hidden(self, scores: Tensor, mask: Any) -> Tensor:
        return scores if mask is None else scores.masked_fill(~mask[:, None, None], -math.inf)


class CountedOneTooFar(CountedHeads):
    more = 1


def test_lengths_of_keys_are_given_to_a_multi_head_module() -> None:
    """Where they count the keys; where a plain call is wrong, and the name leaves it open, once that is declared."""
    right = quick(CountedHeads, role="multi_head_attention", laws="padding")
    assert right.conforms
    assert hinted(right, "seq_lens (batch,) is how many keys of each sequence are real")
    open_ = quick(CountedOneTooFar, role="multi_head_attention", laws="padding")
    assert open_.broken == []
    assert hinted(open_, "--declare arguments.key_mask=seq_lens")
    said = headcheck.MultiHeadAttention(CountedOneTooFar, arguments={"key_mask": "seq_lens"})
    assert not quick(said, laws="padding").conforms


class FillsTheBatch(CountedHeads):
    """The mask is as long as the longest sequence, as espnet's make_pad_mask has it."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, seq_lens: Tensor | None = None) -> Tensor:  # type: ignore[override]
        longest = None if seq_lens is None else int(seq_lens.max())
        seen = None if seq_lens is None else torch.arange(longest) < seq_lens[:, None]
        return self.attended(query, key, value, seen)


class OfTheQueries(CountedHeads):
    """Lengths of the queries, whose rows behind are zeros."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, valid_lens: Tensor | None = None) -> Tensor:  # type: ignore[override]
        found = self.attended(query, key, value, None)
        return found if valid_lens is None else found * ~_behind(valid_lens, query)[..., None]


class BesideAMaskOfTheMemory(CountedHeads):
    """Attention to a memory alone, of which both a mask and lengths may be given."""

    def forward(  # type: ignore[override]
        self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        seen = None if lengths is None else ~_behind(lengths, memory)
        if memory_mask is not None:
            seen = memory_mask if seen is None else memory_mask & seen
        return self.attended(x, memory, memory, seen)


def test_lengths_that_do_not_count_keys_are_left_out() -> None:
    """Where no sequence fills the batch they raise; where they are of the queries that can be declared."""
    verdict = quick(FillsTheBatch, role="multi_head_attention", laws="accuracy")
    assert verdict.conforms
    assert hinted(verdict, "seq_lens is left at None")
    wrong = quick(OfTheQueries, role="multi_head_attention", laws="padding")
    assert wrong.broken
    assert hinted(wrong, "--declare key_masks=()")
    assert quick(headcheck.MultiHeadAttention(OfTheQueries, key_masks=()), laws="accuracy").conforms


def test_a_mask_of_the_memory_is_judged_beside_lengths() -> None:
    """Lengths take no mask's place."""
    verdict = quick(BesideAMaskOfTheMemory, role="multi_head_attention", laws="masks/masked-keys")
    assert verdict.conforms


def test_no_sequence_of_no_keys_is_given_unless_that_is_declared() -> None:
    """Lengths of zero may be refused, and give what they give."""

    class Refuses(CountedHeads):
        def forward(
            self, query: Tensor, key: Tensor, value: Tensor, seq_lens: Tensor | None = None
        ) -> Tensor:  # type: ignore[override]
            if seq_lens is not None and bool((seq_lens == 0).any()):
                raise ValueError("an empty sequence")
            return super().forward(query, key, value, seq_lens)

    assert quick(Refuses, role="multi_head_attention", laws=("masks", "memory")).broken == []


class Reading(nn.Module):
    """One layer of decoder; `more` memories are seen than there are."""

    more = 0

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))

    def read(self, x: Tensor, memory: Tensor, lengths: Tensor | None) -> Tensor:
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = self.norms[0](x + self.own(x, x, x, attn_mask=later)[0])
        hidden = None if lengths is None else _behind(lengths + self.more, memory)
        return self.norms[1](x + self.cross(x, memory, memory, key_padding_mask=hidden)[0])  # type: ignore[no-any-return]


def _behind(lengths: Tensor, x: Tensor) -> Tensor:
    return torch.arange(x.shape[1]) >= lengths[:, None]


class Decoder(Reading):
    def forward(self, x: Tensor, memory: Tensor, src_lens: Tensor | None = None) -> Tensor:
        return self.read(x, memory, src_lens)


class Pair(Reading):
    """The arguments are in fairseq's order, and all of them are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places, self.head = nn.Embedding(20, 16), nn.Embedding(600, 16), nn.Linear(16, 20)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def embedded(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return found

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor) -> Tensor:
        hidden = None if src_lengths is None else _behind(src_lengths, src_tokens)
        memory = self.encoder(self.embedded(src_tokens), src_key_padding_mask=hidden)
        return self.head(self.read(self.embedded(prev_output_tokens), memory, src_lengths))  # type: ignore[no-any-return]


class MustFill(Pair):
    """Its mask is as long as the longest source, as espnet's make_pad_mask has it."""

    def forward(  # type: ignore[override]
        self, src: Tensor, tgt: Tensor, src_lens: Tensor | None = None
    ) -> Tensor:
        if src_lens is not None and int(src_lens.max()) < src.shape[1]:
            raise RuntimeError("The size of tensor a must match the size of tensor b")
        return super().forward(src, src_lens, tgt)


@pytest.mark.parametrize(
    ("module", "declaration", "argument"),
    [
        (Decoder, headcheck.Decoder, "src_lens"),
        (Pair, headcheck.Seq2Seq, "src_lengths"),
    ],
)
def test_lengths_are_given_to_larger_modules(module: Any, declaration: Any, argument: str) -> None:
    """Those of a memory to a decoder, and of a source to a pair; what is wrong is seen."""
    right = quick(declaration(module), laws=("padding", "memory"))
    assert right.conforms
    assert hinted(right, f"{argument} is given as lengths (batch,)")
    wrong = type("Wrong", (module,), {"more": 1})
    assert quick(declaration(wrong), laws=("padding", "memory")).broken


class OfTheMemory(Reading):
    def forward(self, x: Tensor, memory: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.read(x, memory, lengths)


def test_lengths_of_a_decoder_are_of_the_memory_where_that_is_declared() -> None:
    """They are taken for those of the targets otherwise."""
    declared = headcheck.Decoder(OfTheMemory, arguments={"memory_is_real": "lengths"})
    assert quick(declared, laws=("padding", "memory")).conforms


def test_lengths_that_must_fill_the_batch_are_left_out() -> None:
    """They are not asked for, and a note says so."""
    verdict = quick(headcheck.Seq2Seq(MustFill), laws=("padding", "batch"))
    assert verdict.broken == []
    assert hinted(verdict, "src_lens is taken for no mask of padding")


def test_lengths_hold_no_causal_mask() -> None:
    """A declaration that says so is answered with one line."""
    with pytest.raises(headcheck.HeadcheckError, match="takes lengths, which hold no causal mask"):
        quick(headcheck.Decoder(Decoder, causal_mask=True, arguments={"is_real": "src_lens"}), laws="padding")
