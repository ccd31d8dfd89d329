"""Targets are for the loss: the logits are those of a call without them, the loss is the surprise at each target."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from headcheck.comparison import Comparison, NotApplicable, require_gradients, within
from headcheck.given import at_least
from headcheck.laws import law
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs
from headcheck.modules.losses import last_logits, loss_of, scored, without
from headcheck.modules.noise import scaled
from headcheck.modules.slopes import along, direction, held

LIKELIHOOD = "Radford et al. 2018, equation 1; torch.nn.functional.cross_entropy"
LOSS = "change of the loss (declare as pad_token what it takes for padding, or loss=False where it is another loss)"


@law(
    source="nanoGPT, model.py: without targets the logits of the last position alone are computed",
    formula="f(tokens)[-1] = f(tokens, targets)[-1]",
    guards="A path for generation that lacks the last norm, a cap or a scale which the path for training has.",
    needs=("targets",),
    share=0.5,
)
def targets_do_not_change_the_logits(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """The logits of the last position are the same with targets and without."""
    calls = [partial(last_logits, model, x, with_targets=each) for each in (False, True)]
    without_them, given = (call() for call in calls)
    bound = sum(map(model.noise_of, calls))
    return within(without_them, given, bound, "logits of the last position without targets")


@law(
    source=LIKELIHOOD,
    formula="loss(y, y_t = b) - loss(y, y_t = a) = c (log softmax(f_s)[a] - log softmax(f_s)[b]), one c > 0; "
    "s is t, or t - 1",
    guards="Targets shifted in the wrong direction or twice, positions dropped from the loss, a loss of other logits "
    "than those returned.",
    needs=("targets", "loss"),
    given=(at_least(length=3),),
    share=0.5,
)
def the_loss_grows_with_the_surprise_at_each_target(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Another target at one place changes the loss as it changes the surprise there, in one measure at all places."""
    fitted = _fitted(model, x, _targets(model, x), _places(x))
    return within(fitted.changes, fitted.measure * fitted.surprise, fitted.bound, LOSS)


