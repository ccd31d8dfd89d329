"""The role `causal_lm`: a module from tokens to the logits of the next token, each position blind to the future."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headcheck.modules import token_caches, token_hints
from headcheck.modules.lengths import MARGIN
from headcheck.modules.masks import CAUSAL, ROWS, WITH_CAUSAL
from headcheck.modules.own_causal import OWN_NAMES
from headcheck.modules.returned import first_in
from headcheck.modules.role import ModuleRole
from headcheck.modules.settling import settled_masks
from headcheck.modules.subject import ModuleCase, ModuleInputs, problem_of
from headcheck.modules.tokens import TokenDeclaration, TokenSubject, other_tokens
from headcheck.recipes import option
from headcheck.reference import token_positions

LONGEST = 65
OF_CAUSALITY = (*WITH_CAUSAL, "causal_mask")
OF_ATTENTION = (*OF_CAUSALITY, "attn_mask")
"""Names of masks that hold the causal one where they are asked for, and of those that need not say what is padding."""


@dataclass(frozen=True)
class CausalLM(TokenDeclaration):
    """A decoder-only language model with its conventions.

    function: the module, a function without parameters that makes one, or f(tokens, is_real=None) itself.
    Tokens (batch, length) -> logits (batch, length, vocab). is_real (batch, length), True at tokens.
    """

    full_context: bool = True
    """Whether every earlier token counts: not so with a sliding window, or a recurrence that forgets."""
    positions: bool = True
    """Whether the order of the earlier tokens counts."""
    causal_mask: bool | None = None
    """Whether the caller gives the causal mask, in an argument of its own beside a mask of what is padding, or with that:
    (batch, 1, length, length), (batch, length, length), or (length, length). None: where the module requires a mask of
    such a name as tgt_mask or causal_mask, or one that works in no form as a mask of padding alone."""
    reach: int | None = None
    """How many tokens, its own included, count for a position: the width of a window, of a model of one layer."""
    packed: bool = False
    """Whether documents beside each other in one sequence stay apart, where position_ids begin anew with each."""
    step: Callable[..., tuple[Tensor, Any]] | None = None
    """step(module, tokens, cache) -> (logits, cache), where None begins; with a fourth parameter, is_real of all
    tokens so far, also for padded prompts; one that has no default is always given. None: as the module's signature
    shows, or as is found."""
    cached_chunks: bool = True
    """Whether several tokens at once may follow a cache; False: one at a time."""
    loss: bool = True
    """Whether the loss, a number that comes beside the logits where there are targets, is the cross-entropy of each
    target, or a multiple of it, and what no target changes. A target belongs to the logits of its own place or, all
    of them, to those of the place before."""
    own_cache: bool = True
    """Whether each generation has a cache of its own: not so where it stands in the module, one generation at a time."""
    forked_cache: bool = False
    """Whether a cache may be continued more than once, as beams and shared prompts are: no way on sees another's."""

    role = "causal_lm"
    ARGUMENTS: ClassVar = {
        "is_real": (
            "is_real",
            "attention_mask",
            "src_key_padding_mask",
            *("key_padding_mask", "padding_mask", "pad_mask"),
            *("src_mask", *OF_ATTENTION, "mask"),
        ),
        "position_ids": ("position_ids",),
        "targets": ("targets", "labels", "target"),
        "cache": ("cache",),
        "past_key_values": token_caches.KEPT,
        "use_cache": token_caches.FLAGS,
        CAUSAL: (*OWN_NAMES, "src_mask", "mask"),
    }


@dataclass(frozen=True)
class CausalLMCase(ModuleCase):
    """A batch of token sequences."""

    SIZES: ClassVar[tuple[str, ...]] = ("batch", "length")

    length: int = option(2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33, rarely=(48, LONGEST))
    split: int = option(1, 1, 2, 3, 4, 7)
    """Where a sequence is cut, for laws that cut it."""


@dataclass(frozen=True, eq=False)
class TokenInputs(ModuleInputs):
    """tokens (batch, length); is_real (batch, length) or None, True at tokens."""

    tokens: Tensor
    is_real: Tensor | None = None

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    @property
    def cut(self) -> int:
        """A place inside the sequence: at least one token stands before it and, where there are two, behind it."""
        split: int = self.case.split
        return max(1, min(split, self.length - 1))

    def other_tokens(self, vocab: int) -> Tensor:
        """Tokens of the same shape that differ from these everywhere."""
        return other_tokens(self.tokens, vocab, self.generator("other"))


