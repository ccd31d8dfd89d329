"""Language models that write tokens by a method of their own, right and wrong."""

import torch
from torch import Tensor

from tests.roles import right, wrong
from tests.roles.causal_lm import Memory, Small

LARGEST = "generation/each-token-that-is-generated-has-the-largest-logit"


@right("Draws among the likeliest, of which there may be one alone, without a cache (nanoGPT).")
class DrawsAmongTheLikeliest(Small):
    def generate(
        self, idx: Tensor, max_new_tokens: int, temperature: float = 1.0, top_k: int | None = None
    ) -> Tensor:
        for _ in range(max_new_tokens):
            logits = self(idx)[:, -1] / temperature
            if top_k is not None:
                least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
                logits = logits.masked_fill(logits < least, -torch.inf)
            idx = torch.cat([idx, torch.multinomial(logits.softmax(dim=-1), 1)], dim=1)
        return idx


class Cached(Small):
    """The new tokens alone, each the likeliest, with a cache."""

    def generate(self, tokens: Tensor, steps: int, do_sample: bool = True) -> Tensor:
        written, cache = tokens[:, :0], self.new_cache()
        for _ in range(steps):
            logits = self.following(tokens, written, cache)
            new = torch.multinomial(logits.softmax(-1), 1) if do_sample else logits.argmax(-1, keepdim=True)
            written = torch.cat([written, new], dim=1)
        return written

    def following(self, tokens: Tensor, written: Tensor, cache: Memory) -> Tensor:
        logits: Tensor = self(written[:, -1:] if written.shape[1] else tokens, cache=cache)[:, -1]
        return logits


@right("Returns the new tokens alone; draws unless it is told not to.")
class NewTokensAlone(Cached):
    pass


@right("Ends a sequence by itself: it is not judged.")
class EndsByItself(Cached):
    def generate(self, tokens: Tensor, steps: int, eos_token: int = 0) -> Tensor:  # type: ignore[override]
        return tokens.new_full((len(tokens), steps), eos_token)


@wrong("The first step after the prompt gives the cache its last token once more.", breaks=LARGEST)
class LastTokenOfThePromptTwice(Cached):
    def following(self, tokens: Tensor, written: Tensor, cache: Memory) -> Tensor:
        if written.shape[1] == 1:
            written = torch.cat([tokens[:, -1:], written], dim=1)
            return self(written, cache=cache)[:, -1]  # type: ignore[no-any-return]
        return super().following(tokens, written, cache)


@wrong("In a batch every sequence gets the token of the first.", breaks=LARGEST)
class TokenOfTheFirst(Cached):
    def following(self, tokens: Tensor, written: Tensor, cache: Memory) -> Tensor:
        return super().following(tokens, written, cache)[:1].expand(len(tokens), -1)


@wrong("Of more than four tokens the context is cut to the last four.", breaks=LARGEST)
class ContextOfFour(DrawsAmongTheLikeliest):
    def generate(
        self, idx: Tensor, max_new_tokens: int, temperature: float = 1.0, top_k: int | None = None
    ) -> Tensor:
        for _ in range(max_new_tokens):
            new = super().generate(idx[:, -4:], 1, temperature, top_k)[:, -1:]
            idx = torch.cat([idx, new], dim=1)
        return idx
