"""Language models whose caches have names of their own, right and wrong, and wrong ones that rounding hid."""

import math
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests import lost, redrawn
from tests.kept import ANSWERS, CHANGED, FAULT, REAL, with_kept_answers, with_kept_gain
from tests.roles import right, wrong
from tests.roles.causal_lm import (
    VOCAB,
    Karpathy,
    Memory,
    Small,
    Torch,
    TransformersLike,
    attention_in_bfloat16,
    linear_attention,
    reference_rotary,
)


class Kept(Small):
    """`Small` with a cache that is returned where it is asked for; is_real is of all tokens so far."""

    def forward(  # type: ignore[override]  # the signature is the point
        self,
        tokens: Tensor,
        is_real: Tensor | None = None,
        kv_cache: dict[Any, Tensor] | None = None,
        use_cache: bool = False,
    ) -> Any:
        memory = Memory()
        memory.kept = dict(kv_cache or {})
        real = None if is_real is None else is_real[:, -tokens.shape[1] :]
        logits = super().forward(tokens, real, memory)
        return (logits, memory.kept) if use_cache else logits


class AlwaysKept(Small):
    """`Small` that returns a cache from each call; is_real is of the new tokens."""

    def forward(  # type: ignore[override]  # as above
        self, tokens: Tensor, is_real: Tensor | None = None, past: dict[Any, Tensor] | None = None
    ) -> Any:
        memory = Memory()
        memory.kept = dict(past or {})
        return super().forward(tokens, is_real, memory), memory.kept


def without_a_mask_beside_a_cache(self: Small, real: Tensor, new: int) -> Tensor:
    """Which tokens are seen: after a cache all of them, as is right for one token."""
    begins = real.shape[1] == new
    return Small.mask(self, real, new) if begins else real[:, None, None, :].expand(-1, 1, new, -1)


@right("A cache by names of its own, returned beside the logits where a flag asks for it.")
def cache_by_names_of_its_own() -> nn.Module:
    return Kept()


@right("A cache that each call returns, with a mask of the new tokens.")
def cache_of_each_call() -> nn.Module:
    return AlwaysKept()


@right("The same, one token at a time after a cache, as is declared.", cached_chunks=False)
def one_token_after_a_cache() -> nn.Module:
    return AlwaysKept(mask=without_a_mask_beside_a_cache)


@right("The same undeclared, where more than one token raises.")
def more_than_one_token_is_refused() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        if real.shape[1] > new > 1:
            raise ValueError("one token at a time")
        return Small.mask(self, real, new)

    return Kept(mask=mask)


@wrong(
    "With a cache by names of its own, the causal mask of several new tokens is aligned top-left.",
    breaks=("cache/every-split-gives-the-full-pass", "cache/chunked-prefill-gives-the-full-pass"),
)
def new_tokens_see_the_first_kept() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        causal = torch.ones(new, real.shape[1], dtype=torch.bool)
        return (causal.tril() if new > 1 else causal) & real[:, None, None, :]

    return Kept(mask=mask)


@wrong(
    "A cache by names of its own holds eight tokens; older ones are lost.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
)
def eight_tokens_are_kept() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        if query.shape[2] == 1:
            key, value, mask = key[:, :, -8:], value[:, :, -8:], mask[..., -8:]
        return Small.attend(self, query, key, value, mask)

    return AlwaysKept(attend=attend)


@wrong(
    "Behind a cache that each call returns, positions begin at zero again.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
)
def positions_begin_again() -> nn.Module:
    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        return Small.positions(self, real[:, -new:], new)

    return AlwaysKept(positions=positions)


@wrong(
    "In the cache that a flag asks for the keys stand where the values belong.",
    breaks="cache/decoding-one-by-one-gives-the-full-pass",
)
def keys_kept_twice() -> nn.Module:
    def mixed(self: Small, layer: int, x: Tensor, mask: Tensor, cache: Memory | None) -> Tensor:
        output = Small.mixed(self, layer, x, mask, cache)
        if cache is not None:
            cache.kept[layer, 1] = cache.kept[layer, 0]
        return output

    return Kept(mixed=mixed)


class ToldWhereItIs(AlwaysKept):
    """Tokens behind a cache stand where `start` says."""

    start = 0

    def forward(  # type: ignore[override]  # as above
        self,
        tokens: Tensor,
        is_real: Tensor | None = None,
        past: dict[Any, Tensor] | None = None,
        start: int = 0,
    ) -> Any:
        self.start = start
        return super().forward(tokens, is_real, past)

    def positions(self, real: Tensor, new: int) -> Tensor:
        return self.start + super().positions(real[:, -new:], new)


