"""Language models that return more than logits: caches behind them, or states before them, right and wrong."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.roles import right, wrong
from tests.roles.causal_lm import VOCAB


class Kept(nn.Module):
    """One layer; `past` is (keys, values) of (batch, heads, length, 4), and comes back last where it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places, self.norm = nn.Embedding(VOCAB, 8), nn.Embedding(80, 8), nn.LayerNorm(8)
        self.projection, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, VOCAB)

    def positions(self, real: Tensor, new: int) -> Tensor:
        return (real.long().cumsum(dim=1) - 1).clamp(min=0)[:, -new:]

    def run(self, tokens: Tensor, real: Tensor | None, past: Any) -> tuple[Tensor, Any]:
        """The logits, and the keys and values of all tokens so far; real (batch, all of them)."""
        new, before = tokens.shape[1], 0 if past is None else past[0].shape[2]
        seen = before + new
        real = (
            torch.ones(len(tokens), seen, dtype=torch.bool, device=tokens.device)
            if real is None
            else real.bool()
        )
        x = self.table(tokens) + self.places(self.positions(real, new))
        q, k, v = self.projection(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        visible = (
            torch.ones(new, seen, dtype=torch.bool, device=x.device).tril(before) & real[:, None, None, :]
        )
        weights = (q @ k.mT / 2).masked_fill(~visible, -1e9).softmax(dim=-1)
        return self.head(x + self.out((weights @ v).transpose(1, 2).flatten(2))), (k, v)

    def forward(
        self, tokens: Tensor, attention_mask: Tensor | None = None, past: Any = None, use_cache: bool = False
    ) -> Any:
        logits, kept = self.run(tokens, attention_mask, past)
        return (logits, kept) if use_cache else logits


@right("A cache of (keys, values) comes back behind the logits; the mask is of all tokens so far.")
def cache_behind_the_logits() -> nn.Module:
    return Kept()


@right("The loss stands between the logits and the cache.")
def loss_before_the_cache() -> nn.Module:
    class Labelled(Kept):
        def forward(  # type: ignore[override]  # The names of transformers.
            self,
            tokens: Tensor,
            labels: Tensor | None = None,
            past_key_values: Any = None,
            use_cache: bool = False,
        ) -> Any:
            logits, kept = self.run(tokens, None, past_key_values)
            loss = (
                None if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            )
            return logits, loss, kept if use_cache else None

    return Labelled()


@right("States stand behind the cache.")
def states_behind_the_cache() -> nn.Module:
    class Stating(Kept):
        def forward(  # type: ignore[override]  # The names of transformers.
            self, tokens: Tensor, past_key_values: Any = None, use_cache: bool = False
        ) -> Any:
            logits, kept = self.run(tokens, None, past_key_values)
            return (logits, kept, logits[..., :8]) if use_cache else (logits,)

    return Stating()


@right("Room for four sequences, and a mask of what is padding.")
def room_for_four() -> nn.Module:
    class Roomy(Kept):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("room", torch.zeros(4, 80))

        def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
            self.room[: len(tokens), : tokens.shape[1]].expand(tokens.shape)
            return self.run(tokens, attention_mask, None)[0]

    return Roomy()


class Head(nn.Module):
    """One head, of all states."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 4) for _ in range(3))
        self.out = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        states = (each(x) for each in (self.query, self.key, self.value))
        return self.out(functional.scaled_dot_product_attention(*states, is_causal=True))


@right(
    "A mixture of heads: each token has the two that its router picks, and a head that none picks is not called."
)
def mixture_of_heads() -> nn.Module:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.places = nn.Embedding(VOCAB, 8), nn.Embedding(80, 8)
            self.router, self.heads = nn.Linear(8, 8), nn.ModuleList(Head() for _ in range(8))
            self.head = nn.Linear(8, VOCAB)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens) + self.places.weight[: tokens.shape[1]]
            gates = self.router(x).softmax(dim=-1)
            gates = gates * (gates >= gates.topk(2, dim=-1).values[..., -1:])
            picked = [n for n in range(8) if gates[..., n].any()]
            return self.head(x + sum(gates[..., [n]] * self.heads[n](x) for n in picked))

    return Mixture()


@right("Rotary factors are a buffer of complex numbers.")
def complex_buffer() -> nn.Module:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(VOCAB, 8), nn.LayerNorm(8)
            self.projection, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, VOCAB)
            angles = torch.outer(torch.arange(80.0), 10000.0 ** -torch.tensor([0.0, 0.5]))
            self.register_buffer("factors", torch.polar(torch.ones_like(angles), angles), persistent=False)

        def turned(self, x: Tensor) -> Tensor:
            a, b = x.unflatten(-1, (2, 2)).unbind(-1)
            cos, sin = torch.view_as_real(self.factors[: x.shape[-2]]).to(x.dtype).unbind(-1)
            return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens)
            q, k, v = self.projection(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(
                self.turned(q), self.turned(k), v, is_causal=True
            )
            return self.head(x + self.out(attended.transpose(1, 2).flatten(2)))

    return Turned()


class Output(NamedTuple):
    states: Tensor
    logits: Tensor


@wrong(
    "Of a named tuple the logits, which do not stand first, see the future.",
    breaks="causality/later-tokens-do-not-matter",
)
def named_logits_see_the_future() -> nn.Module:
    class Wrong(Kept):
        def forward(self, tokens: Tensor) -> Any:  # type: ignore[override]
            logits, _ = self.run(tokens, None, None)
            return Output(logits[..., :8], logits + logits.mean(dim=1, keepdim=True))

    return Wrong()


@wrong(
    "After a padded prompt the positions of new tokens count the padding.",
    breaks="cache/a-left-padded-prompt-is-continued-as-if-it-were-alone",
)
def padding_counted_behind_a_cache() -> nn.Module:
    class Wrong(Kept):
        def positions(self, real: Tensor, new: int) -> Tensor:
            seen = real.shape[1]
            if seen == new:
                return super().positions(real, new)
            return torch.arange(seen - new, seen).expand(len(real), -1)

    return Wrong()


@wrong(
    "Beside an argument for labels: tokens behind a cache stand at the beginning again.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
)
def positions_begin_anew_beside_labels() -> nn.Module:
    class Wrong(Kept):
        def positions(self, real: Tensor, new: int) -> Tensor:
            return torch.arange(new).expand(len(real), -1)

        def forward(  # type: ignore[override]
            self, tokens: Tensor, labels: Tensor | None = None, past: Any = None, use_cache: bool = False
        ) -> Any:
            logits, kept = self.run(tokens, None, past)
            return (logits, kept) if use_cache else logits

    return Wrong()


class _InFloat32(nn.LayerNorm):
    """A norm in float32, whatever comes in."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.float(), self.bias.float()
        return functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).to(x.dtype)


@right("A norm in float32 beside a cache.")
def norm_in_float32_beside_a_cache() -> nn.Module:
    model = Kept()
    model.norm = _InFloat32(8)
    return model


@wrong(
    "Keys and values are detached as they are kept, beside a norm in float32.",
    breaks="gradients/gradients-of-the-weights-are-slopes",
)
def kept_keys_are_detached() -> nn.Module:
    class Detaching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            query, key, value = super().forward(x).chunk(3, dim=-1)
            return torch.cat([query, key.detach(), value.detach()], dim=-1)

    model = Kept()
    model.norm, model.projection = _InFloat32(8), Detaching(8, 24)
    return model
