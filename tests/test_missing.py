"""No gradient and no number that is missing is passed over."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headcheck.declarations import Attention
from headcheck.engine import Profile
from headcheck.laws import all_laws, choose, law_named
from headcheck.reference.canonical import canonical_attention
from tests.engines import GRADIENTS, engine_of


def detaching(*names: str) -> Callable[..., Any]:
    """Attention whose output does not depend on these inputs for autograd."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Any:
        given = {"query": query, "key": key, "value": value}
        return canonical_attention(**{n: x.detach() if n in names else x for n, x in given.items()})

    return attention


@pytest.mark.parametrize("declared", [None, True])
@pytest.mark.parametrize("missing", ["query", "key", "value"])
def test_a_gradient_that_is_missing_for_one_input_is_a_break(missing: str, declared: bool | None) -> None:
    """Gradients for some inputs and none for another, declared or not."""
    row = engine_of(Attention(detaching(missing), gradients=declared)).judge(all_laws()[GRADIENTS])
    assert (row.outcome, row.reason) == ("breaks", f"the output carries a gradient, but none for {missing}")


@pytest.mark.parametrize(
    "law", ["state/inference-mode-leaves-nothing", "state/an-input-changed-before-backward"]
)
@pytest.mark.parametrize("missing", ["query", "key", "value"])
def test_no_law_of_gradients_passes_over_one_that_is_missing(missing: str, law: str) -> None:
    """Whichever of the three it asks for."""
    (each,) = choose("attention", [f"attention/{law}"])
    row = engine_of(Attention(detaching(missing)), Profile("some", seeded=20, drawn=0, shrinks=0)).judge(each)
    assert row.outcome == "breaks"


class ForgetsTheQuery(torch.autograd.Function):
    """Attention whose query has its gradient the first time only."""

    @staticmethod
    def forward(ctx: Any, query: Tensor) -> Tensor:
        ctx.asked = 0
        return query.clone()

    @staticmethod
    def backward(ctx: Any, *sent: Tensor) -> Tensor:
        ctx.asked += 1
        return sent[0] if ctx.asked == 1 else torch.zeros_like(sent[0])


def test_the_second_gradient_of_the_query_is_looked_at() -> None:
    """As those of key and value are."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return canonical_attention(ForgetsTheQuery.apply(query), key, value)

    law = all_laws()["attention/gradients/a-second-backward-gives-the-same"]
    row = engine_of(Attention(attention)).judge(law)
    assert row.outcome == "breaks"
    assert row.reason.startswith("gradient of query[0, 0, 0, 0], the second time is")


def test_a_rate_of_zero_that_is_said_is_another_call_than_none() -> None:
    """Where the default is no dropout at all, zero may be taken for something else."""

    def attention(query: Tensor, key: Tensor, value: Tensor, dropout_p: float | None = None) -> Tensor:
        rate = 0.0 if dropout_p is None else dropout_p or 0.5
        return functional.scaled_dot_product_attention(query, key, value, dropout_p=rate)

    row = engine_of(Attention(attention)).judge(law_named("attention/dropout/a-rate-of-zero-drops-nothing"))
    assert row.outcome == "breaks"


def test_rows_without_keys_that_are_declared_to_give_the_mean_may_have_any_log_sum_exp() -> None:
    """It is that of scores that were filled in."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
        return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1)

    mean = Attention(attention, masks=("boolean",), returns=("output", "log_sum_exp"), empty_rows="mean")
    each = law_named("attention/features/log-sum-exp-is-within-the-bound")
    profile = Profile("some", seeded=60, drawn=0)
    assert engine_of(mean, profile).judge(each).outcome == "holds"
    assert engine_of(mean.but(empty_rows=None), profile).judge(each).outcome == "holds"
    assert engine_of(mean.but(empty_rows="zeros"), profile).judge(each).outcome == "breaks"


def test_no_gradient_at_all_is_not_applicable_unless_declared() -> None:
    """Without a backward the gradient laws do not apply; a subject that declares gradients breaks them."""
    function = detaching("query", "key", "value")
    undeclared = engine_of(Attention(function)).judge(all_laws()[GRADIENTS])
    assert (undeclared.outcome, undeclared.reason) == ("not-applicable", "the output carries no gradient")
    declared = engine_of(Attention(function, gradients=True)).judge(all_laws()[GRADIENTS])
    assert (declared.outcome, declared.reason) == (
        "breaks",
        "the output carries no gradient, and gradients are declared",
    )
    ruled_out = engine_of(Attention(function, gradients=False)).judge(all_laws()[GRADIENTS])
    assert (ruled_out.outcome, ruled_out.reason) == ("not-applicable", "has no gradients, as declared")
