"""What a language model writes by its own generate is what its logits say."""

import torch

from headcheck.comparison import Comparison, LawBroken
from headcheck.given import at_least, one_in
from headcheck.laws import law
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs

NEW = 3
"""Tokens that are written."""
OTHERWISE = "(where others are meant, as by a penalty, declare generates=False)"


@law(
    source="greedy decoding: the next token is the one of the largest probability, given all before it",
    formula="y = generate(x, n): f(x, y[:t])[-1] is the largest at y[t], for each t",
    guards="A cache that is given a token twice, positions that begin anew, the logits of another place, a context cut "
    "too short, where each call of the model itself is right.",
    needs=("generate",),
    given=(one_in(2, at_least(length=8)),),
    share=0.5,
)
def each_token_that_is_generated_has_the_largest_logit(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Where nothing is drawn, generate writes behind a prompt the tokens of the largest logits."""
    written = model.generated(x.tokens, NEW)
    if not torch.equal(written[:, : x.length], x.tokens):
        raise LawBroken("generate returned another prompt than it was given")
    whole = x.but(tokens=written[:, :-1])
    logits = model(whole)[:, x.length - 1 :]
    chosen = logits.gather(-1, model.given(written[:, x.length :]).cpu()[..., None])[..., 0]
    return model.close(
        chosen, logits.amax(dim=-1), whole, f"logits of the tokens that are generated {OTHERWISE}"
    )
