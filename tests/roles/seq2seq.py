"""Wrong and right encoder-decoders. The wrong ones are `Pair` with one of its parts replaced."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headcheck import reference
from tests.roles import right, wrong

SOURCES, TARGETS = 7, 9


class Attention(nn.Module):
    """Two heads over width 8; what may not be attended to has the least number."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.both, self.out = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (2, 4)).transpose(1, 2)
            for part in (self.query(x), *self.both(memory).chunk(2, -1))
        )
        scores = query @ key.mT / 2
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return self.out((torch.softmax(scores, -1) @ value).transpose(1, 2).flatten(2))


def all_real(tokens: Tensor, real: Tensor | None) -> Tensor:
    return torch.ones_like(tokens, dtype=torch.bool) if real is None else real


class Pair(nn.Module):
    """One layer of encoder, two of decoder. `parts` replaces methods: Pair(causal=f) has f(self, ...) as its `causal`."""

    def __init__(self, **parts: Callable[..., Any]) -> None:
        super().__init__()
        self.source_table, self.target_table = nn.Embedding(SOURCES, 8), nn.Embedding(TARGETS, 8)
        self.places = nn.Embedding(80, 8)
        self.reading = Attention()
        self.own, self.cross = (nn.ModuleList(Attention() for _ in range(2)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(6))
        self.ups, self.downs = (nn.ModuleList(nn.Linear(8, 8) for _ in range(2)) for _ in range(2))
        self.head = nn.Linear(8, TARGETS)
        self.remembered: Any = 0
        for name, part in parts.items():
            setattr(self, name, MethodType(part, self))

    def positions(self, real: Tensor, decoding: bool) -> Tensor:
        return (real.long().cumsum(dim=1) - 1).clamp(min=0)

    def causal(self, length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool).tril()

    def source_mask(self, real: Tensor) -> Tensor:
        return real[:, None, None, :]

    def target_mask(self, real: Tensor) -> Tensor:
        return self.causal(real.shape[1]).to(real.device) & real[:, None, None, :]

    def memory_mask(self, real: Tensor, length: int) -> Tensor:
        return real[:, None, None, :]

    def embed_target(self, target: Tensor, real: Tensor) -> Tensor:
        return self.target_table(target) + self.places(self.positions(real, True))

    def encode(self, source: Tensor, real: Tensor | None = None) -> Tensor:
        real = all_real(source, real)
        x = self.source_table(source) + self.places(self.positions(real, False))
        x = x + self.reading(self.norms[0](x), self.norms[0](x), self.source_mask(real))
        return x + self.downs[0](functional.gelu(self.ups[0](x)))

    def decode(
        self, target: Tensor, memory: Tensor, real: Tensor | None = None, source_real: Tensor | None = None
    ) -> Tensor:
        real, source_real = all_real(target, real), all_real(memory[..., 0], source_real)
        x = self.embed_target(target, real)
        for layer in range(2):
            normed = self.norms[1 + layer](x)
            x = x + self.own[layer](normed, normed, self.target_mask(real))
            mask = self.memory_mask(source_real, target.shape[1])
            x = x + self.cross[layer](self.norms[3 + layer](x), memory, mask)
        x = x + self.downs[1](functional.gelu(self.ups[1](x)))
        return self.logits(self.norms[5](x), real)

    def logits(self, x: Tensor, real: Tensor) -> Tensor:
        return self.head(x)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_is_real: Tensor | None = None,
        target_is_real: Tensor | None = None,
    ) -> Tensor:
        return self.decode(target, self.encode(source, source_is_real), target_is_real, source_is_real)


# Right


@right("An encoder-decoder written out, with encode and decode.")
def written_out() -> nn.Module:
    return Pair()


@right("The same with weights so large that attention picks one key.")
def large_weights() -> nn.Module:
    model = Pair()
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(20)
    return model


def _reference(tied: bool, **changes: Any) -> nn.Module:
    fields = {"norm_order": "pre", "activation": "gelu", **changes}
    positions = fields.pop("positions", "learned")
    config = reference.LayerConfig(d_model=8, num_heads=2, d_ff=16, **fields)
    embed = partial(reference.Embedding, d_model=8, scaled=True, positions=positions, max_len=20, dropout=0.1)
    table = embed(TARGETS)
    final = config.norm_order == "pre"
    parts = (reference.Encoder(config, 2, final_norm=final), reference.Decoder(config, 2, final_norm=final))
    source = table if tied else embed(SOURCES)
    return reference.Seq2Seq(source, table, *parts, tied=tied, output_bias=not tied)


