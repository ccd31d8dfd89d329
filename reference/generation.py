"""A model writes on: one token at a time, each chosen from the logits after the last.

The caller puts the model into `eval()` first, where it has dropout.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headcheck.reference.attention import softmax
from headcheck.reference.models import CausalLM, Seq2Seq, all_real


def token_probabilities(
    logits: Float[Tensor, "batch vocab"], temperature: float
) -> Float[Tensor, "batch vocab"]:
    """softmax(logits / temperature); at temperature 0 its limit, all on the first of the largest logits.

    ValueError for a negative temperature. Ackley et al. 1985; Holtzman et al. 2020, section 2.
    """
    if temperature == 0:
        one_hot = torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1])
        return one_hot.to(logits.dtype)
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature} is not 0 (greedy) or more")
    below_top = logits - logits.amax(dim=-1, keepdim=True)  # before the division, which then cannot overflow
    return softmax(below_top / temperature)


def next_token(
    logits: Float[Tensor, "batch vocab"], temperature: float, generator: torch.Generator | None = None
) -> Int[Tensor, "batch 1"]:
    """A token of each sequence, drawn at this temperature; greedy at 0, where nothing is drawn."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    return torch.multinomial(token_probabilities(logits, temperature), 1, generator=generator)


@torch.no_grad()
def generate(
    model: CausalLM,
    tokens: Int[Tensor, "batch length"],
    new_tokens: int,
    *,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    is_real: Bool[Tensor, "batch length"] | None = None,
    use_cache: bool = True,
) -> Int[Tensor, "batch length+{new_tokens}"]:
    """The prompts with `new_tokens` behind them. Prompts may be padded, on either side."""
    is_real = all_real(tokens) if is_real is None else is_real
    cache = model.new_cache() if use_cache else None
    fed, fed_is_real = tokens, is_real
    for _ in range(new_tokens):
        logits = _after_last(model(fed, is_real=fed_is_real, cache=cache), fed_is_real)
        new = next_token(logits, temperature, generator)
        tokens, is_real = torch.cat((tokens, new), dim=1), torch.cat((is_real, all_real(new)), dim=1)
        fed, fed_is_real = (new, all_real(new)) if use_cache else (tokens, is_real)
    return tokens


def _after_last(
    logits: Float[Tensor, "batch length vocab"], is_real: Bool[Tensor, "batch length"]
) -> Float[Tensor, "batch vocab"]:
    """The logits at the last real token of each sequence."""
    last = is_real.shape[1] - 1 - is_real.long().flip(dims=(1,)).argmax(dim=1)
    return logits[torch.arange(len(logits), device=logits.device), last]


@torch.no_grad()
def generate_target(
    model: Seq2Seq,
    source: Int[Tensor, "batch source_len"],
    start: int,
    new_tokens: int,
    *,
    source_is_real: Bool[Tensor, "batch source_len"] | None = None,
) -> Int[Tensor, "batch 1+{new_tokens}"]:
    """The token `start`, then `new_tokens` that the decoder writes, each the likeliest; the encoder runs once."""
    memory = model.encode(source, is_real=source_is_real)
    target = torch.full_like(source[:, :1], start)
    for _ in range(new_tokens):
        logits = model.decode(target, memory, memory_is_real=source_is_real)[:, -1]
        target = torch.cat((target, next_token(logits, temperature=0.0)), dim=1)
    return target
