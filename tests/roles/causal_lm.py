"""Wrong and right causal language models. The wrong ones are `Small` with one of its parts replaced."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

from headcheck import reference
from tests.roles import right, wrong

VOCAB = 11


class Memory:
    """What `Small` keeps: the keys and values of each layer, and which tokens are real."""

    def __init__(self) -> None:
        self.kept: dict[Any, Tensor] = {}

    def extend(self, name: Any, new: Tensor, dim: int) -> Tensor:
        self.kept[name] = torch.cat([self.kept[name], new], dim) if name in self.kept else new
        return self.kept[name]


class Small(nn.Module):
    """A GPT of two layers. `parts` replaces methods: Small(mask=f) has f(self, ...) as its `mask`."""

    def __init__(self, width: int = 8, layers: int = 2, tied: bool = False, **parts: Callable[..., Any]):
        super().__init__()
        self.table, self.places = nn.Embedding(VOCAB, width), nn.Embedding(80, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.projections = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, VOCAB, bias=False)
        if tied:
            nn.init.normal_(self.table.weight, std=0.5)
            self.head.weight = self.table.weight
        self.calls = 0
        self.remembered: Any = None
        for name, part in parts.items():
            setattr(self, name, MethodType(part, self))

    def new_cache(self) -> Memory:
        return Memory()

    def mask(self, real: Tensor, new: int) -> Tensor:
        """Which of all tokens each of the new ones may attend to: (batch, 1, new, all)."""
        seen = real.shape[1]
        causal = torch.ones(new, seen, dtype=torch.bool, device=real.device).tril(seen - new)
        return causal & real[:, None, None, :]

    def positions(self, real: Tensor, new: int) -> Tensor:
        return (real.long().cumsum(dim=1) - 1).clamp(min=0)[:, -new:]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), -1) @ value

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.table(tokens) + self.places(positions)

    def mixed(self, layer: int, x: Tensor, mask: Tensor, cache: Memory | None) -> Tensor:
        """Self-attention with two heads."""
        query, key, value = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.projections[layer](x).chunk(3, -1)
        )
        if cache is not None:
            key, value = cache.extend((layer, 0), key, 2), cache.extend((layer, 1), value, 2)
        return self.outs[layer](self.attend(query, key, value, mask).transpose(1, 2).flatten(2))

    def forward(self, tokens: Tensor, is_real: Tensor | None = None, cache: Memory | None = None) -> Tensor:
        real = torch.ones_like(tokens, dtype=torch.bool) if is_real is None else is_real
        real = real if cache is None else cache.extend("real", real, 1)
        new = tokens.shape[1]
        x, mask = self.embed(tokens, self.positions(real, new)), self.mask(real, new)
        for layer in range(len(self.outs)):
            x = x + self.mixed(layer, self.norms[2 * layer](x), mask, cache)
            x = x + self.downs[layer](functional.gelu(self.ups[layer](self.norms[2 * layer + 1](x))))
        return self.logits(self.norms[-1](x), real)

    def logits(self, x: Tensor, real: Tensor) -> Tensor:
        return self.head(x)


# Right


@right("A GPT written out: learned positions, a mask of finfo.min, a cache that grows in place.", fresh=True)
def written_out() -> nn.Module:
    return Small()


@right("The same with a tied table, d_model = 2, and one head's width of one.")
def tiny_and_tied() -> nn.Module:
    return Small(width=2, tied=True)


@right("Weights so large that attention picks one key.")
def large_weights() -> nn.Module:
    model = Small(tied=True)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(20)
    return model


@right("Weights so small that the logits are nearly zero.")
def small_weights() -> nn.Module:
    model = Small()
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(1e-3)
    return model


def _reference(**changes: Any) -> nn.Module:
    fields = {"norm_order": "pre", "activation": "gelu", **changes}
    tied, positions = fields.pop("tied", False), fields.pop("positions", "learned")
    config = reference.LayerConfig(d_model=8, num_heads=2, d_ff=16, **fields)
    embedding = reference.Embedding(VOCAB, 8, scaled=tied, positions=positions, max_len=80, dropout=0.1)
    return reference.CausalLM(embedding, reference.Encoder(config, 2, final_norm=True), tied=tied)


@right("The reference with the paper's post-norm, tied and scaled, sinusoidal positions, dropout.")
def reference_post_norm() -> nn.Module:
    return _reference(norm_order="post", activation="relu", tied=True, positions="sinusoidal", dropout=0.3)


@right("The reference with RMS norms, rotary positions and one key head.")
def reference_rotary() -> nn.Module:
    rotate = partial(reference.rotary, pairing="interleaved")
    return _reference(norm="rms", bias=False, kv_heads=1, positions="none", rotate=rotate)


def _norm_in_float32(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return functional.layer_norm(
        x.float(), x.shape[-1:], norm.weight.float(), norm.bias.float(), norm.eps
    ).to(x.dtype)


@right("Norms and softmax computed in float32, whatever comes in.")
def norms_in_float32() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(~mask, -1e9)
        return torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype) @ value

    model = Small(attend=attend)
    for norm in model.norms:
        norm.forward = MethodType(_norm_in_float32, norm)
    return model


@right("Attention in bfloat16, as by a kernel that knows nothing else.")
def attention_in_bfloat16() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        narrow = (each.bfloat16() for each in (query, key, value))
        mask = mask | ~mask.any(-1, keepdim=True)
        return functional.scaled_dot_product_attention(*narrow, attn_mask=mask).to(value.dtype)

    return Small(attend=attend)


@right(
    "On flex_attention, which on a CPU refuses what wants gradients, and cannot be watched from below.",
    effort=0.1,
)
def on_flex_attention() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        def seen(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return torch.where(mask[batch, 0, q, k], score, -torch.inf)

        return flex_attention(query, key, value, score_mod=seen)

    return Small(attend=attend)


class TransformersLike(nn.Module):
    """The signature of transformers: a mask of integers, position_ids by the caller, an object that is returned.

    Rotary positions whose angles are computed in float32; the cache is a tuple that comes back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCAB, 8), nn.Linear(8, VOCAB)
        self.projections = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(8) for _ in range(3))

    @staticmethod
    def turned(x: Tensor, positions: Tensor) -> Tensor:
        steps = 10000 ** (torch.arange(0, 4, 2, device=positions.device).float() / 4)
        angles = positions[:, None, :, None].float() / steps
        cos, sin = (torch.cat([each, each], -1).to(x.dtype) for each in (angles.cos(), angles.sin()))
        one, two = x.chunk(2, -1)
        return x * cos + torch.cat([-two, one], -1) * sin

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> Any:
        new, past = input_ids.shape[1], 0 if past_key_values is None else past_key_values[0][0].shape[2]
        if position_ids is None:
            position_ids = torch.arange(past, past + new, device=input_ids.device)[None]
        fill = torch.finfo(self.head.weight.dtype).min
        bias = self.head.weight.new_full((new, past + new), fill).triu(past + 1)[None, None]
        if attention_mask is not None:
            bias = (bias + (1 - attention_mask[:, None, None, :]).to(bias) * fill).clamp(min=fill)
        x, caches = self.table(input_ids), []
        for layer, projection in enumerate(self.projections):
            q, k, v = projection(self.norms[layer](x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            q, k = self.turned(q, position_ids), self.turned(k, position_ids)
            if past_key_values is not None:
                k, v = (torch.cat(pair, 2) for pair in zip(past_key_values[layer], (k, v), strict=True))
            caches.append((k, v))
            x = x + (torch.softmax(q @ k.mT / 2 + bias, -1) @ v).transpose(1, 2).flatten(2)
        logits = self.head(self.norms[2](x))
        return SimpleNamespace(logits=logits, past_key_values=tuple(caches) if use_cache else None)


@right("The signature and the outputs of transformers, angles in float32.")
def transformers_like() -> nn.Module:
    return TransformersLike()


class TransformersWithoutPositions(TransformersLike):
    """Rotary positions count the padding: only their differences matter, up to the rounding of the angles."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return super().forward(input_ids, attention_mask)


@right("Rotary positions that count padding too, their angles in float32.")
def rotary_that_counts_padding() -> nn.Module:
    return TransformersWithoutPositions()


class Torch(nn.Module):
    """torch.nn.TransformerEncoder with a causal mask; True in its mask is padding, which stands on the right."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.table, self.places, self.head = nn.Embedding(VOCAB, 8), nn.Embedding(17, 8), nn.Linear(8, VOCAB)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True, norm_first=norm_first)
        self.stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        length = tokens.shape[1]
        x = self.table(tokens) + self.places(torch.arange(length, device=tokens.device))
        mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        return self.head(
            self.stack(
                x, mask=mask, src_key_padding_mask=key_padding_mask, is_causal=key_padding_mask is None
            )
        )


@right(
    "torch.nn.TransformerEncoder, post-norm, with dropout; its table of positions ends at 17.",
    padding=("right",),
)
def torch_post_norm() -> nn.Module:
    return Torch(norm_first=False)


@right("torch.nn.TransformerEncoder, pre-norm.", padding=("right",))
def torch_pre_norm() -> nn.Module:
    return Torch(norm_first=True)


class Karpathy(nn.Module):
    """nanoGPT's habits: a context of 8, is_causal, all logits only where targets are, a tuple with the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.table = nn.Embedding(8, 8), nn.Embedding(VOCAB, 8)
        self.projection, self.norm = nn.Linear(8, 24, bias=False), nn.LayerNorm(8)
        self.head = nn.Linear(8, VOCAB, bias=False)
        self.table.weight = self.head.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        q, k, v = self.projection(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + attended.transpose(1, 2).flatten(2)
        if targets is None:
            return self.head(x[:, [-1]]), None
        logits = self.head(x)
        return logits, functional.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


@right("All logits only where targets are given, and a context of eight.")
def nano() -> nn.Module:
    return Karpathy()


class Recurrent(nn.Module):
    """Embedding, GRU, linear: the order counts by recurrence; the cache is the hidden state."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.head = (
            nn.Embedding(VOCAB, 6),
            nn.GRU(6, 6, batch_first=True),
            nn.Linear(6, VOCAB),
        )

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x, state = self.cell(self.table(tokens), state)
        return self.head(x), state


@right("A GRU, whose cache is its state.", step=lambda module, tokens, state: module(tokens, state))
def recurrent() -> nn.Module:
    return Recurrent()


@right(
    "A GRU whose step asks for the mask of all tokens so far.",
    step=lambda module, tokens, state, is_real: (module(tokens, state), is_real.view(-1))[0],
)
def mask_at_each_step() -> nn.Module:
    return Recurrent()


@right("The logits in a dict.")
def in_a_dict() -> nn.Module:
    class InADict(Recurrent):
        def forward(self, tokens: Tensor, state: Tensor | None = None) -> Any:
            return {"logits": super().forward(tokens, state)[0]}

    return InADict()


def _remembering(module: Any, tokens: Tensor, begun: Any) -> tuple[Tensor, bool]:
    logits, module.state = module(tokens, module.state if begun else None)
    return logits, True


@right("A GRU that keeps its state in itself, one generation at a time.", own_cache=False, step=_remembering)
def cache_in_the_module() -> nn.Module:
    return Recurrent()


class Alibi(nn.Module):
    """No positions but a bias that grows with distance; a softcap on the logits; ReZero gates that start at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.projection = nn.Embedding(VOCAB, 8), nn.Linear(8, 24)
        self.gate = nn.Parameter(torch.tensor(0.0))
        self.head = nn.Linear(8, VOCAB)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        x = self.table(x)
        q, k, v = self.projection(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        bias = reference.alibi_bias(reference.alibi_slopes(2), length, length).to(x)
        scores = q @ k.mT / 2 + (bias if mask is None else bias + mask)
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)
        x = x + self.gate * (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)
        return 5 * torch.tanh(self.head(x) / 5)


@right("ALiBi, a gate and an output that start at zero, a mask that is a bias on the scores.", fresh=True)
def alibi() -> nn.Module:
    return Alibi()


@right("A window of three tokens, rotary.", full_context=False)
def windowed() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        seen = real.shape[1]
        band = (
            torch.ones(new, seen, dtype=torch.bool, device=real.device).tril(seen - new).triu(seen - new - 2)
        )
        return band & real[:, None, None, :]

    return Small(mask=mask)


@right("Linear attention, in its parallel form, without positions.", positions=False)
def linear_attention() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scores = (functional.elu(query) + 1) @ (functional.elu(key) + 1).mT * mask
        return scores @ value / scores.sum(-1, keepdim=True).clamp(min=1e-30)

    return Small(
        attend=attend, layers=1, positions=lambda self, real, new: torch.zeros_like(real[:, -new:]).long()
    )


@right("A causal convolution by FFT, which leaves rounding in what it must not see.")
def by_fft() -> nn.Module:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(VOCAB, 8), nn.Linear(8, VOCAB)
            self.filter = nn.Parameter(torch.randn(8, 80) / 4)

        def forward(self, tokens: Tensor) -> Tensor:
            x, length = self.table(tokens).mT, tokens.shape[1]
            spectrum = torch.fft.rfft(x, 2 * length) * torch.fft.rfft(self.filter[:, :length], 2 * length)
            return self.head(functional.gelu(torch.fft.irfft(spectrum, 2 * length)[..., :length]).mT)

    return Convolution()


@right(
    "Tokens as rows of the identity, in float32 always; an LSTM.",
    step=lambda module, tokens, state: module(tokens, state),
)
def one_hot() -> nn.Module:
    class OneHot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTM(VOCAB, 6, 2, batch_first=True), nn.Linear(6, VOCAB)

        def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
            x, state = self.cell(functional.one_hot(tokens, VOCAB).float(), state)
            return self.head(x), state

    return OneHot()


@right("Padding is token 0, which the model masks by itself.", pad_token=0)
def padding_by_token() -> nn.Module:
    def forward(self: Small, tokens: Tensor, cache: Any = None) -> Tensor:
        return Small.forward(self, tokens, tokens != 0, cache)

    model = Small(forward=forward)
    model.table = nn.Embedding(VOCAB, 8, padding_idx=0)
    return model


class Limited(Small):
    """What is kept has eight rows; of more than 32 tokens the last ones are read."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.zeros(8, 32, 8)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = super().embed(tokens, positions)
        filled = self.kept.to(x, copy=True)
        filled[: len(x), : x.shape[1]] = x
        return filled[: len(x), : x.shape[1]]

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(tokens[:, -32:])


@right("Eight sequences at most, and logits of the last 32 tokens.")
def of_eight_rows_and_32_tokens() -> nn.Module:
    return Limited()


class MaskedAlways(nn.Module):
    """It does not do without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Small()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids, attention_mask > 0)


@right("A mask of padding is asked for.")
def mask_asked_for() -> nn.Module:
    return MaskedAlways()


class AddedAlways(nn.Module):
    """The same, by numbers of four axes that are added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Alibi()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids, attention_mask)


