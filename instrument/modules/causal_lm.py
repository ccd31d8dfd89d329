"""The role `causal_lm`: a module from tokens to the logits of the next token, each position blind to the future."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from headcheck.calling import parameters_of
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.declarations import Declaration
from headcheck.errors import SubjectError
from headcheck.modules.role import ModuleRole
from headcheck.modules.subject import ModuleCase, ModuleInputs, ModuleSubject, tensor_in
from headcheck.recipes import option

Step = Callable[[Any, Tensor, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class CausalLM(Declaration):
    """A decoder-only language model with its conventions.

    function: the module, a function without parameters that makes one, or f(tokens, is_real=None) itself.
    Tokens (batch, length) -> logits (batch, length, vocab). is_real (batch, length), True at tokens.
    """

    vocab: int | None = None
    """How many tokens there are; None: as many as the first embedding of the module has."""
    padding: tuple[str, ...] = ("left", "right")
    """On which sides a batch may be padded, where the module takes is_real."""
    full_context: bool = True
    """Whether every earlier token counts: not so with a sliding window, or a recurrence that forgets."""
    positions: bool = True
    """Whether the order of the earlier tokens counts."""
    step: Step | None = None
    """step(module, tokens, cache) -> (logits, cache), where None begins; None: as the module's signature shows."""

    role = "causal_lm"
    ARGUMENTS: ClassVar = {
        "is_real": ("is_real", "attention_mask", "padding_mask", "mask"),
        "cache": ("cache",),
        "past_key_values": ("past_key_values",),
    }


@dataclass(frozen=True)
class CausalLMCase(ModuleCase):
    """A batch of token sequences."""

    SIZES: ClassVar[tuple[str, ...]] = ("batch", "length")

    length: int = option(2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)
    split: int = option(1, 1, 2, 3, 4, 7)
    """Where a sequence is cut, for laws that cut it."""


@dataclass(frozen=True, eq=False)
class TokenInputs(ModuleInputs):
    """tokens (batch, length); is_real (batch, length) or None, True at tokens."""

    tokens: Tensor
    is_real: Tensor | None = None

    def but(self, **changes: Any) -> Self:
        """The same inputs with some replaced."""
        return replace(self, **changes)

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
        step = torch.randint(1, vocab, self.tokens.shape, generator=self.generator("other"))
        return (self.tokens + step) % vocab


