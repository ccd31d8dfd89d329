"""One function by every path: in training or evaluation, with gradients or weights or not, of one tensor or three."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, NotApplicable
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadInputs, as_many_keys_as_queries
from headcheck.modules.multi_head.subject import MultiHeadSubject


@law(
    source="without dropout, training and evaluation compute one function",
    formula="f.train()(x) = f.eval()(x), dropout 0",
    guards="A fast path taken in evaluation only, which differs; a mask or a scale used in one of the modes.",
)
def training_and_evaluation_agree(attention: MultiHeadSubject, x: MultiHeadInputs) -> Iterator[Comparison]:
    """Without dropout the module gives in training what it gives in evaluation, gradients recorded or not."""
    if not attention.trains_without_dropout(x):
        raise NotApplicable("its dropout cannot be turned off in training")
    with attention.training(x):
        trained = attention(x)
        with torch.enable_grad():
            recorded = attention.output(x).detach().cpu()
    expected = attention(x)
    yield attention.close(trained, expected, x, "output in training")
    yield attention.close(recorded, expected, x, "output in training, gradients recorded")


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


@law(
    source="Vaswani et al. 2017, section 3.2.3; Carion et al. 2020 (DETR): query and key are one tensor, value is not",
    formula="f(X, X, V) = f(X, X', V), f(X, Y, Y) = f(X, Y, Y'), f(X, X, X) = f(X, X', X''), X' a copy of X",
    guards="A fused projection taken where query is key, which makes the value of the query too.",
    needs=("separate",),
    given=(as_many_keys_as_queries,),
)
def one_tensor_given_twice_is_no_other_call(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Iterator[Comparison]:
    """A tensor that is query and key, key and value, or all three gives what copies of it give."""
    query, key, value = x.query, x.keys, x.values
    for one in (x.but(key=query, value=value), x.but(key=key, value=key), x.but(key=query, value=query)):
        copied = one.but(key=one.keys.clone(), value=one.values.clone())
        yield attention.close(attention(one), attention(copied), one, "output, one tensor given twice")