@right("Numbers that are added to the scores are asked for.", mask_kind="additive")
def added_mask_asked_for() -> nn.Module:
    return AddedAlways()


class InTorchScript(nn.Module):
    """Compiled by torch.jit, so that no hook can be had."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCAB, 6), nn.Linear(6, VOCAB)
        self.cell = nn.GRU(6, 6, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cell(self.table(tokens))[0])


@right("A GRU in TorchScript.")
def scripted() -> nn.Module:
    return torch.jit.script(InTorchScript())


@right("One token only: there is nothing to choose.", vocab=1)
def one_token() -> nn.Module:
    model = Small()
    model.table, model.head = nn.Embedding(1, 8), nn.Linear(8, 1)
    return model


# Wrong


@wrong("The mask is off by one: the next token is seen.", breaks="causality/later-tokens-do-not-matter")
def mask_off_by_one() -> nn.Module:
    return Small(mask=lambda self, real, new: _seen(real, new, 1))


def _seen(real: Tensor, new: int, ahead: int) -> Tensor:
    """Each sees what is before it and `ahead` tokens more, padding apart."""
    total = real.shape[1]
    return torch.ones(new, total, dtype=torch.bool).tril(total - new + ahead) & real[:, None, None, :]


@wrong("The second layer has no mask.", breaks="causality/later-tokens-do-not-matter")
def one_layer_without_mask() -> nn.Module:
    def mixed(self: Small, layer: int, x: Tensor, mask: Tensor, cache: Memory | None) -> Tensor:
        return Small.mixed(self, layer, x, mask if layer == 0 else torch.ones_like(mask), cache)

    return Small(mixed=mixed)


@wrong(
    "The mask is transposed.",
    breaks=("causality/later-tokens-do-not-matter", "causality/every-earlier-token-counts"),
)
def mask_transposed() -> nn.Module:
    return Small(
        mask=lambda self, real, new: torch.ones(new, real.shape[1], dtype=torch.bool).triu()[None, None]
    )


@wrong(
    "The mean over all positions is taken out before the output.",
    breaks="causality/later-tokens-do-not-matter",
)
def centred_over_positions() -> nn.Module:
    return Small(logits=lambda self, x, real: self.head(x - 1e-6 * x.mean(dim=1, keepdim=True)))


@wrong(
    "What cancels in the values stays in the gradients.",
    breaks="causality/no-gradient-comes-from-later-tokens",
)
def straight_through() -> nn.Module:
    def logits(self: Small, x: Tensor, real: Tensor) -> Tensor:
        mean = x.mean(dim=1, keepdim=True)
        return self.head(x + (mean - mean.detach()))

    return Small(logits=logits)


def _without_the_first(self: Small, real: Tensor, new: int) -> Tensor:
    seen = _seen(real, new, 0).clone()
    seen[..., -new:, 0] = torch.arange(real.shape[1])[-new:] == 0
    return seen


@wrong("The first token is cut off.", breaks="causality/every-earlier-token-counts")
def first_token_lost() -> nn.Module:
    return Small(mask=_without_the_first)


@wrong(
    "The first token is cut off, and what is declared not to give the same bits hides it.",
    breaks="causality/every-earlier-token-counts",
    deterministic=False,
)
def first_cut_off_beside_noise() -> nn.Module:
    def logits(self: Small, x: Tensor, real: Tensor) -> Tensor:
        return self.head(x) * (1 + 1e-15 * torch.randn(()))

    return Small(mask=_without_the_first, logits=logits)


@wrong("Each token is replaced by the one before it.", breaks="causality/every-earlier-token-counts")
def shifted() -> nn.Module:
    def embed(self: Small, tokens: Tensor, positions: Tensor) -> Tensor:
        return Small.embed(self, functional.pad(tokens, (1, 0))[:, :-1], positions)

    return Small(embed=embed)


@wrong("The scale is of the length of the sequence.", breaks="causality/a-prefix-gives-the-same-logits")
def scaled_by_length() -> nn.Module:
    return Small(logits=lambda self, x, real: self.head(x) / math.sqrt(real.shape[1]))


@wrong("Positions are counted from the end.", breaks="causality/a-prefix-gives-the-same-logits")
def positions_from_the_end() -> nn.Module:
    return Small(positions=lambda self, real, new: real.long().flip(1).cumsum(1).flip(1)[:, -new:])


@wrong(
    "The table of positions ends before the length that the model is declared for.",
    breaks="causality/a-prefix-gives-the-same-logits",
    real="documents 000, 002 and 003",
    max_length=12,
)
def table_ends() -> nn.Module:
    model = Small()
    model.places = nn.Embedding(4, 8)
    return model


@wrong("Every token stands at position 0.", breaks="causality/the-order-of-earlier-tokens-counts")
def no_positions() -> nn.Module:
    return Small(layers=1, positions=lambda self, real, new: torch.zeros_like(real[:, -new:]).long())


@wrong(
    "The mask of padding is inverted.",
    breaks=("padding/padding-on-the-right-changes-nothing", "padding/a-mask-of-nothing-changes-nothing"),
    real="x-transformers ff7e307, MSK-01",
)
def padding_inverted() -> nn.Module:
    def forward(self: Small, tokens: Tensor, is_real: Tensor | None = None, cache: Any = None) -> Tensor:
        return Small.forward(self, tokens, None if is_real is None else ~is_real, cache)

    return Small(forward=forward)


@wrong(
    "(1 - mask) x -inf, which is NaN where the mask is 1.",
    breaks="padding/a-mask-of-nothing-changes-nothing",
    real="onnx 2816da65b, EMP-13",
)
def zero_times_infinity() -> nn.Module:
    def forward(self: Small, tokens: Tensor, is_real: Tensor | None = None) -> Tensor:
        bias = 0.0 if is_real is None else ((1 - is_real.double()) * -torch.inf).amax(1)[:, None, None]
        return Small.forward(self, tokens, is_real) + bias

    return Small(forward=forward)


@wrong(
    "Padding is known by its token, and no mask is made of it.",
    breaks=(
        "padding/padding-on-the-left-changes-nothing",
        "padding/rows-of-different-lengths-are-each-itself-alone",
    ),
    real="document 003, line 1132",
    pad_token=0,
)
def padding_is_read() -> nn.Module:
    def forward(self: Small, tokens: Tensor) -> Tensor:
        return Small.forward(self, tokens)

    return Small(forward=forward)


@wrong("A length that counts the padding.", breaks="padding/padding-on-the-right-changes-nothing")
def padding_counts() -> nn.Module:
    def forward(self: Small, tokens: Tensor, is_real: Tensor | None = None) -> Tensor:
        length = 0 if is_real is None else is_real.shape[1] - int(is_real.sum(1).max())
        return Small.forward(self, tokens, is_real) * (1 + length)

    return Small(forward=forward)


@wrong(
    "Positions count the padding.",
    breaks="padding/padding-on-the-left-changes-nothing",
    real="unsloth 3699, ROP-20",
)
def positions_count_padding() -> nn.Module:
    return Small(positions=lambda self, real, new: torch.arange(real.shape[1]).expand(real.shape)[:, -new:])


@wrong(
    "The positions of the first row for all rows.",
    breaks="padding/rows-of-different-lengths-are-each-itself-alone",
    real="unsloth 3699, ROP-20",
)
def positions_of_the_first_row() -> nn.Module:
    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        return Small.positions(self, real, new)[:1].expand(len(real), -1)

    return Small(positions=positions)


@wrong(
    "The mask of the first row for all rows.",
    breaks="padding/rows-of-different-lengths-are-each-itself-alone",
    real="attention-is-all-you-need-keras 28, SHP-01",
)
def mask_of_the_first_row() -> nn.Module:
    return Small(mask=lambda self, real, new: _seen(real[:1], new, 0))


@wrong(
    "Padding is masked in the first layer only.",
    breaks=("padding/what-stands-in-padding-does-not-matter", "padding/padding-on-the-left-changes-nothing"),
    real="x-transformers 187",
)
def padding_in_one_layer() -> nn.Module:
    def mixed(self: Small, layer: int, x: Tensor, mask: Tensor, cache: Memory | None) -> Tensor:
        return Small.mixed(
            self,
            layer,
            x,
            mask
            if layer == 0
            else mask.any(0, keepdim=True).any(-2, keepdim=True)
            | _seen(torch.ones(1, mask.shape[-1], dtype=torch.bool), mask.shape[-2], 0),
            cache,
        )

    return Small(mixed=mixed)


@wrong(
    "The causal mask is dropped where there is a mask of padding.",
    breaks="padding/a-mask-of-nothing-changes-nothing",
    real="keras 23040, MSK-07",
)
def causal_or_padding() -> nn.Module:
    def forward(self: Small, tokens: Tensor, is_real: Tensor | None = None, cache: Any = None) -> Tensor:
        self.remembered = is_real
        return Small.forward(self, tokens, is_real, cache)

    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        return _seen(real, new, 0 if self.remembered is None else real.shape[1])

    return Small(forward=forward, mask=mask)


@wrong(
    "With a cache every token stands at position 0.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
    real="mlx-vlm 1983, ROP-09",
)
def decoded_at_zero() -> nn.Module:
    return Small(positions=lambda self, real, new: torch.arange(new).expand(len(real), new))


@wrong(
    "The causal mask stands top-left where the cache makes the keys longer.",
    breaks="cache/every-split-gives-the-full-pass",
)
def mask_top_left() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        total = real.shape[1]
        causal = torch.ones(new, total, dtype=torch.bool).tril(0 if new > 1 else total)
        return causal & real[:, None, None, :]

    return Small(mask=mask)


@wrong(
    "A chunk sees itself and the chunk before it.",
    breaks="cache/chunked-prefill-gives-the-full-pass",
    real="vllm 26042, TIL-10",
)
def last_chunk_only() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        total = real.shape[1]
        near = (
            torch.arange(total) >= total - 2 * new if 1 < new < total else torch.ones(total, dtype=torch.bool)
        )
        return _seen(real, new, 0) & near

    return Small(mask=mask)


@wrong(
    "The window's cache keeps one key too few.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
    full_context=False,
    real="transformers 37574, CCH-03",
)
def window_rolled_early() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        total = real.shape[1]
        width = 4 if new == total else 3
        return _seen(real, new, 0).triu(total - new - width + 1)

    return Small(mask=mask)


@wrong("One cache for all generations, emptied when a new one begins.", breaks="cache/caches-are-independent")
def one_cache() -> nn.Module:
    def new_cache(self: Small) -> Memory:
        self.remembered = self.remembered or Memory()
        self.remembered.kept.clear()
        return self.remembered

    return Small(new_cache=new_cache)


@wrong(
    "After the first decoded token the counter is advanced by the prompt once more.",
    breaks="cache/greedy-generation-by-cache-is-that-without",
    real="tiny-llm 46, CCH-12",
)
def counted_twice() -> nn.Module:
    def forward(self: Small, tokens: Tensor, is_real: Tensor | None = None, cache: Any = None) -> Tensor:
        self.remembered = None if cache is None else cache.extend("steps", torch.ones(1), 0)
        return Small.forward(self, tokens, is_real, cache)

    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        steps = 1 if self.remembered is None else len(self.remembered)
        more = real.shape[1] - steps if steps > 2 and new == 1 else 0
        return Small.positions(self, real, new) + more

    return Small(forward=forward, positions=positions)


@wrong(
    "The cache holds the keys of the first row for all rows.",
    breaks="cache/a-cache-for-many-is-a-cache-for-each",
)
def keys_of_the_first_row() -> nn.Module:
    def mixed(self: Small, layer: int, x: Tensor, mask: Tensor, cache: Memory | None) -> Tensor:
        mixed = Small.mixed(self, layer, x, mask, cache)
        if cache is not None:
            cache.kept[(layer, 0)] = cache.kept[(layer, 0)][:1].expand(len(x), -1, -1, -1)
        return mixed

    return Small(mixed=mixed)


@wrong(
    "With a cache the mask of padding is that of the new tokens.",
    breaks="cache/a-left-padded-prompt-is-continued-as-if-it-were-alone",
    real="x-transformers 5a7b03f, CCH-06",
)
def padding_forgotten() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        kept = torch.ones_like(real)
        kept[:, -new:] = real[:, -new:]
        return _seen(kept, new, 0)

    return Small(mask=mask)


class TurnedAgain(TransformersLike):
    """The keys of the cache are turned once more at each step."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> Any:
        if past_key_values is not None:
            past_key_values = [
                (self.turned(k, torch.arange(k.shape[2], device=k.device)[None]), v)
                for k, v in past_key_values
            ]
        return super().forward(input_ids, attention_mask, position_ids, past_key_values, use_cache)