class CausalLMSubject(TokenSubject[TokenInputs]):
    """Laws see tokens and logits."""

    MASKS = ("is_real",)
    MAY_HOLD_CAUSAL = "is_real"
    FEATURES: ClassVar = {
        "is_real": "takes no mask of what is padding",
        "no_mask": "is given a mask in every call",
        "left_padding": "is not padded on the left",
        "pad": "has no token that is known to be padding, as pad_token says",
        "right_padding": "is not padded on the right",
        "step": "has no cache",
        "padded_step": "has no cache that takes a mask of what is padding",
        "own_cache": "has one generation at a time",
        "forked_cache": "is not declared to continue a cache more than once",
        "cached_chunks": "takes one token at a time after a cache",
        "full_context": "does not see all of the past",
        "positions": "does not see the order",
        "table": "has no embedding whose gradient could be asked for",
        "reach": "has no window whose width is declared",
        "packed": "is not declared to take several documents in one sequence",
        "targets": "takes no targets",
        "loss": "gives another loss",
    }
    with_targets = False
    """Whether all logits are given only where targets are (nanoGPT)."""

    def __init__(self, declaration: CausalLM, *, dtypes: tuple[str, ...], device: str = "cpu") -> None:
        self._callers_mask = False
        super().__init__(declaration, dtypes=dtypes, device=device)
        self.step = token_caches.shown(self)
        """How it is given more tokens after those of a cache."""
        self._leave_the_callers_own()
        works = self.form_what_is_required(_plain(ROWS, 3))
        asked = "is_real" in self.required and (self.places["is_real"] in OF_CAUSALITY or not works)
        given = asked if declaration.causal_mask is None else declaration.causal_mask
        if self.has_own_causal:
            self.settle_causal(lambda: token_hints.is_blind(self, _plain(2, 3)))
        elif self.places["is_real"] and given:
            self._give_the_causal_mask()

    def _leave_the_callers_own(self) -> None:
        """A mask of attention that has a default is no mask of padding: a model that is given none makes its own."""
        said = "is_real" in self.required or "is_real" in self.declaration.arguments
        if self.places["is_real"] in OF_ATTENTION and not said and not self.declaration.causal_mask:
            self.places["is_real"] = None
            del self.forms["is_real"]

    def _give_the_causal_mask(self) -> None:
        """Where it is not declared, only if it works."""
        self._callers_mask, self.required = True, self.required | {"is_real"}
        works = self.form_what_is_required(_plain(ROWS, 3))
        self._callers_mask = works or self.declaration.causal_mask is True

    @property
    def with_causal(self) -> bool:
        return self._callers_mask

    @cached_property
    def classes(self) -> int:
        """How many logits there are at each position."""
        x = _plain(1, 2)
        if self.places["targets"]:
            with torch.no_grad():
                first = first_in(self.returned(x), ("logits",))
            self.with_targets = isinstance(first, Tensor) and tuple(first.shape[:-1]) == (1, 1)
        return self(x).shape[-1]

    @cached_property
    def vocab(self) -> int:
        """How many tokens there are, padding apart."""
        if self.declaration.vocab is not None:
            rows: int = self.declaration.vocab
        else:
            rows = self.classes if self.table is None else min(self.table.num_embeddings, self.classes)
        return rows if self.pad is None else rows - 1

    @cached_property
    def table(self) -> nn.Embedding | None:
        """The embedding of the tokens: the first with as many rows as there are logits, or the first."""
        fitting = [each for each in self.tables if each.num_embeddings == self.classes]
        return next(iter([*fitting, *self.tables]), None)

    def lacks(self, feature: str) -> str | None:
        if feature == "no_mask":
            always = self.has_own_causal or "is_real" in self.required
            return self.FEATURES[feature] if always else None
        if feature in ("table", "step"):
            return None if getattr(self, feature) is not None else self.FEATURES[feature]
        if feature == "padded_step":
            missing = None if token_caches.masks_when_padded(self) else self.FEATURES[feature]
            return self.lacks("step") or self.lacks("left_padding") or missing
        if feature in ("reach", "packed"):
            known = getattr(self.declaration, feature) and (
                feature != "packed" or self.places["position_ids"]
            )
            return None if known else self.FEATURES[feature]
        return super().lacks(feature)

    def output(self, x: TokenInputs) -> Tensor:
        targets = self.given(x.tokens, x.is_real) if self.with_targets else None
        return self.logits_in(self.returned(x, targets), tuple(x.tokens.shape))

    def returned(self, x: TokenInputs, targets: Tensor | None = None) -> Any:
        """All that a call returns. targets (batch, length): as the model takes them."""
        tokens = self.given(x.tokens, x.is_real)
        return self.call(tokens, targets=targets, **self.masks(self._real(x), x.length))

    def another(self, x: TokenInputs) -> TokenInputs:
        """A call with other tokens, and one more of them."""
        longer = [x.tokens.flip(1), x.tokens[:, :1]] if self.room(x.length) else [x.tokens.flip(1)]
        return x.but(tokens=(torch.cat(longer, dim=1) + 1) % self.vocab, is_real=None)

    def padded(self, x: TokenInputs) -> TokenInputs:
        """Of the first sequence one token is padding, where there are two."""
        if self.lacks("is_real") or x.length < 2:
            return x
        real = torch.ones_like(x.tokens, dtype=torch.bool)
        real[0, 0 if self.sides[0] == "left" else -1] = False
        return x.but(is_real=real)

    def other_calls(self, x: TokenInputs) -> list[Callable[[], object]]:
        """One with targets, and two tokens, one after the other, with a cache."""
        targets = self.given(x.tokens.clone(), x.is_real)
        calls = [lambda: self.returned(x, targets)] if self.places["targets"] else []
        if self.step is None:
            return calls
        step, token = self.step, x.tokens[:, :1]

        def generation() -> None:
            _, cache = step(self, self._fed(token, None), None, self.all_real(len(token), 1))
            step(self, self._fed(token, None), cache, self.all_real(len(token), 2))

        return [*calls, generation]

    def in_steps(self, x: TokenInputs, sizes: list[int]) -> Tensor:
        """The logits of all tokens, given in pieces of these sizes, each with the cache of those before."""
        cache, found, seen = None, [], 0
        for piece in torch.split(x.tokens, sizes, dim=1):
            seen += piece.shape[1]
            real = self.all_real(len(piece), seen) if x.is_real is None else x.is_real[:, :seen]
            logits, cache = self.stepped(piece, cache, real)
            found.append(logits)
        return torch.cat(found, dim=1)

    def side_by_side(self, x: TokenInputs, sizes: list[list[int]]) -> Tensor:
        """The logits of documents of these sizes in each sequence, told apart by their positions."""
        positions = torch.stack([torch.cat([torch.arange(size) for size in row]) for row in sizes])
        kept = {"use_cache": False} if self.places["use_cache"] else {}
        asked = self.masks(self._real(x), x.length) | {"position_ids": positions.to(self.device)}
        with torch.no_grad():
            returned = self.call(self.given(x.tokens), **asked, **kept)
        return self.logits_in(returned, tuple(x.tokens.shape)).cpu().clone()

    def continued(self, x: TokenInputs, new: int) -> TokenInputs:
        """The sequences with `new` tokens behind them, each that of the largest logit, without a cache."""
        for _ in range(new):
            following = self.chosen(self(x)[:, -1:])
            x = x.but(tokens=torch.cat([x.tokens, following], dim=1))
        return x

    def chosen(self, logits: Tensor) -> Tensor:
        """The token of the largest logit, padding apart."""
        return logits[..., self.given(torch.arange(self.vocab)).cpu()].argmax(dim=-1)

    def gradient_of_embeddings(self, x: TokenInputs, place: int) -> Tensor:
        """Of a random combination of the logits at one place, with respect to the embedding of each token."""
        assert self.table is not None
        shape = len(x.tokens), self.classes
        cotangent = torch.randn(shape, generator=x.generator("cotangent"), dtype=torch.float64)
        return self.gradient_of_table(
            lambda: self.output(x)[:, place], [self.table], self.given(x.tokens), cotangent
        )

    def masks(self, is_real: Tensor | None, new: int) -> dict[str, Tensor | None]:
        """The mask of all tokens so far, and the positions of the `new` ones where the caller counts them."""
        if is_real is None:
            return {}
        counted = token_positions(is_real)[:, -new:].to(self.device).contiguous()
        return {
            "is_real": self._mask(is_real, new),
            "position_ids": counted if self.places["position_ids"] else None,
            CAUSAL: self.own_causal(len(is_real), is_real.shape[1], new),
        }

    def _mask(self, is_real: Tensor, new: int) -> Tensor | None:
        """The mask of all tokens so far, with the causal one of the `new` ones where the caller gives it."""
        if not self.with_causal:
            return self.mask("is_real", is_real)
        dtype: torch.dtype = getattr(torch, self.dtypes[0])
        return self.forms["is_real"].with_causal(is_real, dtype)[..., -new:, :].contiguous().to(self.device)

    def pieces(self, length: int) -> list[int]:
        """In what pieces so many tokens follow a cache."""
        return [length] if self.has("cached_chunks") else [1] * length

    def stepped(self, tokens: Tensor, cache: Any, is_real: Tensor | None = None) -> tuple[Tensor, Any]:
        """The logits of more tokens, and the cache with them; is_real: of all tokens so far."""
        assert self.step is not None
        with torch.no_grad():
            logits, cache = self.step(self, self._fed(tokens, is_real), cache, is_real)
        return self.logits_in(logits, tuple(tokens.shape)).detach().cpu().clone(), cache

    @property
    def _asks_for_masks(self) -> bool:
        return self.has_own_causal or not self.required.isdisjoint(("is_real", "position_ids"))

    def _real(self, x: TokenInputs) -> Tensor | None:
        """Which tokens are real: all, where nothing says so and the module cannot do without a mask, or positions."""
        asked = x.is_real is None and self._asks_for_masks
        return torch.ones_like(x.tokens, dtype=torch.bool) if asked else x.is_real

    def all_real(self, rows: int, seen: int) -> Tensor | None:
        """What a step is told where nothing is padding: no mask, unless it cannot do without."""
        own = self.declaration.step is not None
        asked = token_caches.needs_a_mask(self) if own else self._asks_for_masks
        return torch.ones(rows, seen, dtype=torch.bool) if asked else None

    def _fed(self, tokens: Tensor, is_real: Tensor | None) -> Tensor:
        return self.given(tokens, None if is_real is None else is_real[:, -tokens.shape[1] :])


