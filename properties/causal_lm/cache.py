"""What a cache gives is what the full pass gives."""

from collections.abc import Iterator

import torch
from torch import Tensor

from headcheck.comparison import Comparison, NotApplicable
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs
from headcheck.modules.token_caches import forked, in_turn, positions_left_out

KEPT = "keys and values of earlier tokens do not depend on later ones: they can be kept (Shazeer 2019, section 2.3)"
ONE_AT_A_TIME = "(where one token at a time after a cache is meant, declare cached_chunks=False)"
"""Said of several."""


@law(
    source=KEPT,
    formula="f(tokens[t] | cache of tokens[:t]) = f(tokens)[t], for each t",
    guards="Every decoded token at position 0, keys rotated twice (mlx-vlm 1983, flashinfer 793, shainet 110).",
    needs=("step",),
)
def decoding_one_by_one_gives_the_full_pass(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Token by token through the cache, the logits are those of the whole sequence at once."""
    return model.close(model.in_steps(x, [1] * x.length), model(x), x)


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
    found = model.in_steps(x, [x.cut, *model.pieces(x.length - x.cut)])
    return model.close(found, model(x), x, f"logits {ONE_AT_A_TIME}")


@law(
    source=KEPT,
    formula="prefill in chunks = prefill in one pass",
    guards="Chunks merged without being weighed anew; a mask that ends at the chunk (vllm 26042).",
    needs=("step", "cached_chunks"),
    given=(at_least(length=5),),
)
def chunked_prefill_gives_the_full_pass(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """A sequence given in chunks has the logits of the sequence in one pass."""
    size = 2 + x.case.seed % 2
    sizes = [len(part) for part in torch.split(torch.arange(x.length), size)]
    return model.close(model.in_steps(x, sizes), model(x), x, f"logits {ONE_AT_A_TIME}")


@law(
    source=KEPT,
    formula="two caches filled in turn: each as if it were alone",
    guards="A cache that belongs to the module, so that two generations at once mix.",
    needs=("step", "own_cache"),
    given=(at_least(length=2),),
)
def caches_are_independent(model: CausalLMSubject, x: TokenInputs) -> Iterator[Comparison]:
    """A generation that is interrupted by another one goes on as if nothing had happened."""
    other = x.but(tokens=x.other_tokens(model.vocab))
    one, two = in_turn(model, x.tokens, other.tokens, [x.cut, *model.pieces(x.length - x.cut)])
    meant = "(where one generation at a time is meant, declare own_cache=False)"
    yield model.close(one, model(x), x, f"logits of the first {meant}")
    yield model.close(two, model(other), other, "logits of the second")


@law(
    source=KEPT,
    formula="f(a | cache) = f(prefix + a), f(b | cache) = f(prefix + b), token by token in turn",
    guards="A cache that grows in place, so that one beam writes over the keys of another that began with it.",
    needs=("step", "forked_cache"),
    given=(at_least(length=3),),
)
def a_cache_may_be_continued_in_two_ways(model: CausalLMSubject, x: TokenInputs) -> Iterator[Comparison]:
    """Two ways on from one cache have the logits of the two whole sequences, whichever is given first."""
    cut = min(x.cut, x.length - 2)
    ways = [x, x.but(tokens=torch.cat([x.tokens[:, :cut], x.other_tokens(model.vocab)[:, cut:]], dim=1))]
    found = forked(model, x.tokens[:, :cut], [way.tokens[:, cut:] for way in ways])
    for way, logits in zip(ways, found, strict=True):
        yield model.close(logits, model(way)[:, cut:], way, "logits of one way on")


@law(
    source=KEPT,
    formula="argmax f(new | cache) = argmax f(tokens + new), for each new token, ties apart",
    guards="A counter that is advanced twice after the first decoded token: prompt right, writing wrong (CCH-12: "
    "tiny-llm 46).",
    needs=("step",),
)
def greedy_generation_by_cache_is_that_without(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """The most likely tokens, written one after the other, are the same with and without a cache."""
    new = min(4, model.room(x.length))
    if not new:
        raise NotApplicable("there is no room for new tokens")
    whole = model.continued(x, new)
    chosen = model.chosen(model.in_steps(whole, [x.length, *[1] * new]))[..., None]
    logits = model(whole)[..., : model.classes]
    best = logits.gather(-1, model.given(model.chosen(logits))[..., None].cpu())
    of_chosen = logits.gather(-1, model.given(chosen).cpu())
    return model.close(of_chosen, best, whole, "logit of the token chosen")


@law(
    source=KEPT,
    formula="f([a; b] | cache)_a = f(a | cache)",
    guards="A cache that mixes the sequences of a batch, or has room for one.",
    needs=("step",),
    given=(at_least(batch=2),),
)
def a_cache_for_many_is_a_cache_for_each(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """A sequence decoded among others has the logits that it has when it is decoded alone."""
    row = torch.tensor([x.case.seed % x.case.batch])
    sizes = [x.cut, *[1] * (x.length - x.cut)]
    return model.close(model.in_steps(x.picked(row), sizes), model.in_steps(x, sizes)[row], x)


@law(
    source=KEPT,
    formula="f([pad, prefix]), then f(rest | cache) = f(prefix + rest)",
    guards="A mask cut to the new tokens where there is a cache, positions that count padding (CCH-06: x-transformers "
    "5a7b03f).",
    needs=("padded_step",),
    given=(at_least(length=3),),
)
def a_left_padded_prompt_is_continued_as_if_it_were_alone(
    model: CausalLMSubject, x: TokenInputs
) -> Iterator[Comparison]:
    """With padding before a prompt, what is decoded after it has the logits of the sequence without padding."""
    padded, count = _padded_before(model, x)
    for found in _continued(model, padded, count + min(x.cut, x.length - 2)):
        yield model.close(found[:, count:], model(x), x)


def _continued(model: CausalLMSubject, padded: TokenInputs, first: int) -> Iterator[Tensor]:
    """The logits where so many tokens are given first and the rest one by one, or as many at once as may be."""
    rest = padded.tokens.shape[1] - first
    for sizes in [[1] * rest] + ([model.pieces(rest)] if rest > 1 and model.has("cached_chunks") else []):
        yield model.in_steps(padded, [first, *sizes])


def _padded_before(model: CausalLMSubject, x: TokenInputs) -> tuple[TokenInputs, int]:
    """The sequences with padding before them, and how much."""
    count = min(1 + x.case.seed % 3, model.room(x.length))
    if not count:
        raise NotApplicable("there is no room for padding")
    filling = torch.randint(model.vocab, (len(x.tokens), count), generator=x.generator("padding"))
    tokens = torch.cat([filling, x.tokens], dim=1)
    real = (torch.arange(tokens.shape[1]) >= count).expand(tokens.shape)
    return x.but(tokens=tokens, is_real=real), count


@law(
    source=KEPT,
    formula="f([pad, x])[real] = f(x) without position_ids: f([pad, prefix]), then f(rest | cache) = f(prefix + rest)",
    guards="Default positions that are counted by the mask in one pass, and by the length of the cache after it.",
    needs=("padded_step",),
    given=(at_least(length=3),),
    share=0.5,
)
def positions_that_are_left_out_are_counted_beside_a_cache_too(
    model: CausalLMSubject, x: TokenInputs
) -> Iterator[Comparison]:
    """Where a padded prompt needs no positions in one pass, as the model counts them, it needs none with a cache."""
    with positions_left_out(model):
        padded, count = _padded_before(model, x)
        if model.close(model(padded)[:, count:], model(x), x).broken:
            raise NotApplicable("is told the positions behind padding")
        for found in _continued(model, padded, count + min(x.cut, x.length - 2)):
            yield model.close(found[:, count:], model(x), x)


@law(
    source=KEPT,
    formula="f(chunks of [pad, x])[real] = f(x), wherever the chunks end",
    guards="Padding that is remembered of the first chunk alone, and is real in a later one.",
    needs=("padded_step", "cached_chunks"),
    given=(at_least(batch=2, length=6),),
)
def padding_may_end_in_a_later_chunk(model: CausalLMSubject, x: TokenInputs) -> Iterator[Comparison]:
    """Prompts padded on the left and given in chunks have the logits that each has alone, wherever the padding ends."""
    two = x.picked(torch.tensor([0, 1]))
    missing = torch.tensor([x.case.seed % 2, 3 + x.case.seed // 2 % (x.length - 3)])
    real = torch.arange(x.length) >= missing[:, None]
    sizes = [len(part) for part in torch.split(torch.arange(x.length), 2 + x.case.seed // 4 % 2)]
    together = model.in_steps(two.but(is_real=real), sizes)
    for row, there in enumerate(real):
        alone = x.but(tokens=x.tokens[row : row + 1, there])
        yield model.close(together[row : row + 1, there], model(alone), alone, f"logits of row {row}")