@wrong(
    "Keys that are rotated already are rotated again.",
    breaks="cache/every-split-gives-the-full-pass",
    real="flashinfer 793, ROP-16",
)
def keys_rotated_again() -> nn.Module:
    return TurnedAgain()


@wrong(
    "The output layer reads the table, detached.", breaks="tying/a-tied-table-has-the-gradient-of-the-output"
)
def tied_and_detached() -> nn.Module:
    return Small(logits=lambda self, x, real: x @ self.table.weight.detach().T)


@wrong(
    "Two parameters share the memory of their numbers.",
    breaks="tying/weights-that-share-memory-are-one-parameter",
    real="entrenar 314, GRD-07; transformers 42612, BLK-08",
)
def tied_by_memory() -> nn.Module:
    model = Small()
    model.head.weight = nn.Parameter(model.table.weight.data)
    return model


@wrong(
    "A tied table that starts at standard deviation 1, and wide.",
    breaks="start/the-first-loss-is-near-ln-vocab",
    real="document 003, line 1130",
    fresh=True,
)
def tied_and_large() -> nn.Module:
    model = Small(width=32, tied=True)
    nn.init.normal_(model.table.weight)
    return model


@wrong("A norm over the batch.", breaks="batch/a-sequence-in-a-batch-is-itself-alone")
def norm_over_the_batch() -> nn.Module:
    return Small(logits=lambda self, x, real: self.head(x - x.mean(dim=0, keepdim=True) / 2))