class GivenAllTokensAgain(AlwaysKept):
    """Beside a cache all tokens are given, of which it has computed the first."""

    def forward(  # type: ignore[override]  # as above
        self, tokens: Tensor, past: dict[Any, Tensor] | None = None
    ) -> Any:
        known = past["real"].shape[1] if past else 0
        if known == 0 or known >= tokens.shape[1]:
            logits, kept = super().forward(tokens)
            return logits, {**kept, "logits": logits}
        logits, kept = super().forward(tokens[:, known:], past=past)
        logits = torch.cat(((past or {})["logits"], logits), dim=1)
        return logits, {**kept, "logits": logits}


@right("A cache beside which the place of the first token is said: not judged, since it is not said.")
def told_where_it_is() -> nn.Module:
    return ToldWhereItIs()


@right("A cache beside which all tokens are given again: not judged.")
def given_all_tokens_again() -> nn.Module:
    return GivenAllTokensAgain()


@wrong(
    "After a padded prompt, by a cache of its own names, the second token decoded sees the padding.",
    breaks="cache/a-left-padded-prompt-is-continued-as-if-it-were-alone",
)
def padding_is_seen_later() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        long_ago = real.shape[1] > 4 and new == 1
        return Small.mask(self, torch.ones_like(real) if long_ago else real, new)

    return Kept(mask=mask)


# Slips that rounding hid: benchmarks/mutants


@wrong(
    "Attention in bfloat16, which sees the future.",
    breaks=("causality/later-tokens-do-not-matter", "causality/a-prefix-gives-the-same-logits"),
)
def future_seen_in_bfloat16() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        return real[:, None, None, :].expand(-1, 1, new, -1)

    made = attention_in_bfloat16()
    made.mask = MethodType(mask, made)
    return made


@wrong(
    "Judged in bfloat16: the mask is off by one.",
    breaks="causality/later-tokens-do-not-matter",
    dtypes=("bfloat16",),
)
def next_token_seen_in_bfloat16() -> nn.Module:
    def mask(self: Small, real: Tensor, new: int) -> Tensor:
        seen = real.shape[1]
        return torch.ones(new, seen, dtype=torch.bool).tril(seen - new + 1) & real[:, None, None, :]

    return Small(mask=mask)


# A mask in float32 hid what rounds there at most, beside a module in float64


