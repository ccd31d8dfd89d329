"""A model that can be computed in several ways gives one answer: padded, and with a cache."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs

ONE_FUNCTION = "which kernel computes the attention is no part of the model"


@law(
    source=ONE_FUNCTION,
    formula="f_a(tokens, is_real) = f_b(tokens, is_real)",
    guards="A mask that one kernel reads otherwise: boolean and additive, a row of padding that sees nothing.",
    needs=("variants", "left_padding"),
    given=(at_least(batch=2, length=3),),
)
def variants_agree_on_padded_batches(model: CausalLMSubject, x: TokenInputs) -> Iterator[Comparison]:
    """Sequences padded on the left have the same logits by each way of computing."""
    is_real = torch.ones_like(x.tokens, dtype=torch.bool)
    is_real[-1, : x.cut] = False
    padded = x.but(is_real=is_real)
    return model.by_variants(lambda: model(padded)[is_real])


@law(
    source=ONE_FUNCTION,
    formula="f_a(rest | cache) = f_b(rest | cache)",
    guards="is_causal aligned top-left where the cache makes the keys longer; a mask dropped for one query.",
    needs=("variants", "step"),
    given=(at_least(length=2),),
)
def variants_agree_with_a_cache(model: CausalLMSubject, x: TokenInputs) -> Iterator[Comparison]:
    """The rest of a sequence, given with the cache of its beginning, has the same logits by each way of computing."""
    return model.by_variants(lambda: model.in_steps(x, [x.cut, *model.pieces(x.length - x.cut)]))