@wrong("A bias for the place in the batch.", breaks="batch/permuting-the-batch-permutes-the-output")
def place_in_the_batch() -> nn.Module:
    return Small(logits=lambda self, x, real: self.head(x) * (1 + 1e-3 * torch.arange(len(x))[:, None, None]))


@wrong("Dropout that knows no evaluation.", breaks="state/same-call-same-answer", real="nanoGPT 240, DRP-01")
def dropout_always() -> nn.Module:
    return Small(logits=lambda self, x, real: self.head(functional.dropout(x, 0.1)))


@wrong(
    "A length that is kept from call to call.",
    breaks="state/another-call-between-changes-nothing",
    real="xformers 660, STA-02",
)
def longest_kept() -> nn.Module:
    def logits(self: Small, x: Tensor, real: Tensor) -> Tensor:
        self.calls = max(self.calls, real.shape[1])
        return self.head(x) * (1 + 1e-3 * self.calls)

    return Small(logits=logits)


@wrong("A norm that learns in evaluation.", breaks="state/a-call-changes-no-weight")
def learns_in_evaluation() -> nn.Module:
    def logits(self: Small, x: Tensor, real: Tensor) -> Tensor:
        with torch.no_grad():
            self.norms[-1].weight.mul_(1.001)
        return self.head(x)

    return Small(logits=logits)


