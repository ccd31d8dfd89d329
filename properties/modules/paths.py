"""One function in training and in evaluation, in float32 and in float64."""

from collections.abc import Iterator

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, holds, same
from headcheck.laws import law
from headcheck.modules.subject import ModuleInputs, ModuleSubject, problem_of
from headcheck.modules.weights import BATCH_NORMS, training_without_dropout

LARGER = ("encoder", "decoder", "seq2seq", "causal_lm", "vision")
"""All but a single attention, whose weights come with each case."""

Module = ModuleSubject[ModuleInputs]


@law(
    source="Srivastava et al. 2014: dropout alone tells training from evaluation",
    formula="f(x) in training with p = 0 = f(x) in evaluation",
    guards="A mask that training alone applies, statistics of the batch, a scale or an adapter that one of them lacks.",
    roles=LARGER,
)
def training_without_dropout_gives_evaluation(module: Module, x: ModuleInputs) -> Iterator[Comparison]:
    """With dropout at 0, training gives what evaluation gives."""
    if module.module is None:
        raise NotApplicable("it is a function, which has no training")
    if any(isinstance(each, BATCH_NORMS) for each in module.module.modules()):
        raise NotApplicable("its norms use the statistics of the batch in training")
    try:
        with training_without_dropout(module.module):
            once, again = module(x), module(x)
    except SubjectRaised as refusal:  # As of flex_attention, which transformers compile for training alone.
        if "NotImplementedError" not in str(refusal):
            raise
        raise NotApplicable(f"is not computed in training: {refusal}") from refusal
    if not torch.equal(once.nan_to_num(), again.nan_to_num()):
        raise NotApplicable("its dropout does not stand in a number that can be set to 0")
    yield same(again, once)
    yield module.close(once, module(x), x, "output in training")


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
    x = x.in_float32()
    narrow = module.in_float32()
    problem = problem_of(narrow, x)
    if problem is not None:
        raise NotApplicable(f"does not compute in float32: {problem}")
    output = narrow(x)
    return holds(output.isfinite(), output, "output in float32")
