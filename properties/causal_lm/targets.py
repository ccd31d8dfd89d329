"""Targets are for the loss: the logits are those of a call without them."""

from functools import partial

from headcheck.comparison import Comparison, within
from headcheck.laws import law
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs


@law(
    source="nanoGPT, model.py: without targets the logits of the last position alone are computed",
    formula="f(tokens)[-1] = f(tokens, targets)[-1]",
    guards="A path for generation that lacks the last norm, a cap or a scale which the path for training has.",
    needs=("targets",),
    share=0.5,
)
def targets_do_not_change_the_logits(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """The logits of the last position are the same with targets and without."""
    calls = [partial(model.last_logits, x, with_targets=each) for each in (False, True)]
    without, given = (call() for call in calls)
    bound = sum(map(model.noise_of, calls))
    return within(without, given, bound, "logits of the last position without targets")
