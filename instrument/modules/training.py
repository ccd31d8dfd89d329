"""A module in training: with its dropout at 0 it should compute what it computes in evaluation."""

import random
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, require_gradients, within
from headcheck.modules.copying import takes_hooks
from headcheck.modules.noise import measured
from headcheck.modules.subject import AnyInputs, ModuleSubject
from headcheck.modules.weights import BATCH_NORMS, set_dropout

AnySubject = TypeVar("AnySubject", bound=ModuleSubject[Any])


def trained_without_dropout(
    module: ModuleSubject[AnyInputs], x: AnyInputs
) -> tuple[ModuleSubject[AnyInputs], list[Tensor]]:
    """The same subject with a fresh module in training, and three outputs of it: the last with gradients recorded.

    NotApplicable: it cannot be told from dropout, or from statistics that it keeps, what it computes there.
    """
    trained = module.unused()  # What a call in training leaves behind is no other law's concern.
    if trained.module is None:
        raise NotApplicable("it is a function, which has no modes")
    if any(isinstance(each, BATCH_NORMS) for each in trained.module.modules()):
        raise NotApplicable("its norms use the statistics of the batch in training")
    if not takes_hooks(trained.module):
        raise NotApplicable("it is TorchScript, whose answers in training are not watched")
    kinds: list[type] = []
    hook = trained.module.register_forward_hook(lambda _, given, returned: kinds.append(type(returned)))
    trained(x)
    usual, kinds[:] = {*kinds}, []
    _set_dropout(trained, 0.0)
    trained.set_mode(training=True)
    before = _drawn_so_far()
    try:
        once = trained(x)
        kept = [each.clone() for each in trained.module.buffers()]  # Tables may grow in the first call.
        again = trained(x)
        recorded = _recorded(trained, x)
    except SubjectRaised as refusal:
        if not _is_not_made_for_it(refusal.problem):
            raise
        raise NotApplicable(f"is not computed in training: {refusal}") from refusal
    finally:
        hook.remove()
    if {*kinds} != usual:  # DeiT has two heads, and gives their mean in evaluation alone.
        raise NotApplicable("it returns something else in training")
    if not all(map(torch.equal, trained.module.buffers(), kept)):
        raise NotApplicable("it keeps statistics in training")
    if _drawn_so_far() != before or not torch.equal(once.nan_to_num(), again.nan_to_num()):
        raise NotApplicable("its dropout does not stand in a number that can be set to 0")
    return trained, [once, again, recorded]


def _drawn_so_far() -> tuple[object, ...]:
    """Where the generators stand: two draws may be alike, as of a layer that is left out now and then."""
    return torch.get_rng_state().tolist(), random.getstate()


def trained_with_dropout(module: AnySubject) -> AnySubject:
    """The same subject with a fresh module in training, every dropout at a half. NotApplicable: it has no modes."""
    trained = module.unused()
    trained.set_mode(training=True)
    _set_dropout(trained, 0.5)
    return trained


def trained_by_draws(module: AnySubject, x: Any) -> AnySubject:
    """The same subject with a fresh module in training, every dropout at a half, which torch's generator draws alone.

    NotApplicable: nothing is drawn, or something by another generator, or it computes something else in training.
    """
    _, (undropped, *_) = trained_without_dropout(module, x)
    # As numbers that are rounded in training, with a gradient of one.
    if module.close(undropped, module(x), x).broken:
        raise NotApplicable("in training it computes something else, dropout apart")
    trained = trained_with_dropout(module)
    output = drawn(trained, x)
    if torch.equal(output, drawn(trained, x, seed=2)) or not torch.equal(output, drawn(trained, x)):
        raise NotApplicable("in training nothing is drawn, or not with torch's generator alone")
    return trained


def drawn(trained: ModuleSubject[AnyInputs], x: AnyInputs, seed: int = 1) -> Tensor:
    """The output that a seed draws. NotApplicable: it is not computed in training."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        try:
            return trained.output(x)
        except SubjectRaised as refusal:
            raise NotApplicable(f"is not computed in training with dropout: {refusal}") from refusal


def unheard_in_training(
    module: AnySubject, x: AnyInputs, gradient: Callable[[AnySubject], Tensor], what: str
) -> Comparison:
    """In training with dropout, at one draw, a gradient is zero but for rounding: what is hidden has none.

    Two inputs are not compared: what they draw may be laid out by what they hold, as where experts are chosen.
    """
    require_gradients(module.declaration.gradients)
    trained = trained_by_draws(module, x)

    def found() -> Tensor:
        with torch.random.fork_rng([]):
            torch.manual_seed(x.case.seed)
            return gradient(trained)

    hidden = found()
    noise = measured(found, trained.weights())
    return within(hidden, torch.zeros_like(hidden), noise.bound, f"gradient of {what} in training")


def _set_dropout(trained: ModuleSubject[Any], rate: float) -> None:
    """Set every rate of dropout. NotApplicable: TorchScript holds one as a constant."""
    assert trained.module is not None
    try:
        set_dropout(trained.module, rate)
    except RuntimeError as constant:
        raise NotApplicable(f"its dropout cannot be set: {constant}") from constant


def in_either_mode(module: ModuleSubject[AnyInputs], x: AnyInputs) -> ModuleSubject[AnyInputs]:
    """In every other case the same subject in training without dropout, where that can be told; else itself."""
    if x.case.seed % 2:
        return module
    try:
        return trained_without_dropout(module, x)[0]
    except NotApplicable:
        return module


def _recorded(module: ModuleSubject[AnyInputs], x: AnyInputs) -> Tensor:
    """The output of a call whose gradients are recorded, where that is not refused; else without."""
    if module.declaration.gradients is False:
        return module(x)
    try:
        with torch.enable_grad():
            return module.output(x).detach().cpu().clone()
    except NotApplicable:
        return module(x)


def _is_not_made_for_it(problem: Any) -> bool:
    """Whether it says so, or torch's compiler does: transformers compile flex_attention for training alone."""
    compiler = type(problem).__module__.startswith("torch._inductor")
    return isinstance(problem, NotImplementedError) or (compiler and "NotImplementedError" in str(problem))
