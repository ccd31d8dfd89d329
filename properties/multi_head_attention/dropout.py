"""In training weights are dropped, and the rest is scaled so that the mean stays."""

import torch
from torch import Tensor

from headcheck.comparison import Comparison, NotApplicable, require_gradients, within
from headcheck.given import at_least, having
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.oracle import GIVEN
from headcheck.modules.multi_head.subject import MultiHeadSubject
from headcheck.modules.noise import measured
from headcheck.modules.slopes import direction, held

CALLS, FEW = 400, 8
SIGMAS = 8.0
TO_SEE = 1e-3
"""The share of the output below which what changes may be lost beside it."""


@law(
    source="Srivastava et al. 2014, section 10: what is kept is scaled so that the mean in training is the test's output",
    formula="mean over calls of <f.train()(x), d>, dropout 0.5 = <f.eval()(x), d>, d what the values give to the output",
    guards="What is kept is not divided by the share that is kept, or it is divided twice.",
    needs=("dropout",),
    share=0.25,
)
def dropout_keeps_the_mean(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Over many calls in training the output is, in the mean, that of evaluation."""
    if not attention.trains_without_dropout(x):
        raise NotApplicable("its dropout cannot be turned off in training")
    if not _drops_weights(attention, x):
        raise NotApplicable(
            "keys that are alike give the same in every call: scores are dropped, or nothing is"
        )
    along = _along_what_the_values_give(attention, x)
    at_half = _mean(attention, x, along, 0.5, CALLS)
    if not at_half.broken or not attention.is_made_to_drop(x):
        return at_half
    # What is computed where the module is made, such as a factor, is right at the rates that it was made with.
    return _mean(attention, x, along, None, 2 * CALLS)


@law(
    source="Srivastava et al. 2014, section 5.1: backpropagation for a case is done on its thinned network",
    formula="f drawn with one seed: <df/dx, x d> = (f(x (1 + h d)) - f(x (1 - h d))) / 2h, x = (q, k, v), d random",
    guards="A backward of one's own that takes the weights as they were before dropout for the gradient of the values.",
    needs=("dropout",),
    share=0.25,
)
def gradients_of_a_draw_are_slopes(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """In training with dropout, the gradient of the inputs is the slope of what the same seed draws beside them."""
    require_gradients(attention.declaration.gradients)
    if not attention.trains_without_dropout(x):
        raise NotApplicable("its dropout cannot be turned off in training")
    with attention.training(x):
        undropped = attention(x)
    if attention.close(undropped, attention(x), x).broken:  # As numbers that are rounded in training alone.
        raise NotApplicable("in training it computes something else, dropout apart")
    given = {name: each for name in GIVEN if (each := getattr(x, name)) is not None}
    cotangent = x.random("cotangent", *x.query.shape)
    generator = torch.Generator().manual_seed(x.case.seed)
    steps = {name: direction(each, generator) for name, each in given.items()}
    noise = attention.bound(x)  # In training it would be what is drawn.
    with attention.training(x, 0.5):

        def moved(size: float) -> Tensor:
            there = x.but(**{name: each * (1 + size * steps[name]) for name, each in given.items()})
            torch.default_generator.manual_seed(x.case.seed)
            return (attention(there).nan_to_num() * cotangent).sum()

        if not torch.equal(moved(0), moved(0)):
            raise NotApplicable("two calls with one seed do not draw the same")
        torch.default_generator.manual_seed(x.case.seed)
        found = attention.gradients(x, cotangent)
        parts = torch.stack([(found[name] * each * steps[name]).sum() for name, each in given.items()])
        return held(parts, moved, (noise, cotangent), "gradient of what was drawn")


@law(
    source="Srivastava et al. 2014, section 4.1: dropout thins the network, in which what is hidden stays so",
    formula="f.train() drawn with one seed: d f / d K = d f / d V = 0 where masked",
    guards="Dropout of the scores in place of the weights: a masked score that is dropped is 0, and its key is seen.",
    needs=("dropout",),
    given=(having(mask="none", padding=False), at_least(q_len=2, kv_len=2)),
    share=0.25,
)
def masked_keys_do_not_matter_in_training(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """In training with dropout, at one draw, the output has no gradient with respect to keys that are masked."""
    require_gradients(attention.declaration.gradients)
    if not attention.trains_without_dropout(x):
        raise NotApplicable("its dropout cannot be turned off in training")
    kept, rows = attention.some_keys(x), len(x.query)
    if attention.has("attn_mask"):
        masked = x.masked(kept.expand(rows, 1, x.query.shape[1], -1))
    elif attention.has("key_mask"):
        masked = x.but(is_real=kept.expand(rows, -1))
    else:
        raise NotApplicable("takes no mask")
    with attention.training(masked):
        undropped = attention(masked)
    if attention.close(undropped, attention(masked), masked).broken:
        raise NotApplicable("in training it computes something else, dropout apart")
    cotangent = x.random("cotangent", *x.query.shape)
    if x.key is None or any(each is x.query for each in (x.key, x.value)):
        cotangent[:, ~kept] = 0.0  # There a query is a masked key, too.
    names = ["query" if x.key is None else "key", *(["value"] if x.value is not None else [])]
    with attention.training(masked, 0.5):

        def hidden() -> Tensor:
            torch.manual_seed(x.case.seed)
            found = attention.gradients(masked, cotangent)
            return torch.cat([found[name][:, ~kept] for name in names], dim=-1)

        found = hidden()
        noise = measured(hidden, attention.weights())
        return within(found, torch.zeros_like(found), noise.bound, "gradient of masked keys in training")


def _mean(
    attention: MultiHeadSubject, x: MultiHeadInputs, along: Tensor, rate: float | None, calls: int
) -> Comparison:
    """The mean of so many calls in training, beside evaluation."""
    with attention.training(x, rate):
        torch.default_generator.manual_seed(x.case.seed)
        found = torch.stack([(attention(x).nan_to_num() * along).sum() for _ in range(calls)])
    rounding = attention.bound(x) * float(along.abs().sum())
    sigma = float(found.std()) / calls**0.5
    in_evaluation = (attention(x).nan_to_num() * along).sum()
    return within(
        found.mean(), in_evaluation, SIGMAS * sigma + 2 * rounding, "mean along what the values give"
    )


def _drops_weights(attention: MultiHeadSubject, x: MultiHeadInputs) -> bool:
    """Whether the output is drawn where all keys are one, and all values: not so of weights that sum to one."""
    given = {name: each for name in ("query", "key", "value") if (each := getattr(x, name)) is not None}
    alike = x.but(**{name: each[:, :1].expand_as(each).contiguous() for name, each in given.items()})
    with attention.training(alike, rate=0.5):
        torch.default_generator.manual_seed(x.case.seed)
        first, *others = (attention(alike).nan_to_num() for _ in range(FEW))
    bound = attention.bound(alike)
    return any(within(each, first, bound).broken for each in others)


def _along_what_the_values_give(attention: MultiHeadSubject, x: MultiHeadInputs) -> Tensor:
    """The output but for its bias, by the reference, over its own square: of itself it is one.

    NotApplicable: it is next to nothing, which dropout cannot move.
    """
    exact = attention.exact(x).nan_to_num()
    of_values = exact - x.weights.get("b_o", torch.zeros(()))
    if float(of_values.abs().max()) <= TO_SEE * float(exact.abs().max()):
        raise NotApplicable("the values give next to nothing to the output")
    return of_values / (of_values * of_values).sum()
