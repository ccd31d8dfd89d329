"""What tutorials of torch and Keras show, as published: it was failed, or could not be called, or nothing told how."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import headcheck
from headcheck.errors import SubjectError
from headcheck.formats import MIXED
from headcheck.roles import role
from tests.test_seen_in_use import hinted, quick


def test_a_mask_of_float32_beside_float64_is_no_fault_of_the_subject() -> None:
    """torch's CPU kernel takes its memory for float64; such subjects are judged in float32, and told so."""

    def attended(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
        mask = torch.full((query.shape[-2], key.shape[-2]), -torch.inf).triu(1) if is_causal else None
        return scaled_dot_product_attention(query, key, value, mask)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            return x + attended(q, k, v, is_causal=True)

    function, module = (
        quick(attended, laws="masks"),
        quick(headcheck.Encoder(Layer, causal=True), "causality"),
    )
    assert function.conforms
    assert module.conforms
    assert MIXED in {*function.notes} & {*module.notes}


def test_tables_that_read_tokens_length_first_tell_the_vocabulary() -> None:
    """Source and target have tokens of their own number, and stand (length, batch) inside."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target = nn.Embedding(5, 8), nn.Embedding(9, 8)
            self.head = nn.Linear(8, 9)

        def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
            read = self.source(src.t()).mean(dim=0)
            return self.head(self.target(tgt.t()).transpose(0, 1).cumsum(dim=1) + read[:, None])

    subject, _ = role("seq2seq").prepare(headcheck.Seq2Seq(Turned), dtypes=(), device="cpu", seed=0)
    assert (subject.source_vocab, subject.vocab) == (5, 9)


def test_tokens_length_first_are_told_where_lengths_that_differ_are_refused() -> None:
    """torch's tutorial of translation, as it is published: axes of tokens and logits are (length, batch)."""

    class Tutorial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target, self.head = nn.Embedding(5, 8), nn.Embedding(5, 8), nn.Linear(8, 5)
            self.body = nn.Transformer(8, 2, 1, 1, 8, 0.0)

        def forward(self, src: Tensor, trg: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
            return self.head(self.body(self.source(src), self.target(trg), src_mask, tgt_mask))  # type: ignore[no-any-return]

    with pytest.raises(SubjectError, match=r"where tokens are \(length, batch\), name a module around it"):
        quick(headcheck.Seq2Seq(Tutorial), laws="batch")


def test_a_look_ahead_mask_that_may_be_left_out_is_named_with_what_it_says() -> None:
    """Keras's layer in torch: two fields at once make a plain call right."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(8, 2, 8, 0.0, batch_first=True)

        def forward(self, x: Tensor, memory: Tensor, look_ahead_mask: Tensor | None = None) -> Tensor:
            if look_ahead_mask is None:
                return self.layer(x, memory)  # type: ignore[no-any-return]
            hidden = look_ahead_mask.bool().expand(-1, 2, x.shape[1], -1).flatten(0, 1)
            return self.layer(x, memory, hidden)  # type: ignore[no-any-return]

    declared = {"causal_mask": True, "true_means": "padding"}
    said = " ".join(f"--declare {field}={value}" for field, value in declared.items())
    assert hinted(quick(headcheck.Decoder(Layer), "causality"), said)
    assert quick(headcheck.Decoder(Layer, causal_mask=True, true_means="padding"), "causality").conforms


class Experts(nn.Module):
    """Two experts with dropout inside: each draws for the tokens that it is given, wherever these stand."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.gate = nn.Embedding(9, 8), nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(2))
        self.head = nn.Linear(8, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = x.cumsum(dim=1) / torch.arange(1, x.shape[1] + 1)[:, None]
        chosen, mixed = self.gate(x).argmax(dim=-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mixed[chosen == number] = expert(x[chosen == number])
        return self.head(x + mixed)  # type: ignore[no-any-return]


def test_draws_that_are_laid_out_by_the_tokens_are_no_leak() -> None:
    """What an expert drops hangs on which tokens it is given; no gradient comes from later ones."""
    verdict = quick(headcheck.CausalLM(Experts), laws="later-tokens-do-not-matter-in-training")
    assert verdict.conforms


def test_a_mask_of_an_unknown_name_that_must_be_given_is_named() -> None:
    """It was given as None; as the causal one it makes plain calls right."""

    class Told(Experts):
        def forward(self, tokens: Tensor, look_mask: Tensor | None) -> Tensor:  # type: ignore[override]
            x = self.table(tokens)
            n = x.shape[1]
            seen = torch.ones(n, n) if look_mask is None else (~look_mask).to(x)
            return self.head(seen.to(x) @ x / seen.to(x).sum(dim=-1, keepdim=True))  # type: ignore[no-any-return]

    verdict = quick(headcheck.CausalLM(Told), laws="causality")
    assert hinted(verdict, "look_mask is asked for, and given as None")
    assert hinted(verdict, "--declare arguments.causal_mask=look_mask")
    declared = headcheck.CausalLM(Told, arguments={"causal_mask": "look_mask"}, positions=False)
    assert quick(declared, laws="causality").conforms


def test_weights_that_are_made_in_a_call_and_complex_tables_are_not_cast_back() -> None:
    """What a module keeps of such numbers may be as they were cast."""

    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 8)
            angles = torch.arange(64)[:, None] / torch.arange(1, 5)
            self.register_buffer("turns", torch.polar(torch.ones(64, 4), angles).to(torch.complex128))

        def forward(self, x: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.double().unflatten(-1, (4, 2)).contiguous())
            turned = torch.view_as_real(pairs * self.turns[: x.shape[1]]).flatten(2)
            return self.out(turned.to(x))  # type: ignore[no-any-return]

    assert not quick(headcheck.Encoder(Turning, positions=True), laws="coarser").broken
