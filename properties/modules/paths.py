"""One function in training and in evaluation, in float32 and in float64."""

from collections.abc import Iterator

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, holds
from headcheck.laws import law
from headcheck.modules.subject import ModuleInputs, ModuleSubject, problem_of
from headcheck.modules.weights import BATCH_NORMS, stop_dropout
from headcheck.roles import LARGER

Module = ModuleSubject[ModuleInputs]


@law(
    source="Srivastava et al. 2014: dropout alone tells training from evaluation",
    formula="f(x) in training with p = 0 = f(x) in evaluation",
    guards="A mask that training alone applies, statistics of the batch, a scale or an adapter that one of them lacks.",
    roles=LARGER,
)
def training_without_dropout_gives_evaluation(module: Module, x: ModuleInputs) -> Iterator[Comparison]:
    """With dropout at 0, training gives what evaluation gives."""
    trained = module.unused()  # What a call in training leaves behind is no other law's concern.
    if trained.module is None:
        raise NotApplicable("it is a function, which has no modes")
    if any(isinstance(each, BATCH_NORMS) for each in trained.module.modules()):
        raise NotApplicable("its norms use the statistics of the batch in training")
    kinds: list[type] = []
    trained.module.register_forward_hook(lambda _, given, returned: kinds.append(type(returned)))
    trained(x)
    usual, kinds[:] = {*kinds}, []
    stop_dropout(trained.module)
    trained.set_mode(training=True)
    try:
        once = trained(x)
        kept = [each.clone() for each in trained.module.buffers()]  # Tables may grow in the first call.
        again = trained(x)
    except SubjectRaised as refusal:
        if not _is_not_made_for_it(refusal.problem):
            raise
        raise NotApplicable(f"is not computed in training: {refusal}") from refusal
    if {*kinds} != usual:  # DeiT has two heads, and gives their mean in evaluation alone.
        raise NotApplicable("it returns something else in training")
    if not all(map(torch.equal, trained.module.buffers(), kept)):
        raise NotApplicable("it keeps statistics in training")
    if not torch.equal(once.nan_to_num(), again.nan_to_num()):
        raise NotApplicable("its dropout does not stand in a number that can be set to 0")
    yield module.unchanged(again, once, x)
    yield module.close(once, module(x), x, "output in training")


def _is_not_made_for_it(problem: BaseException) -> bool:
    """Whether it says so, or torch's compiler does: transformers compile flex_attention for training alone."""
    compiler = type(problem).__module__.startswith("torch._inductor")
    return isinstance(problem, NotImplementedError) or (compiler and "NotImplementedError" in str(problem))


@law(
    source="IEEE 754: float32 has fewer digits and exponents than float64, and holds what modules compute",
    formula="f(x) finite in float64: finite in float32",
    guards="A least number, a fill or a floor below which one divides that is made for one format: zero there, and NaN.",
    roles=LARGER,
    share=0.5,
)
def single_precision_is_finite_too(module: Module, x: ModuleInputs) -> Comparison:
    """A module that is judged in float64 has neither NaN nor infinities in float32.

    It may differ more than by rounding: the eps of a norm may be that of its format (torch.nn.RMSNorm).
    """
    if module.dtypes[0] != "float64":
        raise NotApplicable("it is not judged in float64")
    narrow, given = module.in_float32(), x.in_float32()
    problem = problem_of(narrow, given)
    if problem is not None:
        raise NotApplicable(f"does not compute in float32: {problem}")
    output = narrow(given)
    return holds(output.isfinite() | ~module(x).isfinite(), output, "output in float32")