@wrong("The first token is overwritten in the caller's tensor.", breaks="state/inputs-are-not-changed")
def tokens_overwritten() -> nn.Module:
    def embed(self: Small, tokens: Tensor, positions: Tensor) -> Tensor:
        tokens[:, 0] = 1
        return Small.embed(self, tokens, positions)

    return Small(embed=embed)


@wrong(
    "The first token may attend to nothing: 0 / 0.",
    breaks="state/output-is-finite",
    real="pytorch 103749, EMP-01",
)
def nothing_to_attend_to() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        before = mask.tril(mask.shape[-1] - mask.shape[-2] - 1)
        return torch.softmax((query @ key.mT).masked_fill(~before, -torch.inf), -1) @ value

    return Small(attend=attend)


@wrong("It seeds the global generator.", breaks="state/nothing-global-is-touched")
def seeds() -> nn.Module:
    def logits(self: Small, x: Tensor, real: Tensor) -> Tensor:
        torch.manual_seed(0)
        return self.head(x)

    return Small(logits=logits)


@wrong(
    "Without gradients the first token is not seen.",
    breaks="state/gradients-wanted-or-not-the-output-is-the-same",
)
def first_token_in_training_only() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        seen = _seen(real, new, 0).clone()
        if not torch.is_grad_enabled():
            seen[..., 1:, 0] = False
        return seen

    return Small(mask=mask)


