"""One function by every path: training or evaluation, with gradients or without, asked for weights or not."""

import torch

from headcheck.comparison import Comparison, NotApplicable
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.subject import MultiHeadSubject


@law(
    source="without dropout, training and evaluation compute one function",
    formula="f.train()(x) = f.eval()(x), dropout 0",
    guards="A fast path taken in evaluation only, which differs; a mask or a scale used in one of the modes.",
)
def training_and_evaluation_agree(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Without dropout the module gives in training what it gives in evaluation."""
    with attention.training(x):
        torch.default_generator.manual_seed(0)
        first = attention(x)
        torch.default_generator.manual_seed(1)
        again = attention(x)
    if not torch.equal(first, again):
        raise NotApplicable("its dropout cannot be turned off in training")
    return attention.close(first, attention(x), x, "output in training")


@law(
    source="Srivastava et al. 2014, section 10: nothing is dropped at test time",
    formula="f.eval()(x) does not depend on the rate of dropout",
    guards="scaled_dot_product_attention given dropout_p in evaluation too (nanoGPT 240, timm 1978, torchtune 1791).",
    needs=("dropout",),
)
def dropout_does_nothing_in_evaluation(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """In evaluation the rate of dropout does not matter."""
    expected = attention(x)
    with attention.dropping(0.5, x), torch.random.fork_rng([]):
        torch.default_generator.manual_seed(x.case.seed)
        observed = attention(x)
    return attention.close(observed, expected, x, "output, dropout at 0.5")


@law(
    source="recording gradients is no part of the function",
    formula="f(x) with gradients recorded = f(x) without",
    guards="torch's fast path, taken only where no gradient is asked for, and its masks (pytorch PR 190486).",
)
def recording_gradients_changes_nothing(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """The output is the same whether gradients are recorded or not."""
    with torch.enable_grad():
        observed = attention.output(x).detach().cpu()
    return attention.close(observed, attention(x), x, "output, gradients recorded")


@law(
    source="the weights are a by-product of the output",
    formula="f(x, need_weights=True) = f(x, need_weights=False)",
    guards="A causal mask or a padding mask dropped where weights are asked for (keras 23038).",
    needs=("need_weights",),
)
def asking_for_weights_changes_nothing(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """The output is the same whether the weights are asked for or not."""
    asked, unasked = (x.but(case=x.case.but(need_weights=need)) for need in (True, False))
    return attention.close(attention(asked), attention(unasked), x, "output, weights asked for")
