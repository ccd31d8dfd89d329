"""The weights that are returned are those that made the output."""

from collections.abc import Iterator

import torch

from headcheck.calling import SubjectRaised, kind_of
from headcheck.comparison import (
    Comparison,
    LawBroken,
    NotApplicable,
    holds,
    none,
    require_gradients,
    same,
    within,
)
from headcheck.given import at_least, having, one_of
from headcheck.laws import law
from headcheck.modules.multi_head.bounds import weights_bound
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.oracle import GIVEN, expected_weights
from headcheck.modules.multi_head.subject import MultiHeadSubject
from headcheck.modules.slopes import direction, held

SOFTMAX = "Vaswani et al. 2017, equation (1): the weights are a softmax"


@law(
    source=SOFTMAX,
    formula="P_ij >= 0, sum_j P_ij = 1",
    guards="Weights summed over heads in place of averaged, or of a softmax over another axis.",
    needs=("returned_weights",),
)
def weights_are_a_distribution(attention: MultiHeadSubject, x: MultiHeadInputs) -> Iterator[Comparison]:
    """The returned weights are not negative, and those of each query sum to one."""
    weights = attention.returned_weights(x)
    yield holds(weights >= 0, weights, "weights")
    total = weights.sum(dim=-1)
    bound = (x.keys.shape[1] + x.heads + 8) * 4 * attention.found.unit
    yield within(total, torch.ones_like(total), bound, "sum of the weights")