@wrong("The second layer's keys are detached.", breaks="gradients/gradients-of-the-weights-are-slopes")
def keys_detached() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return Small.attend(self, query, key.detach(), value, mask)

    return Small(attend=attend)


# Windows, packed documents, and several ways of computing


class Packing(Small):
    """Documents in one sequence are told apart by their positions."""

    def forward(
        self,
        tokens: Tensor,
        is_real: Tensor | None = None,
        cache: Memory | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        self.remembered = position_ids
        return super().forward(tokens, is_real, cache)

    def positions(self, real: Tensor, new: int) -> Tensor:
        return super().positions(real, new) if self.remembered is None else self.remembered

    def mask(self, real: Tensor, new: int) -> Tensor:
        mask = super().mask(real, new)
        if self.remembered is None or new < real.shape[1] or not real.all():
            return mask
        document = (self.remembered == 0).cumsum(dim=1)
        return mask & (document[:, None, :, None] == document[:, None, None, :])


def window_of(width: int) -> nn.Module:
    """One layer, in which a position sees so many tokens, its own included."""

    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        seen = real.shape[1]
        near = torch.ones(new, seen, dtype=torch.bool, device=real.device).triu(seen - new - width + 1)
        return Small.mask(self, real, new) & near

    return Small(layers=1, mask=mask)


@contextmanager
def other(model: Small) -> Iterator[None]:
    """The other way in which a model computes, where it has one."""
    model.remembered = "other"
    try:
        yield
    finally:
        model.remembered = None


@right("One layer with a window of three.", reach=3, full_context=False)
def window_of_three() -> nn.Module:
    return window_of(3)


@right(
    "One layer with a window of more tokens than the shortest sequences have.", reach=12, full_context=False
)
def window_of_twelve() -> nn.Module:
    return window_of(12)


@right("One layer with a window that no sequence of a law is longer than.", reach=1000, full_context=False)
def window_of_a_thousand() -> nn.Module:
    return window_of(1000)


@right("Documents in one sequence are kept apart.", packed=True)
def documents_apart() -> nn.Module:
    return Packing()


@right("By a softmax of finfo.min and by one of -inf.", variants={"other": other})
def two_ways() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        if self.remembered is None:
            return Small.attend(self, query, key, value, mask)
        scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(~mask, -torch.inf)
        return torch.softmax(scores, -1).nan_to_num() @ value

    return Small(attend=attend)


@wrong(
    "A window of one token too many.",
    breaks="windows/tokens-out-of-reach-do-not-matter",
    reach=3,
    full_context=False,
)
def window_too_wide() -> nn.Module:
    return window_of(4)


@wrong(
    "A window of one token too many, where it is wide.",
    breaks="windows/tokens-out-of-reach-do-not-matter",
    reach=12,
    full_context=False,
)
def wide_window_too_wide() -> nn.Module:
    return window_of(13)


@wrong(
    "A window of one token too few.",
    breaks="windows/the-furthest-token-in-reach-counts",
    reach=3,
    full_context=False,
)
def window_too_narrow() -> nn.Module:
    return window_of(2)


@wrong(
    "The mask is made without the positions: a document sees the one before it.",
    breaks="windows/documents-in-one-sequence-are-each-alone",
    real="https://github.com/huggingface/transformers/pull/39997",
    packed=True,
)
def packed_documents_seen() -> nn.Module:
    class Seen(Packing):
        def mask(self, real: Tensor, new: int) -> Tensor:
            return Small.mask(self, real, new)

    return Seen()


@wrong(
    "Documents are told apart by the positions of the first sequence, in all of them.",
    breaks="windows/documents-in-one-sequence-are-each-alone",
    packed=True,
)
def borders_of_the_first_sequence() -> nn.Module:
    class FirstForAll(Packing):
        def mask(self, real: Tensor, new: int) -> Tensor:
            if self.remembered is not None:
                self.remembered = self.remembered[:1].expand(len(real), -1)
            return super().mask(real, new)

    return FirstForAll()


@wrong(
    "One of two ways leaves the scale out.",
    breaks="variants/every-variant-gives-the-same",
    variants={"other": other},
)
def one_way_unscaled() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scale = 1.0 if self.remembered is None else math.sqrt(query.shape[-1])
        return Small.attend(self, scale * query, key, value, mask)

    return Small(attend=attend)


@wrong(
    "One of two ways drops the mask of padding.",
    breaks="variants/variants-agree-on-padded-batches",
    variants={"other": other},
)
def one_way_sees_padding() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        return Small.mask(self, real if self.remembered is None else torch.ones_like(real), new)

    return Small(mask=mask)


@wrong(
    "One of two ways aligns the causal mask by the first row, where a cache makes the keys longer.",
    breaks="variants/variants-agree-with-a-cache",
    variants={"other": other},
)
def one_way_aligned_top_left() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        if self.remembered is None:
            return Small.mask(self, real, new)
        return torch.ones(new, real.shape[1], dtype=torch.bool).tril() & real[:, None, None, :]

    return Small(mask=mask)