@law(
    source="torch.nn.functional.cross_entropy: with ignore_index the mean is over the targets that are left",
    formula="of n targets k left out: loss(y, y_t = b) - loss(y, y_t = a) = n / (n - k) times that of all",
    guards="A mean that divides by all targets, or a target that is left out and counted as another token.",
    needs=("targets", "loss"),
    given=(at_least(length=3),),
    share=0.5,
)
def targets_left_out_have_no_part_in_the_mean(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Where the loss is a mean, and some targets are left out, it is the mean over the others."""
    targets, rows, length = _targets(model, x), len(x.tokens), x.length
    left_out = torch.zeros_like(x.tokens, dtype=torch.bool)
    left_out[:, 1 + x.case.seed % (length - 1)] = True
    places = [place for place in _places(x) if not left_out.flatten()[place] and place % length]
    places = places or [1 + (x.case.seed + 1) % (length - 1)]
    whole = _fitted(model, x, targets, _places(x))
    counted = rows * (length - whole.shift)
    if not 0.5 < whole.measure * counted < 1.5:
        raise NotApplicable("the loss is no mean over the targets")
    fewer = _changes(model, x, without(model, x, targets, left_out), places)
    surprise = _surprise(model, x, targets, places, whole.shift)
    share = counted / (counted - rows)
    return within(fewer, share * whole.measure * surprise, share * whole.bound, LOSS)


@law(
    source="the gradient is the slope: Nocedal & Wright 2006, section 8.1; the chain rule: c dL / dw",
    formula="c <dL/dw, w d> = c (L(w (1 + h d)) - L(w (1 - h d))) / 2h, c and d random",
    guards="A fused loss whose gradient is made on the way forward, and not multiplied by what comes back: a share of "
    "the loss, as of accumulated steps, trains like all of it.",
    needs=("targets", "loss"),
    share=0.25,
)
def the_gradient_of_a_multiple_of_the_loss_is_its_slope(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Of a multiple of the loss the gradient, along a random direction of the weights, is what small steps show."""
    return _slope(model, x, _targets(model, x), "gradient of a multiple of the loss")


@law(
    source="torch.nn.functional.cross_entropy: a target of ignore_index does not contribute to the gradient",
    formula="of n targets k left out: c <dL/dw, w d> = c (L(w (1 + h d)) - L(w (1 - h d))) / 2h, c and d random",
    guards="A fused loss that leaves a target out of the sum, and not out of the gradient, made on the way forward.",
    needs=("targets", "loss"),
    given=(at_least(length=3),),
    share=0.25,
)
def targets_left_out_have_no_part_in_the_gradient(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Where some targets are left out, the gradient of a multiple of the loss is what small steps show."""
    drawn = torch.rand(x.tokens.shape, generator=x.generator("left out")) < 0.5
    drawn[:, x.case.seed % x.length] = True
    drawn[:, (x.case.seed + 1) % x.length] = False
    targets, padding = _targets(model, x), model.pad if x.case.seed % 2 else None
    if padding is not None:  # The gradient is the slope, whether the loss leaves padding out or not.
        return _slope(model, x, targets.masked_fill(drawn, padding), "gradient of the loss beside padding")
    return _slope(model, x, without(model, x, targets, drawn), "gradient of the loss of some targets")


def _slope(model: CausalLMSubject, x: TokenInputs, targets: Tensor, what: str) -> Comparison:
    """The gradient of a multiple of the loss along a random direction of the weights, against what small steps show."""
    require_gradients(model.declaration.gradients)
    generator = x.generator("direction")
    weights = [each for each in model.weights() if each.requires_grad and each.is_floating_point()]
    loss = loss_of(model, x, targets)
    model.require_a_graph(loss)
    factor = 0.25 + torch.rand((), generator=generator, dtype=torch.float64)
    steps = [direction(each, generator) for each in weights]
    parts = along(model, loss, factor, weights, steps)

    def moved(size: float) -> Tensor:
        with scaled(weights, [1 + size * step for step in steps]):
            return factor * scored(model, x, targets).loss

    noise = model.noise_of(lambda: scored(model, x, targets).loss)
    return held(parts, moved, (noise, factor), what)


@dataclass(frozen=True, eq=False)
class _Fitted:
    """How the loss follows the surprise at places (places,), each with another target in turn."""

    shift: int
    """How far before a target the logits stand whose target it is: at the same place, or one before."""
    measure: float
    """The change of the loss for a change of the surprise by 1."""
    changes: Tensor
    surprise: Tensor
    bound: float
    """The largest difference of `changes` and `measure` times `surprise` that rounding explains."""


def _fitted(model: CausalLMSubject, x: TokenInputs, targets: Tensor, places: list[int]) -> _Fitted:
    """By the shift that explains more."""
    changes = _changes(model, x, targets, places)
    noise = model.noise_of(lambda: scored(model, x, targets).loss)
    unsure = model.noise_of(lambda: scored(model, x, targets).surprise)

    def by(shift: int) -> _Fitted:
        surprise = _surprise(model, x, targets, places, shift)
        size = float(surprise @ surprise)
        if size <= unsure:
            raise NotApplicable("one target is as likely as another")
        slope = float(changes @ surprise) / size
        measure = slope if slope > 0 else 1 / x.tokens.numel()
        return _Fitted(shift, measure, changes, surprise, 8 * (noise + measure * unsure))

    return min(by(0), by(1), key=lambda each: float((changes - each.measure * each.surprise).abs().max()))


def _targets(model: CausalLMSubject, x: TokenInputs) -> Tensor:
    """Tokens (batch, length) that have nothing to do with those that are read, as the module takes them."""
    return model.given(torch.randint(model.vocab, x.tokens.shape, generator=x.generator("targets"))).cpu()


def _places(x: TokenInputs) -> list[int]:
    """The first and the last one of the batch, row by row, and two between."""
    last = x.tokens.numel() - 1
    between = torch.randperm(last - 1, generator=x.generator("places"))[:2] + 1
    return [0, last, *between.tolist()]


def _others(model: CausalLMSubject, x: TokenInputs) -> Tensor:
    """Of each place the target that it is given in turn."""
    return model.given(torch.randint(model.vocab, x.tokens.shape, generator=x.generator("others")))


def _changes(model: CausalLMSubject, x: TokenInputs, targets: Tensor, places: list[int]) -> Tensor:
    """Of the loss (places,), where the target at one place alone is another one."""
    others = _others(model, x).flatten()
    losses = []
    for place in places:
        changed = targets.flatten().clone()
        changed[place] = others[place]
        losses.append(scored(model, x, changed.view_as(targets)).loss)
    return torch.stack(losses) - scored(model, x, targets).loss


def _surprise(
    model: CausalLMSubject, x: TokenInputs, targets: Tensor, places: list[int], shift: int
) -> Tensor:
    """By how much that other target is more of a surprise (places,); 0 where no logits stand before it."""
    each = scored(model, x, targets).surprise.roll(shift, dims=1)
    gained = [each.gather(2, tokens.cpu()[..., None])[..., 0] for tokens in (_others(model, x), targets)]
    change = gained[0] - gained[1]
    change[:, :shift] = 0.0
    return change.flatten()[places]