@right("The paper's: post-norm, sinusoidal, dropout, one table for all three.")
def reference_of_the_paper() -> nn.Module:
    return _reference(True, norm_order="post", activation="relu", positions="sinusoidal", dropout=0.3)


@right("RMS norms, SwiGLU, rotary positions in self-attention, two tables.")
def reference_rotary() -> nn.Module:
    rotate = partial(reference.rotary, pairing="half")
    return _reference(False, norm="rms", activation="swiglu", bias=False, positions="none", rotate=rotate)


@right("Learned positions that end at 20.")
def reference_learned() -> nn.Module:
    return _reference(False, kv_heads=1)


class Torch(nn.Module):
    """torch.nn.Transformer, whose masks are True at padding; its fast path makes nested tensors."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.source, self.target, self.places = (nn.Embedding(n, 8) for n in (SOURCES, TARGETS, 20))
        self.body = nn.Transformer(8, 2, 2, 2, 16, dropout=0.2, batch_first=True, **options)
        self.head = nn.Linear(8, TARGETS)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        hidden = self.body(
            self.source(src) + self.places(torch.arange(src.shape[1], device=src.device)),
            self.target(tgt) + self.places(torch.arange(tgt.shape[1], device=src.device)),
            tgt_mask=torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool, device=src.device).triu(1),
            src_key_padding_mask=src_key_padding_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
        )
        return self.head(hidden)


@right("torch.nn.Transformer, post-norm, with its fast path.", padding=("right",))
def torch_post_norm() -> nn.Module:
    return Torch()


@right("torch.nn.Transformer, pre-norm.", padding=("right",))
def torch_pre_norm() -> nn.Module:
    return Torch(norm_first=True)


class Tutorial(nn.Module):
    """The names of torch's tutorial of translation, all of masks that are True at padding."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Torch()

    def forward(
        self,
        src: Tensor,
        trg: Tensor,
        src_padding_mask: Tensor | None = None,
        tgt_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        return self.model(src, trg, src_padding_mask, tgt_padding_mask, memory_key_padding_mask)


@right(
    "Masks by names that leave it open what True says, and one beside them that does not.", padding=("right",)
)
def masks_of_the_tutorial() -> nn.Module:
    return Tutorial()


class OpenNames(Pair):
    """Nothing but a trial tells what True says."""

    def forward(  # type: ignore[override]
        self,
        src: Tensor,
        tgt: Tensor,
        src_padding_mask: Tensor | None = None,
        tgt_padding_mask: Tensor | None = None,
    ) -> Tensor:
        source, target = (None if each is None else ~each for each in (src_padding_mask, tgt_padding_mask))
        return super().forward(src, tgt, source, target)


@right("Masks that are True at padding, by names that leave it open.")
def masks_of_open_names() -> nn.Module:
    return OpenNames()


class CallersMasks(nn.Module):
    """The masks are the caller's, (batch, 1, 1, source_len) and (batch, 1, target_len, target_len), and asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        pair = self.pair
        pair.source_mask = lambda real: src_mask == 1
        pair.memory_mask = lambda real, length: src_mask == 1
        pair.target_mask = lambda real: tgt_mask == 1
        arange = torch.arange(80, device=src.device)
        pair.positions = lambda real, decoding: arange[: real.shape[1]].expand(real.shape)
        return pair(src, tgt)


@right("Masks of four axes that the caller makes, the causal one with them.", padding=("right",))
def callers_masks() -> nn.Module:
    return CallersMasks()


@right("The same of three axes, as the annotated transformer has them.", padding=("right",), mask_rank=3)
def masks_of_three_axes() -> nn.Module:
    class Annotated(CallersMasks):
        def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
            return super().forward(src, tgt, src_mask.unsqueeze(1), tgt_mask.unsqueeze(1))

    return Annotated()


class ByToken(nn.Module):
    """Padding is token 0, of which the model makes its masks."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.pair.source_table.padding_idx = self.pair.target_table.padding_idx = 0

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return self.pair(src, trg, src != 0, trg != 0)


@right("Padding is known by its token.", pad_token=0)
def by_token() -> nn.Module:
    return ByToken()


@right("Padding is known by its token, and nobody said so: no such token is ever drawn.")
def by_token_undeclared() -> nn.Module:
    return ByToken()


class TransformersLike(nn.Module):
    """The signature of transformers; norms, masks and softmax in float32 and in the least number of the dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> Any:
        masks = (None if m is None else (1 - m) < 0.5 for m in (attention_mask, decoder_attention_mask))
        return SimpleNamespace(logits=self.pair(input_ids, decoder_input_ids, *masks))


@right("The signature of transformers: masks that are numbers, the target by keyword.")
def transformers_like() -> nn.Module:
    return TransformersLike()


class Recurrent(nn.Module):
    """A GRU reads, a GRU writes from its last state, with attention to all states (Bahdanau et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(SOURCES, 6), nn.Embedding(TARGETS, 6)
        self.reader, self.writer = nn.GRU(6, 6, batch_first=True), nn.GRU(6, 6, batch_first=True)
        self.head = nn.Linear(12, TARGETS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, last = self.reader(self.source(source))
        written = self.writer(self.target(target), last)[0]
        read = torch.softmax((written @ states.mT).float(), -1).to(states) @ states
        return self.head(torch.cat([written, read], -1))


@right("Recurrent, with attention, a softmax in float32, no masks.")
def recurrent() -> nn.Module:
    return Recurrent()


# Wrong


@wrong("The causal mask is off by one.", breaks="target/later-targets-do-not-matter")
def mask_off_by_one() -> nn.Module:
    return Pair(causal=lambda self, length: torch.ones(length, length, dtype=torch.bool).tril(1))


@wrong(
    "Without a mask from the caller the target sees its future.",
    breaks=(
        "target/later-targets-do-not-matter",
        "target/no-gradient-comes-from-later-targets",
        "target/a-target-prefix-gives-the-same-logits",
    ),
    real="document 000, lines 754 and 875",
)
def not_causal_by_itself() -> nn.Module:
    return Pair(causal=lambda self, length: torch.ones(length, length, dtype=torch.bool))


@wrong("The first layer of the decoder alone is causal.", breaks="target/later-targets-do-not-matter")
def one_causal_layer() -> nn.Module:
    def target_mask(self: Pair, real: Tensor) -> Tensor:
        self.remembered += 1
        return Pair.target_mask(self, real) if self.remembered % 2 else real[:, None, None, :]

    return Pair(target_mask=target_mask)


@wrong(
    "What cancels in the values stays in the gradients.", breaks="target/no-gradient-comes-from-later-targets"
)
def straight_through() -> nn.Module:
    def logits(self: Pair, x: Tensor, real: Tensor) -> Tensor:
        mean = x.mean(dim=1, keepdim=True)
        return self.head(x + (mean - mean.detach()))

    return Pair(logits=logits)


@wrong("Targets are counted from the end.", breaks="target/a-target-prefix-gives-the-same-logits")
def counted_from_the_end() -> nn.Module:
    def positions(self: Pair, real: Tensor, decoding: bool) -> Tensor:
        counted = Pair.positions(self, real, decoding)
        return counted.flip(1) if decoding else counted

    return Pair(positions=positions)


@wrong(
    "The target is shifted by the model, and was by the caller.",
    breaks="target/every-earlier-target-counts",
    real="transformers 47394, BLK-09",
)
def shifted_twice() -> nn.Module:
    def embed_target(self: Pair, target: Tensor, real: Tensor) -> Tensor:
        return Pair.embed_target(self, functional.pad(target, (1, 0))[:, :-1], real)

    return Pair(embed_target=embed_target)


@wrong("The first target is hidden.", breaks="target/every-earlier-target-counts")
def first_target_hidden() -> nn.Module:
    def causal(self: Pair, length: int) -> Tensor:
        mask = Pair.causal(self, length)
        mask[1:, 0] = False
        return mask

    return Pair(causal=causal)


@wrong(
    "The attention to the memory is causal.",
    breaks="halves/every-target-reads-the-whole-memory",
    real="TransformerEngine 629, MSK-16",
)
def causal_memory() -> nn.Module:
    def memory_mask(self: Pair, real: Tensor, length: int) -> Tensor:
        return torch.ones(length, real.shape[1], dtype=torch.bool).tril()[None, None] & real[:, None, None, :]

    return Pair(memory_mask=memory_mask)


@wrong(
    "The last source token is cut off, as if it were always an end mark.",
    breaks="source/every-source-token-counts",
)
def last_source_lost() -> nn.Module:
    def encode(self: Pair, source: Tensor, real: Tensor | None = None) -> Tensor:
        return Pair.encode(self, torch.cat([source[:, :-1], torch.zeros_like(source[:, :1])], 1), real)

    return Pair(encode=encode)


@wrong("The source has no positions.", breaks="source/the-order-of-the-source-counts")
def source_without_positions() -> nn.Module:
    def positions(self: Pair, real: Tensor, decoding: bool) -> Tensor:
        return Pair.positions(self, real, decoding) * decoding

    return Pair(positions=positions)


@wrong("The target is looked up in the table of the source.", breaks="source/every-table-of-tokens-is-read")
def one_table_for_both() -> nn.Module:
    def embed_target(self: Pair, target: Tensor, real: Tensor) -> Tensor:
        return self.source_table(target) + self.places(self.positions(real, True))

    model = Pair(embed_target=embed_target)
    model.source_table = nn.Embedding(TARGETS, 8)
    return model


@wrong(
    "Called whole, the memory is normed; encode does not norm it.",
    breaks="halves/encoding-then-decoding-is-the-whole",
)
def normed_in_one_way() -> nn.Module:
    def forward(self: Pair, source: Tensor, target: Tensor) -> Tensor:
        return self.decode(target, functional.layer_norm(self.encode(source), (8,)))

    return Pair(forward=forward)


@wrong(
    "The causal mask is made by the whole; decode, called by itself, has none.",
    breaks="halves/encoding-then-decoding-is-the-whole",
    real="document 003, line 1276",
)
def decode_is_not_causal() -> nn.Module:
    def forward(self: Pair, source: Tensor, target: Tensor) -> Tensor:
        self.remembered = True
        logits = self.decode(target, self.encode(source))
        self.remembered = False
        return logits

    def causal(self: Pair, length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool).tril(0 if self.remembered else length)

    return Pair(forward=forward, causal=causal)


@wrong("The decoder adds to the memory in place.", breaks="halves/a-memory-serves-many-times")
def memory_overwritten() -> nn.Module:
    def decode(self: Pair, target: Tensor, memory: Tensor, *masks: Tensor | None) -> Tensor:
        logits = Pair.decode(self, target, memory.clone(), *masks)
        memory.detach().mul_(1.01)
        return logits

    return Pair(decode=decode)


@wrong("The encoder is causal.", breaks="halves/each-state-of-the-memory-sees-the-whole-source")
def causal_encoder() -> nn.Module:
    return Pair(source_mask=Pair.target_mask)


@wrong(
    "The attention to the memory has no mask of padding.",
    breaks=("padding/padding-the-source-changes-nothing", "padding/what-stands-in-padding-does-not-matter"),
    real="x-transformers b0715f2, MSK-15",
)
def memory_unmasked() -> nn.Module:
    return Pair(memory_mask=lambda self, real, length: torch.ones_like(real)[:, None, None, :])


@wrong(
    "Padding is known by its token, and no mask is made of it, for source nor target.",
    breaks=("padding/padding-the-source-changes-nothing", "padding/padding-the-target-changes-nothing"),
    real="document 003, lines 847 and 1000",
    pad_token=0,
)
def padding_is_read() -> nn.Module:
    return Pair(forward=lambda self, source, target: self.decode(target, self.encode(source)))


@wrong("The encoder has no mask of padding.", breaks="padding/padding-the-source-changes-nothing")
def encoder_unmasked() -> nn.Module:
    return Pair(source_mask=lambda self, real: torch.ones_like(real)[:, None, None, :])


@wrong(
    "The mask of the source is inverted.",
    breaks=("padding/padding-the-source-changes-nothing", "padding/masks-of-nothing-change-nothing"),
    real="torchTextClassifiers 92, MSK-17",
)
def source_mask_inverted() -> nn.Module:
    def forward(self: Pair, source: Tensor, target: Tensor, source_is_real: Tensor | None = None) -> Tensor:
        return Pair.forward(self, source, target, None if source_is_real is None else ~source_is_real)

    return Pair(forward=forward)


@wrong(
    "A mask of padding takes the place of the causal one.",
    breaks="padding/masks-of-nothing-change-nothing",
    real="keras 23040, MSK-07",
)
def padding_instead_of_causal() -> nn.Module:
    def decode(
        self: Pair,
        target: Tensor,
        memory: Tensor,
        real: Tensor | None = None,
        source_real: Tensor | None = None,
    ) -> Tensor:
        self.remembered = real
        return Pair.decode(self, target, memory, real, source_real)

    def target_mask(self: Pair, real: Tensor) -> Tensor:
        return Pair.target_mask(self, real) if self.remembered is None else real[:, None, None, :]

    return Pair(decode=decode, target_mask=target_mask)


@wrong(
    "Targets that are padding count in the positions.",
    breaks="padding/padding-the-target-changes-nothing",
    real="unsloth 3699, ROP-20",
)
def positions_count_padding() -> nn.Module:
    return Pair(positions=lambda self, real, decoding: torch.arange(real.shape[1]).expand(real.shape))


@wrong(
    "The mask of the first pair for all pairs.",
    breaks="padding/pairs-of-different-lengths-are-each-itself-alone",
    real="attention-is-all-you-need-keras 28, SHP-01",
)
def mask_of_the_first_pair() -> nn.Module:
    return Pair(memory_mask=lambda self, real, length: real[:1, None, None, :])


@wrong("The mean over the batch is taken out.", breaks="batch/a-sequence-in-a-batch-is-itself-alone")
def norm_over_the_batch() -> nn.Module:
    return Pair(logits=lambda self, x, real: self.head(x - x.mean(dim=0, keepdim=True) / 2))


@wrong("A factor for the place in the batch.", breaks="batch/permuting-the-batch-permutes-the-output")
def place_in_the_batch() -> nn.Module:
    return Pair(logits=lambda self, x, real: self.head(x) * (1 + 1e-3 * torch.arange(len(x))[:, None, None]))


@wrong("Dropout that knows no evaluation.", breaks="state/same-call-same-answer", real="nanoGPT 240, DRP-01")
def dropout_always() -> nn.Module:
    return Pair(logits=lambda self, x, real: self.head(functional.dropout(x, 0.1)))


@wrong(
    "The causal mask of the first call is kept, and grows only.",
    breaks="state/another-call-between-changes-nothing",
    real="xformers 660, STA-02",
)
def longest_kept() -> nn.Module:
    def logits(self: Pair, x: Tensor, real: Tensor) -> Tensor:
        self.remembered = max(self.remembered, real.shape[1])
        return self.head(x) / math.sqrt(self.remembered)

    return Pair(logits=logits)


@wrong("A norm that learns in evaluation.", breaks="state/a-call-changes-no-weight")
def learns_in_evaluation() -> nn.Module:
    def logits(self: Pair, x: Tensor, real: Tensor) -> Tensor:
        with torch.no_grad():
            self.norms[-1].weight.mul_(1.001)
        return self.head(x)

    return Pair(logits=logits)


@wrong("The start mark is written into the caller's target.", breaks="state/inputs-are-not-changed")
def target_overwritten() -> nn.Module:
    def embed_target(self: Pair, target: Tensor, real: Tensor) -> Tensor:
        target[:, 0] = 1
        return Pair.embed_target(self, target, real)

    return Pair(embed_target=embed_target)


@wrong(
    "The first target may attend to nothing: 0 / 0.",
    breaks="state/output-is-finite",
    real="pytorch 103749, EMP-01",
)
def nothing_to_attend_to() -> nn.Module:
    def logits(self: Pair, x: Tensor, real: Tensor) -> Tensor:
        length = real.shape[1]
        before = torch.zeros(length, length, dtype=x.dtype).masked_fill(
            ~self.causal(length).tril(-1), -torch.inf
        )
        return self.head(torch.softmax(before, -1) @ x)

    return Pair(logits=logits)


@wrong("It seeds the global generator.", breaks="state/nothing-global-is-touched")
def seeds() -> nn.Module:
    def logits(self: Pair, x: Tensor, real: Tensor) -> Tensor:
        torch.manual_seed(0)
        return self.head(x)

    return Pair(logits=logits)


@wrong(
    "Without gradients the last source token is not seen.",
    breaks="state/gradients-wanted-or-not-the-output-is-the-same",
)
def last_source_in_training_only() -> nn.Module:
    def memory_mask(self: Pair, real: Tensor, length: int) -> Tensor:
        last = torch.arange(real.shape[1]) == max(real.shape[1] - 1, 1)
        return (real if torch.is_grad_enabled() else real & ~last)[:, None, None, :]

    return Pair(memory_mask=memory_mask)


@contextmanager
def other(model: Pair) -> Iterator[None]:
    """The other way in which a model computes."""
    model.remembered = "other"
    try:
        yield
    finally:
        model.remembered = 0


@wrong(
    "One of two ways adds the bias of the head twice.",
    breaks="variants/every-variant-gives-the-same",
    variants={"other": other},
)
def one_way_biased_twice() -> nn.Module:
    def logits(self: Pair, x: Tensor, real: Tensor) -> Tensor:
        return self.head(x) + (self.head.bias if self.remembered == "other" else 0.0)

    return Pair(logits=logits)