class CausalLMRole(ModuleRole[CausalLMCase, TokenInputs]):
    """Case, declaration and subject of a causal language model."""

    name = "causal_lm"
    case = CausalLMCase
    declaration = CausalLM
    subject = CausalLMSubject
    plain_call = "f(tokens)"
    aliases = ("causallm", "gpt", "languagemodel", "decoderlm", "lmheadmodel")

    def settle(self, case: CausalLMCase, subject: CausalLMSubject) -> CausalLMCase:
        return case.but(length=subject.fitting(case.length), batch=subject.rows(case.batch))

    def notes(self, subject: CausalLMSubject) -> list[str]:
        plain = _plain(2, 3)
        return [
            *settled_masks(
                subject,
                _find_mask,
                partial(token_hints.padding_is_nothing, plain=plain),
                call="padded call",
            ),
            *subject.pad_notes(),
            *subject.settle_length(lambda length: _plain(2, length), range(1, LONGEST + MARGIN + 1)),
            *subject.settle_batch(lambda batch: _plain(batch, 3), subject.module),
            *token_caches.find(subject, plain, _padded("left")),
            *token_hints.of_axes_and_masks(subject, plain),
            *token_hints.unrecognised(subject, inputs=1),
        ]

    def sound(self, subject: CausalLMSubject) -> bool:
        sides = subject.sides if subject.has("is_real") else ()
        padded = [_padded(side) for side in sides]
        return all(
            problem_of(subject, x) is not None or subject(x)[x.is_real].isfinite().all() for x in padded
        )

    def build(self, case: CausalLMCase, subject: CausalLMSubject) -> TokenInputs:
        generator = torch.Generator().manual_seed(case.seed)
        tokens = torch.randint(subject.vocab, (case.batch, case.length), generator=generator)
        return TokenInputs(case, tokens)


def _plain(batch: int, length: int) -> TokenInputs:
    return TokenInputs(None, torch.zeros(batch, length, dtype=torch.long))


def _find_mask(subject: CausalLMSubject) -> list[str]:
    """The form of the mask, which is written into the subject; a note of it."""
    if subject.with_causal:
        return [*subject.masks_told(), subject.forms["is_real"].told_with_causal(subject.places["is_real"])]
    return [*subject.masks_told(), *subject.find_form("is_real", _padded("right"))]


def _padded(side: str) -> TokenInputs:
    """Short sequences, one of them padded."""
    x = _plain(ROWS, 3)
    real = torch.ones_like(x.tokens, dtype=torch.bool)
    real[0, 0 if side == "left" else -1] = False
    return x.but(is_real=real)


role = CausalLMRole()