class CausalLMSubject(ModuleSubject[TokenInputs]):
    """Laws see tokens and logits."""

    FEATURES: ClassVar = {
        "is_real": "takes no mask of what is padding",
        "left_padding": "is not padded on the left",
        "right_padding": "is not padded on the right",
        "step": "has no cache",
        "full_context": "does not see all of the past",
        "positions": "does not see the order",
        "embedding": "has no embedding whose gradient could be asked for",
    }

    @property
    def vocab(self) -> int:
        """How many tokens there are."""
        if self.declaration.vocab is not None:
            declared: int = self.declaration.vocab
            return declared
        if self.embedding is None:
            raise SubjectError(
                "how many tokens there are is not known; declare headcheck.CausalLM(..., vocab=N)"
            )
        return self.embedding.num_embeddings

    @property
    def embedding(self) -> nn.Embedding | None:
        """The first embedding of the module."""
        parts = self.module.modules() if self.module is not None else ()
        return next((each for each in parts if isinstance(each, nn.Embedding)), None)

    def lacks(self, feature: str) -> str | None:
        side, _, padding = feature.partition("_")
        if padding == "padding":
            return self.lacks("is_real") or (
                None if side in self.declaration.padding else self.FEATURES[feature]
            )
        if feature == "embedding":
            return None if self.embedding is not None else self.FEATURES[feature]
        if feature == "step":
            return None if self._step() is not None else self.FEATURES[feature]
        return super().lacks(feature)

    def output(self, x: TokenInputs) -> Tensor:
        real = None if x.is_real is None else x.is_real.to(self.device)
        logits = tensor_in(self.call(x.tokens.to(self.device), is_real=real), ("logits",))
        expected = (*x.tokens.shape, self.vocab)
        if tuple(logits.shape) != expected:
            raise LawBroken(f"logits have shape {tuple(logits.shape)}, expected {expected}")
        return logits

    def another(self, x: TokenInputs) -> TokenInputs:
        """A call with other tokens, and one more of them."""
        tokens = torch.cat([x.other_tokens(self.vocab), x.tokens[:, :1]], dim=1)
        return x.but(tokens=tokens, is_real=None)

    def in_steps(self, tokens: Tensor, sizes: list[int]) -> Tensor:
        """The logits of all tokens, given in pieces of these sizes, each with the cache of those before."""
        cache, found = None, []
        for piece in torch.split(tokens, sizes, dim=1):
            logits, cache = self._stepped(piece, cache)
            found.append(logits)
        return torch.cat(found, dim=1)

    def in_turn(self, one: Tensor, two: Tensor, cut: int) -> tuple[Tensor, Tensor]:
        """The logits of two sequences, each in two pieces, the pieces given in turn."""
        first, first_cache = self._stepped(one[:, :cut], None)
        second, second_cache = self._stepped(two[:, :cut], None)
        first_rest, _ = self._stepped(one[:, cut:], first_cache)
        second_rest, _ = self._stepped(two[:, cut:], second_cache)
        return torch.cat([first, first_rest], dim=1), torch.cat([second, second_rest], dim=1)

    def gradient_of_embeddings(self, x: TokenInputs, place: int) -> Tensor:
        """Of a random combination of the logits at one place, with respect to the embedding of each token."""
        embedding, seen = self.embedding, []
        assert embedding is not None

        def keep(module: nn.Module, given: Any, embedded: Tensor) -> Tensor:
            seen.append(embedded.detach().requires_grad_())
            return seen[-1]

        handle = embedding.register_forward_hook(keep)
        try:
            logits = self.output(x)[:, place]
        finally:
            handle.remove()
        cotangent = torch.randn(logits.shape, generator=x.generator("cotangent"), dtype=torch.float64)
        shaped = next((each for each in seen if each.shape[:-1] == x.tokens.shape), None)
        if shaped is None or not logits.requires_grad:
            raise NotApplicable(
                "the embedding does not give one vector for each token, or carries no gradient"
            )
        (found,) = self.clock.call(
            torch.autograd.grad, logits, [shaped], cotangent.to(logits), materialize_grads=True
        )
        gradient: Tensor = found.cpu()
        return gradient

    def _stepped(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        step = self._step()
        assert step is not None
        with torch.no_grad():
            logits, cache = self.clock.call(step, self.function, tokens.to(self.device), cache)
        return logits.detach().cpu().clone(), cache

    def _step(self) -> Step | None:
        if self.declaration.step is not None:
            declared: Step = self.declaration.step
            return declared
        if self.module is None:
            return None
        if hasattr(self.module, "new_cache") and self.places["cache"]:
            return _step_in_place
        takes = parameters_of(self.module.forward) or {}
        return _step_returned if "past_key_values" in takes and "use_cache" in takes else None


def _step_in_place(module: Any, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
    cache = module.new_cache() if cache is None else cache
    return tensor_in(module(tokens, cache=cache), ("logits",)), cache


def _step_returned(module: Any, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
    returned = module(tokens, past_key_values=cache, use_cache=True)
    return returned.logits, returned.past_key_values


class CausalLMRole(ModuleRole[CausalLMCase, TokenInputs]):
    """Case, declaration and subject of a causal language model."""

    name = "causal_lm"
    case = CausalLMCase
    declaration = CausalLM
    subject = CausalLMSubject
    aliases = ("causallm", "gpt", "languagemodel")

    def build(self, case: CausalLMCase, subject: CausalLMSubject) -> TokenInputs:
        generator = torch.Generator().manual_seed(case.seed)
        tokens = torch.randint(subject.vocab, (case.batch, case.length), generator=generator)
        return TokenInputs(case, tokens)


role = CausalLMRole()
