"""The gradients of a module's weights and of its input, held against what small steps show."""

from collections.abc import Iterator

import torch
from torch import Tensor

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, require_gradients, within
from headcheck.given import one_in
from headcheck.laws import law
from headcheck.modules.slopes import COARSE, numbers_of, slope_of_the_input, slope_of_the_weights
from headcheck.modules.subject import ModuleInputs, ModuleSubject, long
from headcheck.modules.training import drawn, in_either_mode, trained_by_draws, trained_with_dropout
from headcheck.modules.weights import frozen
from headcheck.roles import LARGER


@law(
    source="the gradient is the slope: Nocedal & Wright 2006, section 8.1, central differences",
    formula="<df/dw, w d> = (f(w (1 + h d)) - f(w (1 - h d))) / 2h, d random",
    guards="A backward that computes the layer again without its mask, or a branch that is detached: values stay right.",
    given=(one_in(3, long),),
    roles=("encoder", "decoder", "seq2seq", "causal_lm"),
)
def gradients_of_the_weights_are_slopes(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """The gradient of the weights, along a random direction, is the slope that small steps show, in training too."""
    require_gradients(module.declaration.gradients)
    module = in_either_mode(module, x)
    what = "gradient along a direction of the weights"
    return slope_of_the_weights(module, x, lambda: module.output(x), what)


@law(
    source="the gradient is the slope: Nocedal & Wright 2006, section 8.1, central differences",
    formula="<df/dx, x d> = (f(x (1 + h d)) - f(x (1 - h d))) / 2h, d random",
    guards="A backward of patches, windows or positions that lays its numbers where others stand.",
    share=0.5,
    roles=("encoder", "decoder", "vision"),
)
def gradients_of_the_input_are_slopes(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """The gradient of the input, along a random direction, is the slope that small steps show, in training too."""
    require_gradients(module.declaration.gradients)
    return slope_of_the_input(in_either_mode(module, x), x, "gradient along a direction of the input")


@law(
    source="torch.Tensor.requires_grad: an output wants a gradient if one input at least does",
    formula="w frozen, x_i alone wants a gradient: <df/dx_i, x_i d> = (f(x_i (1 + h d)) - f(x_i (1 - h d))) / 2h",
    guards="A graph that is made only where a weight or the first input wants a gradient: a frozen model passes none on.",
    needs=("module",),
    share=0.25,
    roles=("encoder", "decoder", "vision"),
)
def a_frozen_module_passes_gradients_on(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Iterator[Comparison]:
    """With frozen weights each input alone has the gradient that small steps show."""
    require_gradients(module.declaration.gradients)
    assert module.module is not None
    with frozen(module.module):
        for name in numbers_of(x):
            yield slope_of_the_input(module, x, f"gradient along a direction of {name} alone", of=(name,))


@law(
    source="Srivastava et al. 2014, section 5.1: backpropagation for a case is done on its thinned network",
    formula="f.train()(x) drawn with one seed: df/dw is the same wherever the generator stands by then",
    guards="A checkpointed layer that is computed again with another draw (checkpoint with preserve_rng_state=False).",
    needs=("module",),
    share=0.5,
    roles=LARGER,
)
def the_gradient_is_of_what_was_drawn(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """In training with dropout, the gradient is that of the draw of the forward pass, whatever is drawn after it."""
    require_gradients(module.declaration.gradients)
    trained = trained_with_dropout(module)
    (output, found), (again, later), (other, _) = (
        _of_a_draw(trained, x, *seeds) for seeds in ((1, 2), (1, 3), (4, 5))
    )
    if torch.equal(other, output) or not torch.equal(again, output):
        raise NotApplicable("in training nothing is drawn, or not with torch's generator alone")
    largest = float(found.nan_to_num().abs().max())
    return within(
        later, found, COARSE * largest, "gradient of the weights, more having been drawn before backward"
    )


@law(
    source="Srivastava et al. 2014, section 5.1: backpropagation for a case is done on its thinned network",
    formula="f drawn with one seed: <df/dw, w d> = (f(w (1 + h d)) - f(w (1 - h d))) / 2h, d random",
    guards="A backward of one's own that takes the weights as they were before dropout, or scales them otherwise.",
    needs=("module",),
    share=0.25,
    roles=LARGER,
)
def gradients_of_a_draw_are_slopes(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """In training with dropout, the gradient is the slope of what the same seed draws at other weights."""
    require_gradients(module.declaration.gradients)
    trained = trained_by_draws(module, x)
    return slope_of_the_weights(trained, x, lambda: drawn(trained, x), "gradient of what was drawn")


def _of_a_draw(
    trained: ModuleSubject[ModuleInputs], x: ModuleInputs, seed: int, seed_of_backward: int
) -> tuple[Tensor, Tensor]:
    """The output that a seed draws, and its gradient in all weights, where the generator had another seed by then.

    By backward(): reentrant checkpoints take nothing else.
    """
    with torch.random.fork_rng([]), torch.enable_grad():
        torch.manual_seed(seed)
        try:
            output = trained.output(x)
        except SubjectRaised as refusal:
            raise NotApplicable(f"is not computed in training with dropout: {refusal}") from refusal
        trained.require_a_graph(output)
        weights = [each for each in trained.weights() if each.requires_grad and each.is_floating_point()]
        if not weights:
            raise NotApplicable("no weight of it wants a gradient")
        for each in weights:
            each.grad = None
        torch.manual_seed(seed_of_backward)
        cotangent = torch.randn(output.shape, generator=x.generator("cotangent"), dtype=torch.float64)
        trained.clock.call(output.backward, cotangent.to(output))
    found = [torch.zeros_like(each) if each.grad is None else each.grad.to_dense() for each in weights]
    return output.detach().clone(), torch.cat([each.flatten() for each in found])