@law(
    source=SOFTMAX,
    formula="P_ij = 0 where query i may not attend to key j",
    guards="Weights returned as they were before the mask.",
    needs=("returned_weights",),
    given=(one_of("mask", "random", "keys", "causal"), at_least(kv_len=3, q_len=3)),
)
def masked_keys_have_no_weight(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """The returned weight of a key that is masked is zero."""
    weights = attention.returned_weights(x)
    seen = attention.visible(x).expand(-1, x.heads, -1, -1)
    seen = seen if weights.ndim == 4 else seen.any(dim=1)
    return same(torch.where(seen, 0.0, weights), torch.zeros_like(weights), "weight of a masked key")


@law(
    source="Vaswani et al. 2017, section 3.2.2",
    formula="P = softmax(Q K^T / sqrt(d_k)) of each head, or the mean over the heads",
    guards="Weights of the wrong head, axis or call; the last head's given for the mean (fairseq 3365).",
    needs=("returned_weights",),
    share=2.0,
)
def weights_are_those_of_the_heads(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """The returned weights are the reference's, of each head or averaged over the heads."""
    weights = attention.returned_weights(x)
    exact = expected_weights(x, attention.visible(x))
    exact = exact if weights.ndim == 4 else exact.mean(dim=1)
    return within(weights, exact, weights_bound(x, attention.found.unit), "weights")


@law(
    source="torch.nn.MultiheadAttention: average_attn_weights",
    formula="P averaged = mean over the heads of P, and P not averaged = softmax of each head",
    guards="A flag for the weights of each head that a path ignores, the mean repeated (fairseq 3365).",
    needs=("returned_weights", "average"),
)
def averaged_weights_are_the_mean_of_the_heads(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Iterator[Comparison]:
    """The module returns the weights of each head, and, asked for their average, the mean of those."""
    averaged = attention.returned_weights(x, averaged=True)
    each = attention.returned_weights(x, averaged=False)
    bound = weights_bound(x, attention.found.unit)
    yield within(averaged, each.mean(dim=1), bound, "averaged weights")
    yield within(each, expected_weights(x, attention.visible(x)), bound, "weights of each head")


@law(
    source="Srivastava et al. 2014: what is dropped is not what was given; the weights are the softmax",
    formula="P of f.train()(x), dropout 0.5 = P of f.eval()(x)",
    guards="Weights returned after dropout: some zero, the others twice as large (pytorch 42929, fairseq 351).",
    needs=("returned_weights", "dropout", "whole_weights"),
)
def weights_in_training_are_those_before_dropout(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Comparison:
    """In training with dropout, the weights that are returned are those of evaluation: none is dropped or scaled up."""
    with attention.training(x, rate=0.5):
        torch.default_generator.manual_seed(x.case.seed)
        weights = attention.returned_weights(x)
    return within(
        weights, attention.returned_weights(x), 2 * weights_bound(x, attention.found.unit), "weights"
    )


@law(
    source="torch.nn.MultiheadAttention: average_attn_weights, weights averaged across the heads",
    formula="no key for query i in head h: P averaged = (1 / heads) sum over all heads of P",
    guards="A mean over the heads that are not masked, or a mean that leaves out what is zero.",
    needs=("returned_weights", "average", "head_masks", "many_heads"),
    given=(at_least(heads=2), having(mask="by-head", flag=False), one_of("mask_shape", "bhqk", "(bh)qk")),
    share=0.5,
)
def the_average_is_over_all_heads(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Where a query may attend to nothing in one head, averaged weights are the mean over all heads nevertheless."""
    if attention.found.empty_rows == "undefined":
        raise NotApplicable("what a query without keys gives is not defined")
    seen = torch.ones(len(x.query), x.heads, x.query.shape[1], x.keys.shape[1], dtype=torch.bool)
    seen[:, x.case.seed % x.heads, x.case.seed // 7 % seen.shape[2]] = False
    masked = x.masked(seen)
    averaged = attention.returned_weights(masked, averaged=True)
    mean = attention.returned_weights(masked, averaged=False).mean(dim=1)
    return within(averaged, mean, weights_bound(masked, attention.found.unit), "averaged weights")


@law(
    source="an argument speaks of the call that it is given to",
    formula="f(x), f(x, weights), f(x) again: the first and the last return the same",
    guards="Weights that, once asked for, are returned ever after, or averaged as they were the first time.",
    needs=("need_weights",),
    share=0.5,
)
def what_is_asked_for_is_for_its_own_call(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """A call that asks for weights, or for their average, changes nothing of what later calls return."""
    asked: list[dict[str, bool]] = [{"need_weights": False}, {"need_weights": True}]
    if attention.has("average"):
        asked += [{"need_weights": True, "average": each} for each in (True, False)]
    first = {str(each): _form(attention, x, **each) for each in asked}
    for each in asked:
        again = _form(attention, x, **each)
        if again != first[str(each)]:
            raise LawBroken(
                f"returned {again} where the same call returned {first[str(each)]} before another"
            )
    return none("calls that return something else")


def _form(attention: MultiHeadSubject, x: MultiHeadInputs, **asked: bool) -> str:
    """What a call returns, in words: kinds and shapes."""
    with torch.no_grad():
        returned = attention.returned(x, **asked)
    parts = returned if isinstance(returned, tuple | list) else [returned]
    shapes = [str(tuple(each.shape)) if isinstance(each, torch.Tensor) else kind_of(each) for each in parts]
    return f"{type(returned).__name__} of {', '.join(shapes)}"


@law(
    source="the chain rule, through the softmax too: what reads weights, such as a penalty on them, trains by it",
    formula="<dL/dx, x d> = (L(x (1 + h d)) - L(x (1 - h d))) / 2h, L = <a, P> + <b, f(x)>, x = (q, k, v), d random",
    guards="A backward of one's own that takes no notice of what arrives at the weights.",
    needs=("returned_weights",),
    given=(having(mask="none", padding=False),),
    share=0.5,
)
def returned_weights_have_their_gradient(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """The gradient of returned weights that carry one, alone or beside the output's, is what small steps show."""
    require_gradients(attention.declaration.gradients)
    given = {name: each.clone().requires_grad_() for name in GIVEN if (each := getattr(x, name)) is not None}
    parts = _weights_and_output(attention, x.but(**given))
    if parts[0].grad_fn is None:
        raise NotApplicable("the weights that it returns carry no gradient")
    ways = [x.random(f"cotangent {number}", *part.shape) for number, part in enumerate(parts)]
    sent = [way.to(part) for way, part in zip(ways, parts, strict=True)]
    try:
        found = attention.clock.call(
            torch.autograd.grad, parts, [*given.values()], sent, materialize_grads=True
        )
    except SubjectRaised as refusal:
        raise NotApplicable(f"the gradient of the weights is refused: {refusal}") from refusal
    generator = x.generator("direction")
    steps = {name: direction(each.detach(), generator) for name, each in given.items()}
    along = [
        (gradient.cpu().double() * getattr(x, name) * step).sum()
        for gradient, (name, step) in zip(found, steps.items(), strict=True)
    ]

    def moved(size: float) -> torch.Tensor:
        there = x.but(**{name: getattr(x, name) * (1 + size * step) for name, step in steps.items()})
        with torch.no_grad():
            answered = _weights_and_output(attention, there)
        return sum(
            ((each.cpu().double() * way).sum() for each, way in zip(answered, ways, strict=True)),
            torch.zeros(()),
        )

    noise = max(attention.bound(x), weights_bound(x, attention.found.unit))
    every = torch.cat([way.flatten() for way in ways])
    return held(torch.stack(along), moved, (noise, every), "gradient of the weights")


def _weights_and_output(attention: MultiHeadSubject, x: MultiHeadInputs) -> list[torch.Tensor]:
    """The weights that are returned; of every other case the output, too."""
    output, weights = attention.output_and_weights(x)
    return [weights, output] if x.case.seed % 2 else [weights]
