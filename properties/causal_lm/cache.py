"""What a cache gives is what the full pass gives."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs

KEPT = "keys and values of earlier tokens do not depend on later ones: they can be kept (Shazeer 2019, section 2.3)"


@law(
    source=KEPT,
    formula="f(tokens[t] | cache of tokens[:t]) = f(tokens)[t], for each t",
    guards="Every decoded token at position 0, keys rotated twice (mlx-vlm 1983, flashinfer 793, shainet 110).",
    needs=("step",),
)
def decoding_one_by_one_gives_the_full_pass(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Token by token through the cache, the logits are those of the whole sequence at once."""
    return model.close(model.in_steps(x.tokens, [1] * x.length), model(x), x)


@law(
    source=KEPT,
    formula="f(prefix), then f(rest | cache) = f(prefix + rest), for each split",
    guards="A causal mask aligned top-left when the cache makes the keys longer than the queries.",
    needs=("step",),
    given=(at_least(length=2),),
    share=1.5,
)
def every_split_gives_the_full_pass(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """A sequence cut anywhere, its rest given with the cache of its beginning, has the logits of the whole."""
    return model.close(model.in_steps(x.tokens, [x.cut, x.length - x.cut]), model(x), x)


@law(
    source=KEPT,
    formula="prefill in chunks = prefill in one pass",
    guards="Chunks merged without being weighed anew; a mask that ends at the chunk (vllm 26042).",
    needs=("step",),
    given=(at_least(length=5),),
)
def chunked_prefill_gives_the_full_pass(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """A sequence given in chunks has the logits of the sequence in one pass."""
    size = 2 + x.case.seed % 2
    sizes = [len(part) for part in torch.split(torch.arange(x.length), size)]
    return model.close(model.in_steps(x.tokens, sizes), model(x), x)


@law(
    source=KEPT,
    formula="two caches filled in turn: each as if it were alone",
    guards="A cache that belongs to the module, so that two generations at once mix.",
    needs=("step",),
    given=(at_least(length=2),),
)
def caches_are_independent(model: CausalLMSubject, x: TokenInputs) -> Iterator[Comparison]:
    """A generation that is interrupted by another one goes on as if nothing had happened."""
    other = x.but(tokens=x.other_tokens(model.vocab))
    one, two = model.in_turn(x.tokens, other.tokens, x.cut)
    yield model.close(one, model(x), x, "logits of the first")
    yield model.close(two, model(other), x, "logits of the second")
