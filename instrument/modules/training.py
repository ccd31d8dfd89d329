"""A module in training: with its dropout at 0 it should compute what it computes in evaluation."""

import random
from typing import Any

import torch
from torch import Tensor

from headcheck.calling import SubjectRaised
from headcheck.comparison import NotApplicable
from headcheck.modules.copying import takes_hooks
from headcheck.modules.subject import ModuleInputs, ModuleSubject
from headcheck.modules.weights import BATCH_NORMS, set_dropout

Module = ModuleSubject[ModuleInputs]


def trained_without_dropout(module: Module, x: ModuleInputs) -> tuple[Module, list[Tensor]]:
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


def trained_with_dropout(module: Module) -> Module:
    """The same subject with a fresh module in training, every dropout at a half. NotApplicable: it has no modes."""
    trained = module.unused()
    trained.set_mode(training=True)
    _set_dropout(trained, 0.5)
    return trained


def _set_dropout(trained: Module, rate: float) -> None:
    """Set every rate of dropout. NotApplicable: TorchScript holds one as a constant."""
    assert trained.module is not None
    try:
        set_dropout(trained.module, rate)
    except RuntimeError as constant:
        raise NotApplicable(f"its dropout cannot be set: {constant}") from constant


def in_either_mode(module: Module, x: ModuleInputs) -> Module:
    """In every other case the same subject in training without dropout, where that can be told; else itself."""
    if x.case.seed % 2:
        return module
    try:
        return trained_without_dropout(module, x)[0]
    except NotApplicable:
        return module


def _recorded(module: Module, x: ModuleInputs) -> Tensor:
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
