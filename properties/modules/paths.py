"""One function in training and in evaluation, in float32 and in float64."""

from collections.abc import Iterator

from headcheck.comparison import Comparison, NotApplicable, holds
from headcheck.laws import law
from headcheck.modules.subject import ModuleInputs, ModuleSubject, problem_of
from headcheck.modules.training import trained_without_dropout
from headcheck.roles import LARGER

Module = ModuleSubject[ModuleInputs]


@law(
    source="Srivastava et al. 2014: dropout alone tells training from evaluation",
    formula="f(x) in training with p = 0 = f(x) in evaluation",
    guards="A mask that training alone applies or that a checkpointed layer drops, statistics of the batch, no adapter.",
    roles=LARGER,
)
def training_without_dropout_gives_evaluation(module: Module, x: ModuleInputs) -> Iterator[Comparison]:
    """With dropout at 0, training gives what evaluation gives, whether gradients are recorded or not."""
    trained, (once, again, recorded) = trained_without_dropout(module, x)
    yield trained.unchanged(again, once, x)
    yield module.close(once, module(x), x, "output in training")
    yield module.close(recorded, module(x), x, "output in training, gradients recorded")


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