def add_in_float32(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention that makes its mask as numbers of float32, whatever the format of the scores."""
    added = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -1e9)
    return torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]) + added.to(query), -1) @ value


@right("The mask is made as numbers of float32, in every format.")
def mask_in_float32() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return add_in_float32(query, key, value, mask)

    return Small(attend=attend)


@wrong(
    "The mask is made as numbers of float32, and keys are detached.",
    breaks="gradients/gradients-of-the-weights-are-slopes",
)
def keys_detached_under_a_mask_in_float32() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return add_in_float32(query, key.detach(), value, mask)

    return Small(attend=attend)


# Slips that no law saw, on paths that were not asked for: benchmarks/mutants


@wrong(
    "The causal mask is of numbers: beside a mask of padding torch's slow path adds one to what is to come.",
    breaks="padding/padding-is-nothing-where-gradients-are-wanted",
    padding=("right",),
)
def causal_mask_of_ones() -> nn.Module:
    class Wrong(Torch):
        def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
            length, mask = tokens.shape[1], key_padding_mask
            x = self.table(tokens) + self.places(torch.arange(length))
            seen = torch.ones(length, length).triu(1)
            return self.head(self.stack(x, mask=seen, src_key_padding_mask=mask, is_causal=mask is None))

    return Wrong(norm_first=True)


@wrong(
    "Sums of linear attention may be negative, and are raised to a number that float32 does not square.",
    breaks="paths/single-precision-is-finite-too",
    positions=False,
)
def divided_by_next_to_nothing() -> nn.Module:
    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scores = functional.elu(query) @ (functional.elu(key) + 1).mT * mask
        return scores @ value / scores.sum(-1, keepdim=True).clamp(min=1e-30)

    made = linear_attention()
    made.attend = MethodType(attend, made)
    return made


@wrong(
    "An adapter of the head is left out in training.",
    breaks="paths/training-without-dropout-gives-evaluation",
)
def adapter_in_evaluation_only() -> nn.Module:
    class Adapted(Small):
        def __init__(self) -> None:
            super().__init__()
            self.low = nn.Parameter(torch.randn(VOCAB, 8) / 4)

        def logits(self, x: Tensor, real: Tensor) -> Tensor:
            return functional.linear(x, self.head.weight if self.training else self.head.weight + self.low)

    return Adapted()


@wrong(
    "Positions are interpolated where there are more than 16 tokens at hand, those of the first ones too.",
    breaks="causality/a-prefix-gives-the-same-logits",
)
def positions_interpolated_beyond_sixteen() -> nn.Module:
    def embed(self: Small, tokens: Tensor, positions: Tensor) -> Tensor:
        shrunk = 16 / max(16, tokens.shape[1])
        return self.table(tokens) + shrunk * self.places(positions)

    return Small(embed=embed)


@wrong(
    "In training a layer is computed again on the way back, of numbers that are detached: the table learns nothing.",
    breaks="gradients/gradients-of-the-weights-are-slopes",
)
def checkpoint_of_detached_numbers() -> nn.Module:
    def embed(self: Small, tokens: Tensor, positions: Tensor) -> Tensor:
        found = Small.embed(self, tokens, positions)
        return found.detach() if self.training else found

    return Small(embed=embed)


@wrong(FAULT, breaks="state/inference-mode-leaves-nothing-behind", real=REAL)
def factor_of_inference_kept() -> nn.Module:
    return with_kept_gain(Small(), "head")


@wrong(
    "From the 33rd token on all stand at one place, which one layer cannot tell otherwise.",
    breaks="causality/the-order-of-earlier-tokens-counts",
)
def places_end_at_thirty_two() -> nn.Module:
    def positions(self: Small, real: Tensor, new: int) -> Tensor:
        return Small.positions(self, real, new).clamp(max=31)

    return Small(layers=1, positions=positions)


@wrong(lost.FAULT, breaks=lost.LAYERS)
def last_layer_lost() -> nn.Module:
    model: Any = reference_rotary()
    lost.losing_the_last(model.stack)
    return model


@wrong(
    "Without targets, as in generation, the logits are divided by the root of the width.",
    breaks="targets/targets-do-not-change-the-logits",
)
def scaled_in_generation() -> nn.Module:
    class Wrong(Karpathy):
        def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
            logits, loss = super().forward(tokens, targets)
            return (logits, loss) if targets is not None else (logits / 8**0.5, None)

    return Wrong()


@wrong(redrawn.FAULT, breaks=redrawn.LAW, real=redrawn.REAL)
def drawn_again_on_the_way_back() -> nn.Module:
    return redrawn.with_another_draw(Small(), "head")


@right("A layer with dropout is computed again on the way back, with the draw that it had.")
def drawn_once() -> nn.Module:
    return redrawn.with_another_draw(Small(), "head", same=True)


@wrong(ANSWERS, breaks=CHANGED)
def answers_kept_by_tensor() -> nn.Module:
    return with_kept_answers(Small())


@wrong(
    "Where a mask says padding, the caller's own tokens are set to zero.",
    breaks="state/inputs-are-not-changed",
)
def tokens_cleared_in_padding() -> nn.Module:
    class Wrong(Small):
        def forward(
            self, tokens: Tensor, is_real: Tensor | None = None, cache: Memory | None = None
        ) -> Tensor:
            if is_real is not None and cache is None:
                tokens.mul_(is_real)
            return super().forward(tokens, is_real, cache)

    return Wrong()


@wrong(
    "A call with a cache switches gradients off, and leaves them so.",
    breaks="state/nothing-global-is-touched",
)
def gradients_off_after_generation() -> nn.Module:
    class Wrong(Small):
        def forward(
            self, tokens: Tensor, is_real: Tensor | None = None, cache: Memory | None = None
        ) -> Tensor:
            if cache is not None:
                torch.set_grad_enabled(False)
            return super().forward(tokens, is_real, cache)

    return Wrong()


@right("In training each layer is left out now and then, and what it adds is scaled up where it is not.")
def layers_left_out_at_random() -> nn.Module:
    class Right(Small):
        def forward(
            self, tokens: Tensor, is_real: Tensor | None = None, cache: Memory | None = None
        ) -> Tensor:
            kept = not self.training or float(torch.rand(())) < 0.8
            self.scale = (1.25 if self.training else 1.0) if kept else 0.0
            return super().forward(tokens, is_real, cache) * self.scale

    return Right()


@wrong(redrawn.UNDROPPED, breaks=redrawn.OF_A_DRAW)
def undropped_on_the_way_back() -> nn.Module:
    return redrawn.with_an_undropped_gradient(Small(), "head")


@wrong(
    "Positions that are counted by the mask are cut to the last one beside a cache: a chunk has one place.",
    breaks="cache/positions-that-are-left-out-are-counted-beside-a-cache-too",
)
class OnePlaceForAChunk(TransformersLike):
    def forward(  # type: ignore[override]  # the signature is the point
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> Any:
        if position_ids is None and attention_mask is not None:
            counted = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
            position_ids = counted if past_key_values is None else counted[:, -1:].expand_as(input_ids)
        return super().forward(input_ids, attention_mask, position_ids, past_key_values, use_cache)
